"""The report as one Markdown document."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Final

from kvbench.errors import UsageError, brief
from kvbench.report import markdown
from kvbench.report.model import Chapter, Code, DataTable, Report, Strong, Text, spans
from kvbench.report.preamble import TITLE
from kvbench.report.tables import chance_note
from kvbench.report.view import HOST_COPIES

PAGE_FILE: Final = "report.html"
_FOOTMARKS: Final = re.compile("[\N{SUPERSCRIPT ONE}\N{SUPERSCRIPT TWO}\N{SUPERSCRIPT THREE}\u2070-\u2079\N{DAGGER}]")


def render_markdown(report: Report) -> str:
    """Return the report in Markdown, its images and files linked by relative path."""
    return "\n\n".join(_parts(report)) + "\n"


def snippet(report: Report, section: str) -> str:
    """Return the first table of a section as it pastes into a pull request: machine line, table, no footnotes.

    Raises UsageError for a section that the report does not have.
    """
    chapter = next((one for one in report.chapters if one.section.name == section), None)
    table = next((table for table in chapter.part.tables if not table.stem), None) if chapter else None
    if chapter is None or table is None:
        known = ", ".join(one.section.name for one in report.chapters if one.part.tables)
        raise UsageError(f"--snippet {brief(section)}: these runs have tables of {known or 'nothing'}")
    header, *rows = ([_FOOTMARKS.sub("", _inline(text)) for text in row] for row in (table.header, *table.rows))
    title, lines = markdown.strong(markdown.inline(table.title)), markdown.table(header, rows, table.left)
    host = f"{HOST_COPIES} " if chapter.view.on_host else ""
    of = report.views if chapter.section.name == "comparison" else [chapter.view]
    machines = "; ".join(dict.fromkeys(view.heading for view in of))
    return f"{title}\n\n{markdown.escape(f'{host}{machines}')}\n\n{lines}\n"


def _parts(report: Report) -> Iterator[str]:
    yield f"# {TITLE}"
    if report.host_note:
        yield f"> {_block(report.host_note)}"
    if report.headline:
        yield _list(report.headline)
    if report.first_warnings:
        every = ["- [All warnings](#warnings)"] if report.warnings else []
        yield "\n".join(f"> {line}" for line in [*_list(report.first_warnings).splitlines(), *every])
    if summary := report.summary:
        links = (f"[{markdown.inline(one.short_title)}](#{markdown.anchor(one.title)})" for one in summary.values())
        lines = (f"{_block(text)} ({link})" for text, link in zip(summary, links, strict=True))
        yield f"## Findings\n\n{markdown.bullets(lines)}"
    for chapter in report.chapters:
        yield from _chapter(report, chapter)
    yield f"## The runs\n\n{_table(report.runs)}"
    yield f"Commands:\n\n{_list(report.commands)}"
    yield from _listed("Warnings", report.warnings)
    yield from _listed("Not in this report", report.missing)
    yield from _listed("Skipped cells", report.skipped)
    if report.failed:
        yield f"## Failed cells\n\nThey have no figures.\n\n{_table(report.failed)}"
    yield from _listed("Definitions", [*report.definitions, *chance_note(report.comparisons)])
    yield f"[{PAGE_FILE}]({PAGE_FILE}) has the same content, the figures of every point, and a table of every cell."


def _listed(heading: str, lines: Sequence[Text]) -> Iterator[str]:
    if lines:
        yield f"## {heading}\n\n{_list(lines)}"


def _chapter(report: Report, chapter: Chapter) -> Iterator[str]:
    part = chapter.part
    yield f"## {markdown.inline(chapter.section.title)}"
    if note := chapter.origin:
        yield markdown.escape(note)
    for chart in part.charts:
        stem = chart.stem
        yield f"![{markdown.inline(chart.head.alternative)}]({stem}.png)\n\n[SVG]({stem}.svg), [data]({stem}.csv)"
    if findings := report.findings_of(chapter):
        yield _list(findings)
    before: Text = ""
    for pasted in (one for one in part.tables if not one.stem):
        yield _table(replace(pasted, caption=_without_shared_end(pasted.caption, before)))
        before = pasted.caption
    if files := chapter.files:
        links = (f"[{markdown.inline(linked.title)}]({name})" for name, linked in files.items())
        yield "More tables:\n\n" + markdown.bullets(links)
    yield from (f"All rows: [{name}]({name})" for name in part.files)


def _without_shared_end(caption: Text, before: Text) -> Text:
    """Return a caption without what it ends with like that of the table before, if that is more than a full stop."""
    sentences = spans(caption)
    pairs = zip(reversed(sentences), reversed(spans(before)), strict=False)
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return sentences[: len(sentences) - shared] if shared > 1 else caption


def _table(table: DataTable) -> str:
    header, *rows = ([_inline(text) for text in row] for row in (table.header, *table.rows))
    title = markdown.strong(markdown.inline(table.title)) if table.title else ""
    lines = markdown.table(header, rows, table.left)
    return "\n\n".join(filter(None, (title, lines, _list(table.notes), _block(table.caption))))


def _list(items: Sequence[Text]) -> str:
    return markdown.bullets(map(_block, items))


def _block(text: Text) -> str:
    return markdown.block(_inline(text))


def _inline(text: Text) -> str:
    return "".join(map(_span, spans(text)))


def _span(span: str | Strong | Code) -> str:
    match span:
        case Code(text):
            return markdown.code(text)
        case Strong(text):
            return markdown.strong(markdown.inline(text))
        case text:
            return markdown.inline(text)
