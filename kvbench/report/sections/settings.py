"""Access order: one value of an axis against another, in cells that are equal in all else."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from kvbench.analysis.compare import MIN_PAIRS, Comparison, compare_visits
from kvbench.analysis.margins import IN_TURN
from kvbench.report.captions import includes_of
from kvbench.report.model import DataTable, Finding, Part, PartOrReason
from kvbench.report.numbers import count, figure, noun, size
from kvbench.report.select import SERIES, SIDE_AXES, by_direction, where
from kvbench.report.table_rows import UNCLEAR, Row, comma_separated, measured_table, rows_of, unclear_mark
from kvbench.report.view import View
from kvbench.results.frame import unqueued
from kvbench.text import a_stream, ends

_SHAPE: Final = ("blocks", "block_bytes", "block_size")


@dataclass(frozen=True, slots=True)
class Setting:
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


ORDER: Final = Setting(
    "order",
    *("stream", "any"),
    ("STREAM", "ANY"),
    {"Dir": "direction", "Blocks": "blocks", "BlkSize": "block_size"},
    {"swap_us": "swap time", "caller_us": "host time"},
    note_d2h="† ANY on d2h lets the driver read the source before earlier work on the stream has finished: use it only "
    "where no pending work writes the source",
)


def make(setting: Setting, view: View) -> PartOrReason:
    measured = unqueued(view.measured)
    base, other = (where(measured, **{setting.axis: value}) for value in (setting.base, setting.other))
    both = base.merge(other, on=setting.equal, suffixes=("_base", "_other")) if len(base) and len(other) else other[:0]
    if both.empty:
        values = " and with ".join(f"{setting.axis}={value}" for value in (setting.base, setting.other))
        return f"it needs cells measured with {values} that are otherwise equal"
    for time in setting.times:
        visits = view.run.visit_times(time)
        pairs = zip(both["cell_id_base"], both["cell_id_other"], strict=True)
        changes = [compare_visits(visits.get(base, {}), visits.get(other, {}), IN_TURN) for base, other in pairs]
        both[f"{time}_change"] = pd.Series(changes, dtype=object)
    both["rounds"] = both[["rounds_base", "rounds_other"]].min(axis="columns").astype(int)
    both = both.sort_values(["direction", "block_bytes", "blocks"], ascending=[False, True, True])
    inside = {*setting.columns.values(), *_SHAPE}
    groups = both.groupby([name for name in setting.equal if name not in inside], sort=False, dropna=False)
    tables = [_table(view, setting, time, rows_of(group)) for _, group in groups for time in setting.times]
    highlights = []
    for _, group in both.groupby(["backend", "stream_state"], sort=False):
        changes = [change for time in setting.times for change in group[f"{time}_change"] if change.told_apart]
        if (group["rounds"] >= MIN_PAIRS).any():
            weight = max((abs(math.log(change.ratio)) for change in changes), default=0.0)
            highlights.append(Finding(_sentence(setting, group), weight))
    return lambda: Part(tables=tables, highlights=highlights)


def _change_text(rounds: int, change: Comparison) -> str:
    """Return a change in percent, marked "≈" where there is no clear difference."""
    if rounds < MIN_PAIRS:
        return f"undecided: {noun(rounds, 'round')} of {MIN_PAIRS}"
    low, value, high = ((end - 1) * 100 for end in (change.low, change.ratio, change.high))
    return f"{unclear_mark(change)}{value:+.1f}% ({low:+.1f} to {high:+.1f})"


def _table(view: View, setting: Setting, time: str, rows: Sequence[Row]) -> DataTable:
    unit, scale = ("ms", 1e-3) if time == "swap_us" else ("us", 1.0)
    first, (base, other) = rows[0], setting.names
    note = setting.note_d2h if any(row["direction"] == "d2h" for row in rows) else ""
    body = []
    for row in rows:
        mark = "†" if note and row["direction"] == "d2h" else ""
        medians = (figure(row[f"{time}_median_{side}"] * scale) for side in ("base", "other"))
        shape = (count(row[name]) if name == "blocks" else size(row[name]) for name in setting.columns.values())
        body.append([*shape, *medians, f"{_change_text(row['rounds'], row[f'{time}_change'])}{mark}"])
    ids = {row[f"cell_id_{side}"] for row in rows for side in ("base", "other")}
    cells = view.measured[view.measured["cell_id"].isin(ids)]
    direction = "" if "direction" in setting.columns.values() else first["direction"]
    title = comma_separated(direction, first["backend"], f"{first['stream_state']} stream")
    shown = (setting.axis, *setting.columns.values())
    values = {name: first[name] for name in SIDE_AXES if name not in shown and isinstance(first[name], str | int)}
    axes = ", ".join(f"{name} {size(str(value))}" for name, value in values.items())
    delta = f"Delta: {other} / {base} - 1, from the medians of the visits of each round, with its 95% interval."
    notes = [*filter(None, (f"{delta} {UNCLEAR}", *setting.notes, note))]
    header = (*setting.columns, f"{base} med {unit}", f"{other} med {unit}", "Delta (95%)")
    title = f"{base} against {other}: {setting.times[time]} ({title})"
    included = f"{includes_of(time)}. Axes: {axes}"
    return measured_table(view, cells, title, header, body, included, notes=notes, compared=len(rows))


def _sentence(setting: Setting, cells: pd.DataFrame) -> str:
    base, other = (name if name.isupper() else f"{setting.axis} {name}" for name in setting.names)
    backend, state = cells[["backend", "stream_state"]].iloc[0]
    head = f"{other} against {base}, {backend} on {a_stream(state)}"
    if not any(change.told_apart for time in setting.times for change in cells[f"{time}_change"]):
        named = " and in ".join(setting.times.values())
        return f"{head}: no clear difference in {noun(len(cells), 'cell')}, in {named}."
    parts = []
    for direction, side in by_direction(cells).items():
        changed = (_changed(side[f"{time}_change"], title) for time, title in setting.times.items())
        parts.append(f"{direction} {' and '.join(changed)}")
    return f"{head}: {'; '.join(parts)}."


def _changed(changes: Collection[Comparison], title: str) -> str:
    beyond = [change.ratio - 1 for change in changes if change.told_apart]
    if not beyond:
        return f"{title}: no clear difference"
    return f"{title} differs in {len(beyond)} of {len(changes)} cells ({ends(beyond, lambda share: f'{share:+.1%}')})"
