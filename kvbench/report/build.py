"""From runs to a report in a folder: report.md, its charts, and the CSV behind every chart."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvbench.errors import UsageError
from kvbench.files import write_whole
from kvbench.report.charts.drawing import Pictures
from kvbench.report.document import document
from kvbench.report.html.page import html_page
from kvbench.report.model import Report, report_of
from kvbench.results import Run

REPORT_FILE: Final = "report.md"
PAGE_FILE: Final = "report.html"
_BESIDE: Final = (
    f"The same as one page, with charts to zoom and every cell with its raw samples: [{PAGE_FILE}]({PAGE_FILE})"
)


def write_report(runs: Sequence[Run], out: Path, unread: Sequence[str] = ()) -> list[Path]:
    """Write the report of `runs` into the folder `out` and return its files, report.md first.

    `unread` says of other runs why they could not be read. What a run does not hold is named in the report, not an
    error. Raises UsageError when `out` cannot be written,
    StorageError when there is no room.
    """
    files = report_files(runs, unread)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            write_whole(out / name, data, wait=False)
    except OSError as error:
        raise UsageError(f"cannot write the report to {out}: {str(error.strerror).lower()}; choose with -o") from None
    return [out / name for name in files]


def report_files(runs: Sequence[Run], unread: Sequence[str] = ()) -> dict[str, bytes]:
    """Return the report of `runs` as file name -> content, report.md first; the same runs give the same bytes."""
    with Pictures() as pictures:
        report = report_of(runs, pictures.begin, unread)
        text = document(report)
        page = html_page(report, text, pictures)
        files = {REPORT_FILE: f"{text}\n{_BESIDE}\n".encode(), PAGE_FILE: page, **pictures}
    return files | _data(report)


def _data(report: Report) -> dict[str, bytes]:
    charts = {f"{chart.stem}.{suffix}": data for chart in report.charts for suffix, data in chart.files.items()}
    blocks = (block for part in report.parts for _, block in part.blocks)
    return charts | {name: data for block in blocks for name, data in block.files.items()}
