"""What a chart draws, as data: lines on axes, or maps of ratios."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """What an axis counts: its label, and whether its numbers are bytes, whole numbers, or any figure.

    "symlog2" (of x) is linear up to 1 and logarithmic from there, so that it has a place for 0.
    """

    label: str
    unit: Literal["bytes", "count", "figure"]
    scale: Literal["log2", "symlog2", "log10", "linear"]


@dataclass(frozen=True, slots=True)
class PlotMark:
    """What to point out on a line, in words: a jump from the point at `low` to that at `high`, or one point."""

    low: float
    high: float
    words: str


@dataclass(frozen=True, slots=True)
class PlotLine:
    """A line of points ascending in x: medians in `y`, quartiles in `low` and `high`, in the unit of the y axis.

    `backend` decides colour and marker, `style` (0, 1 or 2: solid, dashed, dotted) the stroke; `cell_ids` are the cells
    behind the points, of the run labelled `run`.
    """

    run: str
    label: str
    backend: str
    style: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    cell_ids: Sequence[str]
    marks: Sequence[PlotMark] = ()


@dataclass(frozen=True, slots=True)
class PlotPanel:
    """One pair of axes; `ceiling` is in the unit of the y axis, None where it was not measured."""

    title: str
    lines: Sequence[PlotLine]
    ceiling: float | None = None


@dataclass(frozen=True, slots=True)
class LinePlot:
    """Rows of panels on the same axes."""

    x: PlotAxis
    y: PlotAxis
    grid: Sequence[Sequence[PlotPanel]]

    @property
    def lines(self) -> list[PlotLine]:
        return [line for row in self.grid for panel in row for line in panel.lines]


@dataclass(frozen=True, slots=True)
class MapTile:
    """A ratio of times, whether they are told apart, and in words what stands behind it."""

    ratio: float
    decided: bool
    words: str


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
