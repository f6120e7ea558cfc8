"""What merging adjacent descriptors costs and saves: batched copies with it and without, pattern by pattern."""

import math
from typing import Final

import pandas as pd

from kvbench.analysis.compare import Comparison, Verdict, compare_visits
from kvbench.analysis.margins import IN_TURN
from kvbench.report.model import DataTable, Finding, Part, Section
from kvbench.report.numbers import TIMES, count, faster_words, figure, size
from kvbench.report.select import DIRECTIONS, SERIES, SIDE_AXES
from kvbench.report.tables import UNCLEAR, Row, measured_table, rows_of, unsure
from kvbench.report.view import View
from kvbench.results.frame import unqueued
from kvbench.text import a_stream

_SHAPE: Final = ("blocks", "block_bytes", "pattern")
_SHARED: Final = (*SERIES, *(axis for axis in SIDE_AXES if axis not in (*_SHAPE, "coalesce")))
_NAMED: Final = ("order", "sms", "descriptors_per_call", "kernel")
_INCLUDES: Final = (
    "Medians in us per swap: wall_us on an idle stream, gpu_us on a busy one. Off: blocks as listed. On: blocks that "
    "are adjacent on both sides are merged, without sorting. "
    f"Saved: (off - on) / off. {UNCLEAR}"
)


def make(view: View) -> Part | str:
    measured = unqueued(view.measured)
    off, on = (measured[measured["coalesce"] == word] for word in ("off", "on"))
    pairs = off.merge(on, on=[*_SHARED, *_SHAPE], suffixes=("_off", "_on"))
    if pairs.empty:
        return "it needs cells with coalesce=off and coalesce=on that are otherwise equal"
    saved = []
    for row in rows_of(pairs):
        before, after = (view.visits.get(row[name], {}) for name in ("cell_id_off", "cell_id_on"))
        saved.append(compare_visits(before, after, IN_TURN))
    pairs["saved"] = pd.Series(saved, dtype=object)
    tables = [_table(view, measured, group) for _, group in pairs.groupby(list(_SHARED), dropna=False)]
    return Part(tables=sorted(tables, key=lambda table: table.title), told=_findings(pairs))


SECTION = Section("merging", "Merging: what merging adjacent blocks costs and saves", make)


def _findings(pairs: pd.DataFrame) -> list[Finding]:
    """Return the largest gain of merging in each direction."""
    found = []
    for way in DIRECTIONS:
        faster = [row for row in rows_of(pairs) if row["direction"] == way and row["saved"].verdict is Verdict.FASTER]
        if faster:
            best = min(faster, key=lambda row: float(row["saved"].ratio))
            ratio = float(best["saved"].ratio)
            text = (
                f"Merging adjacent blocks makes {best['backend']} {way} {faster_words(1 / ratio)} on "
                f"{a_stream(best['stream_state'])} ({best['pattern']}, {count(best['blocks'])} {TIMES} "
                f"{size(best['block_size_off'])})."
            )
            found.append(Finding(text, -math.log(ratio)))
    return found


def _table(view: View, measured: pd.DataFrame, pairs: pd.DataFrame) -> DataTable:
    one = pairs.iloc[0]
    title = f"{one['direction']}, {one['backend']}, {one['stream_state']} stream"
    header = ("Pattern", "Blocks", "Block size", "Off us", "On us", "Saved")
    rows = [_row(row) for row in rows_of(pairs.sort_values(["block_bytes", "blocks", "pattern"]))]
    shown = measured[measured["cell_id"].isin({*pairs["cell_id_off"], *pairs["cell_id_on"]})]
    others = ", ".join(f"{axis} {one[axis]}" for axis in _NAMED if pd.notna(one[axis]))
    includes = "; ".join(filter(None, (_INCLUDES, others)))
    return measured_table(view, shown, title, header, rows, includes, compared=len(rows))


def _row(row: Row) -> list[str]:
    saved: Comparison = row["saved"]
    times = (row[name] for name in ("swap_us_median_off", "swap_us_median_on"))
    said = f"{unsure(saved)}{1 - saved.ratio:+.0%}"
    return [row["pattern"], count(row["blocks"]), size(row["block_size_off"]), *map(figure, times), said]
