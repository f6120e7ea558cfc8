"""The cliff: GB/s against block size, a curve for each number of blocks, and where it jumps."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Final

import pandas as pd

from kvbench.analysis.compare import Comparison, Verdict, compare_visits
from kvbench.analysis.curves import Cliff, find_cliff
from kvbench.analysis.margins import CLIFF
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.facts import BATCHED, TRITON
from kvbench.cells.units import KIB, two_digits
from kvbench.ground.text import a_stream, range_text
from kvbench.report import tables
from kvbench.report.cells import cells_of, grid_of, lines_of, measured, outcomes_in, rows_with
from kvbench.report.model import Chart, DataTable, LinePlot, Part, PartOrReason, PlotAxis, PlotLine, PlotPanel, Text
from kvbench.report.numbers import TIMES, bytes_size, count, figure, is_wide
from kvbench.report.view import View
from kvbench.results.outcomes import Outcome, grouped, is_measured
from kvbench.results.schema import EffectivePath

Series = tuple[str, Direction, str]  # backend, direction, stream state
GBPS: Final = PlotAxis("GB/s")
BLOCK_SIZES: Final = PlotAxis("block size", octaves=True, in_kib=True)
MIN_SIZES: Final = 4  # an edge needs a size or two on each side of it, which tell it from a slope
_MOST_COUNTS: Final = 4  # as many as the pull request's table has; more lines of one colour are not told apart
_LIGHTEST: Final = 0.65
_MARKED: Final = {28.0 * KIB: "28 KiB: vLLM's threshold"}  # from which on it prefers the copy engine
# What a path does, in the words of the picture.
_PATH_TEXTS: Final = {EffectivePath.CPU_INLINE.value: "CPU copies"}
_FLAT_BYTES: Final = range(4 * KIB, 24 * KIB + 1)  # of the pull request's flat part
_MAIN: Final[Series] = (BATCHED, Direction.H2D, "idle")


@dataclass(frozen=True)
class Curve:
    """The cells of one backend, direction and stream state at a number of blocks, ascending in their block sizes."""

    series: Series
    blocks: int
    outcomes: Sequence[Outcome]

    @property
    def backend(self) -> str:
        """The name of the backend, which says of a plug-in that it is one."""
        return self.outcomes[0].backend_name

    @property
    def sizes(self) -> list[int]:
        return [outcome.cell.block_bytes for outcome in self.outcomes]

    @cached_property
    def cliff(self) -> Cliff | None:
        """The largest jump beyond noise and beyond what the sizes bring by `CLIFF`."""
        low, high = zip(*(outcome.interval_gbps for outcome in self.outcomes), strict=True)
        cliff = find_cliff(self.sizes, [outcome.gbps for outcome in self.outcomes], low, high)
        return cliff if cliff and cliff.excess >= 1 + CLIFF.fraction else None

    def outcome_at(self, size: int) -> Outcome:
        return self.outcomes[self.sizes.index(size)]

    def path_at(self, size: int) -> str:
        return tables.main_path(self.outcome_at(size))


def curves_of(outcomes: Iterable[Outcome]) -> list[Curve]:
    """The curves of at least `MIN_SIZES` sizes, by series and then number of blocks."""
    groups = grouped(filter(is_measured, outcomes), lambda outcome: (_series(outcome), outcome.cell.blocks))
    return [
        Curve(series, blocks, sorted(points, key=lambda outcome: outcome.cell.block_bytes))
        for (series, blocks), points in sorted(groups.items(), key=lambda group: group[0])
        if len(points) >= MIN_SIZES
    ]


def _series(outcome: Outcome) -> Series:
    cell = outcome.cell
    return cell.backend, cell.direction, cell.stream_state.value


def make(view: View) -> PartOrReason:
    curves = [curve for curve in curves_of(outcomes_in(view.pinned.cells)) if curve.series[-1] != StreamState.SUSTAINED]
    if not curves:
        return f"it needs a backend measured at {MIN_SIZES} block sizes with the same number of blocks, swap by swap"
    return partial(_part, view, grouped(curves, lambda curve: curve.series))


def _part(view: View, curves: Mapping[Series, list[Curve]]) -> Part:
    main = _MAIN if _MAIN in curves else next(iter(curves))
    main_curves = curves[main][-_MOST_COUNTS:]
    beside = _beside(curves, main_curves)
    grids = [_grid(view, series) for series in curves]
    findings = _findings(main_curves)
    # Held against the pull request's figures where it asked, and where the visits tell of a jump: without one, this
    # machine does not do what the pull request describes.
    published = _published(main_curves, beside) if len(findings) > 1 and main == _MAIN and not view.on_host else ""
    findings += [published] if published else []
    others = [*([beside] if beside else []), *_pending(curves, main_curves)]
    return Part(findings, [_chart(view, main_curves, others)], [_table(view, main_curves, beside), *grids])


def _beside(curves: Mapping[Series, list[Curve]], main_curves: Sequence[Curve]) -> Curve | None:
    """The curve of Triton's kernel at one of the numbers of blocks of the main curves."""
    counts = {curve.blocks for curve in main_curves}
    _, direction, state = main_curves[0].series
    triton_curves = [curve for curve in curves.get((TRITON, direction, state), ()) if curve.blocks in counts]
    return triton_curves[-1] if triton_curves and main_curves[0].series[0] != TRITON else None


def _pending(curves: Mapping[Series, list[Curve]], main_curves: Sequence[Curve]) -> list[Curve]:
    """The curve of the same backend and direction with other work pending, where there is no cliff."""
    backend, direction, state = main_curves[0].series
    return [] if StreamState(state).pending else curves.get((backend, direction, StreamState.BUSY.value), [])[-1:]


def _findings(curves: Sequence[Curve]) -> list[Text]:
    """Say where most curves jump and how high, what the number of blocks changes, and what the calls hold up."""
    _, direction, state = curves[0].series
    subject = f"{curves[0].backend} {direction} on {a_stream(state)}"
    cliffs = [(curve, curve.cliff) for curve in curves if curve.cliff]
    jumps = grouped(cliffs, lambda jump: (jump[1].below_bytes, jump[1].above_bytes, jump[1].rises))
    (below, above, rises), usual = max(jumps.items(), key=lambda jump: len(jump[1]), default=((0, 0, True), []))
    # A fall, or an edge that most curves do not have, is no cliff of the driver's.
    if len(usual) * 2 <= len(curves) or not rises:
        return [f"{subject}: no jump beyond the ratio of the sizes."]
    heights = [cliff.height for _, cliff in usual]
    blocks = range_text([curve.blocks for curve, _ in usual], count)
    paths = [sorted({curve.path_at(size) for curve, _ in usual}) for size in (below, above)]
    moved = f" ({' or '.join(paths[0])} below, {' or '.join(paths[1])} above)" if paths[0] != paths[1] else ""
    fewest, most = usual[0][0], usual[-1][0]
    largest = most.outcome_at(above)
    caller_ms, swap_ms = (two_digits(largest.us(time) / 1e3) for time in ("caller_us", "swap_us"))
    numbers = f"{_by_number(fewest, most, below)}; " if len(usual) > 1 else ""
    ratios = range_text(heights, two_digits)
    return [
        f"{subject}: {bytes_size(above)} blocks move {ratios} times as fast as {bytes_size(below)} "
        f"blocks{moved}, at N = {blocks}.",
        f"{numbers}{tables.swap_text(largest.cell)} hold the calling thread for {caller_ms} of {swap_ms} ms.",
    ]


def _by_number(fewest: Curve, most: Curve, below: int) -> str:
    """What more blocks change below the edge and above it, as far as the visits tell."""
    sizes = sorted({*fewest.sizes} & {*most.sizes})
    sides = ([size for size in sizes if size <= below], [size for size in sizes if size > below])
    compared = {size: compare_rates(fewest.outcome_at(size), most.outcome_at(size)) for size in sizes}
    under, over = (_effect([compared[size] for size in side]) for side in sides)
    numbers = f"N = {count(most.blocks)} against {count(fewest.blocks)}"
    return f"{numbers}: {under} below, {over} above" if under != over else f"{numbers}: {under}"


def compare_rates(base: Outcome, other: Outcome) -> Comparison:
    """How the time of each byte of two swaps that differ in their number of blocks differs."""
    before, after = (
        {number: us / outcome.cell.swap_bytes for number, us in outcome.times().items()} for outcome in (base, other)
    )
    return compare_visits(before, after, CLIFF)


def _published(curves: Sequence[Curve], beside: Curve | None) -> str:
    """The figures of the pull request that asked, beside those of this machine; "" without any of its sizes."""
    outcomes = chain.from_iterable(curve.outcomes for curve in curves)
    rates = [outcome.gbps for outcome in outcomes if outcome.cell.block_bytes in _FLAT_BYTES]
    if not rates:
        return ""
    published, reached = "flat 5 to 7 GB/s from 4 to 24 KiB", range_text(rates, figure)
    if beside and min(_FLAT_BYTES) in beside.sizes:
        kernel = beside.outcome_at(min(_FLAT_BYTES))
        published, reached = f"{published}, Triton 18 to 19 at 4 KiB", f"{reached}, and {figure(kernel.gbps)}"
    return f"vLLM #42212: {published}; here {reached}."


def _effect(compared: Sequence[Comparison]) -> str:
    """The largest difference that is told apart, or that there is none."""
    ratios = [comparison.ratio for comparison in compared if comparison.significant]
    if ratios:
        ratio = max(ratios, key=lambda ratio: abs(math.log(ratio)))
        return f"up to {two_digits(1 / ratio)}x as fast" if ratio < 1 else f"up to {two_digits(ratio)}x as long a byte"
    same = all(comparison.verdict is Verdict.SAME for comparison in compared)
    return f"the same within {CLIFF.fraction:.0%}" if same else "no clear difference"


def _table(view: View, curves: Sequence[Curve], beside: Curve | None) -> DataTable:
    columns = {f"N = {count(curve.blocks)}": curve for curve in curves}
    if beside:
        columns[f"{tables.label_of(beside.outcomes)}, N = {count(beside.blocks)}"] = beside
    cells = cells_of(chain.from_iterable(curve.outcomes for curve in columns.values()))
    body = _rows_by_size(grid_of(cells, "block_bytes", ["backend", "blocks"]), tables.rate)
    if any(curve.cliff for curve in curves):
        body.append(["jump", *(_jump_text(curve) for curve in columns.values())])
    _, direction, state = curves[0].series
    title = f"{direction}, {curves[0].backend}, {state} stream: GB/s by block size and number of blocks"
    header = ["Block size", *columns]
    return tables.measured_table(
        view, outcomes_in(cells), tables.INCLUDES[state], title, header, body, pinned=view.pinned
    )


def _rows_by_size(grid: pd.DataFrame, show: Callable[[Outcome], str]) -> list[list[str]]:
    rows = lines_of(grid)
    return [[bytes_size(size), *(tables.format_cell(outcome, show) for outcome in outcomes)] for size, outcomes in rows]


def _jump_text(curve: Curve) -> str:
    cliff = curve.cliff
    if cliff is None:
        return "none"
    ends_of_jump = [curve.outcome_at(size) for size in (cliff.below_bytes, cliff.above_bytes)]
    compared = compare_rates(*(ends_of_jump if cliff.rises else reversed(ends_of_jump)))
    height = f"{TIMES}{two_digits(cliff.height)}"
    if compared.low > 0 and is_wide(cliff.height, 1 / compared.high, 1 / compared.low):
        height += f" ({two_digits(1 / compared.high)} to {two_digits(1 / compared.low)})"
    return f"{bytes_size(cliff.below_bytes)} \N{RIGHTWARDS ARROW} {bytes_size(cliff.above_bytes)}: {height}"


def _grid(view: View, series: Series) -> DataTable:
    backend, direction, state = series
    ceiling = view.run.ceilings_gbps.get(direction, math.nan)

    def rate_and_share(outcome: Outcome) -> str:
        share = outcome.gbps / ceiling
        return tables.rate(outcome) + (f" ({share:.0%})" if math.isfinite(share) else "")

    cells = rows_with(view.pinned.cells, backend=backend, direction=direction, stream_state=state)
    grid = grid_of(cells, "block_bytes", "blocks").sort_index(axis="columns")
    body = _rows_by_size(grid, rate_and_share)
    header = ["Block size", *(f"N = {count(blocks)}" for blocks in map(int, grid.columns))]
    outcomes = outcomes_in(measured(cells))
    name = outcomes[0].backend_name
    title = f"{direction}, {name}, {state} stream: GB/s (share of the ceiling) of every size and number of blocks"
    return tables.measured_table(view, outcomes, tables.INCLUDES[state], title, header, body, pinned=view.pinned)


def _chart(view: View, curves: Sequence[Curve], others: Sequence[Curve]) -> Chart:
    """GB/s against block size, `others` beside the curves, and what moves the bytes on each side of the edge."""
    _, direction, state = curves[0].series
    lines = [
        _line(curve, light=_LIGHTEST * (1 - (number + 1) / len(curves)), variant=number)
        for number, curve in enumerate(curves)
    ]
    for curve in others:
        if curve.series[-1] == state:
            lines.append(_line(curve, variant=1))
        else:
            lines.append(_line(curve, suffix=f", {curve.series[-1]} stream", variant=len(curves), light=_LIGHTEST / 2))
    # An engine's threshold says nothing of copies between two host buffers.
    marked = {} if view.on_host else _MARKED
    ceiling = view.run.ceilings_gbps.get(direction)
    panel = PlotPanel(f"{direction}, {state} stream", lines, ceiling, marked, divided=_divided(curves))
    footer = f"{tables.INCLUDES[state]}. Band: 95%{_shorter_text(curves)}"
    plot = LinePlot(BLOCK_SIZES, GBPS, [panel])
    return tables.chart_of(view, "cliff", "Cliff: GB/s against block size", footer, plot)


def _shorter_text(curves: Sequence[Curve]) -> str:
    """Which curves end before the largest block size, as a run was asked; "" where all reach it."""
    largest = max(max(curve.sizes) for curve in curves)
    shorter = grouped([curve for curve in curves if max(curve.sizes) < largest], lambda curve: max(curve.sizes))
    text = ""
    for size, ending in shorter.items():
        text += f". Up to {bytes_size(size)}: N = {range_text([curve.blocks for curve in ending], count)}"
    return text


def _divided(curves: Sequence[Curve]) -> tuple[float, str, str] | None:
    """The edge at which most curves jump, between two block sizes, with the path on each side of it."""
    edges = Counter(
        (curve.cliff.below_bytes, curve.cliff.above_bytes) for curve in curves if curve.cliff and curve.cliff.rises
    )
    if not edges:
        return None
    (below, above), times = edges.most_common(1)[0]
    paths = [{curve.path_at(size) for curve in curves if size in curve.sizes} for size in (below, above)]
    if times * 2 <= len(curves) or paths[0] == paths[1] or max(map(len, paths)) > 1:
        return None
    left, right = (next(iter(path)) for path in paths)
    return math.sqrt(below * above), _PATH_TEXTS.get(left, left), _PATH_TEXTS.get(right, right)


def _line(curve: Curve, *, variant: int, light: float = 0.0, suffix: str = "") -> PlotLine:
    label = f"{tables.label_of(curve.outcomes)}, N = {count(curve.blocks)}{suffix}"
    bands = [tables.interval_band(outcome) for outcome in curve.outcomes]
    return tables.line_of(label, curve.series[0], [float(size) for size in curve.sizes], bands, variant, light=light)
