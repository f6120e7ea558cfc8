"""Access order and merging: one value of an axis against another, in cells that are equal in all else."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pandas as pd

from kvbench.analysis.compare import MIN_PAIRS, Comparison, compare_visits
from kvbench.analysis.margins import IN_TURN
from kvbench.report.captions import includes_of
from kvbench.report.model import DataTable, Finding, Part, Section
from kvbench.report.numbers import count, figure, noun, size
from kvbench.report.select import DIRECTIONS, SERIES, SIDE_AXES, where
from kvbench.report.table_rows import UNCLEAR, Row, comma_separated, measured_table, rows_of, unclear_mark
from kvbench.report.view import View
from kvbench.results.frame import unqueued
from kvbench.text import a_stream, ends

_SHAPE: Final = ("blocks", "block_bytes", "block_size")


@dataclass(frozen=True, slots=True)
class _Setting:
    """The values `base` and `other` of an axis, with their `names`, and how their tables look.

    `columns` are header -> column of what tells the rows of a table apart, `times` column -> name of what is compared;
    `notes` stand below each table, `note_d2h` below those with d2h.
    """

    axis: str
    base: str
    other: str
    names: tuple[str, str]
    columns: Mapping[str, str]
    times: Mapping[str, str]
    notes: Sequence[str] = ()
    note_d2h: str = ""

    @property
    def equal(self) -> list[str]:
        """The columns in which the compared cells are equal."""
        return [*SERIES, *_SHAPE, *(axis for axis in SIDE_AXES if axis != self.axis)]


_ORDER: Final = _Setting(
    "order",
    *("stream", "any"),
    ("STREAM", "ANY"),
    {"Dir": "direction", "Blocks": "blocks", "BlkSize": "block_size"},
    {"swap_us": "swap time", "caller_us": "host time"},
    note_d2h="† ANY on d2h lets the driver read the source before earlier work on the stream has finished: use it only "
    "where no pending work writes the source",
)
_MERGING: Final = _Setting(
    "coalesce",
    *("off", "on"),
    ("off", "on"),
    {"Pattern": "pattern", "Blocks": "blocks", "Block size": "block_size"},
    {"swap_us": "swap time"},
    ("Off: blocks as listed. On: blocks that are adjacent on both sides are merged, without sorting",),
)


def _make(setting: _Setting, view: View) -> Part | str:
    measured = unqueued(view.measured)
    sides = (where(measured, **{setting.axis: value}) for value in (setting.base, setting.other))
    both = next(sides).merge(next(sides), on=setting.equal, suffixes=("_base", "_other"))
    if both.empty:
        values = " and with ".join(f"{setting.axis}={value}" for value in (setting.base, setting.other))
        return f"it needs cells measured with {values} that are otherwise equal"
    for time in setting.times:
        visits = view.visits_of(time)
        pairs = zip(both["cell_id_base"], both["cell_id_other"], strict=True)
        changes = [compare_visits(visits.get(base, {}), visits.get(other, {}), IN_TURN) for base, other in pairs]
        both[f"{time}_change"] = pd.Series(changes, dtype=object)
    both = both.sort_values(["direction", "block_bytes", "blocks"], ascending=[False, True, True])
    inside = {*setting.columns.values(), *_SHAPE}
    groups = both.groupby([name for name in setting.equal if name not in inside], sort=False, dropna=False)
    tables = [_table(view, setting, time, rows_of(group)) for _, group in groups for time in setting.times]
    highlights = []
    for _, group in both.groupby(["backend", "stream_state"], sort=False):
        rows = rows_of(group)
        beyond = [abs(math.log(one.ratio)) for time in setting.times for one in _changes(rows, time) if one.told_apart]
        if any(_rounds(row) >= MIN_PAIRS for row in rows):
            highlights.append(Finding(_sentence(setting, rows), max(beyond, default=0.0)))
    return Part(tables=tables, highlights=highlights)


ACCESS_ORDER = Section("access-order", "Access order: STREAM against ANY", partial(_make, _ORDER))
MERGING = Section("merging", "Merging: what merging adjacent blocks costs and saves", partial(_make, _MERGING))


def _changes(rows: Sequence[Row], time: str) -> list[Comparison]:
    return [row[f"{time}_change"] for row in rows]


def _rounds(row: Row) -> int:
    return min(int(row["rounds_base"]), int(row["rounds_other"]))


def _change_text(row: Row, change: Comparison) -> str:
    """Return a change in percent, marked "≈" where there is no clear difference."""
    if _rounds(row) < MIN_PAIRS:
        return f"undecided: {noun(_rounds(row), 'round')} of {MIN_PAIRS}"
    low, value, high = ((end - 1) * 100 for end in (change.low, change.ratio, change.high))
    return f"{unclear_mark(change)}{value:+.1f}% ({low:+.1f} to {high:+.1f})"


def _table(view: View, setting: _Setting, time: str, rows: Sequence[Row]) -> DataTable:
    unit, scale = ("ms", 1e-3) if time == "swap_us" else ("us", 1.0)
    first, (base, other) = rows[0], setting.names
    note = setting.note_d2h if any(row["direction"] == "d2h" for row in rows) else ""
    body = []
    for row in rows:
        mark = "†" if note and row["direction"] == "d2h" else ""
        medians = (figure(row[f"{time}_median_{side}"] * scale) for side in ("base", "other"))
        shape = (count(row[name]) if name == "blocks" else size(row[name]) for name in setting.columns.values())
        body.append([*shape, *medians, f"{_change_text(row, row[f'{time}_change'])}{mark}"])
    ids = {row[f"cell_id_{side}"] for row in rows for side in ("base", "other")}
    cells = view.measured[view.measured["cell_id"].isin(ids)]
    direction = "" if "direction" in setting.columns.values() else first["direction"]
    title = comma_separated(direction, first["backend"], f"{first['stream_state']} stream")
    shown = (setting.axis, *setting.columns.values())
    others = (
        f"{name} {size(str(first[name]))}"
        for name in SIDE_AXES
        if name not in shown and isinstance(first[name], str | int)
    )
    delta = (
        f"Delta: {other} / {base} - 1, from the medians of the visits of each round, with its 95% interval. {UNCLEAR}"
    )
    return measured_table(
        view,
        cells,
        f"{base} against {other}: {setting.times[time]} ({title})",
        (*setting.columns, f"{base} med {unit}", f"{other} med {unit}", "Delta (95%)"),
        body,
        f"{includes_of(view, time)}. Axes: {', '.join(others)}",
        notes=[*filter(None, (delta, *setting.notes, note))],
        compared=len(rows),
    )


def _sentence(setting: _Setting, rows: Sequence[Row]) -> str:
    """Return what the other value changes against the base, beyond the noise."""
    base, other = (name if name.isupper() else f"{setting.axis} {name}" for name in setting.names)
    head = f"{other} against {base}, {rows[0]['backend']} on {a_stream(rows[0]['stream_state'])}"
    if not any(change.told_apart for time in setting.times for change in _changes(rows, time)):
        named = " and in ".join(setting.times.values())
        return f"{head}: no clear difference in {noun(len(rows), 'cell')}, in {named}."
    parts = []
    for direction in DIRECTIONS:
        if side := [row for row in rows if row["direction"] == direction]:
            changed = " and ".join(_changed(_changes(side, time), title) for time, title in setting.times.items())
            parts.append(f"{direction} {changed}")
    return f"{head}: {'; '.join(parts)}."


def _changed(changes: Sequence[Comparison], title: str) -> str:
    beyond = [change.ratio - 1 for change in changes if change.told_apart]
    if not beyond:
        return f"{title}: no clear difference"
    return f"{title} differs in {len(beyond)} of {len(changes)} cells ({ends(beyond, lambda share: f'{share:+.1%}')})"
