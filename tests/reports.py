"""What tests look for in the model of a report."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvbench.report.build import COMPARISON, SECTIONS, chapter_of, report_of
from kvbench.report.document import render_page
from kvbench.report.model import Chapter, DataTable, Part, Report, Strong, Text, plain, spans
from kvbench.report.page import html_page
from kvbench.report.view import views_of
from kvbench.results import Note, Record, Run, RunInfo
from tests import synthetic

HOSTILE = (
    "a|b`c``d",
    "<script>alert(1)</script> <img src=x onerror=alert(1)>",
    "![x](http://evil.example/x.png) [x](javascript:alert(1))",
    "one\ntwo\r\n\n# heading\n\n| a | b |\n|---|---|",
    "\x1b[2J\x00\x07\u202eback\u200b",
    "@someone #12 www.evil.example https://evil.example &lt;b&gt; &#60;b&#62;",
    "***bold*** _it_ ~~no~~ $\\frac{1}{2}$ \\",
    "- item",
    "1. item",
    "]: http://evil.example",
    "",
)


def hostile_run(folder: Path, text: str, name: str = "run", **identity: str) -> Run:
    """Return a run in which every string that an untrusted source could choose is `text`."""
    cells = [cell for cell in synthetic.cliff_cells((256,), (24, 28)) if cell.direction == "h2d"]
    visits = [msgspec.structs.replace(one, chosen=text, warnings=[text]) for one in synthetic.visits(cells[2:])]
    failure = msgspec.structs.replace(synthetic.failure(cells[1], text), command=text)
    records: list[Record] = [*visits, synthetic.skip(cells[0], text), failure, Note(text=text)]
    told: dict[str, object] = {"created": text, "command": ["kvbench", text], "kvbench": text}
    told |= {"identity": {"driver_version": text, text: text, **identity}, "observed": [{"at": text, text: text}]}
    info = synthetic.info(text, status="stopped", status_reason=text, **told)
    return made_run(
        folder, records, msgspec.structs.replace(info, device={**info.device, "name": text, text: text}), name
    )


def made_run(folder: Path, records: Sequence[Record], info: RunInfo | None = None, name: str = "run") -> Run:
    return synthetic.loaded(folder / name, records, info)


def run_of(records: Sequence[Record], info: RunInfo | None = None, name: str = "run") -> Run:
    """A run that is nowhere on disk: a report reads nothing else of it."""
    return Run(Path(name), info or synthetic.info(), records, [])


def made_report(records: Sequence[Record], info: RunInfo | None = None) -> Report:
    return report_of([run_of(records, info)])


def is_bold(text: Text) -> bool:
    return any(isinstance(span, Strong) for span in spans(text))


def part_of(report: Report, section: str) -> Part:
    (part,) = [chapter.part for chapter in report.chapters if chapter.section.name == section]
    return part


def chapter_in(section: str, runs: Sequence[Run]) -> tuple[Chapter | None, list[str]]:
    """One section of the report of runs, or why it is not filled: most of a report's time goes to the others."""
    by_name = {section.name: section for section in (*SECTIONS, COMPARISON)}
    chapter, reasons = chapter_of(by_name[section], views_of(runs))
    return chapter, [*reasons]


def part_in(section: str, runs: Sequence[Run]) -> Part:
    chapter, _ = chapter_in(section, runs)
    assert chapter
    return chapter.part


def made_part(section: str, records: Sequence[Record], info: RunInfo | None = None) -> Part:
    return part_in(section, [run_of(records, info)])


def made_findings(section: str, records: Sequence[Record], info: RunInfo | None = None) -> list[str]:
    """What a section finds in a run, nothing where it is not filled."""
    chapter, _ = chapter_in(section, [run_of(records, info)])
    return lines_of(chapter.part.findings) if chapter else []


def sections_of(report: Report) -> list[str]:
    return [chapter.section.name for chapter in report.chapters]


def table_of(part: Part, title: str) -> DataTable:
    (match,) = [table for table in part.tables if plain(table.title).startswith(title)]
    return match


def rows_of(table: DataTable) -> dict[str, list[str]]:
    """Return the words of a table: first column -> the others."""
    return {first: others for first, *others in ([plain(cell) for cell in row] for row in table.rows)}


def lines_of(items: Sequence[Text]) -> list[str]:
    return [plain(item) for item in items]


def page_of(report: Report) -> str:
    """Return the page of a report with empty drawings, which take long."""
    blank = b'<svg xmlns="http://www.w3.org/2000/svg"></svg>'
    return html_page(render_page(report), dict.fromkeys((one.stem for one in report.charts), blank), report.views)
