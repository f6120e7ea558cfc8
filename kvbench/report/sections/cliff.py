"""The cliff: GB/s against block size, a curve for each number of blocks, and where it jumps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import pandas as pd

from kvbench.analysis.curves import Cliff, find_cliff
from kvbench.analysis.margins import CLIFF
from kvbench.cells.axes import StreamState
from kvbench.cells.facts import BATCHED, TRITON
from kvbench.cells.units import KIB, two_digits
from kvbench.report.model import Chart, DataTable, LinePlot, Part, PartOrReason, PlotAxis, PlotLine, PlotPanel, Text
from kvbench.report.numbers import TIMES, bytes_size, count
from kvbench.report.tables import INCLUDES, chart_text, format_cell, label_of, line_of, main_path, measured_table, rate
from kvbench.report.view import SERIES, Pinned, Row, View, ceiling_of, grouped, rows_of, where
from kvbench.text import a_stream, ends

MIN_SIZES: Final = 4
RATES: Final = ("gbps", "gbps_q1", "gbps_q3")
GBPS: Final = PlotAxis("GB/s")
_MOST_COUNTS: Final = 4
_LIGHTEST: Final = 0.65
_MARKED: Final = {28.0 * KIB: "28 KiB: vLLM's threshold"}  # from which on it prefers the copy engine
_MAIN: Final = (BATCHED, "h2d", "idle")


@dataclass(frozen=True)
class Curve:
    """The points of one backend, direction and stream state at a number of blocks, ascending in their block sizes."""

    series: tuple[str, ...]
    blocks: int
    points: pd.DataFrame

    @property
    def sizes(self) -> list[int]:
        return [int(size) for size in self.points["block_bytes"]]

    @cached_property
    def cliff(self) -> Cliff | None:
        """The largest jump beyond noise and beyond what the sizes bring by `CLIFF`."""
        rates = ([float(rate) for rate in self.points[name]] for name in ("gbps", "gbps_low", "gbps_high"))
        cliff = find_cliff(self.sizes, *rates)
        return cliff if cliff and cliff.excess >= 1 + CLIFF.fraction else None

    def path_at(self, size: int) -> str:
        return main_path(self.points["path"].iloc[self.sizes.index(size)])


def curves_of(pinned: Pinned) -> list[Curve]:
    """Return the curves of a run that have enough sizes, by series and then number of blocks."""
    curves = []
    for _, cells in where(pinned.cells, status="ok").groupby([*SERIES, "blocks"]):
        points = cells.sort_values("block_bytes").reset_index(drop=True)
        if len(points) >= MIN_SIZES:
            series = tuple(str(points[axis].iloc[0]) for axis in SERIES)
            curves.append(Curve(series, int(points["blocks"].iloc[0]), points))
    return curves


def make(view: View) -> PartOrReason:
    curves = [curve for curve in curves_of(view.pinned) if curve.series[-1] != StreamState.SUSTAINED]
    if not curves:
        return f"it needs a backend measured at {MIN_SIZES} block sizes with the same number of blocks, swap by swap"
    return partial(_part, view, grouped(curves, lambda curve: curve.series))


def _part(view: View, curves: dict[tuple[str, ...], list[Curve]]) -> Part:
    main = _MAIN if _MAIN in curves else next(iter(curves))
    shown = curves[main][-_MOST_COUNTS:]
    beside = _beside(curves, shown)
    grids = [_grid(view, series) for series in curves]
    return Part(_findings(shown), [_chart(view, shown, beside)], [_table(view, shown, beside), *grids])


def _beside(curves: dict[tuple[str, ...], list[Curve]], shown: Sequence[Curve]) -> Curve | None:
    """Return the curve of Triton's kernel to which those that are shown are held, at one of their numbers of blocks."""
    counts = {curve.blocks for curve in shown}
    known = [one for one in curves.get((TRITON, *shown[0].series[1:]), ()) if one.blocks in counts]
    return known[-1] if known and shown[0].series[0] != TRITON else None


def _findings(curves: Sequence[Curve]) -> list[Text]:
    """Say where most curves jump, how high, and whether that grows with the number of blocks."""
    backend, direction, state = curves[0].series
    who = f"{backend} {direction} on {a_stream(state)}"
    cliffs = [(curve, cliff) for curve in curves if (cliff := curve.cliff)]
    jumps = grouped(cliffs, lambda one: (one[1].below_bytes, one[1].above_bytes, one[1].rises))
    (below, above, rises), same = max(jumps.items(), key=lambda jump: len(jump[1]), default=((0, 0, True), []))
    if len(same) * 2 <= len(curves) or not rises:
        return [f"{who}: no jump beyond the ratio of the sizes."]
    heights = [cliff.height for _, cliff in same]
    blocks = ends([curve.blocks for curve, _ in same], count)
    deeper = heights[-1] > (1 + CLIFF.fraction) * heights[0]
    grows = "" if len(same) < 2 else f"; the cliff {'deepens' if deeper else 'does not deepen'} with N"
    paths = [sorted({curve.path_at(size) for curve, _ in same}) for size in (below, above)]
    moved = f" ({' or '.join(paths[0])} below, {' or '.join(paths[1])} above)" if paths[0] != paths[1] else ""
    return [
        f"{who}: {bytes_size(above)} blocks move {ends(heights, two_digits)} times as fast as {bytes_size(below)} "
        f"blocks{moved}, at N = {blocks}{grows}."
    ]


def _table(view: View, curves: Sequence[Curve], beside: Curve | None) -> DataTable:
    columns = [(f"N = {count(curve.blocks)}", curve) for curve in curves]
    if beside:
        columns.append((f"{label_of(TRITON, beside.points)}, N = {count(beside.blocks)}", beside))
    sizes = sorted({size for _, curve in columns for size in curve.sizes})
    rows = {id(curve): {int(row["block_bytes"]): row for row in rows_of(curve.points)} for _, curve in columns}
    body = [
        [bytes_size(size), *(format_cell(rows[id(curve)].get(size), rate) for _, curve in columns)] for size in sizes
    ]
    if any(curve.cliff for curve in curves):
        body.append(["jump", *(_jump_text(curve.cliff) for _, curve in columns)])
    backend, direction, state = curves[0].series
    title = f"{direction}, {backend}, {state} stream: GB/s by block size and number of blocks"
    cells = pd.concat([curve.points for _, curve in columns])
    header = ["Block size", *(head for head, _ in columns)]
    return measured_table(view, cells, INCLUDES[state], title, header, body, pinned=view.pinned)


def _jump_text(cliff: Cliff | None) -> str:
    if cliff is None:
        return "none"
    height = f"{TIMES}{two_digits(cliff.height)}"
    return f"{bytes_size(cliff.below_bytes)} \N{RIGHTWARDS ARROW} {bytes_size(cliff.above_bytes)}: {height}"


def _grid(view: View, series: tuple[str, ...]) -> DataTable:
    backend, direction, state = series
    cells = where(view.pinned.cells, backend=backend, direction=direction, stream_state=state)
    grid = {(int(row["block_bytes"]), int(row["blocks"])): row for row in rows_of(cells)}
    sizes, counts = (sorted(set(values)) for values in zip(*grid, strict=True))
    body = [[bytes_size(size), *(format_cell(grid.get((size, n)), _rate_and_share) for n in counts)] for size in sizes]
    header = ["Block size", *(f"N = {count(n)}" for n in counts)]
    title = f"{direction}, {backend}, {state} stream: GB/s (share of the ceiling) of every size and number of blocks"
    return measured_table(view, where(cells, status="ok"), INCLUDES[state], title, header, body, pinned=view.pinned)


def _rate_and_share(row: Row) -> str:
    return rate(row) + (f" ({row['ceiling_share']:.0%})" if math.isfinite(row["ceiling_share"]) else "")


def _chart(view: View, curves: Sequence[Curve], beside: Curve | None) -> Chart:
    backend, direction, state = curves[0].series
    lines = []
    for number, curve in enumerate(curves):
        label = f"{label_of(backend, curve.points)}, N = {count(curve.blocks)}"
        lines.append(_line(label, curve, light=_LIGHTEST * (1 - (number + 1) / len(curves)), variant=number))
    if beside:
        lines.append(_line(f"{label_of(TRITON, beside.points)}, N = {count(beside.blocks)}", beside, variant=1))
    points = pd.concat([curve.points for curve in [*curves, *([beside] if beside else [])]])
    panel = PlotPanel(f"{direction}, {state} stream", lines, ceiling_of(points), _MARKED)
    outside = (points["gbps"] < points["gbps_q1"]) | (points["gbps"] > points["gbps_q3"])
    modes = "; a point outside of it: visits with two modes, which it lies between" if outside.any() else ""
    text = chart_text(
        view, "Cliff: GB/s against block size", f"{INCLUDES[state]}. Band: quartiles of all samples{modes}"
    )
    plot = LinePlot(PlotAxis("block size", octaves=True, in_kib=True), GBPS, [panel])
    return Chart(f"cliff-{view.label}", text, plot)


def _line(label: str, curve: Curve, *, variant: int, light: float = 0.0) -> PlotLine:
    return line_of(label, [float(size) for size in curve.sizes], rows_of(curve.points), RATES, variant, light=light)
