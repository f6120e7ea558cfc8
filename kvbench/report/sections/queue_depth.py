"""Queue depth: how long one more submission takes behind swaps that are queued already."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from kvbench.analysis.compare import Visits
from kvbench.analysis.curves import QueueKnee, find_queue_knee
from kvbench.analysis.margins import QUEUE_KNEE
from kvbench.cells.backend_facts import PER_BLOCK
from kvbench.report.captions import chart_text
from kvbench.report.charts.plot import LinePlot, PlotAxis, PlotLine, PlotMark, PlotPanel, told_apart
from kvbench.report.model import Chart, DataTable, Finding, Part, PartOrReason, Strong, Text
from kvbench.report.numbers import TIMES, bytes_size, count, figure, noun, slower_text
from kvbench.report.select import DIRECTIONS, QUEUE, Pinned, grouped, pin, where
from kvbench.report.table_rows import Row, any_decidable, format_cell, line_of, measured_table, rows_of
from kvbench.report.view import View
from kvbench.units import two_digits

MIN_DEPTHS: Final = 4
_INCLUDES: Final = (
    "Time of one submission (caller_us, medians) behind the given number of queued swaps of the same kind on a busy "
    "stream: host time from the list to the return of the last call. Several streams take the queued swaps and this "
    "one in turn. Where the driver's queue is full, the time includes the wait for room, which can last as long as the "
    "delay that holds the queue"
)
_RISE: Final = f"{1 + QUEUE_KNEE.fraction:g} times"
_NO_KNEE: Final = f"At no depth does a submission take more than {_RISE} as long as on a shallow queue."
_POINT_COLUMNS: Final = (
    "device", "backend", "direction", "stream_state", "blocks", "block_size", "block_bytes", "streams", "queued",
    "caller_us_median", "caller_us_q1", "caller_us_q3", "depth_held", "samples", "rounds", "cell_id",
)  # fmt: skip
_BEGUN: Final = "†"
_NOT_HELD: Final = (
    f"{_BEGUN} in most samples some of the queued swaps had started before the submission, because the driver's queue "
    "does not hold them all (depth_held)"
)

_KNEE: Final = (
    f"Knee: the first depth at which a submission takes more than {_RISE} as long as at the three smallest depths, "
    f"interval included, and the ratio. Smaller rises do not count: {QUEUE_KNEE.reason}"
)


@dataclass(frozen=True, slots=True)
class QueueLine:
    """The cells of one backend, swap and number of streams, ascending in depth, failed and skipped ones too."""

    panel: str
    label: str
    cells: pd.DataFrame
    knee: QueueKnee | None

    @property
    def points(self) -> pd.DataFrame:
        return where(self.cells, status="ok")


def make(view: View) -> PartOrReason:
    needed = f"it needs a backend measured on a busy stream behind {MIN_DEPTHS} numbers of queued swaps or more"
    if view.measured["queued"].nunique() < MIN_DEPTHS:
        return needed
    pinned = pin(view.frame, shown=QUEUE)
    caller_us = view.run.visit_times("caller_us")
    busy = where(pinned.cells, stream_state="busy").sort_values("queued")
    cells = busy.assign(batches=busy["backend"] != PER_BLOCK, is_d2h=busy["direction"] != DIRECTIONS[0])
    groups = cells.groupby(["block_bytes", "is_d2h", "batches", "backend", "blocks", "streams"])
    lines = [
        _line(group, caller_us) for _, group in groups if where(group, status="ok")["queued"].nunique() >= MIN_DEPTHS
    ]
    if not lines:
        return needed
    highlights = [_finding(line, knee) for line in lines if (knee := line.knee)]
    panels = grouped(lines, lambda line: line.panel)
    tables = [_table(view, title, panel, pinned) for title, panel in panels.items()]
    none = [_NO_KNEE] if any(any_decidable(line.cells) for line in lines) else []
    findings = [finding.text for finding in highlights] or none
    return lambda: Part(findings, [_chart(view, panels, pinned)], tables, highlights)


def _line(cells: pd.DataFrame, caller_us: Mapping[str, Visits]) -> QueueLine:
    first, *_ = rows = rows_of(cells)
    times = {int(row["queued"]): caller_us[row["cell_id"]] for row in rows if row["cell_id"] in caller_us}
    panel = f"{first['direction']}, {bytes_size(first['block_bytes'])} blocks"
    label = f"{first['backend']}, N = {count(first['blocks'])}, {noun(first['streams'], 'stream')}"
    return QueueLine(panel, label, cells, find_queue_knee(times))


def _finding(line: QueueLine, knee: QueueKnee) -> Finding:
    text = (
        f"{line.label}, {line.panel}: a submission behind {count(knee.depth)} queued swaps "
        f"{slower_text(knee.height)} ({two_digits(knee.shallow_us)} to {two_digits(knee.submit_us)} us)."
    )
    return Finding(text, math.log(knee.height))


def _table(view: View, title: str, lines: Sequence[QueueLine], pinned: Pinned) -> DataTable:
    columns = [{int(row["queued"]): row for row in rows_of(line.cells)} for line in lines]
    body: list[list[Text]] = [
        [count(depth), *(format_cell(column.get(depth), _time) for column in columns)]
        for depth in sorted({depth for column in columns for depth in column})
    ]
    notes = [_KNEE, *([_NOT_HELD] if any(_BEGUN in str(text) for row in body for text in row) else [])]
    knees = [
        (Strong(count(at.depth)), f" ({TIMES}{figure(at.height)})") if (at := line.knee) else "none" for line in lines
    ]
    body.append(["knee", *knees])
    cells = pd.concat([line.points for line in lines])
    header = ("Queued", *(line.label for line in lines))
    title = f"{title}: us per submission against queued swaps"
    return measured_table(view, cells, title, header, body, _INCLUDES, pinned, notes)


def _time(row: Row) -> str:
    return f"{figure(row['caller_us_median'])}{_BEGUN if row['depth_held'] < 0.5 else ''}"


def _chart(view: View, panels: Mapping[str, Sequence[QueueLine]], pinned: Pinned) -> Chart:
    points = pd.concat([line.points for lines in panels.values() for line in lines])
    title, footer = "Time of one more submission against queued swaps", [_INCLUDES, pinned.settings(points)]
    text = chart_text(view, title, points, "medians · band: quartiles", footer)
    drawn = [PlotPanel(title, [_plot_line(line, view.label) for line in lines]) for title, lines in panels.items()]
    rows = list(grouped(drawn, lambda panel: panel.title.partition(", ")[2]).values())
    y = PlotAxis("us per submission", "figure", "log10")
    plot = LinePlot(PlotAxis("queued swaps", "count", "symlog2"), y, told_apart(rows))
    return Chart(f"queue-depth-{view.label}", text, plot, points[list(_POINT_COLUMNS)])


def _plot_line(line: QueueLine, run: str) -> PlotLine:
    points, knee = line.points, line.knee
    text = f"knee at {count(knee.depth)}, {TIMES}{figure(knee.height)}" if knee else ""
    marks = [PlotMark(knee.depth, knee.depth, text)] if knee else []
    columns = ("caller_us_median", "caller_us_q1", "caller_us_q3")
    return line_of(run, line.label, points["queued"].tolist(), rows_of(points), columns, marks)
