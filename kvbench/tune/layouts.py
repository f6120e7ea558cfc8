"""What runs of adjacent blocks would change: the length from which merged copies, which take no SM, are the fastest."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kvbench.analysis.compare import Visits, compare_visits
from kvbench.analysis.margins import IN_TURN
from kvbench.cells.axes import Direction
from kvbench.cells.backend_facts import MERGED
from kvbench.results import Run
from kvbench.results.frame import unqueued
from kvbench.tune.fit import typical
from kvbench.units import gigabytes_per_second

_IN_RUNS: Final = re.compile(r"runs-(\d+)")
_ENOUGH: Final = 2 / 3


@dataclass
class _Contest:
    """The times of merged copies and of other ways, for the swaps of one shape in runs of one length."""

    swap_bytes: int
    merged: Visits = field(default_factory=dict)
    others: list[Visits] = field(default_factory=list)

    @property
    def won(self) -> bool:
        """Whether merged copies are the fastest beyond doubt."""
        rival = min(self.others, key=lambda visits: typical(visits.values()))
        return compare_visits(self.merged, rival, IN_TURN).low > 1

    @property
    def gbps(self) -> float:
        return gigabytes_per_second(self.swap_bytes, typical(self.merged.values()))


@dataclass(frozen=True, slots=True)
class RunLength:
    """Runs of `blocks` blocks, and the GB/s of merged copies at the shapes where they are the fastest."""

    blocks: int
    gbps: Sequence[float]

    def to_plain(self) -> dict[str, Any]:
        """Return the length as JSON-compatible data."""
        return {"from_blocks": self.blocks, "gbps": [round(end(self.gbps), 3) for end in (min, max)]}


def shortest_runs(runs: Sequence[Run], directions: Iterable[Direction]) -> dict[Direction, RunLength]:
    """Return the shortest runs in which merged copies are the choice, where there are such, by direction.

    There, they are the fastest beyond doubt in two thirds of the measured shapes on an idle stream.
    """
    shortest: dict[Direction, RunLength] = {}
    every = _by_length(runs)
    for direction in directions:
        lengths = every.get(direction, {})
        won = {length: [one for one in contests if one.won] for length, contests in sorted(lengths.items())}
        enough = [length for length, ours in won.items() if len(ours) >= _ENOUGH * len(lengths[length])]
        if enough:
            shortest[direction] = RunLength(enough[0], [one.gbps for one in won[enough[0]]])
    return shortest


def _by_length(runs: Sequence[Run]) -> dict[str, dict[int, list[_Contest]]]:
    """Return the contests on an idle stream by direction, then by the length of runs."""
    contests: dict[tuple[str, int, int, int, int], _Contest] = {}
    for number, run in enumerate(runs):
        frame = run.frame()
        frame = unqueued(frame[frame["pattern"].str.startswith("runs-") & (frame["status"] == "ok")])
        cells = frame[frame["stream_state"] == "idle"]
        alike = cells[["host_pattern", "device_pattern", "sizes"]].isna().all(axis="columns")
        visits = {} if cells.empty else run.visit_times()
        for row in cells[alike].to_dict("records"):
            match = _IN_RUNS.fullmatch(str(row["pattern"]))
            if match is None or row["cell_id"] not in visits:
                continue
            key = str(row["direction"]), int(match[1]), int(row["block_bytes"]), int(row["blocks"]), number
            contest = contests.setdefault(key, _Contest(int(row["swap_bytes"])))
            if row["backend"] == MERGED:
                contest.merged = visits[row["cell_id"]]
            else:
                contest.others.append(visits[row["cell_id"]])
    lengths: dict[str, dict[int, list[_Contest]]] = {}
    for (direction, length, *_), contest in contests.items():
        if contest.merged and contest.others:
            lengths.setdefault(direction, {}).setdefault(length, []).append(contest)
    return lengths
