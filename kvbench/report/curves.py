"""Curves of a run (GB/s over block sizes or SM counts, submission times over queued swaps) and charts of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import pandas as pd

from kvbench.analysis.curves import Cliff, find_cliff, knee
from kvbench.analysis.margins import CLIFF as CLIFF_MARGIN
from kvbench.report.charts.plot import LinePlot, PlotAxis, PlotLine, PlotMark, PlotPanel, PlotRoof
from kvbench.report.model import Chart
from kvbench.report.numbers import TIMES, bytes_size, noun, two_digits
from kvbench.report.select import DIRECTIONS, SERIES, STATES, Pinned, fullest, pin, where
from kvbench.report.tables import chart_words, includes, with_sms
from kvbench.report.view import View, ceiling_of, sample_words

MIN_SIZES: Final = 4
MIN_COUNTS: Final = 3
# More rows of panels than these take longer to draw than to read: the tables have them all.
MOST_ROWS: Final = 4
GBPS: Final = PlotAxis("GB/s", "figure", "linear")
_RATES: Final = ("gbps", "gbps_q1", "gbps_q3")
POINT_COLUMNS: Final = (
    "device", "backend", "direction", "stream_state", "blocks", "block_size", "block_bytes", "sms", "gbps", "gbps_low",
    "gbps_high", "gbps_q1", "gbps_q3", "ceiling_gbps", "ceiling_share", "limit_blocks_per_s", "roof_gbps",
    "roof_share", "swap_us_median", "samples", "rounds", "cell_id",
)  # fmt: skip


@dataclass(frozen=True)
class RateCurve:
    """Measured points ascending in `x` (block bytes or SMs); `panel` is N or the block bytes."""

    backend: str
    direction: str
    state: str
    panel: int
    x: Sequence[int]
    points: pd.DataFrame

    @cached_property
    def cliff(self) -> Cliff | None:
        """The largest jump beyond noise and beyond what the sizes bring by `CLIFF`, where `x` are block bytes."""
        found = find_cliff(self.x, *(self.column(name) for name in ("gbps", "gbps_low", "gbps_high")))
        return found if found and found.excess >= 1 + CLIFF_MARGIN.fraction else None

    @cached_property
    def knee(self) -> int | None:
        """The SM count from which more do not help, where `x` are SMs."""
        return knee(self.x, self.column("gbps"), self.column("gbps_low"))

    def column(self, name: str) -> list[float]:
        return [float(value) for value in self.points[name]]


@dataclass(frozen=True, slots=True)
class RateCurves:
    """The curves of one subject; `main` is the number of blocks that a single chart shows.

    `cells` are all rows that they were picked from, failed and skipped ones too.
    """

    curves: Sequence[RateCurve]
    pinned: Pinned
    cells: pd.DataFrame
    main: int

    def at(self, panel: int, direction: str) -> list[RateCurve]:
        return [curve for curve in self.curves if (curve.panel, curve.direction) == (panel, direction)]


@dataclass(frozen=True, slots=True)
class CurveKind:
    """A kind of curve: how its charts are called, how it is picked from a run's rows, its axis, what is marked."""

    name: str
    x: PlotAxis
    pick: Callable[[pd.DataFrame], RateCurves | str]
    marks: Callable[[RateCurve], Sequence[PlotMark]]


def cliff_curves(cells: pd.DataFrame, pinned: Pinned | None = None) -> RateCurves | str:
    """Return GB/s over block size, a panel per number of blocks, from the rows of a run; or why there are none.

    `pinned` spares time where the rows have been pinned before.
    """
    pinned = pinned or pin(cells, shown=())
    measured = where(pinned.cells, status="ok")
    curves = curves_over(measured, "blocks", "block_bytes")
    if not any(len(curve.x) >= MIN_SIZES for curve in curves):
        return f"it needs a backend measured at {MIN_SIZES} block sizes with the same number of blocks"
    return RateCurves(curves, pinned, pinned.cells, fullest(measured, "blocks", over="block_bytes"))


def ladder_curves(cells: pd.DataFrame) -> RateCurves | str:
    """Return GB/s over the SM count, a panel per block size, at one number of blocks; or why there are none.

    `cells` are the rows of a run.
    """
    pinned = pin(cells[cells["sms"].notna()], shown=("sms",))
    measured = where(pinned.cells, status="ok")
    counts = measured.groupby([*SERIES, "blocks", "block_bytes"])["sms"].transform("size")
    ladders = measured[counts >= MIN_COUNTS]
    if ladders.empty:
        return f"it needs a kernel backend measured at {MIN_COUNTS} SM counts or more"
    blocks = fullest(ladders, "blocks", over="sms")
    curves = curves_over(where(ladders, blocks=blocks), "block_bytes", "sms")
    return RateCurves(curves, pinned, where(pinned.cells, blocks=blocks), blocks)


def cliff_words(cliff: Cliff) -> str:
    """Return where a cliff is and how high, in all and beyond the ratio of the sizes.

    "24 KiB → 28 KiB: x5.4, x4.6 beyond the size"; for a fall "24 KiB → 28 KiB: 80% less".
    """
    place = f"{bytes_size(cliff.below_bytes)} → {bytes_size(cliff.above_bytes)}"
    if not cliff.rises:
        return f"{place}: {two_digits(100 * (1 - 1 / cliff.height))}% less"
    return f"{place}: {TIMES}{two_digits(cliff.height)}, {TIMES}{two_digits(cliff.excess)} beyond the size"


def _cliff_marks(curve: RateCurve) -> list[PlotMark]:
    return [PlotMark(found.below_bytes, found.above_bytes, cliff_words(found))] if (found := curve.cliff) else []


def _knee_marks(curve: RateCurve) -> list[PlotMark]:
    return [PlotMark(found, found, f"knee at {noun(found, 'SM')}")] if (found := curve.knee) else []


CLIFF: Final = CurveKind("cliff", PlotAxis("block size", "bytes", "log2"), cliff_curves, _cliff_marks)
LADDER: Final = CurveKind("sm-ladder", PlotAxis("SMs", "count", "log2"), ladder_curves, _knee_marks)


def curve_chart(
    view: View, kind: CurveKind, curves: RateCurves, rows: Mapping[int, str], title: str, stem: str | None = None
) -> Chart:
    """Return the chart of a run's curves, a row of panels for each of `rows`, which titles their panels in words.

    `stem` is for a chart besides the one that is called like its kind.
    """
    shown = [curve for panel in rows for way in DIRECTIONS for curve in curves.at(panel, way)]
    points = pd.concat([curve.points for curve in shown])
    ceilings = {way: ceiling_of(where(curves.cells, status="ok", direction=way)) for way in DIRECTIONS}
    names = line_labels(shown)

    def line(curve: RateCurve) -> PlotLine:
        return curve_line(view.label, curve, names, curve.points, _RATES, kind.marks(curve))

    panels = curve_panels(curves, rows, line, ceilings, roofs_of)
    footer = [*includes(points["stream_state"], "GB/s"), curves.pinned.words(points)]
    words = chart_words(view, title, f"{sample_words(points)} · band: quartiles", footer)
    plot = LinePlot(kind.x, GBPS, panels)
    return Chart(f"{stem or kind.name}-{view.label}", words, plot, points[list(POINT_COLUMNS)])


def curve_panels(
    curves: RateCurves,
    rows: Mapping[int, str],
    line: Callable[[RateCurve], PlotLine],
    ceilings: Mapping[str, float | None],
    roofs: Callable[[Sequence[RateCurve]], Sequence[PlotRoof]] = lambda _: (),
) -> list[list[PlotPanel]]:
    """Return a row of panels for each of `rows`, one a direction.

    `ceilings`, and the `roofs` of the curves of a panel, are in the unit of the lines.
    """
    ways = [way for way in DIRECTIONS if way in set(where(curves.cells, status="ok")["direction"])]
    grid = []
    for panel, words in rows.items():
        by_way = {way: curves.at(panel, way) for way in ways}
        grid.append(
            [
                PlotPanel(f"{way}{words}", [line(curve) for curve in own], ceilings.get(way), roofs(own))
                for way, own in by_way.items()
            ]
        )
    return grid


def roofs_of(curves: Sequence[RateCurve]) -> list[PlotRoof]:
    """Return what the cells of these curves, which share a panel, can reach: copies, and copies by SMs."""
    if not curves:
        return []
    points = pd.concat([curve.points.assign(x=curve.x) for curve in curves])
    known = points[points["roof_gbps"].notna()]
    kinds = {"roof of copies": known[known["sms"].isna()], "roof of SM copies": known[known["sms"].notna()]}
    return [
        PlotRoof(label, *_with_corners(own.drop_duplicates("x").sort_values("x")))
        for label, own in kinds.items()
        if not own.empty
    ]


def _with_corners(points: pd.DataFrame) -> tuple[list[float], list[float]]:
    """Return a roof over `x`, with the block size at which it leaves the translation limit, where `x` are sizes."""
    rows = list(zip(points["x"], points["block_bytes"], points["limit_blocks_per_s"], points["roof_gbps"], strict=True))
    x: list[float] = [int(rows[0][0])]
    y = [float(rows[0][3])]
    for (_, size, limit, roof), (next_x, next_size, _, next_roof) in pairwise(rows):
        corner = next_roof / limit * 1e9
        if roof < next_roof and next_x == next_size and size < corner < next_size:
            x.append(corner)
            y.append(float(next_roof))
        x.append(int(next_x))
        y.append(float(next_roof))
    return x, y


def line_labels(curves: Iterable[RateCurve]) -> dict[tuple[str, str], str]:
    """Return the label of a chart's lines by backend and stream state, with the SMs of all its panels."""
    found: dict[tuple[str, str], list[RateCurve]] = {}
    for curve in curves:
        found.setdefault((curve.backend, curve.state), []).append(curve)
    return {
        (backend, state): f"{_with_all_sms(backend, own)}, {state} stream" for (backend, state), own in found.items()
    }


def _with_all_sms(backend: str, curves: Sequence[RateCurve]) -> str:
    is_ladder = all(curve.points["sms"].fillna(0).tolist() == list(curve.x) for curve in curves)
    return backend if is_ladder else with_sms(pd.concat([curve.points for curve in curves]), backend)


def curve_line(
    run: str,
    curve: RateCurve,
    labels: Mapping[tuple[str, str], str],
    points: pd.DataFrame,
    columns: Sequence[str],
    marks: Sequence[PlotMark] = (),
) -> PlotLine:
    """Return the line of a curve in a chart; those of one backend are told apart by the stream's state.

    `labels` are those of `line_labels`; `columns` of `points`, which are the curve's, hold what is drawn and the ends
    of its band.
    """
    label = labels[curve.backend, curve.state]
    y, low, high = ([float(value) for value in points[name]] for name in columns)
    cells = list(points["cell_id"])
    return PlotLine(run, label, curve.backend, curve.x, y, low, high, cells, marks, STATES.index(curve.state))


def spread(values: Sequence[int]) -> list[int]:
    """Return at most `MOST_ROWS` of the values, evenly spread with both ends."""
    count = min(MOST_ROWS, len(values))
    return [values[round(place * (len(values) - 1) / max(1, count - 1))] for place in range(count)]


def left_out(values: Sequence[int]) -> str:
    """Return words for the title of a chart that shows only what `spread` returns."""
    return f" ({MOST_ROWS} of {len(values)}, the tables have all)" if len(values) > MOST_ROWS else ""


def curves_over(measured: pd.DataFrame, panel: str, x: str) -> list[RateCurve]:
    """Return a curve over the column `x` for every backend, direction, state and value of the column `panel`."""
    found = []
    for _, group in measured.groupby([*SERIES, panel]):
        points = group.sort_values(x).reset_index(drop=True)
        backend, direction, state = (str(points[axis].iloc[0]) for axis in SERIES)
        values = [int(value) for value in points[x]]
        found.append(RateCurve(backend, direction, state, int(points[panel].iloc[0]), values, points))
    return sorted(
        found, key=lambda curve: (curve.direction != "h2d", curve.backend, curve.state != "idle", curve.panel)
    )
