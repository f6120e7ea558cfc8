"""From runs to a report in a folder: report.md, report.html, the charts, and the CSV behind every chart."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kvbench.errors import UsageError
from kvbench.files import write_whole
from kvbench.report import front
from kvbench.report.charts.heatmap import draw_map
from kvbench.report.charts.lines import draw_lines
from kvbench.report.charts.palette import inks
from kvbench.report.charts.plot import LinePlot
from kvbench.report.document import PAGE_FILE, document
from kvbench.report.html.page import html_page
from kvbench.report.model import Chapter, Code, Part, Report, Text
from kvbench.report.sections import sections_of
from kvbench.report.view import views_of
from kvbench.results import Run
from kvbench.results.frame import as_csv

REPORT_FILE: Final = "report.md"


def _untold(_what: str, _number: int, _total: int) -> None:
    pass


def write_report(
    runs: Sequence[Run], out: Path, unread: Sequence[str] = (), tell: Callable[[str, int, int], None] = _untold
) -> list[Path]:
    """Write the report of `runs` into the folder `out` and return its files, report.md first.

    `unread` says of other runs why they could not be read; `tell` is called before each chart of how many. What a run
    does not hold is named in the report, not an error. Raises UsageError when `out` cannot be written, StorageError
    when there is no room.
    """
    files = report_files(runs, unread, tell)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            write_whole(out / name, data, wait=False)
    except OSError as error:
        raise UsageError(f"cannot write the report to {out}: {str(error.strerror).lower()}; choose with -o") from None
    return [out / name for name in files]


def report_files(
    runs: Sequence[Run], unread: Sequence[str] = (), tell: Callable[[str, int, int], None] = _untold
) -> dict[str, bytes]:
    """Return the report of `runs` as file name -> content, report.md first; the same runs give the same bytes."""
    report = report_of(runs, unread)
    colours = inks(backend for view in report.views for backend in view.frame["backend"])
    files = {REPORT_FILE: document(report).encode(), PAGE_FILE: html_page(report, colours).encode()}
    for number, chart in enumerate(report.charts, start=1):
        tell("chart", number, len(report.charts))
        plot, words = chart.plot, chart.words
        drawn = draw_lines(plot, words, colours) if isinstance(plot, LinePlot) else draw_map(plot, words)
        files |= {f"{chart.stem}.{suffix}": data for suffix, data in drawn.items()}
        files[f"{chart.stem}.csv"] = as_csv(chart.points)
    return files | {name: data for part in report.parts for name, data in part.files.items()}


def report_of(runs: Sequence[Run], unread: Sequence[str] = ()) -> Report:
    """Return the report of `runs` as data; `unread` says of other runs why they could not be read."""
    views = views_of(runs)
    chapters: list[Chapter] = []
    missing: list[Text] = [f"A run: {why}" for why in unread]
    for section in sections_of(views):
        made = [(view, section.make(view)) for view in views]
        parts = [(view, part) for view, part in made if isinstance(part, Part)]
        if parts:
            chapters.append(Chapter(section, parts))
        for why in dict.fromkeys(why for _, why in made if isinstance(why, str) and why):
            labels = ", ".join(view.label for view, reason in made if reason == why)
            missing.append(f"{section.short_title}: {why} ({labels})")
    return Report(
        views=views,
        host_note=front.host_note(views),
        runs=front.run_table(views),
        commands=[(f"{view.label}: ", Code(view.command)) for view in views],
        warnings=front.warnings(views),
        chapters=chapters,
        missing=missing,
        skipped=front.skipped(views),
        failed=front.failed(views),
        definitions=front.definitions(),
    )
