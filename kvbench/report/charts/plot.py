"""A chart as plain data, for a page that draws it itself; charts.py and heatmap.py draw the same to files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kvbench.report import markdown as md
from kvbench.report.charts.layout import Grid, Panel, Words
from kvbench.report.curves import Curve
from kvbench.report.ratios import RatioMap
from kvbench.report.sections.queue_depth import QueueLine
from kvbench.report.tables import cliff_words


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis counts: its label, and whether its numbers are bytes, whole numbers, or any figure.

    "symlog2" is linear up to 1 and logarithmic from there, so that it has a place for 0.
    """

    label: str
    unit: Literal["bytes", "count", "figure"]
    scale: Literal["log2", "symlog2", "log10", "linear"]


@dataclass(frozen=True, slots=True)
class Mark:
    """What to point out on a line, in words, from `low` to `high` on the x axis (equal for a single point)."""

    low: float
    high: float
    words: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of points ascending in x: medians in `y`, quartiles in `low` and `high`, in the unit of the y axis.

    `backend` decides colour and marker; `cell_ids` are the cells behind the points, of the run labelled `run`.
    """

    run: str
    label: str
    backend: str
    dash: Literal["solid", "dashed"]
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    cell_ids: Sequence[str]
    marks: Sequence[Mark] = ()


@dataclass(frozen=True, slots=True)
class LinePanel:
    """One pair of axes; `ceiling` is in the unit of the y axis, None where it was not measured."""

    title: str
    lines: Sequence[Line]
    ceiling: float | None


@dataclass(frozen=True, slots=True)
class LinePlot:
    """Rows of panels on the same axes; `words` stand around them, plain."""

    words: Words
    x: Axis
    y: Axis
    grid: Sequence[Sequence[LinePanel]]


@dataclass(frozen=True, slots=True)
class MapPlot:
    """Rows of crossover maps; `words` stand around them, plain."""

    words: Words
    grid: Sequence[Sequence[RatioMap]]


_GBPS: Final = Axis("GB/s", "figure", "linear")


def size_plot(grid: Grid, words: Words, run: str) -> LinePlot:
    """Return GB/s over block size as data, the cliffs marked."""
    return _plot(grid, words, run, Axis("block size", "bytes", "log2"), _cliff_marks)


def ladder_plot(grid: Grid, words: Words, run: str) -> LinePlot:
    """Return GB/s over the SM count as data, the knees marked."""
    return _plot(grid, words, run, Axis("SMs", "count", "log2"), _knee_marks)


def queue_plot(grid: Sequence[Sequence[Sequence[QueueLine]]], words: Words, run: str) -> LinePlot:
    """Return the time of one more submission over the queued swaps as data, the knees marked."""
    panels = [[_queue_panel(lines, run) for lines in row] for row in grid]
    return LinePlot(words, Axis("queued swaps", "count", "symlog2"), Axis("us a submission", "figure", "log10"), panels)


def _plot(grid: Grid, words: Words, run: str, x: Axis, marks: Callable[[Curve], Sequence[Mark]]) -> LinePlot:
    return LinePlot(words, x, _GBPS, [[_panel(panel, run, marks) for panel in row] for row in grid])


def _panel(panel: Panel, run: str, marks: Callable[[Curve], Sequence[Mark]]) -> LinePanel:
    return LinePanel(panel.title, [_line(curve, run, marks(curve)) for curve in panel.curves], panel.ceiling_gbps)


def _line(curve: Curve, run: str, marks: Sequence[Mark]) -> Line:
    points = curve.points
    return Line(
        run=run if curve.run is None else curve.run[1],
        label=curve.label,
        backend=curve.backend,
        dash="dashed" if curve.variant else "solid",
        x=curve.x,
        y=curve.gbps,
        low=[float(rate) for rate in points["gbps_q1"]],
        high=[float(rate) for rate in points["gbps_q3"]],
        cell_ids=list(points["cell_id"]),
        marks=marks,
    )


def _cliff_marks(curve: Curve) -> Sequence[Mark]:
    cliff, words = curve.cliff, cliff_words(curve)
    return [Mark(cliff.below_bytes, cliff.above_bytes, words)] if cliff and words else []


def _knee_marks(curve: Curve) -> Sequence[Mark]:
    count = curve.knee
    return [] if count is None else [Mark(count, count, f"knee at {count} SM{'s' if count > 1 else ''}")]


def _queue_panel(lines: Sequence[QueueLine], run: str) -> LinePanel:
    title = f"{lines[0].direction}, {md.bytes_size(lines[0].block_bytes)} blocks" if lines else ""
    return LinePanel(title, [_queue_line(line, run) for line in lines], None)


def _queue_line(line: QueueLine, run: str) -> Line:
    points, knee = line.points, line.knee
    words = f"knee at {md.count(knee.depth)}, {md.TIMES}{md.figure(knee.height)}" if knee else ""
    return Line(
        run=run,
        label=line.label,
        backend=line.backend,
        dash="solid" if line.streams == 1 else "dashed",
        x=[int(depth) for depth in points["queued"]],
        y=[float(time) for time in points["submit_us_median"]],
        low=[float(time) for time in points["submit_us_q1"]],
        high=[float(time) for time in points["submit_us_q3"]],
        cell_ids=list(points["cell_id"]),
        marks=[Mark(knee.depth, knee.depth, words)] if knee else (),
    )
