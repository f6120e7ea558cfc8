"""The report as one Markdown document: head, summary, sections, and what is not in it."""

from collections.abc import Sequence
from typing import Final

import pandas as pd

from kvbench.report import markdown as md
from kvbench.report.blocks import Block, Chart
from kvbench.report.model import Part, Report
from kvbench.report.summary import Sentence
from kvbench.report.view import HOST_COPIES, View, ceiling_of, warnings_of
from kvbench.results import COLUMNS, Note

_MOST_FAILURES: Final = 50
_MOST_NOTES: Final = 20
_MANY_OUTLIERS: Final = 0.1


def document(report: Report) -> str:
    """Return the report in Markdown, its images and files linked by relative path."""
    views = report.views
    parts = [_head(views), _warnings(views), _summary(report.sentences, len(views) > 1)]
    parts += [_section(part, len(views) > 1) for part in report.parts]
    parts += [_missing(report.missing), _skips(views), _failures(views), _definitions()]
    return "\n\n".join(part for part in parts if part) + "\n"


def _summary(sentences: Sequence[Sentence], several_runs: bool) -> str:
    lines = []
    for sentence in sentences:
        run = f", run {sentence.run}" if several_runs else ""
        lines.append(f"{sentence.text} ({md.link(sentence.section, sentence.title)}{run})")
    return f"## What was found\n\n{md.bullets(lines)}" if lines else ""


def _head(views: Sequence[View]) -> str:
    header = ("Run", "Device", "Driver", "Date", "Status", "Measured", "Failed", "Skipped", "Ceiling h2d / d2h GB/s")
    rows = [
        (
            view.label,
            md.escape(view.title),
            md.escape(view.driver),
            md.escape(view.date),
            view.run.info.status,
            *(md.count((view.frame["status"] == status).sum()) for status in ("ok", "failed", "skipped")),
            " / ".join(_ceiling(view.frame, way) for way in ("h2d", "d2h")),
        )
        for view in views
    ]
    title = "# KV-block swaps between host and GPU"
    if any(view.on_host for view in views):
        on_host = [view.label for view in views if view.on_host]
        which = "" if len(on_host) == len(views) else f" ({', '.join(on_host)})"
        title += f"\n\n> **{HOST_COPIES}**{which}"
    commands = md.bullets(f"{view.label}: {md.code(view.command)}" for view in views)
    return f"{title}\n\n{md.table(header, rows, left=5)}\n\nMade by\n\n{commands}"


def _ceiling(frame: pd.DataFrame, way: str) -> str:
    gbps = ceiling_of(frame[frame["direction"] == way])
    return md.ABSENT if gbps is None else md.figure(gbps)


def _warnings(views: Sequence[View]) -> str:
    found = [md.escape(f"{view.label}: {text}") for view in views for text in warnings_of(view.run)]
    found += [f"{view.label}: {text}" for view in views for text in _doubts(view.measured)]
    notes = [md.escape(record.text) for view in views for record in view.run.records if isinstance(record, Note)]
    more = [f"and {len(notes) - _MOST_NOTES} more notes in the journal"] if len(notes) > _MOST_NOTES else []
    lines = [*found, *notes[:_MOST_NOTES], *more]
    return f"## To know first\n\n{md.bullets(lines)}" if lines else ""


def _doubts(measured: pd.DataFrame) -> list[str]:
    """Return what the samples themselves say against some cells, in Markdown."""
    found = []
    astray = int((measured["state_held"] < 1).sum())
    if astray:
        subject = "1 cell has" if astray == 1 else f"{md.count(astray)} cells have"
        found.append(f"{subject} samples whose stream was not in the state asked for (`state_held`)")
    spread = int((measured["outliers"] > _MANY_OUTLIERS * measured["samples"]).sum())
    if spread:
        subject = "1 cell has" if spread == 1 else f"{md.count(spread)} cells have"
        found.append(
            f"{subject} outliers among more than {_MANY_OUTLIERS:.0%} of the samples, marked and kept (`outliers`)"
        )
    for text, cells in measured["warnings"].dropna().value_counts().head(_MOST_NOTES).items():
        found.append(f"{md.count(cells)} cell{'s' * (cells > 1)}: {md.escape(text)}")
    return found


def _section(part: Part, several_runs: bool) -> str:
    parts = [f"## {part.section.title}"]
    for view, block in part.blocks:
        if several_runs:
            parts.append(f"### {view.label}: {md.escape(view.title)}")
        parts += _block(block)
    return "\n\n".join(parts)


def _block(block: Block) -> list[str]:
    parts = [md.image(chart.alternative, f"{chart.stem}.png") + _links(chart) for chart in block.charts]
    if block.findings:
        parts.append(md.bullets(block.findings))
    parts += [table.markdown() for table in block.tables]
    return parts + [f"All of it: [{name}]({name})" for name in block.files]


def _links(chart: Chart) -> str:
    return f"\n\n[SVG]({chart.stem}.svg), [data]({chart.stem}.csv)"


def _missing(lines: Sequence[str]) -> str:
    return f"## Not in this report\n\n{md.bullets(lines)}" if lines else ""


def _skips(views: Sequence[View]) -> str:
    lines = []
    for view in views:
        skipped = view.frame[view.frame["status"] == "skipped"]
        for _, group in skipped.groupby(["backend", "reason"]):
            backend, why = (md.escape(group[name].iloc[0]) for name in ("backend", "reason"))
            lines.append(f"{view.label}: {backend}, {md.count(len(group))} cell{'s' * (len(group) > 1)}: {why}")
    return f"## Skipped cells\n\n{md.bullets(lines)}" if lines else ""


def _failures(views: Sequence[View]) -> str:
    rows = [
        (view.label, md.escape(row["reason"]), md.code(row["command"]))
        for view in views
        for row in view.frame[view.frame["status"] == "failed"].to_dict("records")
    ]
    if not rows:
        return ""
    more = f"\n\nAnd {len(rows) - _MOST_FAILURES} more in summary.csv." if len(rows) > _MOST_FAILURES else ""
    header = ("Run", "Reason", "Reproduced by")
    return f"## Failed cells\n\nThey have no figures.\n\n{md.table(header, rows[:_MOST_FAILURES], left=3)}{more}"


def _definitions() -> str:
    medians = [name for name in COLUMNS if name.endswith("_us_median")]
    lines = [f"`{name.removesuffix('_median')}`: {COLUMNS[name].partition(': ')[2]}" for name in medians]
    lines.append("GB/s: 10^9 bytes a second, bytes of one swap over the median of `swap_us`; bands are its quartiles")
    lines.append("ceiling: median GB/s of large plain copies in the same run and direction")
    return f"## What the numbers include\n\n{md.bullets(lines)}"
