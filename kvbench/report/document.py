"""The report as one Markdown document."""

from collections.abc import Iterator, Sequence
from typing import Final

from kvbench.report import markdown
from kvbench.report.front import TITLE
from kvbench.report.model import Chapter, Code, DataTable, Part, Report, Sentence, Strong, Text, spans

PAGE_FILE: Final = "report.html"


def document(report: Report) -> str:
    """Return the report in Markdown, its images and files linked by relative path."""
    return "\n\n".join(_parts(report)) + "\n"


def _parts(report: Report) -> Iterator[str]:
    yield f"# {TITLE}"
    if report.host_note:
        yield f"> {_block(report.host_note)}"
    yield table(report.runs)
    yield f"Made by\n\n{_list(report.commands)}"
    yield from _listed("To know first", report.warnings)
    if summary := report.summary:
        told = markdown.bullets(_sentence(sentence, report.several_runs) for sentence in summary)
        yield f"## What was found\n\n{told}"
    for chapter in report.chapters:
        yield from _chapter(chapter, report.several_runs)
    yield from _listed("Not in this report", report.missing)
    yield from _listed("Skipped cells", report.skipped)
    if report.failed:
        yield f"## Failed cells\n\nThey have no figures.\n\n{table(report.failed)}"
    yield from _listed("What the numbers include", report.definitions)
    yield f"The same as one page, with charts to zoom and every cell with its raw samples: [{PAGE_FILE}]({PAGE_FILE})"


def _listed(heading: str, lines: Sequence[Text]) -> Iterator[str]:
    if lines:
        yield f"## {heading}\n\n{_list(lines)}"


def _sentence(sentence: Sentence, several_runs: bool) -> str:
    section = sentence.section
    link = f"[{markdown.inline(section.short_title)}](#{markdown.anchor(section.title)})"
    return f"{_block(sentence.text)} ({link}{f', run {sentence.run}' if several_runs else ''})"


def _chapter(chapter: Chapter, several_runs: bool) -> Iterator[str]:
    yield f"## {markdown.inline(chapter.section.title)}"
    for view, part in chapter.parts:
        if several_runs:
            yield f"### {markdown.inline(f'{view.label}: {view.title}')}"
        yield from _part(part)


def _part(part: Part) -> Iterator[str]:
    for chart in part.charts:
        stem = chart.stem
        yield f"![{markdown.inline(chart.words.alternative)}]({stem}.png)\n\n[SVG]({stem}.svg), [data]({stem}.csv)"
    if part.findings:
        yield _list(part.findings)
    yield from map(table, part.tables)
    yield from (f"All of it: [{name}]({name})" for name in part.files)


def table(shown: DataTable) -> str:
    """Return a table with its title, notes and caption."""
    header, *rows = ([_inline(text) for text in row] for row in (shown.header, *shown.rows))
    title = markdown.strong(markdown.inline(shown.title)) if shown.title else ""
    lines = markdown.table(header, rows, shown.left)
    return "\n\n".join(filter(None, (title, lines, _list(shown.notes), _block(shown.caption))))


def _list(items: Sequence[Text]) -> str:
    return markdown.bullets(map(_block, items))


def _block(text: Text) -> str:
    return markdown.block(_inline(text))


def _inline(text: Text) -> str:
    return "".join(_span(span) for span in spans(text))


def _span(span: str | Strong | Code) -> str:
    match span:
        case Code(text):
            return markdown.code(text)
        case Strong(text):
            return markdown.strong(markdown.inline(text))
        case text:
            return markdown.inline(text)
