"""The report in Markdown: one page with the answer and the tables of the questions, and the details."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kvbench.analysis.compare import CONFIDENCE, by_chance
from kvbench.ground.errors import UsageError, brief
from kvbench.ground.text import short
from kvbench.report import markdown
from kvbench.report.model import Chapter, Code, DataTable, Once, Report, Section, Strong, Text, plain, short_of, spans
from kvbench.report.numbers import count, noun

TITLE: Final = "KV-block swaps between host and GPU"
LEFT_OUT: Final = "Not covered: requests, ROCm, XPU, disks, networks."
REPORT_FILE: Final = "report.md"
DETAILS_FILE: Final = "details.md"
PAGE_FILE: Final = "report.html"
ANSWER: Final = "answer"
CHAT: Final = "chat"
LIST: Final = "list"
_CHAT_LINES: Final = 5  # more is scrolled past in a chat
# Around what is folded; the page knows these lines.
FOLD: Final = ("<details>\n<summary>", "</summary>", "</details>")


def render_report(report: Report) -> str:
    """The first page."""
    *page, left_out = _first_page(report)
    return _paragraphs([f"# {TITLE}", *page, f"{left_out} More: [{DETAILS_FILE}]({DETAILS_FILE})."])


def render_details(report: Report) -> str:
    """Everything that the first page leaves out."""
    return _paragraphs([f"# {TITLE}: details", f"[{REPORT_FILE}]({REPORT_FILE}) is the first page.", *_details(report)])


def render_page(report: Report) -> str:
    """Both, for the page."""
    return _paragraphs([f"# {TITLE}", *_first_page(report), *_details(report)])


def snippet(report: Report, what: str = "") -> str:
    """A table as it pastes into a pull request, with its caption.

    `what` is a section or the config that measures it, whose first table it is, SECTION:WORDS, the first with these
    words in its title, or such words alone; "" or a run's config without a section, what `asked_for` returns; "list",
    all names; "chat", the answer in five lines. Raises UsageError for what the report does not have.
    """
    if what == CHAT:
        return "\n".join(_chat(report)) + "\n"
    named = _named(report)
    if what == LIST and named:
        return "".join(f"{section.name}: {plain(table.title)}\n" for section, table in named)
    configs = {view.run.info.spec.get("name") for view in report.views} - {section.measured_by for section, _ in named}
    if named and what in {"", *configs}:
        return "\n".join(f"{table_text(table)}\n" for table in asked_for(report, named[0][0].measured_by))
    name, _, words = what.partition(":")
    # A name comes before words: a title of the answer, too, has the words "beside steps".
    wanted = [(table, words) for section, table in named if name in (section.name, section.measured_by)]
    wanted += [(table, what) for _, table in named if not words]
    for table, in_title in wanted:
        if in_title.lower() in plain(table.title).lower():
            return table_text(table) + "\n"
    missing = [spans(text)[1:] for section, text in report.missing.items() if name in (section.name, section.config)]
    reasons = [*(f"not measured: {plain(text)}" for text in missing), _available_text(report, named)]
    raise UsageError(f"--snippet {brief(what)}".strip() + f": {'; '.join(reasons)}")


def _available_text(report: Report, named: Sequence[tuple[Section, DataTable]]) -> str:
    if names := ", ".join(dict.fromkeys(section.name for section, _ in named)):
        return f"these runs have tables of {names}; --snippet {LIST} names all"
    runs = "; ".join(f"{view.label} ({view.command})" for view in report.views)
    return f"no table in {short(runs)}; runs of {', '.join(section.config for section in report.missing)} have one"


def asked_for(report: Report, config: str) -> list[DataTable]:
    """The tables of the section of a config, of the first page's the first and its twin; or else the first of all."""
    wanted: list[DataTable] = []
    for chapter in report.chapters:
        tables = chapter.part.tables
        if chapter.section.measured_by == config and tables:
            # The details are of one subject each; of a section of the first page, d2h stands beside h2d.
            is_whole, first = not chapter.section.config, plain(tables[0].title)
            twins = [table for table in tables[1:] if is_whole or plain(table.title).replace("d2h", "h2d") == first]
            wanted += [tables[0], *twins]
    return wanted or [table for _, table in _named(report)][:1]


def _named(report: Report) -> list[tuple[Section, DataTable]]:
    """The tables with their sections: those of the config of the run come first."""
    configs = [view.run.info.spec.get("name") for view in report.views]
    chapters = sorted(report.chapters, key=lambda chapter: chapter.section.measured_by not in configs)
    named: list[tuple[Section, DataTable]] = []
    for chapter in chapters:
        named += [(chapter.section, table) for table in chapter.part.tables]
    return named


def _chat(report: Report) -> list[str]:
    """The answer in five lines: the machine, what to use, and the first warning."""
    uses, (first, *more) = short_of(ANSWER, report.chapters), report.headline or ("",)
    return [*map(plain, (first, *uses, *report.first_warnings[:1], *more, *report.findings))][:_CHAT_LINES]


def _first_page(report: Report) -> Iterator[str]:
    if report.unsteady:
        yield _block((Strong("Warning"), ": ", *spans(report.unsteady)))
    if report.host_note:
        yield f"> {_block(report.host_note)}"
    if report.headline or report.leads:
        yield _list([*report.headline, *report.leads])
    if report.first_warnings:
        yield "\n".join(f"> {line}" for line in _list(report.first_warnings).splitlines())
    for chapter in report.chapters:
        if chapter.section.config:
            yield from _chapter(chapter, chapter.part.tables[:1])
    yield from _listed("Not measured", list(report.missing.values()))
    yield from _listed("Definitions", report.definitions)
    yield LEFT_OUT


def _details(report: Report) -> Iterator[str]:
    for chapter in report.chapters:
        if not chapter.section.config:
            yield from _chapter(chapter, (), chapter.part.tables)
        elif chapter.details:
            yield f"## {markdown.inline(chapter.section.short_title)}: all tables"
            yield from map(_folded, chapter.details)
    yield f"## The runs\n\n{table_text(report.runs)}\n\n{_list(report.commands)}"
    yield from _listed("Warnings", report.warnings)
    yield from _listed("Not read", report.unread)
    yield from _listed("Skipped cells", report.skipped)
    if report.failed:
        yield f"## Failed cells\n\nThey have no figures.\n\n{table_text(report.failed)}"
    if report.comparisons > 1:
        yield _block(_chance_note(report.comparisons))


def _chance_note(comparisons: int) -> Text:
    """How many differences chance alone may show among comparisons of equal things, and what that leaves out."""
    wrong = noun(by_chance(comparisons), "difference")
    note = (
        f"Of {count(comparisons)} comparisons of equal things in one run, chance alone shows at most {wrong} on average"
    )
    bound = f"{1 - CONFIDENCE:.0%}, the upper bound for independent visits; simulated, hardly any"
    return f"{note} ({bound}); noise of a method's own, as in a start, is not covered"


def _chapter(chapter: Chapter, tables: Sequence[DataTable], folded: Sequence[DataTable] = ()) -> Iterator[str]:
    title = chapter.section.short_title if chapter.section.config else chapter.section.title
    yield f"## {markdown.inline(title)}"
    if chapter.origin:
        yield markdown.escape(chapter.origin)
    for chart in chapter.part.charts:
        yield f"![{markdown.inline(chart.text.alternative)}]({chart.stem}.png)"
    if chapter.part.findings:
        yield _list(chapter.part.findings)
    yield from (table_text(table, alone=False) for table in tables)
    yield from map(_folded, folded)


def _folded(table: DataTable) -> str:
    opened, titled, closed = FOLD
    parts = (opened, markdown.inline(table.title), titled, table_text(table, titled=False, alone=False), closed)
    return "\n\n".join(filter(None, parts))


def _paragraphs(parts: Iterable[str]) -> str:
    return "\n\n".join(parts) + "\n"


def _listed(heading: str, lines: Sequence[Text]) -> Iterator[str]:
    if lines:
        yield f"## {heading}\n\n{_list(lines)}"


def table_text(table: DataTable, *, titled: bool = True, alone: bool = True) -> str:
    """A table in Markdown with its title, notes and caption, and with all of this where it stands `alone`."""
    header, *rows = ([_inline(text) for text in row] for row in (table.header, *table.rows))
    title = markdown.strong(markdown.inline(table.title)) if table.title and titled else ""
    lines = markdown.table(header, rows, table.left)
    caption = tuple(span for span in spans(table.caption) if alone or not isinstance(span, Once))
    return "\n\n".join(filter(None, (title, lines, _block(caption), _list(table.notes))))


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
