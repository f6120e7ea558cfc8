"""The SM ladder: GB/s against the SM count of a kernel, and the count beyond which more SMs do not help."""

from collections.abc import Sequence

from kvbench.analysis.margins import KNEE
from kvbench.report.captions import includes_of
from kvbench.report.model import DataTable, Finding, Part, PartOrReason, Strong, Text
from kvbench.report.numbers import bytes_size, count, noun
from kvbench.report.rate_curves import RateCurve, RateCurves, curve_chart, evenly_spaced, ladder_curves, left_out
from kvbench.report.select import grouped, where
from kvbench.report.table_rows import format_cell, measured_table, rate, rows_of
from kvbench.report.view import View
from kvbench.text import a_stream

_WEIGHT = 0.2  # a sentence on what suffices shows no effect
_BOLD = (
    Strong("Bold"),
    f": the knee, the smallest SM count within {KNEE.fraction:.0%} of the best of its column, interval included: "
    f"{KNEE.reason}. None where GB/s still rise at the largest count",
)


def make(view: View) -> PartOrReason:
    curves = ladder_curves(view.frame)
    if isinstance(curves, str):
        return curves
    sizes = sorted({curve.panel for curve in curves.curves})
    rows = {size: f", {bytes_size(size)} blocks" for size in evenly_spaced(sizes)}
    title = f"GB/s against the SM count, N = {count(curves.main)} blocks{left_out(sizes)}"
    groups = grouped(curves.curves, lambda curve: (curve.backend, curve.state))
    return lambda: Part(
        charts=[curve_chart(view, "sm-ladder", curves, rows, title)],
        tables=[_table(view, curves, group) for group in groups.values()],
        highlights=[Finding(text, _WEIGHT) for group in groups.values() if (text := _sentence(group, curves.main))],
    )


def _table(view: View, curves: RateCurves, columns: Sequence[RateCurve]) -> DataTable:
    backend, state = columns[0].backend, columns[0].state
    rows = where(curves.cells, backend=backend, stream_state=state)
    grid = {(row["direction"], int(row["block_bytes"]), int(row["sms"])): row for row in rows_of(rows)}
    body: list[list[Text]] = []
    for sms in sorted({int(sms) for sms in rows["sms"]}):
        texts = [format_cell(grid.get((curve.direction, curve.panel, sms)), rate) for curve in columns]
        marked = [Strong(text) if sms == curve.knee else text for curve, text in zip(columns, texts, strict=True)]
        body.append([str(sms), *marked])
    body.append(["knee", *(str(curve.knee or "none") for curve in columns)])
    title = f"{backend}, {state} stream, N = {count(curves.main)}: GB/s against the SM count"
    header = ("SMs", *(f"{curve.direction} {bytes_size(curve.panel)}" for curve in columns))
    measured, included = where(rows, status="ok"), includes_of(state)
    return measured_table(view, measured, title, header, body, included, curves.pinned, [_BOLD])


def _sentence(group: Sequence[RateCurve], blocks: int) -> str:
    """Return the knees of a kernel on streams of one state; "" for none."""
    knees: dict[int, list[str]] = {}
    for curve in group:
        if curve.knee:
            knees.setdefault(curve.knee, []).append(f"{curve.direction} {bytes_size(curve.panel)}")
    if not knees:
        return ""
    least = min(knees)
    parts = (f"{noun(sms, 'SM') if sms == least else sms} ({', '.join(knees[sms])})" for sms in sorted(knees))
    head = f"{group[0].backend} on {a_stream(group[0].state)}, N = {count(blocks)}"
    return f"{head}: knee at {', '.join(parts)}."
