"""What tests look for in the model of a report."""

from collections.abc import Sequence
from pathlib import Path

from kvbench.report.build import report_of
from kvbench.report.charts.figure import Drawing, DrawnView
from kvbench.report.charts.plot import ChartText, Plot
from kvbench.report.html import html_page
from kvbench.report.model import Chart, DataTable, Part, Report, Strong, Text, plain, spans
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
    """Return what a section tells for the first page."""
    return [
        said(finding.text)
        for chapter in report.chapters
        if chapter.section.name == section
        for finding in chapter.part.findings
        if finding.weight
    ]


def findings_of(part: Part) -> list[str]:
    """Return all that a section finds."""
    return [said(finding.text) for finding in part.findings]


def lines_of(items: Sequence[Text]) -> list[str]:
    return [said(item) for item in items]


def undrawn(plot: Plot, _text: ChartText) -> Drawing:
    """Return what stands for a drawing, which takes long: empty panels."""
    panels = [panel for row in plot.grid for panel in row]
    groups = "".join(f'<g id="axes_{number}"/>' for number in range(1, len(panels) + 1))
    svg = f'<svg xmlns="http://www.w3.org/2000/svg">{groups}</svg>'
    return Drawing(b"", {"": DrawnView(svg.encode(), [(0.0, 0.0, 1.0, 1.0)] * len(panels), {})}, [])


def page_of(report: Report) -> str:
    """Return the page of a report with empty panels for its charts."""
    return html_page(report, {chart.stem: undrawn(chart.plot, chart.head) for chart in report.charts})
