"""The report as one Markdown document."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Final

from kvbench.errors import UsageError, brief
from kvbench.report import markdown
from kvbench.report.faults import HOST_COPIES
from kvbench.report.model import Chapter, Code, DataTable, Report, Strong, Text, plain, spans
from kvbench.report.preamble import TITLE
from kvbench.report.tables import chance_note
from kvbench.report.view import DIRECTIONS

PAGE_FILE: Final = "report.html"
CHAT: Final = "chat"
_CHAT_LINES: Final = 5
_FOOTMARKS: Final = re.compile("[\N{SUPERSCRIPT ONE}\N{SUPERSCRIPT TWO}\N{SUPERSCRIPT THREE}\u2070-\u2079\N{DAGGER}]")


def render_markdown(report: Report, *, whole: bool = False) -> str:
    """Return the report in Markdown, its images and files linked by relative path; the `whole` one has every table."""
    return "\n\n".join(_parts(report, whole=whole)) + "\n"


def snippet(report: Report, what: str) -> str:
    """Return a table as it pastes into a pull request: its title, the machine, the table, no footnotes.

    `what` is a section, whose first table it is, or SECTION:WORDS, the first with these words in its title; "chat" is
    the answer in five lines. Raises UsageError for what the report does not have.
    """
    if what == CHAT:
        return "\n".join(_chat(report)) + "\n"
    name, _, words = what.partition(":")
    chapters = [chapter for chapter in report.chapters if chapter.section.name == name]
    every = [(chapter, table) for chapter in chapters for table in chapter.part.tables if words or not table.stem]
    tables = [(chapter, table) for chapter, table in every if words.lower() in plain(table.title).lower()]
    if not tables:
        known = ", ".join(one.section.name for one in report.chapters if one.part.tables)
        titles = "; ".join(plain(table.title) for chapter in chapters for table in chapter.part.tables)
        has = f"its tables are {titles}" if titles else f"these runs have tables of {known or 'nothing'}"
        raise UsageError(f"--snippet {brief(what)}: {has}")
    chapter, table = tables[0]
    header, *rows = ([_FOOTMARKS.sub("", _inline(text)) for text in row] for row in (table.header, *table.rows))
    title, lines = markdown.strong(markdown.inline(table.title)), markdown.table(header, rows, table.left)
    host = f"{HOST_COPIES} " if chapter.view.on_host else ""
    of = report.views if chapter.section.name in ("comparison", "machines") else [chapter.view]
    machines = "; ".join(dict.fromkeys(view.heading for view in of))
    chance = "".join(f"\n{note}\n" for note in map(_block, chance_note(table.compared)))
    return f"{title}\n\n{markdown.escape(f'{host}{machines}')}\n\n{lines}\n{chance}"


def _chat(report: Report) -> list[str]:
    """Return the answer in five lines: one a direction, with all its stream states, and the first warning."""
    headline = [*map(plain, report.headline)]
    uses = [[line for line in headline if line.startswith(f"{direction} ")] for direction in DIRECTIONS]
    others = [line for line in headline if not any(line in of for of in uses)] + [*map(plain, report.summary)]
    answer = [*map("; ".join, filter(None, uses)), *map(plain, report.first_warnings[:1])]
    return [". ".join(others[:2]), *others[2:3], *answer, *others[3:]][:_CHAT_LINES]


def _parts(report: Report, *, whole: bool) -> Iterator[str]:
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
        yield from _chapter(report, chapter, whole=whole)
    yield f"## The runs\n\n{table_text(report.runs)}"
    if commands := report.other_commands:
        yield f"Commands of runs that no table is of:\n\n{_list(commands)}"
    yield from _listed("Warnings", report.warnings)
    yield from _listed("Not in this report", report.missing)
    yield from _listed("Skipped cells", report.skipped)
    if report.failed:
        yield f"## Failed cells\n\nThey have no figures.\n\n{table_text(report.failed)}"
    yield from _listed("Definitions", [*report.definitions, *chance_note(report.comparisons)])
    if not whole:
        yield f"[{PAGE_FILE}]({PAGE_FILE}) has the same content, all tables, and one of every cell."


def _listed(heading: str, lines: Sequence[Text]) -> Iterator[str]:
    if lines:
        yield f"## {heading}\n\n{_list(lines)}"


def _chapter(report: Report, chapter: Chapter, *, whole: bool) -> Iterator[str]:
    part = chapter.part
    yield f"## {markdown.inline(chapter.section.title)}"
    if note := chapter.origin:
        yield markdown.escape(note)
    for chart in part.charts:
        stem = chart.stem
        yield f"![{markdown.inline(chart.text.alternative)}]({stem}.png)"
    if findings := report.findings_of(chapter):
        yield _list(findings)
    before: Text = ""
    for pasted in part.tables if whole else chapter.printed:
        yield table_text(replace(pasted, caption=_without_shared_end(pasted.caption, before)))
        before = pasted.caption
    if not whole and (files := chapter.files):
        links = (f"[{markdown.inline(linked.title)}]({name})" for name, linked in files.items())
        yield "More tables:\n\n" + markdown.bullets(links)
    yield from (f"All rows: [{name}]({name})" for name in part.files)


def _without_shared_end(caption: Text, before: Text) -> Text:
    """Return a caption without what it ends with like that of the table before, if that is more than a full stop."""
    sentences = spans(caption)
    pairs = zip(reversed(sentences), reversed(spans(before)), strict=False)
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return sentences[: len(sentences) - shared] if shared > 1 else caption


def table_text(table: DataTable) -> str:
    """Return a table in Markdown with its title, notes and caption."""
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
