"""The crossover map: the time of batched copies over that of a kernel, by block size and number of blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from kvbench.analysis.intervals import Quartiles
from kvbench.report.charts.plot import MapPanel, MapPlot, MapTile
from kvbench.report.contests import (
    BATCHED,
    Arm,
    BackendContest,
    BackendContests,
    Shape,
    TimeRatio,
    backend_contests,
    time_ratio,
)
from kvbench.report.model import Chart, Part, Section
from kvbench.report.numbers import bytes_size, count, figure
from kvbench.report.select import DIRECTIONS
from kvbench.report.tables import INCLUDES, chart_words
from kvbench.report.view import View, sample_words
from kvbench.text import short

MIN_CELLS: Final = 4
_AXES: Final = ("block_bytes", "blocks")
_SHOWN: Final = ("sms", "samples", "swap_us_q1", "swap_us_median", "swap_us_q3", "cell_id")


@dataclass(frozen=True, slots=True)
class RatioMap:
    """Batched on a stream in a contest's state against a kernel."""

    contest: BackendContest
    kernel: Arm
    ratios: Mapping[Shape, TimeRatio]

    @property
    def panel(self) -> MapPanel:
        title = f"{self.contest.direction}, {self.contest.state} stream: {BATCHED} / {self.kernel.backend}"
        return MapPanel(title, {shape: self._tile(shape, ratio) for shape, ratio in self.ratios.items()})

    def _tile(self, shape: Shape, ratio: TimeRatio) -> MapTile:
        size, blocks = shape
        arms = (self.contest.arms[0], self.kernel)
        said = "; ".join(f"{arm.backend} {_words(arm.times[shape])}" for arm in arms)
        verdict = "" if ratio.decided else "; undecided: the quartiles overlap"
        return MapTile(ratio.value, ratio.decided, f"{count(blocks)} blocks of {bytes_size(size)}: {said}{verdict}")

    @property
    def points(self) -> pd.DataFrame:
        """A row per cell with both times and the ratio, for the file behind the chart."""
        batched, kernel = (arm.cells[arm.cells["status"] == "ok"] for arm in (self.contest.arms[0], self.kernel))
        own = batched[["device", "direction", "block_size", *_AXES, *_SHOWN[1:]]]
        rows = own.merge(kernel[[*_AXES, *_SHOWN]], on=list(_AXES), suffixes=("_batched", "_kernel"))
        found = [self.ratios.get((int(size), int(n))) for size, n in rows[list(_AXES)].itertuples(index=False)]
        rows.insert(1, "kernel", self.kernel.backend)
        rows.insert(3, "stream_state", self.contest.state)
        rows = rows[[ratio is not None for ratio in found]]
        known = [ratio for ratio in found if ratio]
        return rows.assign(
            ratio=[ratio.value for ratio in known], decided=[ratio.decided for ratio in known]
        ).sort_values(list(_AXES))


def make(view: View) -> Part | str:
    found = backend_contests(view)
    maps = _maps(found)
    if not maps:
        return f"it needs {BATCHED} and a kernel backend measured at {MIN_CELLS} cells, two sizes and two N at least"
    return Part(charts=[_chart(view, kernel, maps[kernel], found) for kernel in sorted(maps)])


SECTION = Section("crossover-map", "Crossover map: time of batched copies over time of a kernel", make)


def _maps(found: BackendContests) -> dict[str, list[RatioMap]]:
    """Return the maps of every kernel, one per direction and state of batched."""
    maps: dict[str, list[RatioMap]] = {}
    for contest in found.contests:
        first = contest.arms[0].times
        for arm in contest.arms[1:]:
            shapes = sorted(first.keys() & arm.times.keys())
            ratios = {shape: time_ratio(first[shape], arm.times[shape]) for shape in shapes}
            if arm.is_kernel and _is_map(ratios):
                maps.setdefault(arm.backend, []).append(RatioMap(contest, arm, ratios))
    return maps


def _is_map(cells: Mapping[Shape, TimeRatio]) -> bool:
    return len(cells) >= MIN_CELLS and all(len({shape[axis] for shape in cells}) > 1 for axis in (0, 1))


def _chart(view: View, kernel: str, maps: Sequence[RatioMap], found: BackendContests) -> Chart:
    points = pd.concat([one.points for one in maps])
    cells = pd.concat([arm.cells for one in maps for arm in (one.contest.arms[0], one.kernel)])
    measured = cells[cells["status"] == "ok"]
    footer = [
        *(INCLUDES[state].replace("GB/s", "Time", 1) for state in sorted(set(points["stream_state"]), reverse=True)),
        f"{found.pinned.words(measured)}; reproduced by {short(view.command, 300)}",
    ]
    title = f"Time of {BATCHED} copies over time of {kernel}, by block size and number of blocks"
    words = chart_words(view, title, f"{sample_words(measured)} · medians", footer)
    rows = [[one.panel for one in maps if one.contest.direction == way] for way in DIRECTIONS]
    return Chart(f"crossover-map-{kernel}-{view.label}", words, MapPlot([row for row in rows if row]), points)


def _words(time: Quartiles) -> str:
    return f"{figure(time.median)} us ({figure(time.low)} to {figure(time.high)})"
