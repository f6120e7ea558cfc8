"""The crossover map (T6): the time of batched copies over that of a kernel, by block size and number of blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from kvbench.analysis.curves import leaders
from kvbench.analysis.intervals import Quartiles
from kvbench.report.contest import BATCHED, Arm, Contest, Contests, Shape

MIN_CELLS: Final = 4
_AXES: Final = ("block_bytes", "blocks")
_SHOWN: Final = ("sms", "samples", "swap_us_q1", "swap_us_median", "swap_us_q3", "cell_id")


@dataclass(frozen=True, slots=True)
class Ratio:
    """One time over another; `decided` where their quartiles lie apart."""

    value: float
    decided: bool


@dataclass(frozen=True, slots=True)
class RatioMap:
    """One panel: batched on a stream in a contest's state against a kernel, by block bytes and number of blocks."""

    contest: Contest
    kernel: Arm
    cells: Mapping[Shape, Ratio]

    @property
    def title(self) -> str:
        return f"{self.contest.direction}, {self.contest.state} stream: batched / {self.kernel.backend}"

    @property
    def points(self) -> pd.DataFrame:
        """A row per cell with both times and the ratio, for the file behind the chart."""
        batched, kernel = (_measured(arm) for arm in (self.contest.arms[0], self.kernel))
        own = batched[["device", "direction", "block_size", *_AXES, *_SHOWN[1:]]]
        rows = own.merge(kernel[[*_AXES, *_SHOWN]], on=list(_AXES), suffixes=("_batched", "_kernel"))
        found = self.cells
        rows = rows[[shape in found for shape in zip(rows["block_bytes"], rows["blocks"], strict=True)]]
        ratios = [found[int(size), int(n)] for size, n in zip(rows["block_bytes"], rows["blocks"], strict=True)]
        rows.insert(1, "kernel", self.kernel.backend)
        rows.insert(3, "stream_state", self.contest.state)
        return rows.assign(
            ratio=[ratio.value for ratio in ratios], decided=[ratio.decided for ratio in ratios]
        ).sort_values(list(_AXES))


def ratio_maps(found: Contests) -> dict[str, Sequence[RatioMap]] | str:
    """Return the maps of every kernel, one per direction and state of batched; or why there are none."""
    maps: dict[str, list[RatioMap]] = {}
    for contest in found.contests:
        for arm in contest.arms[1:]:
            cells = _ratios(contest.arms[0].times, arm.times)
            if arm.is_kernel and _is_map(cells):
                maps.setdefault(arm.backend, []).append(RatioMap(contest, arm, cells))
    if not maps:
        return f"it needs {BATCHED} and a kernel backend measured at {MIN_CELLS} cells, two sizes and two N at least"
    return dict(sorted(maps.items()))


def _ratios(ours: Mapping[Shape, Quartiles], theirs: Mapping[Shape, Quartiles]) -> Mapping[Shape, Ratio]:
    return {shape: time_ratio(ours[shape], theirs[shape]) for shape in sorted(ours.keys() & theirs.keys())}


def _is_map(cells: Mapping[Shape, Ratio]) -> bool:
    return len(cells) >= MIN_CELLS and all(len({shape[axis] for shape in cells}) > 1 for axis in (0, 1))


def time_ratio(first: Quartiles, second: Quartiles) -> Ratio:
    """Return the first time over the second, decided where their quartiles lie apart."""
    decided = len(leaders({"first": first, "second": second})) == 1
    return Ratio(first.median / second.median, decided)


def _measured(arm: Arm) -> pd.DataFrame:
    return arm.cells[arm.cells["status"] == "ok"]
