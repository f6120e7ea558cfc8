"""The answer: what to use on a machine, what that takes, and what it costs the work beside it."""

from collections.abc import Sequence
from functools import partial

import pandas as pd

from kvbench.errors import UsageError
from kvbench.report.model import DataTable, Part, PartOrReason
from kvbench.report.tables import caption
from kvbench.report.view import View, grouped
from kvbench.tune.answer import rule_for_all
from kvbench.tune.rule import Rule
from kvbench.tune.text import answer_lines, answer_table


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
    cells = pd.concat([view.measured for view in views])
    said = caption(views[0], cells, f"CUDA events. {table.caption.rstrip('.')}", (), "")
    if len(views) > 1:
        said = (*said[:-1], f"runs {', '.join(view.label for view in views)}")
    uses = grouped(table.rows, lambda row: row[0])
    short = [f"{way}: " + "; ".join(f"{state}: {use}" for _, state, use, *_ in rows) for way, rows in uses.items()]
    whole = DataTable("What to use", table.header, table.rows, answer_lines(rule, runs), said, left=3)
    return Part(tables=[whole], short=short)
