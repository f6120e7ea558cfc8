"""The pattern of most sections: the values of one axis stand side by side in cells that are otherwise equal.

A `Contrast` selects cells, and says by functions of a cell which arm it is of, and what tells tables and lines apart. A
line holds a cell for each arm; two arms are compared, or the fastest is marked.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final

import pandas as pd

from kvbench.analysis.compare import Comparison, Verdict, Visits, winners
from kvbench.analysis.margins import IN_TURN
from kvbench.cells.cell import Cell
from kvbench.cells.facts import BATCHED
from kvbench.ground.text import a_stream, range_text
from kvbench.report import tables
from kvbench.report.cells import OUTCOME, by_axes, grid_of, lines_of, outcomes_in
from kvbench.report.model import Chart, DataTable, Part, PartOrReason, Text
from kvbench.report.numbers import bytes_size, count, noun
from kvbench.report.view import DIRECTIONS, Pinned, View, compare
from kvbench.results.outcomes import Outcome, grouped, is_measured

Line = Mapping[str, Outcome]  # by arm
Value = Callable[[Cell], Any]


@dataclass(frozen=True, slots=True)
class Key:
    """A column that tells lines apart: its head, what lines are sorted by, and its text."""

    head: str
    value: Value
    text: Callable[[Outcome], Text]


@dataclass(frozen=True, slots=True)
class Figure:
    """A column of figures: its head, and the arm whose cells it shows."""

    head: str
    arm: str
    show: Callable[[Outcome], Text] = tables.rate


def backend(cell: Cell) -> str:
    return cell.backend


def by_direction(cell: Cell) -> int:
    return DIRECTIONS.index(cell.direction)


def size(cell: Cell) -> int:
    return cell.block_bytes


DIRECTION: Final = Key("Dir", by_direction, lambda outcome: outcome.cell.direction.value)
BACKEND: Final = Key("Backend", backend, lambda outcome: outcome.backend_name)
METHOD: Final = Key("Method", backend, tables.method_of)
BLOCKS: Final = Key("Blocks", lambda cell: cell.blocks, lambda outcome: count(outcome.cell.blocks))
SIZE: Final = Key("Block size", size, lambda outcome: bytes_size(outcome.cell.block_bytes))
SWAP: Final = Key("Swap", lambda cell: (cell.block_bytes, cell.blocks), lambda outcome: tables.swap_text(outcome.cell))


def backends(side: "ContrastSide") -> list[Figure]:
    """A column for each backend, batched copies first."""
    arms = grouped(side.measured, lambda outcome: outcome.cell.backend)
    return [
        Figure(tables.label_of(arms[name]), name) for name in sorted(arms, key=lambda name: (name != BATCHED, name))
    ]


@dataclass(frozen=True)
class ContrastSide:
    """The cells of one table, and its lines in their order."""

    contrast: "Contrast"
    view: View
    pinned: Pinned
    lines: Sequence[Line]
    arms: Sequence[str]

    @property
    def cell(self) -> Cell:
        """A cell of the table: all are equal in what tells tables apart."""
        return first_of(self.lines[0]).cell

    @property
    def backend(self) -> str:
        """The name of the backend of a table of one."""
        return first_of(self.lines[0]).backend_name

    @cached_property
    def measured(self) -> list[Outcome]:
        return [*filter(is_measured, chain.from_iterable(line.values() for line in self.lines))]

    @cached_property
    def comparisons(self) -> list[tuple[Line, Comparison]]:
        """How the second compared arm differs from the first in the contrast's time, where both were measured."""
        if self.contrast.compared is None:
            return []
        base, other = self.contrast.compared
        complete = [line for line in self.lines if all(arm in line and is_measured(line[arm]) for arm in (base, other))]
        return [(line, compare(line[base], line[other], self.contrast.time)) for line in complete]


@dataclass(frozen=True, slots=True)
class Contrast:
    """How a section selects, groups, compares and shows its cells.

    `select` returns cells, None for none; `needed` is what a run needs to have some. A table has the cells that are
    equal in the values `tables_by`; `includes` says what their times are, "" those of their stream state. Of `compared`
    arms the second is held against the first, by their `time`; a line without both is left out, and `ratio` is the head
    of the column. `last` are lines below: their first texts, and the others by arm; where there are some, `last_note`
    says what they mean.
    """

    needed: str
    select: Callable[[View], Pinned | None]
    tables_by: Sequence[Value]
    keys: Sequence[Key]
    title: Callable[[ContrastSide], str]
    columns: Callable[[ContrastSide], Sequence[Figure]]
    includes: tables.Clock = ""
    arm: Callable[[Outcome], str] = lambda outcome: outcome.cell.backend
    compared: tuple[str, str] | None = None
    time: str = "swap_us"
    ratio: str = ""
    show_ratio: Callable[[Comparison], str] = tables.ratio_text
    fastest: bool = False
    more: Callable[[ContrastSide], Mapping[str, Callable[[Line], Text]]] = lambda _: {}
    last: Callable[[ContrastSide], Sequence[tuple[Sequence[str], Mapping[str, Text]]]] = lambda _: ()
    last_note: str = ""
    notes: Callable[[ContrastSide], Sequence[Text]] = lambda _: ()
    find: Callable[[ContrastSide], Iterable[Text]] = lambda _: ()
    chart: Callable[[ContrastSide], Chart | None] = lambda _: None


def make(contrasts: Sequence[Contrast], view: View) -> PartOrReason:
    """The part of a run in a section of one or more contrasts, or what the run lacks for it."""
    sides: list[ContrastSide] = []
    for contrast in contrasts:
        pinned = contrast.select(view)
        sides += sides_of(contrast, view, pinned) if pinned else []
    if not sides:
        return contrasts[0].needed
    findings = [*chain.from_iterable(side.contrast.find(side) for side in sides)]

    def part() -> Part:
        # Tables and charts cost most, and of several runs only one is shown: they are made when it is chosen.
        charts = [*filter(None, (side.contrast.chart(side) for side in sides))]
        return Part(findings, charts, [_table(side) for side in sides])

    return part


def sides_of(contrast: Contrast, view: View, pinned: Pinned) -> list[ContrastSide]:
    outcomes = outcomes_in(pinned.cells)
    cells = [outcome.cell for outcome in outcomes]
    if not cells:
        return []
    keys = [f"key {number}" for number in range(len(contrast.keys))]
    named = pd.DataFrame(
        {
            "table": [tuple(value(cell) for value in contrast.tables_by) for cell in cells],
            "arm": [*map(contrast.arm, outcomes)],
            **{name: [key.value(cell) for cell in cells] for name, key in zip(keys, contrast.keys, strict=True)},
            OUTCOME: outcomes,
        }
    )
    sides = []
    for _, table_cells in by_axes(named, "table"):
        grid = grid_of(table_cells, keys, "arm")
        arms = [str(arm) for arm in grid]
        lines = [_line(arms, outcomes) for _, outcomes in lines_of(grid)]
        # What a table compares a line must have; an arm without any line left has no column.
        kept = [line for line in lines if line.keys() >= set(contrast.compared or ())]
        kept_arms = {*chain.from_iterable(kept)}
        side = ContrastSide(contrast, view, pinned, kept, [arm for arm in arms if arm in kept_arms])
        # Where nothing was measured (an engine that is not installed), the list of skipped cells says why.
        sides += [side] if side.measured else []
    return sides


def _line(arms: Sequence[str], outcomes: Sequence[Outcome | None]) -> Line:
    return {arm: outcome for arm, outcome in zip(arms, outcomes, strict=True) if outcome is not None}


def _table(side: ContrastSide) -> DataTable:
    contrast, columns = side.contrast, side.contrast.columns(side)
    # By identity: lines are mappings, which have no hash.
    ratios = {id(line): contrast.show_ratio(compared) for line, compared in side.comparisons}
    more = contrast.more(side)
    body = []
    for line in side.lines:
        keys = [key.text(first_of(line)) for key in contrast.keys]
        if contrast.fastest:
            figures = tables.fastest_marked(line, [column.arm for column in columns])
        else:
            figures = [tables.format_cell(line.get(column.arm), column.show) for column in columns]
        ratio = [ratios.get(id(line), "")] if contrast.compared else []
        body.append([*keys, *figures, *ratio, *(show(line) for show in more.values())])
    after = [""] * (bool(contrast.compared) + len(more))
    last_lines = contrast.last(side)
    for names, texts in last_lines:
        body.append([*names, *(texts.get(column.arm, "") for column in columns), *after])
    ratio = [contrast.ratio] if contrast.compared else []
    header = [*(key.head for key in contrast.keys), *(column.head for column in columns), *ratio, *more]
    tested = sum(len(line) - 1 for line in side.lines) if contrast.fastest else len(side.comparisons)
    return tables.measured_table(
        side.view,
        side.measured,
        contrast.includes or tables.INCLUDES[side.cell.stream_state],
        contrast.title(side),
        header,
        body,
        [*contrast.notes(side), *([contrast.last_note] if contrast.last_note and last_lines else [])],
        pinned=side.pinned,
        compared=tested,
        left=len(contrast.keys),
    )


def turns(side: ContrastSide, over: Key, shape: str = "", unit: str = "") -> Iterable[Text]:
    """Say which backend is the fastest at which values of a key, for the lines that are equal in the other keys.

    Lines that differ in these alone share a sentence. `shape` is what all have in common; `unit` stands before a value.
    """
    others = [DIRECTION, *(key for key in side.contrast.keys if key not in (over, DIRECTION))]
    by_names = grouped(side.lines, lambda line: tuple(str(key.text(first_of(line))) for key in others))
    by_text = grouped(by_names, lambda names: _fastest_text(side, by_names[names], over, unit))
    stream = a_stream(side.cell.stream_state)
    for text, names in by_text.items():
        by_key = [list(dict.fromkeys(values)) for values in zip(*names, strict=True)]
        # One sentence holds all of them only if it names no line that does not exist.
        is_whole = math.prod(map(len, by_key)) == len(names)
        for directions, *rest in [by_key] if is_whole else [[[value] for value in line] for line in names]:
            subject = (f"{' and '.join(directions)} on {stream}", shape, *map(", ".join, rest))
            yield from [f"{tables.comma_separated(*subject)}: {text}."] if text else []


def _fastest_text(side: ContrastSide, lines: Sequence[Line], over: Key, unit: str) -> str:
    """Name the fastest backend at each value of a key; "" without one."""
    heads = {column.arm: column.head for column in side.contrast.columns(side)}
    timed = [*filter(Outcome.times, chain.from_iterable(line.values() for line in lines))]
    texts = {over.value(outcome.cell): str(over.text(outcome)) for outcome in timed}
    times: dict[str, dict[int, Visits]] = {}
    for outcome in timed:
        times.setdefault(outcome.cell.backend, {})[over.value(outcome.cell)] = outcome.times()
    fastest = winners(times, IN_TURN) if len(times) > 1 else {}
    decided = [(value, name) for value, name in fastest.items() if name is not None]
    parts: list[str] = []
    for name, stretch in groupby(decided, key=itemgetter(1)):
        values = [texts[value] for value, _ in stretch]
        ends_of_stretch = " to ".join(dict.fromkeys((values[0], values[-1])))
        parts.append(f"{heads[name]} {'at' if parts else f'is fastest at {unit}'.rstrip()} {ends_of_stretch}")
    open_at = [texts[value] for value, name in fastest.items() if name is None]
    unclear = f" (undecided at {', '.join(open_at)})" if open_at else ""
    return f"{', '.join(parts)}{unclear}" if parts else ""


def first_of(line: Line) -> Outcome:
    return next(iter(line.values()))


def is_first(side: ContrastSide, order: Value) -> bool:
    """Whether a table has the cells that come first in some order of all that the section shows."""
    return bool(order(side.cell) == min(order(outcome.cell) for outcome in outcomes_in(side.pinned.cells)))


def changes(side: ContrastSide, subject: str) -> list[Text]:
    """How many cells of a table differ between the compared arms, by how much, and how many do not."""
    compared = [comparison for _, comparison in side.comparisons if math.isfinite(comparison.high)]
    verdicts = Counter(comparison.verdict for comparison in compared)
    ratios = [comparison.ratio for comparison in compared if comparison.significant]
    parts = [f"{len(ratios)} differ ({range_text(ratios, lambda ratio: f'{ratio - 1:+.1%}')})"] if ratios else []
    for verdict in (Verdict.SAME, Verdict.UNDECIDED):
        parts += [f"{verdicts[verdict]} {tables.SIGN_MEANINGS[verdict]}"] if verdicts[verdict] else []
    return [f"{subject}: of {noun(len(compared), 'cell')}, {', '.join(parts)}."] if compared else []
