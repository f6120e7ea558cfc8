"""The panels of a chart: lines with bands and a ceiling."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.ticker import FixedLocator, NullFormatter
from matplotlib.transforms import Bbox

from kvbench.report.charts.figure import (
    FAINT,
    LEFT,
    RIGHT,
    STROKES,
    Canvas,
    Drawing,
    ink_of,
    lighter,
    new_canvas,
    styled,
)
from kvbench.report.charts.plot import ChartText, LinePlot, PlotAxis, PlotLine
from kvbench.report.numbers import count, figure

Dashes = Literal["-"] | tuple[float, Sequence[float]]

_STYLES: Final[Sequence[Dashes]] = (
    "-",
    (0, (4, 1.8)),
    (0, (1.2, 1.4)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (2, 4)),
    (0, (7, 1.5, 1, 1.5, 1, 1.5)),
)
_CEILING_DASHES: Final = (0, (6, 4))
# The least height of a linear y axis, as a share of its highest value: a slowdown of 1% is seen.
_LEAST_SPAN: Final = 0.02
_ROOM: Final = 0.06  # of the height, above the lines and below, where the axis does not begin at 0
_MOST_BANDS: Final = 6  # lines of a panel; bands of more would hide one another
_LETTER: Final = 0.068  # inches of a tick label
_NOTE: Final = (0.062, 0.13)  # inches: the width of a letter of a note, and its height
_RING: Final = 11  # points, of a mark around a point


def draw(plot: LinePlot, text: ChartText) -> Drawing:
    with styled():
        return _line_canvas(plot, text).drawing()


def _line_canvas(plot: LinePlot, text: ChartText) -> Canvas:
    canvas = new_canvas(text, _legend(plot), plot.panels, right=LEFT if plot.second else RIGHT)
    heights = [panel.ceiling for panel in plot.panels if panel.ceiling is not None]
    limits = _limits(plot.y, [line for line in plot.lines if not line.second], heights)
    for ax, panel in canvas.panels:
        ax.set_title(panel.title)
        _scale_x(ax, plot)
        _scale_y(ax, plot.y, limits)
        if panel.ceiling is not None:
            ax.axhline(panel.ceiling, color=FAINT, linestyle=_CEILING_DASHES, linewidth=1.0, zorder=1.5)
            _say(ax, f"ceiling {figure(panel.ceiling)}", (1, panel.ceiling), (-2, 3), FAINT, across="right")
        for x, said in panel.marked.items():
            ax.axvline(x, color=FAINT, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1.5)
            ax.annotate(said, (x, 1), (3, -8), xycoords=("data", "axes fraction"), textcoords="offset points")
        twin = _second(ax, plot) if plot.second else ax
        for line in panel.lines:
            _draw_line(twin if line.second else ax, line, bands=len(panel.lines) <= _MOST_BANDS)
        _write_notes(ax, twin, panel.lines)
        if not panel.lines:
            ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", color=FAINT)
    return canvas


def _second(ax: Axes, plot: LinePlot) -> Axes:
    assert plot.second
    twin = ax.twinx()
    twin.spines["right"].set_visible(True)
    twin.grid(visible=False)
    _scale_y(twin, plot.second, _limits(plot.second, [line for line in plot.lines if line.second], []))
    return twin


def _say(ax: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], colour: str, across: str) -> None:
    """Write text beside a height of the axes; x is a share of their width, `offset` in points."""
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": across}
    ax.annotate(text, at, offset, fontsize=7.5, color=colour, **place)


def _draw_line(ax: Axes, line: PlotLine, *, bands: bool) -> None:
    colour = lighter(ink_of(line.backend).colour, line.light)
    if bands:
        ax.fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
    else:
        ax.vlines(line.x, line.low, line.high, color=colour, alpha=0.6, linewidth=0.8)
    ax.add_line(_line(line, line.x, line.y))
    for x, y in zip(line.x, line.y, strict=True):
        if x in line.rings:
            ax.plot(x, y, marker="o", markersize=_RING, color=colour, markerfacecolor="none", zorder=4)


def _write_notes(ax: Axes, twin: Axes, lines: Iterable[PlotLine]) -> None:
    """Write the notes of points to their right, the last of each line first, where there is room."""
    taken: list[Bbox] = []
    dpi = ax.figure.dpi
    for line in lines:
        for x, y, note in reversed(list(zip(line.x, line.y, line.notes, strict=False))):
            across, up = (twin if line.second else ax).transData.transform((x, y))
            place = Bbox.from_bounds(across + 0.1 * dpi, up, _NOTE[0] * dpi * len(note), _NOTE[1] * dpi)
            if note and not place.count_overlaps(taken):
                taken.append(place)
                colour, offset = ink_of(line.backend).text, (7, 3)
                axes = twin if line.second else ax
                axes.annotate(note, (x, y), offset, textcoords="offset points", fontsize=7.5, color=colour)


def _limits(axis: PlotAxis, lines: Iterable[PlotLine], others: Sequence[float]) -> tuple[float, float]:
    """Return the ends of a y axis that holds these lines, and `others`."""
    ends = [end for line in lines for end in (line.y if axis.zero else (*line.low, *line.high)) if math.isfinite(end)]
    ends += others
    if axis.zero:
        return 0.0, max(ends, default=1.0) * 1.08
    low, high = min(ends, default=1.0), max(ends, default=1.0)
    span = max(high - low, _LEAST_SPAN * high) / (1 - 2 * _ROOM)
    return low - _ROOM * span, low + (1 - _ROOM) * span


def _scale_y(ax: Axes, axis: PlotAxis, limits: tuple[float, float]) -> None:
    ax.set_ylim(limits)
    ax.set_ylabel(axis.label, labelpad=4)


def _scale_x(ax: Axes, plot: LinePlot) -> None:
    values = sorted({x for line in plot.lines for x in line.x})
    ax.set_xlabel(f"{plot.x.label}, KiB" if plot.x.unit == "bytes" else plot.x.label)
    if plot.x.scale == "linear":
        noted = any(note for line in plot.lines for note in line.notes)  # at the right end, too
        ax.set_xlim(0, (1.3 if noted else 1.08) * max(values, default=1))
    elif values:
        _scale_octaves(ax, plot.x, values)


def _scale_octaves(ax: Axes, axis: PlotAxis, values: Sequence[float]) -> None:
    """Scale a logarithmic x axis, labelled at round numbers, as many as have room; what was measured has a tick."""
    ax.set_xscale("log", base=2)
    octaves = math.log2(values[-1] / values[0])
    margin = max(0.07, 0.05 * octaves)
    ax.set_xlim(values[0] / 2**margin, values[-1] * 2**margin)
    inch = ax.get_window_extent().width / ax.figure.dpi / (octaves + 2 * margin)
    taken: list[tuple[float, float]] = []
    ticks: dict[float, str] = {}
    roundest = sorted(values, key=lambda value: (not math.log2(value).is_integer(), value % 4096 != 0, value))
    for value in roundest:
        text = f"{value / 1024:g}" if axis.unit == "bytes" else count(value)
        at, half = inch * math.log2(value), _LETTER * len(text) / 2
        if all(at - half >= end + 0.1 or at + half <= begin - 0.1 for begin, end in taken):
            taken.append((at - half, at + half))
            ticks[value] = text
    ax.set_xticks([*ticks], [*ticks.values()])
    ax.xaxis.set_minor_locator(FixedLocator([value for value in values if value not in ticks]))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _line(line: PlotLine, x: Sequence[float], y: Sequence[float], *, joined: bool = True) -> Line2D:
    ink = ink_of(line.backend)
    return Line2D(
        x,
        y,
        color=lighter(ink.colour, line.light),
        linestyle=_STYLES[line.variant % STROKES] if joined else "none",
        linewidth=4 if ink.wide else 1.7,
        marker=MarkerStyle(ink.marker),
        markersize=9 if ink.wide else 4.5,
        label=line.label,
        zorder=1.9 if ink.wide else 2,
    )


def _legend(plot: LinePlot) -> list[Line2D]:
    """Return a key for every label, with a stroke only where points of it are joined."""
    labelled: dict[str, PlotLine] = {}
    for line in plot.lines:
        if line.label not in labelled or len(line.x) > 1 >= len(labelled[line.label].x):
            labelled[line.label] = line
    return [_line(line, [], [], joined=len(line.x) > 1) for line in labelled.values()]
