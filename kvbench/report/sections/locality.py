"""Locality: what it costs that an engine's blocks are fresh and lie far apart, against the same blocks side by side."""

import math
from collections.abc import Mapping
from typing import Final

import pandas as pd

from kvbench.analysis.compare import Comparison, Verdict
from kvbench.cells.axes import Reuse
from kvbench.cells.backend_facts import method_label
from kvbench.report.captions import includes_of
from kvbench.report.model import Finding, Part, PartOrReason, Text
from kvbench.report.numbers import TIMES, bytes_size, count, slower_text
from kvbench.report.rate_curves import RateCurves, curve_chart, curves_over
from kvbench.report.select import pin, where
from kvbench.report.table_rows import (
    UNCLEAR,
    Row,
    chance_note,
    format_cell,
    measured_table,
    primed_inline,
    rate,
    ratio_text,
    rows_of,
    sms_of,
)
from kvbench.report.view import View

MIN_POOLS: Final = 3
_ARMS: Final = {
    ("dense", Reuse.SAME): "hot, dense",
    ("dense", Reuse.FRESH): "fresh, dense",
    ("far", Reuse.SAME): "same, scattered",
    ("far", Reuse.FRESH): "fresh, scattered",
}
_HEADER: Final = ("Swap", "Backend", *_ARMS.values(), "Cost")
_HOT, _FAR = ("dense", Reuse.SAME), ("far", Reuse.FRESH)
_NOTE: Final = (
    "Hot, dense: every swap moves the same blocks of a pool that is just large enough. Fresh: every swap moves blocks "
    "that the caches no longer hold. Scattered: blocks of the largest pool of the run, on both sides. Cost: time of a "
    f"fresh, scattered swap over that of a hot, dense one. {UNCLEAR}"
)
Arm = tuple[str, Reuse]
Shape = tuple[str, str, int, int]  # direction, backend, blocks, block bytes


def make(view: View) -> PartOrReason:
    pinned = pin(view.frame, shown=("pool", "reuse", "sms"))
    compared = _compared(pinned.cells)
    curves = _pool_curves(view.frame)
    if not compared and curves is None:
        return f"it needs a swap measured both hot and dense and from a large pool, or {MIN_POOLS} sizes of the pool"
    cells = pd.DataFrame([row for swap in compared.values() for row in swap.values() if row["status"] == "ok"])
    costs = {
        shape: view.compare(str(arms[_HOT]["cell_id"]), str(arms[_FAR]["cell_id"])) for shape, arms in compared.items()
    }
    tables, highlights = [], []
    for direction in sorted({shape[0] for shape in compared}, reverse=True):
        swaps = {shape: arms for shape, arms in compared.items() if shape[0] == direction}
        title = f"{direction}, idle stream: GB/s of hot and fresh, dense and scattered blocks"
        body, included = _rows(swaps, costs), includes_of("idle")
        notes = [_NOTE, *chance_note(len(swaps))]
        tables.append(measured_table(view, cells, title, _HEADER, body, included, pinned, notes, left=2))
        both = [shape for shape, arms in swaps.items() if arms[_HOT]["status"] == arms[_FAR]["status"] == "ok"]
        highlights += _finding(direction, {shape: costs[shape] for shape in both})
    highlights += primed_inline(pinned.cells)
    charts = []
    if curves:
        sizes = {curve.panel: f", {bytes_size(curve.panel)} blocks" for curve in curves.curves}
        title = f"GB/s against the size of the pool, N = {count(curves.main)} fresh blocks"
        charts = [curve_chart(view, "locality", curves, sizes, title)]
    return lambda: Part(charts=charts, tables=tables, highlights=highlights)


def _compared(cells: pd.DataFrame) -> dict[Shape, dict[Arm, Row]]:
    """Return the arms of every swap on an idle stream that has those which are compared, and any measured one."""
    idle = where(cells, stream_state="idle")
    largest = int(idle["pool_bytes"].max()) if len(idle) else 0
    swaps: dict[Shape, dict[Arm, Row]] = {}
    for row in rows_of(idle[idle["pool_bytes"].isin([0, largest])] if largest else idle.iloc[:0]):
        shape = (str(row["direction"]), str(row["backend"]), int(row["blocks"]), int(row["block_bytes"]))
        arm = ("far" if row["pool_bytes"] else "dense", Reuse(row["reuse"]) if row["reuse"] else Reuse.SAME)
        swaps.setdefault(shape, {}).setdefault(arm, row)
    return {
        shape: arms
        for shape, arms in swaps.items()
        if _HOT in arms and _FAR in arms and any(row["status"] == "ok" for row in arms.values())
    }


def _rows(swaps: Mapping[Shape, Mapping[Arm, Row]], costs: Mapping[Shape, Comparison]) -> list[list[Text]]:
    ordered = sorted(swaps, key=lambda shape: (shape[2:], shape[1]))
    return [
        [
            f"{count(blocks)} {TIMES} {bytes_size(size)}",
            backend,
            *(format_cell(swaps[direction, backend, blocks, size].get(arm), _rate) for arm in _ARMS),
            ratio_text(costs[direction, backend, blocks, size]),
        ]
        for direction, backend, blocks, size in ordered
    ]


def _rate(row: Row) -> str:
    return method_label(rate(row), sms_of(row))


def _finding(direction: str, costs: Mapping[Shape, Comparison]) -> list[Finding]:
    """Return which backend pays most for scattered blocks, and which pay nothing; none where that is undecided."""
    dearer = {shape: cost.ratio for shape, cost in costs.items() if cost.verdict is Verdict.SLOWER}
    slower = {shape[1] for shape in dearer}
    undecided = {shape[1] for shape, cost in costs.items() if cost.verdict is Verdict.UNDECIDED}
    unharmed = sorted({shape[1] for shape in costs} - slower - undecided)
    text = f"{direction} of fresh, scattered blocks against hot, dense ones: "
    if dearer:
        worst = max(dearer, key=lambda shape: dearer[shape])
        _, backend, blocks, size = worst
        text += f"{backend} of {count(blocks)} {TIMES} {bytes_size(size)} {slower_text(dearer[worst])}"
    rest = f"{' and '.join(unharmed)} {'is' if len(unharmed) == 1 else 'are'} not slower" if unharmed else ""
    if not slower and not rest:
        return []
    return [Finding(f"{text}{'; ' if slower and rest else ''}{rest}.", math.log(max(dearer.values(), default=1.0)))]


def _pool_curves(cells: pd.DataFrame) -> RateCurves | None:
    """Return GB/s over the size of the pool, a panel per block size; None with fewer than `MIN_POOLS` sizes."""
    pinned = pin(cells[cells["reuse"] == Reuse.FRESH.value], shown=("pool", "sms"))
    fresh = where(pinned.cells, status="ok", stream_state="idle")
    fresh = fresh[fresh["pool_bytes"] > 0]
    swaps = [swap for _, swap in fresh.groupby(["blocks", "block_bytes"])]
    widest = max(swaps, key=lambda swap: int(swap["pool_bytes"].nunique()), default=fresh)
    widest = widest[widest.groupby(["backend", "direction"])["pool_bytes"].transform("nunique") >= MIN_POOLS]
    if widest.empty:
        return None
    curves = curves_over(widest, "block_bytes", "pool_bytes")
    return RateCurves("pool_bytes", curves, pinned, widest, int(widest["blocks"].iloc[0]))
