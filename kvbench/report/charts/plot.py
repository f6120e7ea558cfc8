"""What a chart draws, as data: lines on axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class ChartText:
    """The text around a chart: a title, a line under it, what the numbers include, and a warning; "" for none."""

    title: str
    subtitle: str
    footer: str = ""
    warning: str = ""

    @property
    def alternative(self) -> str:
        """The text for readers who do not see the chart."""
        return f"{self.title} ({self.warning})" if self.warning else self.title


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """What an axis counts: its label, whether its numbers are bytes, shown in KiB, or any others, and its scale.

    A y axis is linear and begins at 0, unless `zero` is false.
    """

    label: str
    unit: Literal["bytes", "count", "figure"]
    scale: Literal["log2", "linear"]
    zero: bool = True


@dataclass(frozen=True, slots=True)
class PlotLine:
    """A line of points: medians in `y`, the ends of its band in `low` and `high`, in the unit of y.

    `backend` decides colour and marker, `variant` the stroke, `light` (from 0 to 1) how much of the colour is left out:
    a plot's lines of one label have the same of all, and lines of two labels do not. `notes` stand beside the points,
    one for each, if any; points at the x of `rings` have a ring. A `second` line is of the second y axis.
    """

    label: str
    backend: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    variant: int = 0
    light: float = 0.0
    notes: Sequence[str] = ()
    rings: Sequence[float] = ()
    second: bool = False


@dataclass(frozen=True, slots=True)
class PlotPanel:
    """One pair of axes; `ceiling` is in the unit of the y axis, None where it was not measured.

    `marked` are texts at values of x, each with a line from the bottom to the top.
    """

    title: str
    lines: Sequence[PlotLine]
    ceiling: float | None = None
    marked: Mapping[float, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LinePlot:
    """Panels on the same axes, side by side; `second` is a y axis at the right, for lines that say so."""

    x: PlotAxis
    y: PlotAxis
    panels: Sequence[PlotPanel]
    second: PlotAxis | None = None

    @property
    def lines(self) -> list[PlotLine]:
        return [line for panel in self.panels for line in panel.lines]

    @property
    def most_points(self) -> int:
        """How many values of x the fullest panel has."""
        return max(len({x for line in panel.lines for x in line.x}) for panel in self.panels)
