"""What tests look for in the model of a report."""

from collections.abc import Sequence
from pathlib import Path

from kvbench.report.build import report_of
from kvbench.report.document import render_page
from kvbench.report.model import Chart, DataTable, Part, Report, Strong, Text, plain, spans
from kvbench.report.page import html_page
from kvbench.results import Record, Run, RunInfo, load_run
from tests import synthetic


def made_run(folder: Path, records: Sequence[Record], info: RunInfo | None = None, name: str = "run") -> Run:
    return load_run(synthetic.write_run(folder / name, records, info))


def made_report(folder: Path, records: Sequence[Record], info: RunInfo | None = None) -> Report:
    return report_of([made_run(folder, records, info)])


def said(text: Text) -> str:
    """Return the words of `text`, with ordinary spaces for those that do not break."""
    return plain(text)


def is_bold(text: Text) -> bool:
    return any(isinstance(span, Strong) for span in spans(text))


def part_of(report: Report, section: str) -> Part:
    """Return what stands in a section."""
    (part,) = [chapter.part for chapter in report.chapters if chapter.section.name == section]
    return part


def sections_of(report: Report) -> list[str]:
    return [chapter.section.name for chapter in report.chapters]


def table_of(part: Part, title: str) -> DataTable:
    """Return the table whose title begins with `title`."""
    (match,) = [table for table in part.tables if said(table.title).startswith(title)]
    return match


def rows_of(table: DataTable) -> dict[str, list[str]]:
    """Return the words of a table: first column -> the others."""
    return {first: others for first, *others in ([said(cell) for cell in row] for row in table.rows)}


def chart_of(report: Report, stem: str) -> Chart:
    (match,) = [chart for chart in report.charts if chart.stem == stem]
    return match


def highlights_of(report: Report, section: str) -> list[str]:
    """Return what a section finds, where the report has it."""
    chapters = [chapter for chapter in report.chapters if chapter.section.name == section]
    return [said(finding) for chapter in chapters for finding in chapter.part.findings]


def findings_of(part: Part) -> list[str]:
    """Return all that a section finds."""
    return [said(finding) for finding in part.findings]


def lines_of(items: Sequence[Text]) -> list[str]:
    return [said(item) for item in items]


def page_of(report: Report) -> str:
    """Return the page of a report with empty drawings, which take long."""
    blank = b'<svg xmlns="http://www.w3.org/2000/svg"></svg>'
    return html_page(render_page(report), dict.fromkeys((one.stem for one in report.charts), blank), report.views)
