"""The answer: what to use on a machine, what that takes, and what it costs the work beside it; or all cells. Of several
machines, a column for each card and driver, with the cells that all of them have.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, product
from typing import Final, NamedTuple

from kvbench.analysis.compare import Verdict, known_interval
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import SwapShape
from kvbench.cells.facts import BATCHED, method_label
from kvbench.cells.installed import of_engine
from kvbench.cells.policy import Choice
from kvbench.cells.units import KIB, gigabytes_per_second
from kvbench.ground.errors import UsageError
from kvbench.report.model import DataTable, Once, Part, PartOrReason, Strong, Text
from kvbench.report.numbers import ABSENT, SIGNS, TIMES, bytes_size, count, with_interval
from kvbench.report.sections.cliff import curves_of
from kvbench.report.tables import (
    INCLUDES,
    caption,
    comma_separated,
    format_cell,
    measured_table,
    method_of,
    microseconds,
    milliseconds,
    rate,
    words_in,
)
from kvbench.report.view import View, pin
from kvbench.report.whole_runs import ceilings_text
from kvbench.results.outcomes import Outcome, grouped
from kvbench.tune import page
from kvbench.tune.advice import Advice, ShapeAnswer, answers_of
from kvbench.tune.evidence import ceilings_of, dates_text, shapes_of
from kvbench.tune.situations import Answer

_MOST: Final = 64  # cells: a longer table is read in summary.csv
_HEADER: Final = ("Method", "Dir", "Stream", "Blocks", "Block size", "ms", "GB/s", "Thread us")


def make(view: View) -> PartOrReason:
    """Make the answer of all runs of a machine, or those of several machines side by side."""
    machines = _machines(view)
    if len(machines) > 1:
        by_situation = answers_of_machines(machines)
        return partial(_side_by_side, machines, by_situation) if by_situation else ""
    try:
        return partial(_part, (*view.earlier, view), view.advice)
    except UsageError as none:
        return str(none)


def _machines(view: View) -> list[list[View]]:
    """The runs up to this one, by machine."""
    return [*grouped((*view.earlier, view), lambda run: run.machine).values()]


def _side_by_side(machines: Sequence[Sequence[View]], by_situation: Mapping[str, Sequence[Answer | None]]) -> Part:
    """The six rows with a column for each machine, "sm (4 SMs), pace 85%, 44.8 GB/s, 1.05x"."""
    cards = [runs[0].card for runs in machines]
    rows = [[name, *(_use_text(answer) if answer else ABSENT for answer in row)] for name, row in by_situation.items()]
    columns = ([*filter(None, column)] for column in zip(*by_situation.values(), strict=True))
    answered = {card: answers for card, answers in zip(cards, columns, strict=True) if answers}
    notes = [f"{card}: {page.blocks_text(answers)}" for card, answers in answered.items()]
    notes.append("GB/s of the swaps; x: how many times as long the step beside them takes")
    return Part(tables=[DataTable("What to use", ("Swap", *cards), rows, notes, left=1 + len(cards))])


def _use_text(answer: Answer) -> str:
    assert answer.use
    step = page.slowdown_text(answer.use) if answer.use.slowdown else ""
    sign = SIGNS[Verdict.UNDECIDED] if answer.undecided else ""
    return sign + comma_separated(page.use_of(answer), f"{page.three_digits(answer.use.gbps)} GB/s", step)


def _part(views: Sequence[View], advice: Advice) -> Part:
    """The six rows, and by stream state what swaps alone take, with the code of engines beside them."""
    rows = page.rows_of(advice.answers)
    by_direction = grouped(advice.answers, lambda answer: answer.direction)
    short = [
        f"{direction}: " + "; ".join(f"{page.place_of(answer)}: {page.use_of(answer)}" for answer in answers)
        for direction, answers in by_direction.items()
    ]
    tables = [_table("What to use", page.HEADER, rows, [*filter(None, [page.head_of(advice)])], views)]
    if advice.alone.shapes:
        states = page.state_table(advice)
        lines = page.answer_lines(advice.alone)
        tables.append(_table("Swaps alone, by stream state", states.header, states.rows, lines, views, states.caption))
    header, body = ("Block size", *page.HEADER), []
    for size, answers in (advice.by_size or {advice.question.block_bytes: advice.answers}).items():
        body += [[bytes_size(size), *row] for row in page.rows_of(answers)]
    tables.append(_table("By block size", header, body, [*page.lines_of(advice)], views))
    if others := page.others_of(advice):
        tables.append(_table("Beside steps, what else there is", page.OTHERS, others, [], views))
    return Part(tables=tables, short=short)


def _table(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str],
    views: Sequence[View],
    text: str = "",
) -> DataTable:
    measured = [*chain.from_iterable(view.measured for view in views)]
    parts = (Once("CUDA events"), *filter(None, [text.removesuffix(".")]))
    origin = caption(views[0], measured, parts, (), filter(None, [words_in(rows)]))
    if len(views) > 1:
        # The last two spans name the command and the commit of one run; the answer is of all of them.
        origin = (*origin[:-2], Once(f"runs {', '.join(view.label + view.commit for view in views)}"))
    return DataTable(title, header, rows, notes, origin, left=3)


def make_cells(view: View) -> PartOrReason:
    """Make a table of all cells of a short run, which no other section shows."""
    if not view.measured or len(view.outcomes) > _MOST:
        return ""
    body = [_line(outcome) for outcome in view.outcomes if outcome.status != "skipped"]
    table = measured_table(view, view.measured, INCLUDES["swap_us"], "Every cell", _HEADER, body, left=3)
    return lambda: Part(tables=[table])


def _line(outcome: Outcome) -> list[str]:
    cell = outcome.cell
    shape = (cell.direction.value, cell.stream_state.value, count(cell.blocks), bytes_size(cell.block_bytes))
    figures = (format_cell(outcome, show) for show in (milliseconds, rate, microseconds("caller_us")))
    return [method_of(outcome), *shape, *figures]


# Of the swaps that all machines have: a small one in us, and a large one in GB/s.
WANTED: Final = tuple(
    SwapShape(direction, StreamState.IDLE, *size)
    for direction, size in product(Direction, ((64, 4 * KIB), (10_000, 4 * KIB)))
)
MANY: Final = 1024
_CEILING: Final = "Ceiling h2d / d2h, GB/s"
_CHOSEN: Final = "Best: of the methods that are not told apart from the fastest, the one with the fewest SMs"
_NONE_IN_COMMON: Final = "No swap in common: batched, an idle stream, the same direction, number and size of blocks"


class MachineFigures(NamedTuple):
    """What a machine reaches for swaps of a shape: the best, batched copies, and the code of other packages by name."""

    answer: ShapeAnswer
    batched: Choice
    foreign: Mapping[str, tuple[ShapeAnswer, Choice]]


class _Row(NamedTuple):
    """A row of the table: its name, a text for each machine, and whether it stands at the head of a report."""

    name: str
    texts: Sequence[str]
    leads: bool = False


def make_machines(view: View) -> PartOrReason:
    """Make a table of all runs with a column for each machine, a card with a driver."""
    machines = _machines(view)
    return "it needs runs of several machines" if len(machines) < 2 else partial(_machines_part, machines)


def machines_table(views: Sequence[View]) -> DataTable | None:
    """The table of some runs, None for runs of one machine."""
    part = make_machines(views[-1])
    return None if isinstance(part, str) else part().tables[0]


def _machines_part(machines: Sequence[Sequence[View]]) -> Part:
    swaps = [_swaps(runs) for runs in machines]
    rows = [_Row(name, [*map(text, machines)], name == _CEILING) for name, text in _FACTS.items()]
    shapes = _compared(set[SwapShape].intersection(*map(set, swaps)))
    ceilings_gbps = [*map(_ceilings, machines)]
    for shape in shapes:
        ceilings = [of_machine.get(shape.direction, 0.0) for of_machine in ceilings_gbps]
        rows += _swap_rows(shape, [reached[shape] for reached in swaps], ceilings)
    for situation, answers in answers_of_machines(machines).items():
        rows.append(
            _Row(f"Recommended, {situation}", [page.use_of(answer) if answer else ABSENT for answer in answers])
        )
    rows = [row for row in rows if {*row.texts} != {ABSENT}]
    shipped = _shipped(swaps, shapes)
    notes: list[Text] = [_CHOSEN] if shapes else [_NONE_IN_COMMON]
    notes += [f"The code of their own packages: {', '.join(shipped)}"] if shipped else []
    caption = f"{INCLUDES['idle']}. Medians" if shapes else ""
    cards = [runs[0].card for runs in machines]
    body = [(row.name, *row.texts) for row in rows]
    table = DataTable("Machines side by side", ("", *cards), body, notes, caption)
    heads = [_Row("Machines", cards), *(row for row in rows if row.leads)]
    short: list[Text] = [(Strong(row.name), f": {' | '.join(row.texts)}") for row in heads]
    return Part(tables=[table], short=short if shapes else [*short, _NONE_IN_COMMON])


def _cliff(runs: Sequence[View]) -> str:
    """The two sizes, the closest of any run, between which batched h2d copies on an idle stream jump."""
    curves = chain.from_iterable(curves_of(pin(view.outcomes, free=())) for view in runs)
    batched = [curve for curve in curves if curve.series == (BATCHED, "h2d", "idle")]
    cliffs = [curve.cliff for curve in batched if curve.cliff]
    if not cliffs:
        return "none" if batched else ABSENT
    closest = min(cliffs, key=lambda cliff: cliff.above_bytes / cliff.below_bytes)
    return f"{bytes_size(closest.below_bytes)} to {bytes_size(closest.above_bytes)}"


_FACTS: Final[Mapping[str, Callable[[Sequence[View]], str]]] = {
    "Link": lambda runs: runs[0].run.info.link or ABSENT,
    "Driver": lambda runs: runs[0].driver.removeprefix("driver "),
    "Date": lambda runs: dates_text([view.run.info for view in runs]),
    _CEILING: lambda runs: ceilings_text(_ceilings(runs)),
    "Cliff of batched h2d copies": _cliff,
}


def _ceilings(runs: Sequence[View]) -> Mapping[Direction, float]:
    return ceilings_of(view.run for view in runs)


def _swaps(runs: Sequence[View]) -> dict[SwapShape, MachineFigures]:
    """The rates of a machine on an idle stream by shape, where batched copies are among them.

    The figures of a shape are of one run, the one with the most cells of kvbench's own; only other packages' code may
    come from others.
    """
    backends = chain.from_iterable(view.run.info.backends for view in runs)
    others = {facts.name for facts in backends if facts.plug_in or facts.package.split("==")[0] not in ("", "kvbench")}
    swaps: dict[SwapShape, MachineFigures] = {}
    foreign: dict[SwapShape, dict[str, tuple[ShapeAnswer, Choice]]] = {}
    for view in sorted(runs, key=lambda view: -sum(cell.backend not in others for cell in view.run.outcomes)):
        try:
            shapes = shapes_of([view.run], lambda choice: choice.backend not in others)
        except UsageError:
            continue
        for answer in answers_of([swaps for swaps in shapes if swaps.shape.stream_state is StreamState.IDLE]):
            shape = answer.measured.shape
            shipped = foreign.setdefault(shape, {})
            # as its package ships it, where that was measured
            for choice in sorted(answer.measured.methods, key=lambda choice: len(choice.axes)):
                # An engine's kernel at another SM count is not what the engine does.
                if of_engine(choice.backend) and choice.sms:
                    continue
                if choice.backend in others:
                    name = method_label(choice.backend, plug_in=choice.plug_in)
                    shipped.setdefault(name, (answer, choice))
                elif choice.backend == BATCHED and shape not in swaps:
                    swaps[shape] = MachineFigures(answer, choice, shipped)
    return swaps


def _shipped(machines: Sequence[Mapping[SwapShape, MachineFigures]], shapes: Iterable[SwapShape]) -> list[str]:
    """The names of the engines' own code among the methods of some shapes: that of no plug-in."""
    names: set[str] = set()
    for machine, shape in product(machines, shapes):
        names |= {name for name, (_, choice) in machine[shape].foreign.items() if not choice.plug_in}
    return sorted(names)


def _compared(common: set[SwapShape]) -> list[SwapShape]:
    """The wanted shapes that all machines have, or the smallest and the largest of each direction."""
    wanted = [shape for shape in WANTED if shape in common]
    if wanted:
        return wanted
    shapes: dict[SwapShape, None] = {}
    for direction in Direction:
        side = sorted(shape for shape in common if shape.direction is direction)
        shapes |= dict.fromkeys((*side[:1], *side[-1:]))
    return [*shapes]


def _swap_rows(shape: SwapShape, swaps: Sequence[MachineFigures], ceilings: Sequence[float]) -> list[_Row]:
    swap = f"{shape.direction} {count(shape.blocks)} {TIMES} {bytes_size(shape.block_bytes)}"
    in_us = shape.blocks < MANY
    head = f"{swap}, {'us' if in_us else 'GB/s'}"

    def figure_text(answer: ShapeAnswer, choice: Choice) -> str:
        times_us = answer.measured.us_of(choice), *known_interval([*answer.measured.visits_of(choice).values()])
        if in_us:
            return with_interval(*times_us)
        middle, high, low = (gigabytes_per_second(shape.blocks * shape.block_bytes, us) for us in times_us)
        return with_interval(middle, low, high)

    rows = [_Row(f"{head}: {BATCHED}", [figure_text(swap.answer, swap.batched) for swap in swaps])]
    for name in sorted({*chain.from_iterable(swap.foreign for swap in swaps)}):
        pairs = (swap.foreign.get(name) for swap in swaps)
        rows += [_Row(f"{head}: {name}", [figure_text(*pair) if pair else ABSENT for pair in pairs])]
    best = [swap.answer for swap in swaps]
    texts = [f"{figure_text(answer, answer.choice)}: {answer.choice.label}" for answer in best]
    rows.append(_Row(f"{head}: best", texts, leads=True))
    rates = (answer.measured.gbps_of(answer.choice) for answer in best)
    shares = [f"{gbps / ceiling:.0%}" if ceiling else ABSENT for gbps, ceiling in zip(rates, ceilings, strict=True)]
    return rows if in_us else [*rows, _Row(f"{swap}, best of ceiling", shares)]


def answers_of_machines(machines: Iterable[Sequence[View]]) -> dict[str, list[Answer | None]]:
    """What to use on each machine for swaps of the usual blocks, by direction and situation; None: not measured."""
    columns = [{page.situation_text(answer): answer for answer in _answers(runs)} for runs in machines]
    return {situation: [column.get(situation) for column in columns] for situation in dict.fromkeys(chain(*columns))}


def _answers(runs: Sequence[View]) -> list[Answer]:
    try:
        return [answer for answer in runs[-1].advice.answers if answer.use]
    except UsageError:
        return []
