"""The answer: what to use on a machine, what that takes, and what it costs the work beside it; or all cells."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final

from kvbench.analysis.compare import Verdict
from kvbench.ground.errors import UsageError
from kvbench.report.model import DataTable, Once, Part, PartOrReason
from kvbench.report.numbers import ABSENT, SIGNS, bytes_size, count
from kvbench.report.sections.machines import answers_of_machines
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
from kvbench.report.view import View
from kvbench.results.outcomes import Outcome, grouped
from kvbench.tune import page
from kvbench.tune.advice import Advice
from kvbench.tune.situations import Answer

_MOST: Final = 64  # cells: a longer table is read in summary.csv
_HEADER: Final = ("Method", "Dir", "Stream", "Blocks", "Block size", "ms", "GB/s", "Thread us")


def make(view: View) -> PartOrReason:
    """Make the answer of all runs of a machine, or those of several machines side by side."""
    views = (*view.earlier, view)
    machines = [*grouped(views, lambda run: run.machine).values()]
    if len(machines) > 1:
        by_situation = answers_of_machines(machines)
        return partial(_side_by_side, machines, by_situation) if by_situation else ""
    try:
        return partial(_part, views, view.advice)
    except UsageError as none:
        return str(none)


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
    tables = [_table("What to use", page.HEADER, rows, [*filter(None, [page.head_of(advice)])], views, "")]
    if advice.alone.shapes:
        states = page.state_table(advice)
        lines = page.answer_lines(advice.alone)
        tables.append(_table("Swaps alone, by stream state", states.header, states.rows, lines, views, states.caption))
    header, body = ("Block size", *page.HEADER), []
    for size, answers in (advice.by_size or {advice.question.block_bytes: advice.answers}).items():
        body += [[bytes_size(size), *row] for row in page.rows_of(answers)]
    tables.append(_table("By block size", header, body, [*page.lines_of(advice)], views, ""))
    if others := page.others_of(advice):
        tables.append(_table("Beside steps, what else there is", page.OTHERS, others, [], views, ""))
    return Part(tables=tables, short=short)


def _table(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str],
    views: Sequence[View],
    text: str,
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
