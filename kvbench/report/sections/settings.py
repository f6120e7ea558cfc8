"""Access order: STREAM against ANY, cells that are equal in all else, visit against visit of the same round."""

import math
from collections.abc import Sequence
from typing import Final

import pandas as pd

from kvbench.analysis.compare import MIN_PAIRS, Comparison, compare_visits
from kvbench.analysis.margins import IN_TURN
from kvbench.report.model import DataTable, Finding, Part, Section
from kvbench.report.numbers import count, figure, noun, size
from kvbench.report.select import DIRECTIONS, Pinned, pin, where
from kvbench.report.tables import UNCLEAR, Row, includes_of, measured_table, rows_of, unsure
from kvbench.report.view import View
from kvbench.text import a_stream, ends

_RACE: Final = (
    "† ANY on d2h lets the driver read the source before earlier work on the stream has finished: use it only where no "
    "pending work writes the source"
)
_DELTA: Final = (
    f"Delta: ANY / STREAM - 1, from the medians of the visits of each round, with its 95% interval. {UNCLEAR}"
)
_TIMES: Final = {"swap_us": "swap time", "caller_us": "host time"}
_KEYS: Final = ["backend", "stream_state", "direction", "blocks", "block_bytes", "block_size"]


def make(view: View) -> Part | str:
    pinned = pin(view.measured[view.measured["order"].notna()], shown=("order",))
    stream, other = (where(pinned.cells, order=order) for order in ("stream", "any"))
    both = stream.merge(other, on=_KEYS, suffixes=("_stream", "_any"))
    if both.empty:
        return "it needs cells measured with order=stream and with order=any that are otherwise equal"
    for time in _TIMES:
        visits = view.visits_of(time)
        pairs = zip(both["cell_id_stream"], both["cell_id_any"], strict=True)
        changes = [compare_visits(visits.get(base, {}), visits.get(own, {}), IN_TURN) for base, own in pairs]
        both[f"{time}_change"] = pd.Series(changes, dtype=object)
    tables, told = [], []
    for _, group in both.groupby(["backend", "stream_state"], sort=False):
        rows = rows_of(group.sort_values(["direction", "block_bytes", "blocks"], ascending=[False, True, True]))
        tables += [_table(view, pinned, time, rows) for time in _TIMES]
        beyond = [abs(math.log(one.ratio)) for time in _TIMES for one in _changes(rows, time) if one.told_apart]
        if any(_rounds(row) >= MIN_PAIRS for row in rows):
            told.append(Finding(_sentence(rows), max(beyond, default=0.0)))
    return Part(tables=tables, told=told)


SECTION = Section("access-order", "Access order: STREAM against ANY", make)


def _changes(rows: Sequence[Row], time: str) -> list[Comparison]:
    return [row[f"{time}_change"] for row in rows]


def _rounds(row: Row) -> int:
    return min(int(row["rounds_stream"]), int(row["rounds_any"]))


def _change_words(row: Row, found: Comparison) -> str:
    """Return a change in percent, marked "≈" where there is no clear difference."""
    if _rounds(row) < MIN_PAIRS:
        return f"undecided: {noun(_rounds(row), 'round')} of {MIN_PAIRS}"
    low, value, high = ((end - 1) * 100 for end in (found.low, found.ratio, found.high))
    return f"{unsure(found)}{value:+.1f}% ({low:+.1f} to {high:+.1f})"


def _table(view: View, pinned: Pinned, time: str, rows: Sequence[Row]) -> DataTable:
    unit, scale = ("ms", 1e-3) if time == "swap_us" else ("us", 1.0)
    body = []
    for row in rows:
        mark = "†" if row["direction"] == "d2h" else ""
        medians = (figure(row[f"{time}_median_{order}"] * scale) for order in ("stream", "any"))
        cell = [row["direction"], count(row["blocks"]), size(row["block_size"])]
        body.append([*cell, *medians, f"{_change_words(row, row[f'{time}_change'])}{mark}"])
    ids = {row[f"cell_id_{order}"] for row in rows for order in ("stream", "any")}
    cells = pinned.cells[pinned.cells["cell_id"].isin(ids)]
    race = [_RACE] if any(row["direction"] == "d2h" for row in rows) else []
    title = f"STREAM against ANY: {_TIMES[time]} ({rows[0]['backend']}, {rows[0]['stream_state']} stream)"
    header = ("Dir", "Blocks", "BlkSize", f"STREAM med {unit}", f"ANY med {unit}", "Delta (95%)")
    return measured_table(view, cells, title, header, body, includes_of(view, time), pinned, [_DELTA, *race], len(rows))


def _sentence(rows: Sequence[Row]) -> str:
    """Return what ANY changes against STREAM, beyond the noise."""
    head = f"ANY against STREAM, {rows[0]['backend']} on {a_stream(rows[0]['stream_state'])}"
    if not any(found.told_apart for time in _TIMES for found in _changes(rows, time)):
        return f"{head}: no clear difference in {noun(len(rows), 'cell')}, in swap time and in host time."
    parts = []
    for way in DIRECTIONS:
        if here := [row for row in rows if row["direction"] == way]:
            said = " and ".join(_changed(_changes(here, time), title) for time, title in _TIMES.items())
            parts.append(f"{way} {said}")
    return f"{head}: {'; '.join(parts)}."


def _changed(changes: Sequence[Comparison], title: str) -> str:
    beyond = [found.ratio - 1 for found in changes if found.told_apart]
    if not beyond:
        return f"{title}: no clear difference"
    return f"{title} differs in {len(beyond)} of {len(changes)} cells ({ends(beyond, lambda share: f'{share:+.1%}')})"
