"""How long a report of a large run takes: `python -m tests.bench_report [CELLS [ROUNDS [SAMPLES]]]`.

Writes a run of that many cells with raw samples, whose times come from a formula, and times `kvbench report` on it.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Final

from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import Cell
from tests import synthetic

SIZES: Final = [int(kib * 1024) for kib in (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 48, 64, 96, 128, 192, 256)]
COUNTS: Final = (16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 10_000, 20_000, 50_000, 100_000, 200_000)
SMS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 64)


def cells() -> Iterator[Cell]:
    """Yield the cells of every section first, then ever more SM counts of the kernels."""
    yield from synthetic.order_cells()
    for way, blocks, size, state in product(Direction, COUNTS, SIZES, StreamState):
        yield Cell("batched", way, blocks, size, state, order=synthetic.default_order(way), coalesce=False)
        yield Cell("per_block", way, blocks, size, state)
    for sms, way, blocks, size, backend in product(SMS, Direction, COUNTS, SIZES, ("triton", "sm")):
        yield Cell(backend, way, blocks, size, StreamState.IDLE, sms=sms)


def write(path: Path, count: int, rounds: int, samples: int) -> Path:
    """Write a run of `count` cells, each visited `rounds` times for `samples` samples."""
    chosen = list(islice(dict.fromkeys(cells()), count))
    assert len(chosen) == count, f"there are only {len(chosen)} different cells"
    records = (
        visit
        for number in range(rounds)
        for cell in chosen
        for visit in synthetic.visits([cell], count=samples, round_=number)
    )
    return synthetic.write_run(path, [*synthetic.ceilings(), *records])


def main(count: int = 10_000, rounds: int = 4, samples: int = 7) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = write(Path(folder) / "run", count, rounds, samples)
        command = [sys.executable, "-c", "from kvbench.cli.main import main; main()", "report", str(run)]
        begun = time.perf_counter()
        subprocess.run(command, check=True)
        took_s = time.perf_counter() - begun
        print(f"{count} cells, {count * rounds * samples} samples: {took_s:.1f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
