"""The panels of a chart: lines with bands, ceiling and roofs; ratios as sorted dots; ratios as maps."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise, product
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from matplotlib.transforms import Bbox

from kvbench.report.charts.figure import RIGHT, X_LABEL, Canvas, Drawing, drawable, new_canvas, styled
from kvbench.report.charts.palette import (
    FAINT,
    PAPER,
    RATIO_KEYS,
    SHADE,
    STROKES,
    TEXT,
    UNDECIDED,
    UNMEASURED,
    Ink,
    ink_of,
    is_dark,
    ratio_colour,
)
from kvbench.report.charts.plot import (
    AS_ONE,
    ChartText,
    DotPanel,
    DotPlot,
    LinePlot,
    MapPanel,
    MapPlot,
    Plot,
    PlotAxis,
    PlotLine,
    PlotMark,
    PlotPanel,
)
from kvbench.report.numbers import bytes_size, count, figure

Dashes = Literal["-"] | tuple[float, Sequence[float]]
Across = Literal["left", "center", "right"]
Upright = Literal["top", "center", "bottom"]
Align = tuple[Across, Upright]

_STYLES: Final[Sequence[Dashes]] = (
    "-",
    (0, (4, 1.8)),
    (0, (1.2, 1.4)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (2, 4)),
    (0, (7, 1.5, 1, 1.5, 1, 1.5)),
)
_CEILING_DASHES: Final = (0, (6, 4))
_ROOF_DASHES: Final[Sequence[Dashes]] = ((0, (8, 2, 1.5, 2)), (0, (1, 2.5)))
# Behind a label, so that a line that crosses it does not make it unreadable.
_GROUND: Final[dict[str, Any]] = {"boxstyle": "round,pad=0.1", "facecolor": PAPER, "edgecolor": "none", "alpha": 0.85}
_ACROSS: Final[Mapping[int, Across]] = {1: "left", 0: "center", -1: "right"}
_UPRIGHT: Final[Mapping[int, Upright]] = {1: "bottom", 0: "center", -1: "top"}
_BESIDE: Final[Align] = ("left", "center")
# The least height of a linear y axis, as a share of its highest value: a slowdown of 1% is seen.
_LEAST_SPAN: Final = 0.02
_ROOM: Final = 0.06  # of the height, above the lines and below, where the axis does not begin at 0
_NAME_TURN: Final = 35  # degrees
# Rates whose largest is this many times their smallest are drawn logarithmically at first.
_WIDE_RANGE: Final = 10
_MOST_BANDS: Final = 6  # lines of a panel; bands of more would hide one another
_LETTER: Final = 0.068  # inches of a tick label
_NOTE: Final = (0.05, 0.066)  # inches of a letter beside a point, plain and bold
_SOLID, _THIN = 20, 3  # how bad it is to cover a point, a ring or a note, and a bit of a line
_RING: Final = 11  # points, of a mark around a point
_LEVELS: Final = 1.15  # inches for the names of ceiling and roofs, beside the axes
_LEVEL_PITCH: Final = 9  # points
_CLEARLY_BELOW: Final = 0.985  # what is not, at any point, has the ceiling's line

# Tiles keep their colours on a dark page, so what is written on them does, too.
_ON_LIGHT_TILE, _ON_DARK_TILE = "#111111", "#FAFAFA"
_TILE_EDGE: Final = "#999999"
_HATCH: Final = "////"
_UNMEASURED: Final = "#C9C9C9"
_ROW: Final = 0.21  # inches of a row of tiles
_BEHIND: Final = (0.66, 0.6)  # of a tile: what keeps the hatching off a figure
_DOT_ROW: Final = 0.3


class _Note(NamedTuple):
    """A text beside a point of a line, which belongs to key `series` of the legend."""

    line: PlotLine
    series: int
    at: tuple[float, float]
    text: str
    bold: bool


def draw(plot: Plot, text: ChartText) -> Drawing:
    """Draw a chart; of rates there are two views, one linear and one logarithmic."""
    with styled():
        canvases, keys = _canvases(plot, text)
        png = next(iter(canvases.values())).png()
        views = {name: canvas.view() for name, canvas in canvases.items()}
        return Drawing(png, views, [str(key.get_label()) for key in keys])


def _canvases(plot: Plot, text: ChartText) -> tuple[Mapping[str, Canvas], Sequence[Artist]]:
    """Return the views of a plot by name, and the keys of its legend."""
    match plot:
        case LinePlot():
            lines = _legend(plot)
            return {scale: _line_canvas(plot, scale, text, lines) for scale in _scales(plot)}, lines
        case DotPlot():
            return {"dots": _dot_canvas(plot, text)}, []
        case MapPlot():
            tiles = _map_legend()
            return {"map": _map_canvas(plot, text, tiles)}, tiles


def _scales(plot: LinePlot) -> list[Literal["log10", "linear"]]:
    if plot.y.scale != "rate":
        return ["log10" if plot.y.scale == "log10" else "linear"]
    heights = [rate for line in plot.lines for rate in line.y]
    if not heights or min(heights) <= 0:
        return ["linear"]
    return ["log10", "linear"] if max(heights) >= _WIDE_RANGE * min(heights) else ["linear", "log10"]


def _line_canvas(plot: LinePlot, scale: Literal["log10", "linear"], text: ChartText, keys: Sequence[Line2D]) -> Canvas:
    below = X_LABEL + 0.06 * max(map(len, plot.x.names), default=0) * math.sin(math.radians(_NAME_TURN))
    levels = any(panel.roofs or panel.ceiling is not None for panel in plot.panels)
    canvas = new_canvas(text, keys, plot.grid, below=below, right=_LEVELS if levels else RIGHT)
    limits = _limits(plot, scale)
    series = {str(key.get_label()): number for number, key in enumerate(keys)}
    for ax, panel in canvas.panels:
        ax.set_title(drawable(panel.title))
        _scale_x(ax, plot, panel)
        _scale_y(ax, plot.y, scale, limits)
        _draw_levels(ax, panel)
        notes: list[_Note] = []
        for index, line in enumerate(panel.lines):
            number = series[drawable(line.label)]
            _draw_line(canvas, ax, plot, line, number, bands=len(panel.lines) <= _MOST_BANDS)
            before = [other for other in panel.lines[:index] if _seen_as_one(other, line)]
            marked = {(mark.low, mark.high) for other in before for mark in other.marks}
            for mark in (one for one in line.marks if (one.low, one.high) not in marked):
                notes += _mark(canvas, ax, mark, line, number)
            twins = any(one.backend == line.backend and one.label != line.label for one in plot.lines)
            texts = line.notes or [line.label] * (len(line.x) == 1 and twins)  # a lone point has no stroke
            pairs = zip(_points(line), texts, strict=False)
            notes += [_Note(line, number, at, text, bold=False) for at, text in pairs]
        notes += _name_lines(plot, panel, series)
        _note_points(canvas, ax, [note for note in notes if note.text])
        if not panel.lines:
            ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", color=FAINT)
    return canvas


def _say(
    ax: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], align: Align, colour: str, **more: Any
) -> Annotation:
    """Write text beside a point; `offset` is in points, `align` horizontal and vertical."""
    across, upright = align
    style = {"color": colour, "fontsize": 7.5, "zorder": 5, "bbox": _GROUND, **more}
    return ax.annotate(drawable(text), at, offset, textcoords="offset points", ha=across, va=upright, **style)


def _draw_levels(ax: Axes, panel: PlotPanel) -> None:
    """Draw what lines of a panel can reach at most, each named at its right end, beside the axes."""
    ends: list[tuple[float, str]] = []
    if panel.ceiling is not None:
        ax.axhline(panel.ceiling, color=FAINT, linestyle=_CEILING_DASHES, linewidth=1.0, zorder=1.5)
        ends.append((panel.ceiling, f"ceiling {figure(panel.ceiling)}"))
    for roof, dashes in zip(panel.roofs, _ROOF_DASHES, strict=False):
        if panel.ceiling is None or min(roof.y) < _CLEARLY_BELOW * panel.ceiling:
            ax.plot(roof.x, roof.y, color=TEXT, linestyle=dashes, linewidth=0.8, zorder=1.6)
            ends.append((roof.y[-1], roof.label))
    ends.sort(key=lambda end: -end[0])
    heights = [ax.transData.transform((1, height))[1] / ax.figure.dpi * 72 for height, _ in ends]
    stacked = [*accumulate(heights, lambda above, at: min(at, above - _LEVEL_PITCH))]
    raised = max((at - low for at, low in zip(heights, stacked, strict=True)), default=0.0) / 2
    line = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)}
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "fontsize": 7.5, "color": FAINT, "va": "center"}
    for (height, name), at, low in zip(ends, heights, stacked, strict=True):
        offset = (11, low + raised - at)
        ax.annotate(drawable(name), (1, height), offset, textcoords="offset points", arrowprops=line, **place)


def _draw_line(canvas: Canvas, ax: Axes, plot: LinePlot, line: PlotLine, series: int, *, bands: bool) -> None:
    ink = ink_of(line.backend)
    if bands:
        band: Artist = ax.fill_between(line.x, line.low, line.high, color=ink.colour, alpha=0.18, linewidth=0)
    else:
        band = ax.vlines(line.x, line.low, line.high, color=ink.colour, alpha=0.6, linewidth=0.8)
    canvas.tag(band, series)
    artist = _line(line, ink, line.x, line.y)
    ax.add_line(artist)
    canvas.tag(artist, series, _titles(plot, line))


def _note_points(canvas: Canvas, ax: Axes, notes: Sequence[_Note]) -> None:
    """Write notes beside their points, inside the axes, where as little as possible else is drawn."""
    point, inside = ax.figure.dpi / 72, ax.get_window_extent()
    taken = _drawn_boxes(ax)
    for note in sorted(notes, key=lambda note: -len(note.text)):
        x, y = at = ax.transData.transform(note.at)
        others = [ax.transData.transform(other.at) for other in notes if other is not note]
        width, height = _NOTE[note.bold] * len(note.text) * ax.figure.dpi, 0.14 * ax.figure.dpi
        choices = []
        for right, up, far in product((1, -1, 0), (-1, 1, 0), (1, 2, 3)):
            away = far * point * (_RING / 2 + 3) * (0.9 if right and up else 1)
            left, bottom = x + right * away + (right - 1) / 2 * width, y + up * away + (up - 1) / 2 * height
            box = Bbox.from_bounds(left, bottom, width, height)
            outside = not all(inside.contains(*corner) for corner in (box.min, box.max))
            own, *rest = (np.hypot(*(np.clip(place, box.min, box.max) - place)) for place in (at, *others))
            near = sum(distance < own for distance in rest)
            cost = box.count_overlaps(taken) + _SOLID * (outside + near) + 2 * far
            offset = right * away / point, up * away / point
            choices.append((cost, offset, (_ACROSS[right], _UPRIGHT[up]), box))
        _, offset, align, box = min(choices, key=lambda choice: choice[0])
        taken += [box] * 2 * _SOLID
        weight = "bold" if note.bold else "normal"
        said = _say(ax, note.text, note.at, offset, align, ink_of(note.line.backend).text, fontweight=weight)
        canvas.tag(said, note.series)


def _drawn_boxes(ax: Axes) -> list[Bbox]:
    """Return what the points, rings and lines of a panel cover, in pixels."""
    drawn = []
    for line in ax.get_lines():
        places = line.get_transform().transform(line.get_xydata())
        if line.get_marker() != "None":
            reach = (line.get_markersize() / 2 + 2) * ax.figure.dpi / 72
            drawn += [Bbox([place, place]).padded(reach) for place in places] * _SOLID
        steps = (one + (other - one) * step for one, other in pairwise(places) for step in np.linspace(0, 1, 24))
        drawn += [Bbox([step - 0.5, step + 0.5]) for step in steps] * _THIN
    return drawn


def _titles(plot: LinePlot, line: PlotLine) -> list[str]:
    """Return what is said of the points of a line on hover."""
    titles = []
    notes = line.notes or [""] * len(line.x)
    for x, y, low, high, note in zip(line.x, line.y, line.low, line.high, notes, strict=True):
        name = ", ".join(filter(None, (line.label, note)))
        between = f"\n{plot.band} {figure(low)} to {figure(high)}" if low < high else ""
        said = f"{name}\n{plot.x.label} {_shown(plot.x, x)}: {figure(y)} {plot.y.label}{between}"
        titles.append(said)
    return titles


def _mark(canvas: Canvas, ax: Axes, mark: PlotMark, line: PlotLine, series: int) -> list[_Note]:
    """Draw a mark, and write the text of a jump; return that of a point, which stands where there is room."""
    ink, y_of = ink_of(line.backend), dict(_points(line))
    if mark.low == mark.high:
        at = (mark.low, y_of[mark.low])
        (ring,) = ax.plot(*at, marker="o", markersize=_RING, color=ink.colour, markerfacecolor="none", zorder=4)
        canvas.tag(ring, series)
        return [_Note(line, series, at, mark.text, bold=True)]
    # opaque, so that lines with the same jump shade it once
    ax.axvspan(mark.low, mark.high, color=SHADE, linewidth=0, zorder=0.5)
    middle, ends = math.sqrt(mark.low * mark.high), (y_of[mark.low], y_of[mark.high])
    style = {"arrowstyle": "<->", "color": ink.colour, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
    arrow = ax.annotate("", (middle, ends[1]), xytext=(middle, ends[0]), arrowprops=style)
    if arrow.arrow_patch is not None:
        canvas.tag(arrow.arrow_patch, series)
    start = middle, math.sqrt(ends[0] * ends[1]) if ax.get_yscale() == "log" else sum(ends) / 2
    canvas.tag(_say(ax, mark.text, start, (6.0, 0.0), _BESIDE, ink.text, fontweight="bold"), series)
    return []


def _name_lines(plot: LinePlot, panel: PlotPanel, series: Mapping[str, int]) -> list[_Note]:
    """Return the names of the lines of a chart of one backend, which share a colour; lines seen as one share a name."""
    if len({line.backend for line in plot.lines}) > 1 or len({line.label for line in plot.lines}) == 1:
        return []
    groups: list[list[PlotLine]] = []
    for line in panel.lines:
        alike = next((group for group in groups if _seen_as_one(group[0], line)), None)
        if alike is None:
            groups.append([line])
        else:
            alike.append(line)
    notes = []
    for line, *others in groups:
        names = [(one.label.partition(", ")[2] or one.label).removesuffix(" stream") for one in (line, *others)]
        text = f"{' and '.join(names)}{f': within {AS_ONE - 1:.0%}' if others else ''}"
        second = _points(line)[:2][-1]  # the first has no room to its left
        notes.append(_Note(line, series[drawable(line.label)], second, text, bold=False))
    return notes


def _points(line: PlotLine) -> list[tuple[float, float]]:
    return [*zip(line.x, line.y, strict=True)]


def _height(line: PlotLine, x: float) -> float:
    return float(np.interp(x, line.x, line.y))


def _seen_as_one(one: PlotLine, other: PlotLine) -> bool:
    heights = [(y, _height(one, x)) for x, y in _points(other)]
    return all(min(pair) > 0 and max(pair) <= AS_ONE * min(pair) for pair in heights)


def _limits(plot: LinePlot, scale: Literal["log10", "linear"]) -> tuple[float, float]:
    """Return the ends of the y axis."""
    ends = [end for line in plot.lines for end in (*line.low, *line.high) if math.isfinite(end)]
    if plot.y.scale == "rate":
        ends = [rate for line in plot.lines for rate in line.y]
        ends += [panel.ceiling for panel in plot.panels if panel.ceiling is not None]
        ends += [rate for panel in plot.panels for roof in panel.roofs for rate in roof.y]
    if scale == "linear" and plot.y.zero:
        return 0.0, max(ends, default=1.0) * 1.08
    known = ends if scale == "linear" else [math.log10(end) for end in ends if end > 0] or [0.0]
    low, high = min(known), max(known)
    span = max(high - low, _LEAST_SPAN * high if scale == "linear" else 1.0) / (1 - 2 * _ROOM)
    limits = low - _ROOM * span, low + (1 - _ROOM) * span
    return limits if scale == "linear" else (10 ** limits[0], 10 ** limits[1])


def _scale_y(ax: Axes, axis: PlotAxis, scale: str, limits: tuple[float, float]) -> None:
    if scale == "log10":
        ax.set_yscale("log")
        decades = math.log10(limits[1] / limits[0])
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 4 else (1,)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_locator(NullLocator())
    ax.set_ylim(limits)
    ax.set_ylabel(axis.label, labelpad=4)


def _scale_x(ax: Axes, plot: LinePlot, panel: PlotPanel) -> None:
    values = sorted({x for line in plot.lines for x in line.x})
    ax.set_xlabel(plot.x.label)
    if plot.x.unit == "name":
        ax.set_xlim(-0.5, len(plot.x.names) - 0.5)
        names = [drawable(name) for name in plot.x.names]
        ax.set_xticks(range(len(names)), names, fontsize=7.5, rotation=_NAME_TURN, ha="right", rotation_mode="anchor")
    elif plot.x.scale == "linear":
        noted = any(note for line in plot.lines for note in line.notes)  # at the right end, too
        ax.set_xlim(0, (1.65 if noted else 1.08) * values[-1])
    elif values:
        jumps = {(mark.low, mark.high) for line in panel.lines for mark in line.marks if mark.low < mark.high}
        _scale_octaves(ax, plot.x, values, sorted(jumps))


def _scale_octaves(ax: Axes, axis: PlotAxis, values: Sequence[float], jumps: Sequence[tuple[float, float]]) -> None:
    """Scale a logarithmic x axis: jumps are labelled first, at their middle, then round numbers, as many as have room.

    What was measured and is not labelled has a tick.
    """
    if axis.scale == "symlog2":
        ax.set_xscale("symlog", base=2, linthresh=1)
    else:
        ax.set_xscale("log", base=2)
    first, last = _octaves(axis, values[0]), _octaves(axis, values[-1])
    margin = max(0.07, 0.05 * (last - first))
    ax.set_xlim(_value(axis, first - margin), _value(axis, last + margin))
    inch = ax.get_window_extent().width / ax.figure.dpi / (last - first + 2 * margin)
    middles = [_value(axis, (_octaves(axis, low) + _octaves(axis, high)) / 2) for low, high in jumps]
    names = [" \N{RIGHTWARDS ARROW} ".join(_shown(axis, end) for end in jump) for jump in jumps]
    bold = dict(zip(middles, names, strict=True))
    taken: list[tuple[float, float]] = []
    ticks: dict[float, str] = {}
    for value, text in (bold | {value: _shown(axis, value) for value in _round_values(axis, values)}).items():
        at, half = inch * _octaves(axis, value), _LETTER * len(text) * (0.6 if value in bold else 0.5)
        if all(at - half >= end + 0.1 or at + half <= begin - 0.1 for begin, end in taken):
            taken.append((at - half, at + half))
            ticks[value] = text
    ax.set_xticks([*ticks], [*ticks.values()])
    for label, value in zip(ax.get_xticklabels(), ticks, strict=True):
        label.set_fontweight("bold" if value in bold else "normal")
    ax.xaxis.set_minor_locator(FixedLocator([value for value in values if value not in ticks]))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _round_values(axis: PlotAxis, values: Sequence[float]) -> list[float]:
    """Return what an axis could label, the roundest first: measured values if all are round, else powers of ten."""
    measured = sorted(values, key=lambda value: (not _is_power_of_two(value), value))
    if axis.unit == "bytes" or all(
        _is_power_of_two(value) or value == float(f"{value:.2g}") or value < 200 for value in values
    ):
        return measured
    powers = range(math.floor(math.log10(max(1.0, values[0]))), math.floor(math.log10(values[-1])) + 1)
    steps = [step * 10**power for step in (1, 3) for power in powers]
    return [float(step) for step in steps if values[0] <= step <= values[-1]] or measured


def _is_power_of_two(value: float) -> bool:
    return value > 0 and math.log2(value).is_integer()


def _shown(axis: PlotAxis, value: float) -> str:
    show: Mapping[str, Callable[[float], str]] = {
        "bytes": lambda size: bytes_size(int(size)),
        "count": count,
        "figure": figure,
        "name": lambda index: axis.names[int(index)],
    }
    return show[axis.unit](value)


def _octaves(axis: PlotAxis, value: float) -> float:
    """Return where a value stands on the x axis, in octaves; symlog2 is linear up to 1."""
    if axis.scale == "log2":
        return math.log2(value)
    return 1 + math.log2(value) if value > 1 else value


def _value(axis: PlotAxis, octaves: float) -> float:
    if axis.scale == "log2":
        return float(2**octaves)
    return float(2 ** (octaves - 1)) if octaves > 1 else octaves


def _line(line: PlotLine, ink: Ink, x: Sequence[float], y: Sequence[float], *, joined: bool = True) -> Line2D:
    return Line2D(
        x,
        y,
        color=ink.colour,
        linestyle=_STYLES[line.variant % STROKES] if joined else "none",
        linewidth=4 if ink.wide else 1.7,
        marker=MarkerStyle(ink.marker),
        markersize=9 if ink.wide else 4.5,
        label=drawable(line.label),
        zorder=1.9 if ink.wide else 2,
    )


def _legend(plot: LinePlot) -> list[Line2D]:
    """Return a key for every label, with a stroke only where points of it are joined."""
    labelled: dict[str, PlotLine] = {}
    for line in plot.lines:
        if line.label not in labelled or len(line.x) > 1 >= len(labelled[line.label].x):
            labelled[line.label] = line
    return [_line(line, ink_of(line.backend), [], [], joined=len(line.x) > 1) for line in labelled.values()]


def _dot_canvas(plot: DotPlot, text: ChartText) -> Canvas:
    rows = max((len(panel.dots) for line in plot.grid for panel in line), default=1)
    canvas = new_canvas(text, [], plot.grid, panel_height=_DOT_ROW * max(rows, 3) + 0.3)
    dots = [dot for line in plot.grid for panel in line for dot in panel.dots]
    ends = [abs(math.log2(end)) for dot in dots for end in (dot.ratio, dot.low, dot.high) if 0 < end < math.inf]
    reach = 2 ** min(6.0, max(0.2, 1.15 * max(ends, default=0.0)))
    for ax, panel in canvas.panels:
        _draw_dots(canvas, ax, panel, reach)
        ax.set_ylim(rows - 0.4, -1.5)
        ax.set_xlabel("ratio of times")
    return canvas


def _draw_dots(canvas: Canvas, ax: Axes, panel: DotPanel, reach: float) -> None:
    """Draw ratios on a logarithmic axis with 1 in its middle, each below the name of what it is of."""
    ax.set_title(drawable(panel.title))
    ax.set_xscale("log", base=2)
    ax.set_xlim(1 / reach, reach)
    near = (0.5, 0.8, 1, 1.25, 2) if reach > 1.5 else (0.8, 0.9, 1, 1.1, 1.25)
    steps = [step for step in ((0.1, 0.2, 0.5, 1, 2, 5, 10) if reach > 4 else near) if 1 / reach < step < reach]
    ax.set_xticks(steps, [f"{step:g}" for step in steps])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_yticks([])
    ax.axvline(1, color=FAINT, linewidth=1.0)
    for side, said, x in (("left", "\N{LEFTWARDS ARROW} faster", 0.0), ("right", "slower \N{RIGHTWARDS ARROW}", 1.0)):
        place: dict[str, Any] = {"transform": ax.get_yaxis_transform(), "ha": side, "va": "center"}
        ax.text(x, -1.1, said, fontsize=8.5, fontweight="bold", color=FAINT, **place)
    for row, dot in enumerate(panel.dots):
        ink = ink_of(dot.backend)
        ax.plot([max(dot.low, 1 / reach), min(dot.high, reach)], [row, row], color=ink.colour, linewidth=1.2)
        face = ink.colour if dot.decided else PAPER
        (point,) = ax.plot([dot.ratio], [row], color=ink.colour, marker=ink.marker, markersize=6, markerfacecolor=face)
        interval = f" ({figure(dot.low)} to {figure(dot.high)})" if dot.low < dot.high else ""
        canvas.tag(point, 0, [f"{dot.label}\n{figure(dot.ratio)}{interval}"])
        align, x = ("right", 0.995) if dot.ratio < 1 else ("left", 0.005)
        place = {"transform": ax.get_yaxis_transform(), "ha": align, "va": "center"}
        ax.text(x, row - 0.36, drawable(dot.label), fontsize=7.5, **place)


def _map_canvas(plot: MapPlot, text: ChartText, keys: Sequence[Patch]) -> Canvas:
    rows = max(len(panel.sizes) for line in plot.grid for panel in line)
    canvas = new_canvas(text, keys, plot.grid, _ROW * max(rows, 6))
    for ax, panel in canvas.panels:
        _draw_map(canvas, ax, panel)
    return canvas


def _draw_map(canvas: Canvas, ax: Axes, panel: MapPanel) -> None:
    """Draw a map: sizes upward, numbers of blocks to the right; only what this panel has."""
    ax.set_title(drawable(panel.title))
    ax.grid(visible=False)
    ax.set_facecolor(_UNMEASURED)
    sizes, counts = panel.sizes, panel.counts
    for (size, blocks), tile in panel.tiles.items():
        x, y, colour = counts.index(blocks), sizes.index(size), ratio_colour(tile.ratio)
        box = Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, linewidth=0.6, edgecolor=_ON_DARK_TILE)
        canvas.tag(ax.add_patch(box), 0, [tile.text])
        if not tile.decided:
            corner = (x - 0.5, y - 0.5)
            ax.add_patch(Rectangle(corner, 1, 1, facecolor="none", linewidth=0.6, edgecolor=_TILE_EDGE, hatch=_HATCH))
            width, height = _BEHIND
            ax.add_patch(Rectangle((x - width / 2, y - height / 2), width, height, facecolor=colour, edgecolor="none"))
        letters = _ON_DARK_TILE if tile.decided and is_dark(colour) else _ON_LIGHT_TILE
        ax.text(x, y, figure(tile.ratio), ha="center", va="center", fontsize=7, color=letters)
    ax.set_xlim(-0.5, len(counts) - 0.5)
    ax.set_ylim(-0.5, len(sizes) - 0.5)
    ax.set_xticks(range(len(counts)), [count(blocks) for blocks in counts], fontsize=7.5)
    ax.set_yticks(range(len(sizes)), [bytes_size(size) for size in sizes], fontsize=7)
    ax.tick_params(length=0)
    ax.set_xlabel("blocks")


def _map_legend() -> list[Patch]:
    keys = [Patch(facecolor=ratio_colour(r), edgecolor=_TILE_EDGE, label=text) for r, text in RATIO_KEYS.items()]
    keys.append(Patch(facecolor=ratio_colour(1.0), edgecolor=_TILE_EDGE, hatch=_HATCH, label=UNDECIDED))
    return [*keys, Patch(facecolor=_UNMEASURED, edgecolor=_TILE_EDGE, label=UNMEASURED)]
