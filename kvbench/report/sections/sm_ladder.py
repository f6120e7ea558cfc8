"""The SM ladder: GB/s of a copy kernel against its SM count, over numbers of blocks, and what a decode step loses."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import pandas as pd

from kvbench.analysis.curves import knee
from kvbench.analysis.margins import KNEE
from kvbench.cells.axes import Neighbour
from kvbench.cells.facts import SM
from kvbench.errors import UsageError
from kvbench.report.model import (
    Chart,
    Code,
    DataTable,
    LinePlot,
    Part,
    PartOrReason,
    PlotAxis,
    PlotLine,
    PlotPanel,
    Strong,
    Text,
)
from kvbench.report.numbers import bytes_size, count, noun
from kvbench.report.sections.cliff import GBPS, RATES
from kvbench.report.tables import INCLUDES, chart_text, line_of, measured_table, rate
from kvbench.report.view import DIRECTIONS, Pinned, Row, View, ceiling_of, grouped, rows_of, where
from kvbench.sweep.installed import engines
from kvbench.text import ends
from kvbench.tune.answer import shapes_of
from kvbench.tune.exports import export

MIN_COUNTS: Final = 3
# Fewer blocks end before every SM is at work, and their launch takes a part of the time.
_MANY_BLOCKS: Final = 5000
_SLOWER: Final = ("neighbour_slowdown", "neighbour_slowdown_low", "neighbour_slowdown_high")
_BY_SMS: Final = ["backend", "stream_state", "direction", "block_bytes", "sms"]
Ladder = Mapping[int, Row]  # by SM count: its figures are medians over the numbers of blocks


def make(view: View) -> PartOrReason:
    """Make the section of the run with most ladders, of many blocks if any; a decode step may be of another run."""
    found = [(run, *made) for run in view.of_machine if (made := _ladders(run)) is not None]
    if not found:
        return f"it needs a kernel backend measured at {MIN_COUNTS} SM counts or more"
    many = [one for one in found if one[2]["blocks"].min() >= _MANY_BLOCKS]
    run, pinned, cells = max(many or found, key=lambda one: (one[0].weight[0], one[2]["blocks"].nunique(), len(one[2])))
    return partial(_part, run, pinned, cells, view.of_machine)


def _engine_settings(views: Sequence[View]) -> list[Text]:
    """The settings, to keep or to change, of engines that choose between copies and a kernel of theirs."""
    runs = [view.run for view in views]
    lines: list[Text] = []
    for name, engine in engines().items():
        if not (engine.takes and engine.same_as):
            continue
        try:
            lines.append(export(name, runs, shapes_of(runs, lambda _: True)).line())
        except UsageError:
            known = f"{engine.title}'s {', '.join(engine.settings)}: not measured, see "
            lines.append((known, Code(f"kvbench tune engine {name}")))
    return lines


def _ladders(view: View) -> tuple[Pinned, pd.DataFrame] | None:
    pinned = view.pin(view.frame[view.frame["sms"].notna()], shown=("sms",))
    measured = where(pinned.cells, status="ok")
    many = measured["blocks"] >= _MANY_BLOCKS
    measured = measured[many] if many.any() else measured
    counts = measured.groupby([*_BY_SMS[:-1], "blocks"])["sms"].transform("size")
    # A median over numbers of blocks compares SM counts only where each was measured at the same numbers.
    most = counts.groupby([measured[name] for name in _BY_SMS[:-1]]).transform("max")
    ladders = measured[(counts >= MIN_COUNTS) & (counts == most)]
    return None if ladders.empty else (pinned, ladders)


def _beside_decode(views: Sequence[View]) -> dict[tuple[str, str, int], Row]:
    """Return the cells beside a decode step by backend, direction and SM count: those of the workload of most."""
    rows = [
        row
        for view in views
        for row in rows_of(where(view.measured, neighbour=str(Neighbour.DECODE)))
        if isinstance(row["sms"], int) and row["neighbour_slowdown"] > 0
    ]
    by_workload = grouped(rows, lambda row: (row["blocks"], row["block_bytes"], row["pattern"]))
    most = max(by_workload.values(), key=len, default=[])
    return {(row["backend"], row["direction"], row["sms"]): row for row in most}


def _part(view: View, pinned: Pinned, cells: pd.DataFrame, machine: Sequence[View]) -> Part:
    decode = _beside_decode(machine)
    kinds = sorted(cells.groupby(["backend", "stream_state"]), key=lambda kind: (kind[0][0] != SM, kind[0]))
    tables = [_table(view, pinned, of_kind, decode) for _, of_kind in kinds]
    tables[0] = replace(tables[0], notes=[*tables[0].notes, *_engine_settings(machine)])
    (backend, state), first = kinds[0]
    known = [_knee(ladder) for ladder in _ladders_of(first).values()]
    enough = [one for one in known if one]
    finding = f"{backend}, {state} stream: GB/s still rise at the most SMs."
    if enough:
        of_all = f" in {len(enough)} of {len(known)} columns" if len(enough) < len(known) else ""
        finding = f"{backend}, {state} stream: {noun(max(enough), 'SM')} are enough{of_all}."
    return Part([finding], [_chart(view, first, decode)], tables)


def _ladders_of(cells: pd.DataFrame) -> dict[tuple[str, int], Ladder]:
    medians = cells.groupby(_BY_SMS, as_index=False)[["gbps", "gbps_low", "gbps_high", "gbps_q1", "gbps_q3"]].median()
    rows = sorted(rows_of(medians), key=lambda row: (row["direction"] != DIRECTIONS[0], row["block_bytes"], row["sms"]))
    sides = grouped(rows, lambda row: (str(row["direction"]), int(row["block_bytes"])))
    return {side: {int(row["sms"]): row for row in of_side} for side, of_side in sides.items()}


def _knee(ladder: Ladder) -> int | None:
    """Return the SM count from which more do not help."""
    return knee([*ladder], *([float(row[name]) for row in ladder.values()] for name in ("gbps", "gbps_low")))


def _table(view: View, pinned: Pinned, cells: pd.DataFrame, decode: Mapping[tuple[str, str, int], Row]) -> DataTable:
    backend, state = cells[["backend", "stream_state"]].iloc[0]
    ladders = _ladders_of(cells)
    knees = {side: _knee(ladder) for side, ladder in ladders.items()}
    beside = [side for side in DIRECTIONS if any(key[:2] == (backend, side) for key in decode)]
    body: list[list[Text]] = []
    for sms in sorted({sms for ladder in ladders.values() for sms in ladder}):
        line: list[Text] = [count(sms)]
        for side, ladder in ladders.items():
            text = rate(ladder[sms]) if sms in ladder else ""
            line.append(Strong(text) if sms == knees[side] else text)
        slowdowns = (decode.get((backend, side, sms)) for side in beside)
        body.append([*line, *(f"{row['neighbour_slowdown']:.2f}x" if row else "" for row in slowdowns)])
    header = ["SMs", *(f"{side} {bytes_size(size)}" for side, size in ladders)]
    header += [f"decode slower, {side}" for side in beside]
    blocks = ends({int(blocks) for blocks in cells["blocks"]}, count)
    title = f"{backend}, {state} stream: GB/s by SM count, median over N = {blocks}"
    bold = f"fewest SMs within {KNEE.fraction:.0%} of the best of the column"
    return measured_table(view, cells, INCLUDES[state], title, header, body, pinned=pinned, bold=bold)


def _chart(view: View, cells: pd.DataFrame, decode: Mapping[tuple[str, str, int], Row]) -> Chart:
    backend, state = cells[["backend", "stream_state"]].iloc[0]
    panels = []
    for direction, sides in grouped(_ladders_of(cells).items(), lambda one: one[0][0]).items():
        lines = [_line(number, *side) for number, side in enumerate(sides)]
        slower = {sms: row for (name, side, sms), row in sorted(decode.items()) if (name, side) == (backend, direction)}
        if slower:
            label = "decode step (right axis)"
            lines.append(
                line_of(label, [*slower], [{**row, "backend": label} for row in slower.values()], _SLOWER, second=True)
            )
        panels.append(PlotPanel(direction, lines, ceiling_of(where(cells, direction=direction))))
    second = PlotAxis("slowdown of a decode step", zero=False)
    slowed = second if any(line.second for panel in panels for line in panel.lines) else None
    plot = LinePlot(PlotAxis("SMs", octaves=True), GBPS, panels, slowed)
    text = chart_text(
        view, f"SM ladder of {backend}: GB/s against the SM count", f"{INCLUDES[state]}. Ring: enough SMs"
    )
    return Chart(f"sm-ladder-{view.label}", text, plot)


def _line(variant: int, side: tuple[str, int], ladder: Ladder) -> PlotLine:
    enough = _knee(ladder)
    rings = [enough] if enough else []
    return line_of(bytes_size(side[1]), [*ladder], [*ladder.values()], RATES, variant, light=0.2 * variant, rings=rings)
