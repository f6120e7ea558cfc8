"""The answer: what to use on a machine, what that takes, and what it costs the work beside it; or all cells."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from kvbench.errors import UsageError
from kvbench.report.model import DataTable, Once, Part, PartOrReason
from kvbench.report.numbers import bytes_size, count
from kvbench.report.tables import (
    INCLUDES,
    caption,
    format_cell,
    measured_table,
    method_of,
    microseconds,
    milliseconds,
    rate,
    words_in,
)
from kvbench.report.view import View, grouped
from kvbench.results.outcomes import Outcome
from kvbench.tune.answer import rule_for_all
from kvbench.tune.rule import Rule
from kvbench.tune.text import answer_lines, answer_table

_MOST: Final = 64
_HEADER: Final = ("Method", "Dir", "Stream", "Blocks", "Block size", "ms", "GB/s", "Thread us")


def make(view: View) -> PartOrReason:
    """Make the answer of all runs of one machine; those of several stand side by side."""
    views = (*view.earlier, view)
    if view.card:
        return ""
    try:
        return partial(_part, views, rule_for_all([one.run for one in views]))
    except UsageError as none:
        return str(none)


def _part(views: Sequence[View], rule: Rule) -> Part:
    runs = [view.run for view in views]
    table = answer_table(rule, runs)
    measured = [outcome for view in views for outcome in view.measured]
    said = caption(
        views[0], measured, (Once("CUDA events"), table.caption[:-1]), (), filter(None, [words_in(table.rows)])
    )
    if len(views) > 1:
        said = (*said[:-2], Once(f"runs {', '.join(view.label + view.commit for view in views)}"))
    uses = grouped(table.rows, lambda row: row[0])
    short = [f"{way}: " + "; ".join(f"{state}: {use}" for _, state, use, *_ in rows) for way, rows in uses.items()]
    whole = DataTable("What to use", table.header, table.rows, answer_lines(rule, runs), said, left=3)
    return Part(tables=[whole], short=short)


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
    return [method_of(cell), *shape, *figures]
