"""From runs to a report in a folder: report.md, report.html, the charts, and the CSV behind every chart."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pandas as pd

from kvbench.errors import UsageError
from kvbench.files import write_whole
from kvbench.report.assemble import Progress, report_of, silent
from kvbench.report.charts.heatmap import draw_map
from kvbench.report.charts.line_chart import draw_lines
from kvbench.report.charts.palette import inks
from kvbench.report.charts.plot import LinePlot
from kvbench.report.document import PAGE_FILE, render_markdown
from kvbench.report.html.page import html_page
from kvbench.report.model import plain
from kvbench.results import Run
from kvbench.results.frame import as_csv

REPORT_FILE: Final = "report.md"


def write_report(runs: Sequence[Run], out: Path, unread: Sequence[str] = (), progress: Progress = silent) -> list[Path]:
    """Write the report of `runs` into the folder `out` and return its files, report.md first.

    `unread` says why other runs could not be read; `progress` is called before each section and each chart. What a run
    does not hold is named in the report, not an error. Raises UsageError when `out` cannot be written, StorageError
    when there is no room.
    """
    return write_files(report_files(runs, unread, progress), out)


def write_files(files: Mapping[str, bytes], out: Path) -> list[Path]:
    """Write files into the folder `out` and return them; raises UsageError and StorageError as write_report does."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            write_whole(out / name, data, wait=False)
    except OSError as error:
        raise UsageError(f"cannot write the report to {out}: {str(error.strerror).lower()}; choose with -o") from None
    return [out / name for name in files]


def report_files(runs: Sequence[Run], unread: Sequence[str] = (), progress: Progress = silent) -> dict[str, bytes]:
    """Return the report of `runs` as file name -> content, report.md first; the same runs give the same bytes."""
    report = report_of(runs, unread, progress)
    colours = inks(backend for view in report.views for backend in view.frame["backend"])
    drawn: dict[str, dict[str, bytes]] = {}
    for number, chart in enumerate(report.charts, start=1):
        progress("chart", number, len(report.charts))
        plot, text = chart.plot, chart.head
        drawn[chart.stem] = draw_lines(plot, text, colours) if isinstance(plot, LinePlot) else draw_map(plot, text)
    pictures = {stem: formats["png"] for stem, formats in drawn.items()}
    files = {REPORT_FILE: render_markdown(report).encode(), PAGE_FILE: html_page(report, colours, pictures).encode()}
    for chart in report.charts:
        files |= {f"{chart.stem}.{suffix}": data for suffix, data in drawn[chart.stem].items()}
        files[f"{chart.stem}.csv"] = as_csv(chart.points)
    for name, table in report.files.items():
        rows = [[plain(cell) for cell in row] for row in table.rows]
        files[name] = as_csv(pd.DataFrame(rows, columns=[plain(head) for head in table.header]))
    return files | {name: data for part in report.parts for name, data in part.files.items()}
