"""Charts: lines with bands and a ceiling on panels side by side, under a title; colours and marks.

Where everything goes, in inches, is worked out here because matplotlib's own layouts differ in the last digit from run
to run. Colours and marks of backends are the same in every chart of every card, told apart by colour-blind readers;
every colour has a contrast of 3 or more (WCAG 2, for lines) on white.
"""

import io
import math
import textwrap
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Literal, NamedTuple

import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator
from matplotlib.transforms import Bbox
from PIL import Image

from kvbench.cells.facts import AUTO, BATCHED, MERGED, PER_BLOCK, PRIMED, SM, STAGED, TRITON
from kvbench.report.model import ChartText, LinePlot, PlotAxis, PlotLine, PlotPanel
from kvbench.report.numbers import count, figure

# The name of a marker, or (points, 1, degrees) of a star.
Marker = str | tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Ink:
    """How a backend is drawn: colour and point marker.

    A `wide` line with large markers is drawn below the others, so that it is seen on both sides of a line that it
    lies on.
    """

    colour: str
    marker: Marker
    wide: bool = False


_TEXT: Final = "#1B1F24"
_FAINT: Final = "#57606A"
_GRID: Final = "#E3E3E3"

KNOWN: Final = {
    PER_BLOCK: Ink("#B05426", "^"),
    BATCHED: Ink("#2C60DD", "o"),
    TRITON: Ink("#00825B", "s"),
    SM: Ink("#A553AB", "D"),
    PRIMED: Ink("#605430", "P"),
    MERGED: Ink("#FF196B", "d"),
    STAGED: Ink("#3D1846", (6, 1, 30)),
    AUTO: Ink("#B68C0C", "v", wide=True),  # it is one of the others, and as fast
    "vllm_batch": Ink("#000000", "X"),
    "vllm_hisparse": Ink("#6B48B2", (5, 1, 0)),
    "vllm_triton": Ink("#949596", "<"),
    "vllm_handler": Ink("#632D46", "p"),
    "sglang_aot": Ink("#7303F7", ">"),
    "sglang_jit": Ink("#B484B4", "h"),
    "sglang_store": Ink("#511214", (5, 1, 36)),
    "sglang_hisparse": Ink("#731D01", "8"),
    "lmcache": Ink("#0F9BD8", "*"),
    "copier": Ink("#244878", "H"),
    "empty": Ink("#5601A6", (4, 1, 0)),
    "empty_torch": Ink("#160B61", (7, 1, 0)),
}
_FREE_COLOURS: Final = ("#7F6A00", "#B0008B", "#5F7F8F", "#3F6F00", "#8A4A6A", "#6F6F6F", "#D0561A")
_FREE_MARKERS: Final[tuple[Marker, ...]] = ((3, 1, 0), (4, 1, 45), (6, 1, 0), (3, 1, 180), (8, 1, 0))


def ink_of(backend: str) -> Ink:
    """The ink of a backend; that of another package's comes from its name alone, and is no built-in's."""
    if backend in KNOWN:
        return KNOWN[backend]
    turn, index = divmod(zlib.crc32(backend.encode()), len(_FREE_COLOURS))
    return Ink(_FREE_COLOURS[index], _FREE_MARKERS[turn % len(_FREE_MARKERS)])


def lighter(colour: str, share: float) -> str:
    """A colour with a share, from 0 to 1, of white in it."""
    red, green, blue = (channel + share * (1 - channel) for channel in to_rgb(colour))
    return to_hex((red, green, blue))


Dashes = Literal["-"] | tuple[float, Sequence[float]]
# By which variants of a backend are told apart.
STROKES: Final[Sequence[Dashes]] = (
    "-",
    (0, (4, 1.8)),
    (0, (1.2, 1.4)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (2, 4)),
    (0, (7, 1.5, 1, 1.5, 1, 1.5)),
)
_PANEL_WIDTH: Final = 4.9
_LEFT: Final = 0.66  # of the axes in their panel: tick labels and the label of the y axis
_RIGHT: Final = 0.14
_TITLE: Final = 0.26
_AXES_HEIGHT: Final = 3.3
_X_LABEL: Final = 0.45
_LOW_AXES_HEIGHT: Final = 2.6  # of panels in several rows
_MATPLOTLIB: Final = {
    "font.family": ["DejaVu Sans", "sans-serif"],
    "svg.fonttype": "none",  # text stays text
    "font.size": 9.0,
    "text.color": _TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _TEXT,
    "axes.labelsize": 8.5,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # not worked out from every tick's extent
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "xtick.labelcolor": _TEXT,
    "ytick.labelcolor": _TEXT,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.5,
    "legend.handlelength": 3.4,
    "svg.hashsalt": "kvbench",
    "text.parse_math": False,
}
_DRAWN: Final = frozenset("\N{HORIZONTAL ELLIPSIS}\N{RIGHTWARDS ARROW}\N{LEFTWARDS ARROW}")
_LETTERS_PER_INCH: Final = 18  # of a footnote
_DPI: Final = 120
_COLOURS: Final = 256
# Of the title, the subtitle and the warning: letters per inch, and the style.
_HEAD: Final[Sequence[tuple[int, dict[str, Any]]]] = (
    (9, {"fontsize": 12.5, "fontweight": "bold"}),
    (15, {"fontsize": 8.5, "color": _FAINT}),
    (12, {"fontsize": 9, "fontweight": "bold", "color": "#B00020"}),
)
_FOOTNOTE: Final[dict[str, Any]] = {"fontsize": 7, "color": _FAINT}
_SMALL: Final[dict[str, Any]] = {"textcoords": "offset points", "fontsize": 7.5, "color": _FAINT}
_CEILING_DASHES: Final = (0, (6, 4))
# The least height of a linear y axis, as a share of its highest value: a slowdown of 1% is seen.
_LEAST_SPAN: Final = 0.02
# What an axis of ratios reaches at least, and its labels, the more important first.
_LEAST_RATIO: Final = 1.1
_RATIOS: Final = (1, 2, 1.5, 4, 1.2, 1.1, 3, 10, 1.05, 5, 20, 100, 1.3)
_ROOM: Final = 0.06  # of the height, above the lines and below, where the axis does not begin at 0
_LETTER: Final = 0.068  # inches of a tick label
_NOTE: Final = (0.062, 0.13)  # inches: the width of a letter of a note, and its height
_MARKED: Final = 0.045  # inches from a point to the edge of its marker
# Letters beside an edge, which can stand between the last two sizes, and points from line to line.
_BESIDE_EDGE: Final = (12, 13)
_RING: Final = 11  # points, of a mark around a point


class Drawing(NamedTuple):
    """A chart as the bytes of its two files: the same for the same chart, without dates and random ids."""

    png: bytes
    svg: bytes


def draw(plot: LinePlot, text: ChartText) -> Drawing:
    """Draw a chart, the same whatever matplotlibrc this machine has."""
    with matplotlib.style.context(["default", _MATPLOTLIB]):
        return _drawing(_figure(plot, text))


def _drawing(drawn: Figure) -> Drawing:
    # matplotlib warns of glyphs that its font lacks, and text of a run may hold any.
    for text in drawn.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(_drawable(text.get_text()))
    svg, large, png = io.BytesIO(), io.BytesIO(), io.BytesIO()
    drawn.savefig(svg, format="svg", metadata={"Date": None})
    drawn.savefig(large, format="png", dpi=_DPI, pil_kwargs={"compress_level": 0})
    # a chart has few colours: a palette makes the file a quarter of what it would be
    pixels = Image.open(large).convert("RGB")
    pixels.quantize(_COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(png, "PNG")
    return Drawing(png.getvalue(), svg.getvalue())


def _drawable(text: str) -> str:
    """`text` with "?" for what the charts' font has no glyphs for."""
    return "".join(
        char if char in _DRAWN or " " <= char <= "~" or "\N{NO-BREAK SPACE}" <= char <= "ÿ" else "?" for char in text
    )


def _figure(plot: LinePlot, text: ChartText) -> Figure:
    drawn, all_axes = _laid_out(text, _legend(plot), len(plot.panels), plot.in_a_row or len(plot.panels))
    heights = [panel.ceiling for panel in plot.panels if panel.ceiling is not None]
    limits = _limits(plot.y, plot.lines, heights)
    for ax, panel in zip(all_axes, plot.panels, strict=True):
        ax.set_title(panel.title)
        _scale_x(ax, plot)
        _scale_y(ax, plot.y, limits)
        if panel.ceiling is not None:
            ax.axhline(panel.ceiling, color=_FAINT, linestyle=_CEILING_DASHES, linewidth=1.0, zorder=1.5)
            end, coordinates = (1, panel.ceiling), ("axes fraction", "data")
            ax.annotate(f"ceiling {figure(panel.ceiling)}", end, (-2, 3), xycoords=coordinates, ha="right", **_SMALL)
        if panel.x_ceiling is not None:
            ax.axvline(panel.x_ceiling, color=_FAINT, linestyle=_CEILING_DASHES, linewidth=1.0, zorder=1.5)
            top, label = (panel.x_ceiling, 1), f"ceiling {figure(panel.x_ceiling)}"
            ax.annotate(label, top, (2, -2), xycoords=("data", "axes fraction"), rotation=90, va="top", **_SMALL)
        for x, label in panel.marked.items():
            ax.axvline(x, color=_FAINT, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1.5)
            ax.annotate(label, (x, 1), (3, -8), xycoords=("data", "axes fraction"), textcoords="offset points")
        if panel.divided is not None:
            _divide(ax, *panel.divided)
        for line in panel.lines:
            _draw_line(ax, line)
        _write_notes(ax, panel)
    return drawn


def _divide(ax: Axes, x: float, left: str, right: str) -> None:
    """Draw a line at `x`, and say low, where lines have few points, what lies on each side of it."""
    ax.axvline(x, color=_FAINT, linewidth=0.8, zorder=1.5)
    letters, height = _BESIDE_EDGE
    for label, offset, side in ((left, -5, "right"), (right, 5, "left")):
        for number, words in enumerate(textwrap.wrap(label, letters)):
            ax.annotate(
                words, (x, 0.3), (offset, -number * height),
                xycoords=("data", "axes fraction"), textcoords="offset points", ha=side, va="center",
            )  # fmt: skip


def _laid_out(text: ChartText, keys: Sequence[Artist], panels: int, columns: int) -> tuple[Figure, list[Axes]]:
    """A figure with its head, legend and footnotes, and the empty axes of its panels, row by row."""
    rows = math.ceil(panels / columns)
    row_height = _TITLE + _X_LABEL + (_AXES_HEIGHT if rows == 1 else _LOW_AXES_HEIGHT)
    width = _PANEL_WIDTH * max(columns, 1.4)
    panel_width = width / columns
    head = [
        (part, style)
        for line, (letters, style) in zip((text.title, text.subtitle, text.warning), _HEAD, strict=True)
        for part in textwrap.wrap(_drawable(line), int(width * letters))
    ]
    foot = textwrap.wrap(_drawable(text.footer), int(width * _LETTERS_PER_INCH))
    longest = max((len(str(key.get_label())) for key in keys), default=0)
    keys_per_row = max(1, int(width / (0.85 + 0.085 * longest)))
    top = 0.2 + 0.24 * len(head)
    legend = top + rows * row_height + 0.05
    notes = legend + 0.2 * math.ceil(len(keys) / keys_per_row) + 0.2
    height = notes + 0.15 * len(foot) + 0.05
    drawn = Figure(figsize=(width, height))
    for number, (line, style) in enumerate(head):
        drawn.text(0.15 / width, 1 - (0.24 + 0.24 * number) / height, line, va="center", **style)
    for number, line in enumerate(foot):
        drawn.text(0.15 / width, 1 - (notes + 0.15 * number) / height, line, va="center", **_FOOTNOTE)
    if keys:
        anchor = (0.5, 1 - legend / height)
        drawn.legend(handles=keys, loc="upper center", bbox_to_anchor=anchor, ncols=keys_per_row, frameon=False)
    wide, high = (panel_width - _LEFT - _RIGHT) / width, (row_height - _TITLE - _X_LABEL) / height
    all_axes = []
    for number in range(panels):
        row, column = divmod(number, columns)
        lower = 1 - (top + (row + 1) * row_height - _X_LABEL) / height
        all_axes.append(drawn.add_axes(((column * panel_width + _LEFT) / width, lower, wide, high)))
    return drawn, all_axes


def _draw_line(ax: Axes, line: PlotLine) -> None:
    colour = lighter(ink_of(line.backend).colour, line.light)
    # So light that bands which lie on one another are told apart.
    ax.fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
    ax.add_line(_line(line, line.x, line.y))
    for x, y in zip(line.x, line.y, strict=True):
        if x in line.rings:
            ax.plot(x, y, marker="o", markersize=_RING, color=colour, markerfacecolor="none", zorder=4)


def _write_notes(ax: Axes, panel: PlotPanel) -> None:
    """Write the notes of points beside them, the last of each line first: where nothing is drawn or written, and no
    other point is nearer.
    """
    points = [ax.transData.transform(list(zip(line.x, line.y, strict=True))) for line in panel.lines]
    drawn = [Path(line_points) for line_points in points]
    if panel.x_ceiling is not None:
        drawn.append(ax.get_xaxis_transform().transform_path(Path([(panel.x_ceiling, 0), (panel.x_ceiling, 1)])))
    half = _MARKED * ax.figure.dpi
    all_points = [*chain.from_iterable(points)]
    taken = [Bbox.from_extents(x - half, y - half, x + half, y + half) for x, y in all_points]
    for line, line_points in zip(panel.lines, points, strict=True):
        noted = list(zip(line.x, line.y, line.notes, line_points, strict=False))
        for x, y, note, (across, up) in reversed(noted):
            for place in _places(ax, (across, up), note):
                centre = (place.x0 + place.x1) / 2, (place.y0 + place.y1) / 2
                nearest = min(math.dist(centre, point) for point in all_points)
                crossed = any(path.intersects_bbox(place, filled=False) for path in drawn)
                if crossed or place.count_overlaps(taken) or nearest < math.dist(centre, (across, up)):
                    continue
                taken.append(place)
                # In typographic points from the point, which hold for every resolution that the figure is written in.
                offset = ((place.x0 - across) * 72 / ax.figure.dpi, (place.y0 - up) * 72 / ax.figure.dpi + 2)
                ax.annotate(note, (x, y), offset, **_SMALL)
                break


def _places(ax: Axes, point: tuple[float, float], note: str) -> list[Bbox]:
    """Where a note can stand within the axes, the best place first: right of its point below and above, then left."""
    dpi, (across, up) = ax.figure.dpi, point
    width, height, gap = _NOTE[0] * len(note) * dpi, _NOTE[1] * dpi, _MARKED * dpi
    sides = ((gap, -height - gap), (gap, gap), (-width - gap, -height - gap), (-width - gap, gap))
    boxes = [Bbox.from_bounds(across + right, up + above, width, height) for right, above in sides]
    inside = ax.get_window_extent()
    return [box for box in boxes if note and box.y0 >= inside.y0 and box.y1 <= inside.y1 and box.x0 >= inside.x0]


def _limits(axis: PlotAxis, lines: Iterable[PlotLine], others: Sequence[float]) -> tuple[float, float]:
    """The ends of a y axis that holds these lines, and `others`."""
    figures = chain.from_iterable(line.y if axis.zero else (*line.low, *line.high) for line in lines)
    heights = [*filter(math.isfinite, figures), *others]
    if axis.zero:
        return 0.0, max(heights) * 1.08
    low, high = min(heights), max(heights)
    if axis.ratios:
        return min(low, 1.0) * (1 - _LEAST_SPAN), max(high, _LEAST_RATIO) * (1 + _LEAST_SPAN)
    span = max(high - low, _LEAST_SPAN * high) / (1 - 2 * _ROOM)
    return low - _ROOM * span, low + (1 - _ROOM) * span


def _scale_y(ax: Axes, axis: PlotAxis, limits: tuple[float, float]) -> None:
    if axis.ratios:
        ax.set_yscale("log")
    ax.set_ylim(limits)
    ax.set_ylabel(axis.label, labelpad=4)
    if axis.ratios:
        inches = ax.get_window_extent().height / ax.figure.dpi / math.log(limits[1] / limits[0])
        ticks: list[float] = []
        for ratio in _RATIOS:
            has_room = all(abs(math.log(ratio / tick)) * inches >= _NOTE[1] for tick in ticks)
            if has_room and limits[0] <= ratio <= limits[1]:
                ticks.append(ratio)
        ax.set_yticks(ticks, [f"{ratio:g}x" for ratio in ticks])
        ax.yaxis.set_minor_locator(NullLocator())


def _scale_x(ax: Axes, plot: LinePlot) -> None:
    values = sorted({*chain.from_iterable(line.x for line in plot.lines)})
    ax.set_xlabel(f"{plot.x.label}, KiB" if plot.x.in_kib else plot.x.label)
    if plot.x.octaves:
        _scale_octaves(ax, plot.x, values)
    else:
        noted = any(chain.from_iterable(line.notes for line in plot.lines))  # at the right end, too
        ax.set_xlim(0, (1.3 if noted else 1.08) * values[-1])


def _scale_octaves(ax: Axes, axis: PlotAxis, values: Sequence[float]) -> None:
    """Scale a logarithmic x axis, labelled at round numbers, as many as have room; what was measured has a tick."""
    ax.set_xscale("log", base=2)
    octaves = math.log2(values[-1] / values[0])
    margin = max(0.07, 0.05 * octaves)
    ax.set_xlim(values[0] / 2**margin, values[-1] * 2**margin)
    inch = ax.get_window_extent().width / ax.figure.dpi / (octaves + 2 * margin)
    taken: list[tuple[float, float]] = []
    ticks: dict[float, str] = {}
    # A label that does not fit is left out: the roundest are placed first, so that odd sizes give way.
    roundest = sorted(values, key=lambda value: (not math.log2(value).is_integer(), value % 4096 != 0, value))
    for value in roundest:
        text = f"{value / 1024:g}" if axis.in_kib else count(value)
        middle, half = inch * math.log2(value), _LETTER * len(text) / 2
        if all(middle - half >= end + 0.1 or middle + half <= begin - 0.1 for begin, end in taken):
            taken.append((middle - half, middle + half))
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
        linestyle=STROKES[line.variant % len(STROKES)] if joined else "none",
        linewidth=4 if ink.wide else 1.7,
        marker=MarkerStyle(ink.marker),
        markersize=9 if ink.wide else 4.5,
        label=line.label,
        zorder=1.9 if ink.wide else 2,
    )


def _legend(plot: LinePlot) -> list[Line2D]:
    """A key for every label, with a stroke only where points of it are joined."""
    labelled: dict[str, PlotLine] = {}
    for line in plot.lines:
        if line.label not in labelled or len(line.x) > 1 >= len(labelled[line.label].x):
            labelled[line.label] = line
    return [_line(line, [], [], joined=len(line.x) > 1) for line in labelled.values()]
