"""The cliff: GB/s against block size, and where it jumps; and curves over other axes, of which sections make charts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

import pandas as pd

from kvbench.analysis.curves import Cliff, find_cliff, knee
from kvbench.analysis.margins import CLIFF as CLIFF_MARGIN
from kvbench.analysis.margins import KNEE
from kvbench.cells.backend_facts import NO_CHOICES
from kvbench.cells.units import two_digits
from kvbench.report.charts.plot import LinePlot, PlotAxis, PlotLine, PlotPanel
from kvbench.report.model import Chart, Code, DataTable, Finding, Part, PartOrReason, Text
from kvbench.report.numbers import bytes_size, count, noun
from kvbench.report.tables import (
    INCLUDES,
    any_decidable,
    chart_text,
    grid_table,
    includes,
    label_of,
    line_of,
    main_path,
    measured_table,
    primed_inline,
    rate,
)
from kvbench.report.view import (
    DIRECTIONS,
    SERIES,
    STATES,
    Pinned,
    Row,
    View,
    by_direction,
    ceiling_of,
    fullest,
    grouped,
    pin,
    rows_of,
    where,
)
from kvbench.text import a_stream, ends, short

MIN_SIZES: Final = 4
MIN_COUNTS: Final = 3
# More rows of panels than these take longer to draw than to read: the tables have them all.
MOST_ROWS: Final = 4
GBPS: Final = PlotAxis("GB/s", "figure", "linear")
_RING: Final = (
    f"Ring: the fewest SMs within {KNEE.fraction:.0%} of the most GB/s; none where GB/s still rise at the end"
)
RATES: Final = ("gbps", "gbps_q1", "gbps_q3")
_AXES: Final = {
    "block_bytes": PlotAxis("block size", "bytes", "log2"),
    "sms": PlotAxis("SMs", "count", "log2"),
}
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
        cliff = find_cliff(self.x, *(self.column(name) for name in ("gbps", "gbps_low", "gbps_high")))
        return cliff if cliff and cliff.excess >= 1 + CLIFF_MARGIN.fraction else None

    @cached_property
    def knee(self) -> int | None:
        """The SM count from which more do not help, where `x` are SMs."""
        return knee(self.x, self.column("gbps"), self.column("gbps_low"))

    def column(self, name: str) -> list[float]:
        return [float(value) for value in self.points[name]]

    def path_at(self, x: int) -> str:
        """Return the path of most visits at a point."""
        return main_path(self.points["path"].iloc[list(self.x).index(x)])


@dataclass(frozen=True, slots=True)
class RateCurves:
    """The curves of one subject over the column `over`; `main` is the number of blocks that a single chart shows.

    `cells` are all rows that they were picked from, failed and skipped ones too.
    """

    over: str
    curves: Sequence[RateCurve]
    pinned: Pinned
    cells: pd.DataFrame
    main: int

    def at(self, panel: int, direction: str) -> list[RateCurve]:
        return [curve for curve in self.curves if (curve.panel, curve.direction) == (panel, direction)]


def cliff_curves(pinned: Pinned) -> RateCurves | str:
    """Return GB/s over block size, a panel per number of blocks; or why there are none."""
    measured = where(pinned.cells, status="ok")
    curves = curves_over(measured, "blocks", "block_bytes")
    if not any(len(curve.x) >= MIN_SIZES for curve in curves):
        return f"it needs a backend measured at {MIN_SIZES} block sizes with the same number of blocks"
    return RateCurves("block_bytes", curves, pinned, pinned.cells, fullest(measured, "blocks", over="block_bytes"))


def ladder_curves(cells: pd.DataFrame) -> RateCurves | None:
    """Return GB/s of a run's cells over the SM count, at one number of blocks, a panel per block size."""
    pinned = pin(cells[cells["sms"].notna()], shown=("sms",))
    measured = where(pinned.cells, status="ok")
    counts = measured.groupby([*SERIES, "blocks", "block_bytes"])["sms"].transform("size")
    ladders = measured[counts >= MIN_COUNTS]
    if ladders.empty:
        return None
    blocks = fullest(ladders, "blocks", over="sms")
    curves = curves_over(where(ladders, blocks=blocks), "block_bytes", "sms")
    return RateCurves("sms", curves, pinned, where(pinned.cells, blocks=blocks), blocks)


def knee_text(curve: RateCurve) -> str:
    """Return "4 SMs", or "at most 2 SMs" where the knee is the least measured count; "" for none."""
    if curve.knee is None:
        return ""
    return f"{'at most ' if curve.knee == curve.x[0] > 1 else ''}{noun(curve.knee, 'SM')}"


def cliff_parts(cliff: Cliff) -> tuple[str, str, str]:
    """Return where a cliff is, how high, and how much of that the ratio of the sizes explains, "" for a fall."""
    sizes = f"{bytes_size(cliff.below_bytes)} → {bytes_size(cliff.above_bytes)}"
    if not cliff.rises:
        return sizes, f"{two_digits(100 * (1 - 1 / cliff.height))}% less", ""
    return sizes, f"{two_digits(cliff.height)}x", f"{two_digits(100 * (cliff.height / cliff.excess - 1))}%"


def curve_chart(view: View, stem: str, curves: RateCurves, rows: Mapping[int, str], title: str) -> Chart:
    """Return the chart of a run's curves, a row of panels for each of `rows`, which ends their titles.

    Lines of one backend are told apart by the stream's state.
    """
    shown = [curve for panel in rows for direction in DIRECTIONS for curve in curves.at(panel, direction)]
    points = pd.concat([curve.points for curve in shown])

    def line(curve: RateCurve) -> PlotLine:
        alike = where(points, backend=curve.backend, stream_state=curve.state)
        backend = curve.backend if curves.over == "sms" else label_of(curve.backend, alike)
        label, variant = f"{backend}, {curve.state} stream", STATES.index(curve.state)
        rings = [curve.knee] if curves.over == "sms" and curve.knee else []
        notes = [knee_text(curve) if x in rings else "" for x in curve.x] if rings else []
        rows = rows_of(curve.points, "backend", *RATES)
        return line_of(label, curve.x, rows, RATES, variant, notes=notes, rings=rings)

    sides = by_direction(where(curves.cells, status="ok")).items()
    grid = [
        [PlotPanel(f"{side}{label}", [*map(line, curves.at(panel, side))], ceiling_of(cells)) for side, cells in sides]
        for panel, label in rows.items()
    ]
    footer = ". ".join([*includes(points["stream_state"], "GB/s"), *([_RING] if curves.over == "sms" else [])])
    columns = list(dict.fromkeys((*POINT_COLUMNS, curves.over)))
    text = chart_text(view, title, footer)
    return Chart(f"{stem}-{view.label}", text, LinePlot(_AXES[curves.over], GBPS, grid), points[columns])


def evenly_spaced(values: Sequence[int]) -> list[int]:
    """Return at most `MOST_ROWS` of the values, evenly spread with both ends."""
    count = min(MOST_ROWS, len(values))
    return [values[round(index * (len(values) - 1) / max(1, count - 1))] for index in range(count)]


def left_out(values: Sequence[int]) -> str:
    """Return the end of the title of a chart that shows only what `evenly_spaced` returns."""
    return f" ({MOST_ROWS} of {len(values)}, the tables have all)" if len(values) > MOST_ROWS else ""


def curves_over(measured: pd.DataFrame, panel: str, x: str) -> list[RateCurve]:
    """Return a curve over the column `x` for every backend, direction, state and value of the column `panel`."""
    curves = []
    for _, group in measured.groupby([*SERIES, panel]):
        points = group.sort_values(x).reset_index(drop=True)
        backend, direction, state = (str(points[axis].iloc[0]) for axis in SERIES)
        values = [int(value) for value in points[x]]
        curves.append(RateCurve(backend, direction, state, int(points[panel].iloc[0]), values, points))
    return sorted(
        curves, key=lambda curve: (curve.direction != "h2d", curve.backend, curve.state != "idle", curve.panel)
    )


_NO_CLIFF = (
    f"No jump between neighbouring block sizes exceeds the ratio of the sizes by {CLIFF_MARGIN.fraction:.0%} or more, "
    f"interval included: {CLIFF_MARGIN.reason}."
)
_HEIGHT = "Faster: GB/s of the larger size over those of the smaller; size explains: the ratio of the sizes, less 1"


def make(view: View) -> PartOrReason:
    curves = cliff_curves(view.pinned)
    return curves if isinstance(curves, str) else partial(_part, view, curves)


def _part(view: View, curves: RateCurves) -> Part:
    findings = [*_jumps(curves.curves), *_falls(curves.cells), *primed_inline(curves.cells)]
    groups = grouped(curves.curves, lambda curve: (curve.direction, curve.backend, curve.state))
    tables = [_table(view, curves, group) for group in groups.values()]
    none = any_decidable(curves.cells) and not any(curve.cliff for curve in curves.curves)
    return Part([Finding(_NO_CLIFF), *findings] if none else findings, _charts(view, curves), tables)


def _charts(view: View, curves: RateCurves) -> list[Chart]:
    title = f"GB/s against block size, N = {count(curves.main)} blocks"
    return [curve_chart(view, "cliff", curves, {curves.main: ""}, title)]


def _table(view: View, curves: RateCurves, group: Sequence[RateCurve]) -> DataTable:
    direction, backend, state = group[0].direction, group[0].backend, group[0].state
    rows = where(curves.cells, direction=direction, backend=backend, stream_state=state)
    header, body = grid_table(rows, _rate_and_share)
    blank = _blanks(view) if any("" in line for line in body) else []
    long = {curve.panel: ("none", "", "") for curve in group if len(curve.x) >= MIN_SIZES}
    cliffs = long | {curve.panel: cliff_parts(curve.cliff) for curve in group if curve.cliff}
    parts = [cliffs.get(blocks, ("", "", "")) for blocks in sorted(set(rows["blocks"]))]
    lines = zip(("cliff", "faster", "size explains"), zip(*parts, strict=True), strict=True)
    body += [[name, *line] for name, line in lines if name == "cliff" or any(line)]
    ceiling = " not measured" if (gbps := ceiling_of(rows)) is None else f", {gbps:.1f} GB/s"
    title = f"{direction}, {backend}, {state} stream: GB/s (share of the ceiling{ceiling})"
    stem = "" if backend == "batched" else f"{direction}-{backend}-{state}"
    notes = [_HEIGHT] if any(curve.cliff for curve in group) else []
    cells = where(rows, status="ok")
    table = measured_table(view, cells, INCLUDES[state], title, header, body, notes, pinned=curves.pinned, stem=stem)
    return replace(table, notes=[*table.notes, *blank])


def _blanks(view: View) -> list[Text]:
    filters = view.run.info.spec.get("filters")
    texts = [text for text in filters if isinstance(text, str)] if isinstance(filters, list) else []
    blank = "Blank: not asked for, or left out by the sweep's filter "
    return [(blank, Code(short(", ".join(texts))))] if texts else []


def _rate_and_share(row: Row) -> Text:
    return f"{rate(row)} ({row['ceiling_share']:.0%})" if math.isfinite(row["ceiling_share"]) else rate(row)


def _jumps(curves: Sequence[RateCurve]) -> list[Finding]:
    """Return a sentence for every backend, direction and stream state of which most curves jump at the same sizes."""
    long = [curve for curve in curves if len(curve.x) >= MIN_SIZES]
    jumping = []
    for (backend, direction, state), group in grouped(long, lambda c: (c.backend, c.direction, c.state)).items():
        cliffs = [(curve, cliff) for curve in group if (cliff := curve.cliff)]
        jumps = grouped(cliffs, lambda one: (one[1].below_bytes, one[1].above_bytes, one[1].rises))
        (below, above, rises), same = max(jumps.items(), key=lambda jump: len(jump[1]), default=((0, 0, False), []))
        if len(same) * 2 <= len(group):
            continue
        heights, excess = [cliff.height for _, cliff in same], max(cliff.excess for _, cliff in same)
        other = [c for c in long if (c.backend, c.direction) == (backend, direction) and c.state != state]
        flat = any(any_decidable(curve.points) for curve in other) and not any(curve.cliff for curve in other)
        none = f"; no cliff on {a_stream(other[0].state)}" if flat else ""
        if rises:
            ratio = f"{ends(heights, lambda height: f'{two_digits(height)}x')} the speed of"
            beyond = f", of which the size explains {cliff_parts(same[0][1])[-1]}"
        else:
            ratio, beyond = f"{ends([100 * (1 - 1 / height) for height in heights], two_digits)}% less GB/s than", ""
        text = (
            f"{backend} {direction} on {a_stream(state)}: {bytes_size(above)} blocks reach {ratio} {bytes_size(below)} "
            f"blocks{beyond} (N = {ends([c.panel for c, _ in same], count)}); {_path_text(same)}{none}."
        )
        jumping.append(Finding(text, math.log(excess)))
    return jumping


def _falls(cells: pd.DataFrame) -> list[Finding]:
    """Return the largest fall of GB/s of each backend, direction and state as a swap gets more blocks.

    auto has a section for its choices, whose falls these would be.
    """
    falls: dict[tuple[str, ...], Finding] = {}
    for _, group in where(cells[~cells["backend"].isin(NO_CHOICES)], status="ok").groupby([*SERIES, "block_bytes"]):
        rows = group.sort_values("blocks")
        fall = find_cliff(*(rows[name].tolist() for name in ("blocks", "gbps", "gbps_low", "gbps_high")))
        if fall and not fall.rises:
            backend, direction, state, size = (rows[axis].iloc[0] for axis in (*SERIES, "block_bytes"))
            text = (
                f"{backend} {direction} on {a_stream(state)}: {bytes_size(int(size))} blocks fall from "
                f"{two_digits(fall.below_gbps)} to {two_digits(fall.above_gbps)} GB/s between N = "
                f"{count(fall.below_bytes)} and {count(fall.above_bytes)}."
            )
            finding, series = Finding(text, math.log(fall.height)), (backend, direction, state)
            falls[series] = max(falls.get(series, finding), finding, key=lambda one: one.weight)
    return list(falls.values())


def _path_text(cliffs: Iterable[tuple[RateCurve, Cliff]]) -> str:
    paths = [(curve.path_at(cliff.below_bytes), curve.path_at(cliff.above_bytes)) for curve, cliff in cliffs]
    below, above = (" or ".join(sorted(set(side))) for side in zip(*paths, strict=True))
    return f"path: {below}" if below == above else f"path: {above}, of the smaller blocks: {below}"
