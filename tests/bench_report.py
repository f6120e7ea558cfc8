"""What an answer and a report cost: `make bench`.

The CPU time of `kvbench show` on a committed run, and of `kvbench report` on the committed runs of a GPU, on many small
runs and on a large one, whose times come from a formula; in seconds, and as a multiple of the CPU time of
`import pandas`, which a busy machine changes little.
"""

import resource
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Final

from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import Cell
from tests import synthetic
from tests.docs.figures import RUNS

KVBENCH: Final = (sys.executable, "-m", "kvbench")
COMMITTED: Final = sorted(RUNS.glob("*"))
SIZES: Final = [int(kib * 1024) for kib in (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 48, 64, 96, 128, 192, 256)]
COUNTS: Final = (16, 64, 256, 1_024, 4_096, 10_000, 100_000)


def cells(count: int) -> list[Cell]:
    """Return cells of most sections, and ever more SM counts of the kernels."""
    shapes = [*product(Direction, COUNTS, SIZES)]
    every = synthetic.order_cells()
    every += [Cell("batched", *shape, state) for shape in shapes for state in StreamState]
    every += [Cell(name, *shape, sms=sms) for sms in range(1, 25) for name in ("triton", "sm") for shape in shapes]
    assert len(every) >= count
    return every[:count]


def write(path: Path, count: int, rounds: int, samples: int) -> Path:
    """Write a run of `count` cells, each visited `rounds` times for `samples` samples."""
    visits = (one for number in range(rounds) for one in synthetic.visits(cells(count), count=samples, round_=number))
    return synthetic.write_run(path, [*synthetic.ceilings(), *visits])


def cpu_s(*command: str | Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def pandas_s() -> float:
    return min(cpu_s(sys.executable, "-c", "import pandas") for _ in range(3))


def main() -> None:
    engine = next(run for run in COMMITTED if run.name == "engine")
    unit_s, took_s = pandas_s(), min(cpu_s(*KVBENCH, "show", engine) for _ in range(5))
    print(f"kvbench show: {took_s:.1f} s of CPU, {took_s / unit_s:.1f} times import pandas", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = [write(folder / f"small-{number}", 8, 6, 7) for number in range(1000)]
        subjects = {
            f"{len(COMMITTED)} committed runs": COMMITTED,
            "1 000 runs of 8 cells": small,
            "a run of 10 000 cells": [write(folder / "large", 10_000, 4, 7)],
        }
        for subject, runs in subjects.items():
            unit_s, took_s = pandas_s(), cpu_s(*KVBENCH, "report", *runs, "-o", folder / "report")
            print(f"{subject}: {took_s:.1f} s of CPU, {took_s / unit_s:.0f} times import pandas", flush=True)


if __name__ == "__main__":
    main()
