"""What a chart draws, as data: lines on axes, sorted ratios, or maps of ratios."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

AS_ONE: Final = 1.12  # lines whose heights differ by less, everywhere, are seen as one


@dataclass(frozen=True, slots=True)
class ChartText:
    """The text around a chart: a title, a line under it, what the numbers include (a line each), a warning or ""."""

    title: str
    subtitle: str
    footer: Sequence[str]
    warning: str

    @property
    def alternative(self) -> str:
        """The text for readers who do not see the chart."""
        return f"{self.title} ({self.warning})" if self.warning else self.title


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """What an axis counts: its label, and whether its numbers are bytes, whole numbers, any figure or indices of names.

    "symlog2" (of x) is linear up to 1 and logarithmic from there, so that it holds 0. A "rate" (of y) is drawn both
    linearly and logarithmically. An axis of the unit
    "name" has `names`: 0 stands for the first. A linear y axis begins at 0, unless `zero` is false.
    """

    label: str
    unit: Literal["bytes", "count", "figure", "name"]
    scale: Literal["log2", "symlog2", "log10", "linear", "rate"]
    names: Sequence[str] = ()
    zero: bool = True


@dataclass(frozen=True, slots=True)
class PlotMark:
    """A jump of a line from the point at `low` to that at `high`, or one point; `text` stands beside it, if any."""

    low: float
    high: float
    text: str


@dataclass(frozen=True, slots=True)
class PlotLine:
    """A line of points: medians in `y`, the ends of its band in `low` and `high`, in the unit of y.

    `backend` decides colour and marker, `variant` the stroke: a plot's lines of one label have the same of both, and
    lines of two labels do not (`told_apart`). `notes` stand at the points, one for each, if any.
    """

    label: str
    backend: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    marks: Sequence[PlotMark] = ()
    variant: int = 0
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PlotRoof:
    """What the cells at `x` can reach at most, `y` in the unit of the y axis."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, slots=True)
class PlotPanel:
    """One pair of axes; `ceiling` is in the unit of the y axis, None where it was not measured."""

    title: str
    lines: Sequence[PlotLine]
    ceiling: float | None = None
    roofs: Sequence[PlotRoof] = ()


@dataclass(frozen=True, slots=True)
class LinePlot:
    """Rows of panels on the same axes; `band` says what the bands of the lines are."""

    x: PlotAxis
    y: PlotAxis
    grid: Sequence[Sequence[PlotPanel]]
    band: str = "quartiles"

    @property
    def lines(self) -> list[PlotLine]:
        return [line for panel in self.panels for line in panel.lines]

    @property
    def panels(self) -> list[PlotPanel]:
        return [panel for row in self.grid for panel in row]

    @property
    def most_points(self) -> int:
        """How many values of x the fullest panel has."""
        return max(len({x for line in panel.lines for x in line.x}) for panel in self.panels)


def told_apart(grid: Sequence[Sequence[PlotPanel]]) -> list[list[PlotPanel]]:
    """Return the panels with a variant for every label of a backend, counted from 0 in the order of the lines."""
    lines = dict.fromkeys((line.backend, line.label) for row in grid for panel in row for line in panel.lines)
    variants = {one: [other for other in lines if other[0] == one[0]].index(one) for one in lines}

    def numbered(panel: PlotPanel) -> PlotPanel:
        return replace(panel, lines=[replace(line, variant=variants[line.backend, line.label]) for line in panel.lines])

    return [[numbered(panel) for panel in row] for row in grid]


@dataclass(frozen=True, slots=True)
class PlotDot:
    """A ratio of times with its interval, whether it is beyond the margin, and the cell that it is of."""

    label: str
    backend: str
    ratio: float
    low: float
    high: float
    decided: bool


@dataclass(frozen=True, slots=True)
class DotPanel:
    """Ratios from the largest to the smallest."""

    title: str
    dots: Sequence[PlotDot]


@dataclass(frozen=True, slots=True)
class DotPlot:
    """Rows of panels on one axis of ratios; more than 1 is slower."""

    grid: Sequence[Sequence[DotPanel]]

    @property
    def most_points(self) -> int:
        return max(len(panel.dots) for row in self.grid for panel in row)


@dataclass(frozen=True, slots=True)
class MapTile:
    """A ratio of times, whether they are told apart, and the times behind it as text."""

    ratio: float
    decided: bool
    text: str


@dataclass(frozen=True, slots=True)
class MapPanel:
    """Tiles by block bytes and number of blocks."""

    title: str
    tiles: Mapping[tuple[int, int], MapTile]

    @property
    def sizes(self) -> list[int]:
        return sorted({size for size, _ in self.tiles})

    @property
    def counts(self) -> list[int]:
        return sorted({count for _, count in self.tiles})


@dataclass(frozen=True, slots=True)
class MapPlot:
    """Rows of maps with the same colours."""

    grid: Sequence[Sequence[MapPanel]]

    @property
    def most_points(self) -> int:
        return max(len(panel.tiles) for row in self.grid for panel in row)


Plot = LinePlot | DotPlot | MapPlot
