"""The SM ladder: GB/s of a copy kernel against its SM count, over numbers of blocks, and what a decode step loses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Final

import numpy as np
import pandas as pd

from kvbench.analysis.compare import middle_of
from kvbench.analysis.curves import knee
from kvbench.analysis.margins import KNEE
from kvbench.cells.axes import Neighbour
from kvbench.cells.cell import AXES, Cell
from kvbench.cells.facts import SM
from kvbench.cells.installed import engines
from kvbench.ground.errors import UsageError
from kvbench.ground.text import range_text
from kvbench.report import model
from kvbench.report.cells import by_axes, measured, outcomes_in, rows_with
from kvbench.report.model import Chart, DataTable, LinePlot, Part, PartOrReason, PlotAxis, PlotLine, PlotPanel, Text
from kvbench.report.numbers import bytes_size, count, noun, with_interval
from kvbench.report.sections.beside import slowdown_by, takes_text
from kvbench.report.sections.cliff import GBPS
from kvbench.report.tables import INCLUDES, chart_of, comma_separated, interval_band, line_of, measured_table, rate_band
from kvbench.report.view import DIRECTIONS, Pinned, View
from kvbench.results.outcomes import Outcome, grouped
from kvbench.tune.exports import export

MIN_COUNTS: Final = 3  # a knee has a count below it and one above
# Fewer blocks end before every SM is at work, and their launch takes a part of the time.
_MANY_BLOCKS: Final = 5000
_LADDER: Final = ["backend", "stream_state", "direction", "block_bytes"]


Side = tuple[str, int]  # direction, block size
# By SM count, the cells of each: one for each number of blocks.
Ladder = Mapping[int, Sequence[Outcome]]
# The cells beside a decode step, by backend, direction and SM count.
Decode = Mapping[tuple[str, str, int], Outcome]


def _median_band(
    rung: Sequence[Outcome], band_of: Callable[[Outcome], tuple[float, ...]]
) -> tuple[float, float, float]:
    """The band of an SM count: medians over the numbers of blocks."""
    middle, low, high = (middle_of(np.array(ends)) for ends in zip(*map(band_of, rung), strict=True))
    return middle, low, high


def make(view: View) -> PartOrReason:
    """Make the section of the run with most ladders, of many blocks if any; a decode step may be of another run."""
    by_run = [(run, _ladders(run)) for run in view.of_machine]
    by_run = [(run, ladders) for run, ladders in by_run if len(ladders.cells)]
    if not by_run:
        return f"it needs a kernel backend measured at {MIN_COUNTS} SM counts or more"
    many = [(run, ladders) for run, ladders in by_run if ladders.cells["blocks"].min() >= _MANY_BLOCKS]
    run, ladders = max(many or by_run, key=_weight)
    return partial(_part, run, ladders, view.of_machine)


def _weight(run_and_ladders: tuple[View, Pinned]) -> tuple[float, int, int]:
    run, ladders = run_and_ladders
    return run.weight[0], ladders.cells["blocks"].nunique(), len(ladders.cells)


def _engine_settings(views: Sequence[View]) -> list[Text]:
    """The settings, to keep or to change, of engines that choose between copies and a kernel of theirs."""
    runs = [view.run for view in views]
    lines: list[Text] = []
    for name, engine in engines().items():
        if not (engine.takes and engine.same_as):
            continue
        try:
            lines.append(export(name, runs).line())
        except UsageError:
            settings = f"{engine.title}'s {', '.join(engine.settings)}: not measured, see "
            lines.append((settings, model.Code(f"kvbench tune engine {name}")))
    return lines


def _ladders(view: View) -> Pinned:
    pinned = view.pin(view.cells[view.cells["sms"].notna()], free=("sms",))
    cells = measured(pinned.cells)
    many = cells["blocks"] >= _MANY_BLOCKS
    cells = cells[many] if many.any() else cells
    counts = cells.groupby([*_LADDER, "blocks"])["outcome"].transform("size")
    # A median over numbers of blocks compares SM counts only where each was measured at the same numbers.
    most = counts.groupby([cells[axis] for axis in _LADDER]).transform("max")
    return Pinned(cells[(counts >= MIN_COUNTS) & (counts == most)], pinned.hidden)


def _beside_decode(views: Sequence[View]) -> Decode:
    """The cells of kernels beside a decode step: those of the workload of most."""
    outcomes = chain.from_iterable(view.measured for view in views)
    beside = (outcome for outcome in outcomes if outcome.cell.neighbour == Neighbour.DECODE and outcome.costs)
    by_workload = grouped((outcome for outcome in beside if outcome.cell.sms is not None), _workload)
    largest = max(by_workload.values(), key=len, default=[])
    return {_method(outcome.cell): outcome for outcome in largest}


def _workload(outcome: Outcome) -> tuple[object, ...]:
    """What cells share that differ in their kernel, its SM count and the direction alone."""
    cell = outcome.cell
    return tuple(cell.text(name) for name in AXES if name not in ("backend", "direction", "sms"))


def _method(cell: Cell) -> tuple[str, str, int]:
    return cell.backend, cell.direction.value, cell.sms or 0


def _part(view: View, ladders: Pinned, machine: Sequence[View]) -> Part:
    decode = _beside_decode(machine)
    kinds = sorted(by_axes(ladders.cells, "backend", "stream_state"), key=lambda kind: (kind[0][0] != SM, kind[0]))
    tables = [_table(view, Pinned(cells, ladders.hidden), decode) for _, cells in kinds]
    # The settings are of engines' own kernels: they stand with the last table, among the details.
    tables[-1] = replace(tables[-1], notes=[*tables[-1].notes, *_engine_settings(machine)])
    (_, state), first = kinds[0]
    name = outcomes_in(first)[0].backend_name
    finding = f"{name}, {state} stream: {_enough_text(_ladders_of(first), int(first['sms'].min()))}."
    kernels = {backend: cells for (backend, kind_state), cells in kinds if kind_state == state}
    return Part([finding], [_chart(view, state, kernels)], tables)


def _enough_text(ladders: Mapping[Side, Ladder], least_sms: int) -> str:
    """Say how many SMs are enough, where most and where fewest are; `least_sms` is the fewest measured."""
    knees = {side: knee for side, ladder in ladders.items() if (knee := _knee(ladder))}
    if not knees:
        return f"no number of SMs below {max(chain.from_iterable(ladders.values()))} is clearly enough"
    fewest, most = min(knees, key=lambda side: knees[side]), max(knees, key=lambda side: knees[side])
    enough = noun(knees[most], "SM")
    if knees[fewest] < knees[most]:
        (low, low_bytes), (high, high_bytes) = fewest, most
        enough = f"{knees[fewest]} ({low} {bytes_size(low_bytes)}) to {enough} ({high} {bytes_size(high_bytes)})"
    extent = f" in {len(knees)} of {len(ladders)} columns" if len(knees) < len(ladders) else ""
    extent += ", the fewest measured" if knees[most] == least_sms else ""
    return f"{enough} are enough{extent}"


def _ladders_of(cells: pd.DataFrame) -> dict[Side, Ladder]:
    """The ladders of each direction and block size, h2d first."""
    ladders: dict[Side, Ladder] = {}
    for direction in DIRECTIONS:
        for size, ladder in by_axes(rows_with(cells, direction=direction), "block_bytes"):
            ladders[direction, size] = {sms: outcomes_in(rung) for sms, rung in by_axes(ladder, "sms")}
    return ladders


def _knee(ladder: Ladder) -> int | None:
    """The SM count from which more do not help."""
    bands = [_median_band(rung, interval_band) for rung in ladder.values()]
    return knee([*ladder], [gbps for gbps, _, _ in bands], [low for _, low, _ in bands])


def _table(view: View, kind: Pinned, decode: Decode) -> DataTable:
    backend, state = kind.cells[["backend", "stream_state"]].iloc[0]
    ladders = _ladders_of(kind.cells)
    knees = {side: _knee(ladder) for side, ladder in ladders.items()}
    beside = [side for side in DIRECTIONS if any(key[:2] == (backend, side) for key in decode)]
    body: list[list[Text]] = []
    for sms in sorted({*chain.from_iterable(ladders.values())}):
        line: list[Text] = [count(sms)]
        for side, ladder in ladders.items():
            text = with_interval(*_median_band(ladder[sms], interval_band)) if sms in ladder else ""
            line.append(model.Strong(text) if sms == knees[side] else text)
        body.append([*line, *(_slowdown_text(decode.get((backend, side, sms))) for side in beside)])
    header = ["SMs", *(f"{side} {bytes_size(size)}" for side, size in ladders)]
    header += [f"decode slower, {side}" for side in beside]
    outcomes = outcomes_in(kind.cells)
    blocks = range_text({outcome.cell.blocks for outcome in outcomes}, count)
    title = f"{outcomes[0].backend_name}, {state} stream: GB/s by SM count, median over N = {blocks}"
    bold = f"fewest SMs surely (95%) within {KNEE.fraction:.0%} of the best of the column"
    return measured_table(view, outcomes, INCLUDES[state], title, header, body, pinned=kind, bold=bold)


def _slowdown_text(beside: Outcome | None) -> str:
    return takes_text(slowdown_by(beside.costs.values())) if beside else ""


def _chart(view: View, state: str, kernels: Mapping[str, pd.DataFrame]) -> Chart:
    """The ladders of all kernels in a stream state, side by side for the directions."""
    ladders = {backend: _ladders_of(cells) for backend, cells in kernels.items()}
    names = {backend: outcomes_in(cells)[0].backend_name for backend, cells in kernels.items()}
    panels = []
    for direction in DIRECTIONS:
        lines = []
        for backend, sides in ladders.items():
            by_size = [(side[1], ladder) for side, ladder in sides.items() if side[0] == direction]
            for number, (size, ladder) in enumerate(by_size):
                label = comma_separated(names[backend] if len(ladders) > 1 else "", bytes_size(size))
                lines.append(_line(label, backend, number, ladder))
        panels += [PlotPanel(direction, lines, view.run.ceilings_gbps.get(direction))] if lines else []
    plot = LinePlot(PlotAxis("SMs", octaves=True), GBPS, panels)
    title = f"SM ladder of {' and '.join(names.values())}: GB/s against the SM count"
    return chart_of(view, "sm-ladder", title, f"{INCLUDES[state]}. Ring: enough SMs", plot)


def _line(label: str, backend: str, variant: int, ladder: Ladder) -> PlotLine:
    rings = [*filter(None, [_knee(ladder)])]
    bands = [_median_band(rung, rate_band) for rung in ladder.values()]
    return line_of(label, backend, [*ladder], bands, variant, light=0.2 * variant, rings=rings)
