"""Line charts as pictures: medians with their quartiles as bands, ceiling and roofs, jumps and knees marked."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from matplotlib.transforms import Affine2D

from kvbench.report.charts.figure import PANEL_WIDTH, drawable, new_figure, render, styled
from kvbench.report.charts.palette import STROKES, Ink, is_hollow, spokes_of
from kvbench.report.charts.plot import ChartText, LinePlot, PlotAxis, PlotLine, PlotMark, PlotPanel
from kvbench.report.numbers import bytes_size, count, figure

Dashes = Literal["-"] | tuple[float, Sequence[float]]

_GREY: Final = "#666666"
_STYLES: Final[Sequence[Dashes]] = (
    "-",
    (0, (4, 1.8)),
    (0, (1.2, 1.4)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (2, 4)),
    (0, (7, 1.5, 1, 1.5, 1, 1.5)),
)
_CEILING_DASHES: Final = (0, (6, 4))
_ROOF_COLOUR: Final = "#1B1F24"
_ROOF_DASHES: Final[Sequence[Dashes]] = ((0, (8, 2, 1.5, 2)), (0, (1, 2.5)))
_LABEL_POINTS: Final = 14
# The least height of a linear y axis, as a share of its highest value: a slowdown of 1% is seen.
_LEAST_SPAN: Final = 0.02
_ROOM: Final = 0.06  # of the height, above the lines and below, where the axis does not begin at 0
_NAME_TURN: Final = 35  # degrees


def draw_lines(plot: LinePlot, text: ChartText, inks: Mapping[str, Ink]) -> dict[str, bytes]:
    """Return {"png": …, "svg": …}: a row of the plot's grid is a row of panels."""
    with styled():
        below = 0.55 + 0.06 * max(map(len, plot.x.names), default=0) * math.sin(math.radians(_NAME_TURN))  # inches
        fig, axes = new_figure(text, _legend(plot, inks), plot.grid, below=below)
        panel_points = 72 * axes[0][0].get_position().height * fig.get_figheight()
        labels = max(sum(bool(mark.text) for line in panel.lines for mark in line.marks) for panel in plot.panels)
        limits = _limits(plot, labels * _LABEL_POINTS / panel_points)
        for ax, panel in axes:
            _scale(ax, plot, limits)
            _draw(ax, plot, panel, inks)
            ax.set_ylabel(plot.y.label, labelpad=1)
            ax.label_outer()
        return render(fig)


def _draw(ax: Axes, plot: LinePlot, panel: PlotPanel, inks: Mapping[str, Ink]) -> None:
    known = "" if panel.ceiling is None else f" · ceiling {figure(panel.ceiling)} {plot.y.label}"
    ax.set_title(drawable(f"{panel.title}{known}"))
    if not panel.lines:
        ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", color=_GREY)
    if panel.ceiling is not None:
        ax.axhline(panel.ceiling, color=_GREY, linestyle=_CEILING_DASHES, linewidth=1.0, zorder=1.5)
    for roof in panel.roofs:
        dashes = _ROOF_DASHES[plot.roof_labels.index(roof.label)]
        ax.plot(roof.x, roof.y, color=_ROOF_COLOUR, linestyle=dashes, linewidth=0.8, zorder=1.6)
    for line in panel.lines:
        ax.fill_between(line.x, line.low, line.high, color=inks[line.backend].colour, alpha=0.18, linewidth=0)
        ax.add_line(_line(line, inks[line.backend], line.x, line.y))
    labels = 0
    marks = [(line, mark) for line in panel.lines for mark in line.marks]
    for line, mark in marks:
        _mark(ax, mark, dict(zip(line.x, line.y, strict=True)), inks[line.backend].colour)
        if mark.text:
            _label(ax, f"{line.label}: {mark.text}", inks[line.backend], labels)
            labels += 1


def _mark(ax: Axes, mark: PlotMark, y_of: Mapping[float, float], colour: str) -> None:
    if mark.low == mark.high:
        at = ([mark.low], [y_of[mark.low]])
        ax.plot(*at, marker="o", markersize=11, markerfacecolor="none", markeredgecolor=colour, zorder=4)
        return
    # opaque, so that lines with the same jump shade it once
    ax.axvspan(mark.low, mark.high, color="#E6E6E6", linewidth=0, zorder=0.5)
    middle = math.sqrt(mark.low * mark.high)
    arrow = {"arrowstyle": "<->", "color": colour, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (middle, y_of[mark.high]), xytext=(middle, y_of[mark.low]), arrowprops=arrow)


def _label(ax: Axes, text: str, ink: Ink, above: int) -> None:
    """Write what is marked into the headroom, where no line runs, below as many labels as are `above`."""
    ax.annotate(
        drawable(text),
        (0, 1),
        xycoords="axes fraction",
        xytext=(4, -2 - _LABEL_POINTS * above),
        textcoords="offset points",
        va="top",
        fontsize=8,
        fontweight="bold",
        color=ink.text,
        bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.9},
    )


def _limits(plot: LinePlot, headroom: float) -> tuple[float, float]:
    """Return the ends of the y axis; `headroom` is a share of its height for labels."""
    linear = plot.y.scale == "linear"
    if linear and plot.y.zero:
        heights = [rate for line in plot.lines for rate in line.y]
        heights += [panel.ceiling for panel in plot.panels if panel.ceiling is not None]
        heights += [rate for panel in plot.panels for roof in panel.roofs for rate in roof.y]
        return 0.0, max(heights) * 1.08 / (1 - headroom)
    ends = [end for line in plot.lines for end in (*line.low, *line.high) if math.isfinite(end)]
    known = ends if linear else [math.log10(end) for end in ends if end > 0] or [0.0]
    low, high = min(known), max(known)
    span = max(high - low, _LEAST_SPAN * high if linear else 1.0) / max(1 - headroom - 2 * _ROOM, 0.2)
    limits = low - _ROOM * span, low + (1 - _ROOM) * span
    return limits if linear else (10 ** limits[0], 10 ** limits[1])


def _scale(ax: Axes, plot: LinePlot, limits: tuple[float, float]) -> None:
    values = sorted({x for line in plot.lines for x in line.x})
    if plot.x.unit == "name":
        ax.set_xlim(-0.5, len(plot.x.names) - 0.5)
        names = [drawable(name) for name in plot.x.names]
        ax.set_xticks(range(len(names)), names, fontsize=7.5, rotation=_NAME_TURN, ha="right", rotation_mode="anchor")
    elif plot.x.scale == "linear":
        ax.set_xlim(0, 1.08 * values[-1])
    else:
        _scale_octaves(ax, plot.x, [int(value) for value in values])
    ax.set_xlabel(plot.x.label)
    if plot.y.scale == "log10":
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.tick_params(axis="y", labelsize=7.5)
    ax.set_ylim(limits)


def _scale_octaves(ax: Axes, axis: PlotAxis, values: Sequence[int]) -> None:
    """Scale a logarithmic x axis: every x that has room is labelled, powers of two first; the others get a tick."""
    show: Callable[[int], str] = bytes_size if axis.unit == "bytes" else count
    first, last = _octaves(axis, values[0]), _octaves(axis, values[-1])
    letters = max(len(show(value)) for value in values)
    room = (0.08 + 0.055 * letters) / PANEL_WIDTH * 1.1 * max(1.0, last - first)
    named: list[int] = []
    for value in sorted(values, key=lambda value: (value & (value - 1) != 0, value)):
        if all(abs(_octaves(axis, value) - _octaves(axis, other)) >= room for other in named):
            named.append(value)
    if axis.scale == "symlog2":
        ax.set_xscale("symlog", base=2, linthresh=1)
    else:
        ax.set_xscale("log", base=2)
    margin = max(0.07, 0.05 * (last - first))
    ax.set_xlim(_value(axis, first - margin), _value(axis, last + margin))
    ax.set_xticks(named, [show(value) for value in named], fontsize=7.5)
    ax.xaxis.set_minor_locator(FixedLocator([value for value in values if value not in named]))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _octaves(axis: PlotAxis, value: float) -> float:
    """Return where a value stands on the x axis, in octaves; symlog2 is linear up to 1."""
    if axis.scale == "log2":
        return math.log2(value)
    return 1 + math.log2(value) if value > 1 else value


def _value(axis: PlotAxis, octaves: float) -> float:
    if axis.scale == "log2":
        return float(2**octaves)
    return float(2 ** (octaves - 1)) if octaves > 1 else octaves


def _line(line: PlotLine, ink: Ink, x: Sequence[float], y: Sequence[float]) -> Line2D:
    return Line2D(
        x,
        y,
        color=ink.colour,
        linestyle=_STYLES[line.variant % STROKES],
        linewidth=4 if ink.wide else 1.7,
        marker=_marker(ink.marker, spokes_of(line.variant)),
        markersize=9 if ink.wide else 4.5,
        markerfacecolor="white" if is_hollow(line.variant) else ink.colour,
        label=drawable(line.label),
        zorder=1.9 if ink.wide else 2,
    )


def _marker(name: str, spokes: Sequence[int]) -> MarkerStyle:
    """Return a marker with lines through it, as large as without."""
    plain = MarkerStyle(name)
    outline = plain.get_path().transformed(plain.get_transform())
    reach = float(np.abs(outline.vertices).max())
    tips = [(reach * math.cos(math.radians(angle)), reach * math.sin(math.radians(angle))) for angle in spokes]
    lines = [Path([(-x, -y), (x, y)]) for x, y in tips]
    path = Path.make_compound_path(outline, *lines)
    return MarkerStyle(path, transform=Affine2D().scale(2 * reach)) if lines else plain


def _legend(plot: LinePlot, inks: Mapping[str, Ink]) -> list[Line2D]:
    keys = [*{line.label: _line(line, inks[line.backend], [], []) for line in plot.lines}.values()]
    if any(panel.ceiling for panel in plot.panels):
        keys.append(Line2D([], [], color=_GREY, linestyle=_CEILING_DASHES, linewidth=1.0, label="ceiling"))
    for label, dashes in zip(plot.roof_labels, _ROOF_DASHES, strict=False):
        keys.append(Line2D([], [], color=_ROOF_COLOUR, linestyle=dashes, linewidth=0.8, label=label))
    return keys
