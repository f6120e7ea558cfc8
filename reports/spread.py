"""Measures the spread between runs of one build, and keeps it in configs/between_runs.json.

`python -m reports.spread measure DIR` starts the config spread six times into DIR/1 to DIR/6, then keeps their spread.
`python -m reports.spread RUN RUN...` keeps that of runs that are there. The spread replaces that of the same card.
"""

import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from kvbench.ground.errors import KvbenchError, UsageError
from kvbench.ground.files import shipped_folder, write_whole
from kvbench.results import Run, load_run
from kvbench.results.between_runs import FILE, CardSpread, kind_of, measured_spreads

STARTS: Final = 6
CONFIG: Final = "spread"
# Of all differences between two starts, the spread covers this share.
SHARE: Final = 0.95


def measure(folder: Path) -> list[Path]:
    """Start the config several times, each start in processes of its own; raises UsageError if one fails."""
    runs = [folder / str(number) for number in range(1, STARTS + 1)]
    for run in runs:
        command = [sys.executable, "-m", "kvbench", "sweep", CONFIG, "--out", str(run)]
        if subprocess.run(command, check=False).returncode:
            raise UsageError(f"{run}: a start failed; a spread needs {STARTS} whole runs")
    return runs


def spread_by_kind(starts: Sequence[Mapping[str, float]], kinds: Mapping[str, str]) -> dict[str, float]:
    """Return the spread of each kind; `starts` has cell -> time for each start, `kinds` cell -> kind."""
    differences: dict[str, list[float]] = {}
    for one, other in combinations(starts, 2):
        for cell in one.keys() & other.keys():
            differences.setdefault(kinds[cell], []).append(abs(math.log(one[cell] / other[cell])))
    return {kind: math.expm1(float(np.quantile(values, SHARE))) for kind, values in sorted(differences.items())}


def spread_of(runs: Sequence[Run]) -> tuple[str, CardSpread]:
    """Return the card of `runs` and its spread; raises UsageError for runs that cannot be compared."""
    machines = {(str(run.info.device.get("title")), run.info.identity_hash) for run in runs}
    if len(runs) < 2 or len(machines) > 1:
        raise UsageError(f"a spread needs two or more runs of one build on one machine, not {len(runs)} of {machines}")
    frames = [run.table.query("status == 'ok'").set_index("cell_id") for run in runs]
    kinds = {
        cell: kind_of(str(backend), int(swap_bytes))
        for frame in frames
        for cell, backend, swap_bytes in zip(frame.index, frame["backend"], frame["swap_bytes"], strict=True)
    }
    spread = spread_by_kind([dict(zip(frame.index, frame["swap_us_median"], strict=True)) for frame in frames], kinds)
    info = runs[0].info
    made = CardSpread(
        driver=str(info.identity.get("driver_version")),
        made=info.created[:10],
        starts=len(runs),
        cells=len(kinds),
        spread={kind: round(fraction, 3) for kind, fraction in spread.items()},
    )
    return machines.pop()[0], made


def main(arguments: Sequence[str]) -> int:
    try:
        paths = measure(Path(arguments[1])) if arguments[:1] == ["measure"] else list(map(Path, arguments))
        card, made = spread_of([load_run(path) for path in paths])
    except KvbenchError as error:
        print(error, file=sys.stderr)
        return 1
    file = shipped_folder() / FILE
    spreads = {**measured_spreads(), card: made}
    text = msgspec.json.format(msgspec.json.encode(dict(sorted(spreads.items()))), indent=2)
    write_whole(file, text + b"\n")
    print(f"{file}: {card}, {made.starts} starts, {made.cells} cells")
    for kind, fraction in made.spread.items():
        print(f"  {fraction:6.1%}  {kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
