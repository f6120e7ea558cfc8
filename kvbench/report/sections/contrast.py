"""The pattern of most sections: the values of one axis stand side by side in cells that are otherwise equal.

A `Contrast` selects cells, names the column of their arms, and what tells tables and lines apart. A line
holds a cell for each arm; two arms are compared, or the fastest is marked.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pandas as pd

from kvbench.analysis.compare import Comparison, Visits, by_chance, winners
from kvbench.analysis.margins import IN_TURN
from kvbench.cells.facts import BATCHED, method_label
from kvbench.report.model import DataTable, Part, PartOrReason, Text
from kvbench.report.numbers import TIMES, bytes_size, count, noun
from kvbench.report.tables import (
    comma_separated,
    fastest_marked,
    format_cell,
    label_of,
    measured_table,
    rate,
    ratio_text,
    sms_of,
)
from kvbench.report.view import DIRECTIONS, STATES, Pinned, Row, View, grouped, rows_of, where
from kvbench.text import a_stream, ends

Line = Mapping[str, Row]  # by arm


@dataclass(frozen=True, slots=True)
class Key:
    """A column that tells lines apart: its head, the columns of a cell that it shows, and their text."""

    head: str
    columns: tuple[str, ...]
    text: Callable[[Row], Text]


@dataclass(frozen=True, slots=True)
class Figure:
    """A column of figures: its head, and the arm whose cells it shows."""

    head: str
    arm: str
    show: Callable[[Row], Text] = rate


DIRECTION: Final = Key("Dir", ("direction",), lambda row: str(row["direction"]))
BACKEND: Final = Key("Backend", ("backend",), lambda row: str(row["backend"]))
METHOD: Final = Key("Method", ("backend",), lambda row: method_label(row["backend"], sms_of(row)))
BLOCKS: Final = Key("Blocks", ("blocks",), lambda row: count(row["blocks"]))
SIZE: Final = Key("Block size", ("block_bytes",), lambda row: bytes_size(row["block_bytes"]))
SWAP: Final = Key(
    "Swap", ("block_bytes", "blocks"), lambda row: f"{count(row['blocks'])} {TIMES} {bytes_size(row['block_bytes'])}"
)


def backends(side: "ContrastSide") -> list[Figure]:
    """Return a column for each backend, batched copies first."""
    names = sorted(set(side.measured["backend"]), key=lambda name: (name != BATCHED, name))
    return [Figure(label_of(name, where(side.measured, backend=name)), name) for name in names]


@dataclass(frozen=True)
class ContrastSide:
    """The cells of one table, and its lines in their order."""

    contrast: "Contrast"
    view: View
    pinned: Pinned
    cells: pd.DataFrame
    lines: Sequence[Line]

    @property
    def first(self) -> Row:
        return any_of(self.lines[0])

    @cached_property
    def measured(self) -> pd.DataFrame:
        return where(self.cells, status="ok")

    @cached_property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(self.cells[self.contrast.arm]))

    @cached_property
    def comparisons(self) -> list[tuple[Line, Comparison]]:
        """How the time of the second compared arm differs from that of the first, where both were measured."""
        base, other = self.contrast.compared or ("", "")
        both = [line for line in self.lines if all(line.get(arm, {}).get("status") == "ok" for arm in (base, other))]
        return [(line, self.view.compare(line[base]["cell_id"], line[other]["cell_id"])) for line in both]


@dataclass(frozen=True, slots=True)
class Contrast:
    """How a section selects, groups, compares and shows its cells.

    `select` returns cells with the column `arm`, None for none; `needed` is what a run needs to have some. A table has
    the cells that are equal in the columns `apart`. Of `compared` arms the second is held against the first, a line
    without both is left out, and `ratio` is the head of the column. `last` are lines below: their first texts, and
    the others by arm.
    """

    needed: str
    select: Callable[[View], Pinned | None]
    apart: Sequence[str]
    keys: Sequence[Key]
    title: Callable[[ContrastSide], str]
    columns: Callable[[ContrastSide], Sequence[Figure]]
    includes: Callable[[ContrastSide], str | tuple[str, ...]]
    arm: str = "arm"
    compared: tuple[str, str] | None = None
    ratio: str = ""
    show_ratio: Callable[[Comparison], str] = ratio_text
    fastest: bool = False
    more: Callable[[ContrastSide], Mapping[str, Callable[[Line], Text]]] = lambda _: {}
    last: Callable[[ContrastSide], Sequence[tuple[Sequence[str], Mapping[str, Text]]]] = lambda _: ()
    notes: Callable[[ContrastSide], Sequence[Text]] = lambda _: ()
    find: Callable[[ContrastSide], Iterable[Text]] = lambda _: ()


def make(contrasts: Sequence[Contrast], view: View) -> PartOrReason:
    """The part of a run in a section of one or more contrasts, or what the run lacks for it."""
    selected = [(contrast, pinned) for contrast in contrasts if (pinned := contrast.select(view))]
    sides = [side for contrast, pinned in selected for side in sides_of(contrast, view, pinned)]
    if not sides:
        return contrasts[0].needed
    findings = [finding for side in sides for finding in side.contrast.find(side)]
    return lambda: Part(findings, tables=[_table(side) for side in sides])


def sides_of(contrast: Contrast, view: View, pinned: Pinned) -> list[ContrastSide]:
    cells = pinned.cells
    if cells.empty:
        return []
    keys = [column for key in contrast.keys for column in key.columns]
    order = cells.assign(
        nth_direction=cells["direction"].map(DIRECTIONS.index), nth_state=cells["stream_state"].map(STATES.index)
    )
    ranks = {"direction": "nth_direction", "stream_state": "nth_state"}
    apart = [ranks.get(column, column) for column in contrast.apart]
    sides = []
    for _, group in order.groupby(apart) if apart else [(None, order)]:
        lines: dict[tuple[Any, ...], dict[str, Row]] = {}
        for row in rows_of(group.sort_values([ranks.get(key, key) for key in keys], kind="stable")):
            lines.setdefault(tuple(row[column] for column in keys), {}).setdefault(row[contrast.arm], row)
        compared = set(contrast.compared or ())
        kept = [line for line in lines.values() if line.keys() >= compared]
        # Where nothing was measured (an engine that is not installed), the list of skipped cells says why.
        if any(row["status"] == "ok" for line in kept for row in line.values()):
            ids = {row["cell_id"] for line in kept for row in line.values()}
            sides.append(ContrastSide(contrast, view, pinned, group[group["cell_id"].isin(ids)], kept))
    return sides


def _table(side: ContrastSide) -> DataTable:
    contrast, columns = side.contrast, side.contrast.columns(side)
    ratios = {id(line): contrast.show_ratio(compared) for line, compared in side.comparisons}
    more = contrast.more(side)
    body = []
    for line in side.lines:
        keys = [key.text(any_of(line)) for key in contrast.keys]
        if contrast.fastest:
            figures = fastest_marked(line.values(), [column.arm for column in columns], rate, side.view.visits)
        else:
            figures = [format_cell(line.get(column.arm), column.show) for column in columns]
        ratio = [ratios.get(id(line), "")] if contrast.compared else []
        body.append([*keys, *figures, *ratio, *(show(line) for show in more.values())])
    after = [""] * (bool(contrast.compared) + len(more))
    for names, texts in contrast.last(side):
        body.append([*names, *(texts.get(column.arm, "") for column in columns), *after])
    ratio = [contrast.ratio] if contrast.compared else []
    header = [*(key.head for key in contrast.keys), *(column.head for column in columns), *ratio, *more]
    tested = sum(len(line) - 1 for line in side.lines) if contrast.fastest else len(side.comparisons)
    return measured_table(
        side.view,
        side.measured,
        contrast.includes(side),
        contrast.title(side),
        header,
        body,
        contrast.notes(side),
        pinned=side.pinned,
        compared=tested,
        left=len(contrast.keys),
    )


def turns(side: ContrastSide, over: Key, shape: str = "", unit: str = "") -> Iterable[Text]:
    """Say which backend is the fastest at which values of a key, for the lines that are equal in the other keys.

    Lines that differ in these alone share a sentence. `shape` is what all have in common; `unit` stands before a value.
    """
    others = [DIRECTION, *(key for key in side.contrast.keys if key not in (over, DIRECTION))]
    by_names = grouped(side.lines, lambda line: tuple(str(key.text(any_of(line))) for key in others))
    alike = grouped(by_names, lambda names: _fastest_text(side, by_names[names], over, unit))
    stream = a_stream(side.first["stream_state"])
    for text, names in alike.items():
        together = [list(dict.fromkeys(values)) for values in zip(*names, strict=True)]
        every = math.prod(map(len, together)) == len(names)
        for directions, *rest in [together] if every else [[[value] for value in one] for one in names]:
            of = (f"{' and '.join(directions)} on {stream}", shape, *map(", ".join, rest))
            yield from [f"{comma_separated(*of)}: {text}."] if text else []


def _fastest_text(side: ContrastSide, lines: Sequence[Line], over: Key, unit: str) -> str:
    """Name the fastest backend at each value of a key; "" without one."""
    column, *_ = over.columns
    heads = {column.arm: column.head for column in side.contrast.columns(side)}
    rows = [row for line in lines for row in line.values() if row["cell_id"] in side.view.visits]
    texts = {int(row[column]): str(over.text(row)) for row in rows}
    times: dict[str, dict[int, Visits]] = {}
    for row in rows:
        times.setdefault(row["backend"], {})[int(row[column])] = side.view.visits[row["cell_id"]]
    fastest = winners(times, IN_TURN) if len(times) > 1 else {}
    decided = [(value, name) for value, name in fastest.items() if name is not None]
    parts: list[str] = []
    for name, stretch in groupby(decided, key=itemgetter(1)):
        values = [texts[value] for value, _ in stretch]
        at = " to ".join(dict.fromkeys((values[0], values[-1])))
        parts.append(f"{heads[name]} {'at' if parts else f'is fastest at {unit}'.rstrip()} {at}")
    open_at = [texts[value] for value, name in fastest.items() if name is None]
    unclear = f" (no clear difference at {', '.join(open_at)})" if open_at else ""
    return f"{', '.join(parts)}{unclear}" if parts else ""


def any_of(line: Line) -> Row:
    return next(iter(line.values()))


def changes(side: ContrastSide, subject: str) -> list[Text]:
    """Return in how many cells of a table the compared arms differ, and by how much."""
    known = [compared for _, compared in side.comparisons if math.isfinite(compared.high)]
    told = [compared.ratio for compared in known if not compared.low <= 1 <= compared.high]
    if not told:
        return [f"{subject}: no clear difference in {noun(len(known), 'cell')}."] if known else []
    by = ends(told, lambda ratio: f"{ratio - 1:+.1%}")
    return [f"{subject}: {len(told)} of {noun(len(known), 'cell')} differ ({by}), {by_chance(len(known))} by chance."]
