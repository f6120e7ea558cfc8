"""The crossover map as a picture: colour and figure say the ratio, hatching that it is undecided, white nothing."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch
from matplotlib.path import Path
from matplotlib.textpath import TextPath, TextToPath
from matplotlib.transforms import Affine2D, Transform

from kvbench.report import markdown as md
from kvbench.report.charts.layout import Words, lay_out
from kvbench.report.charts.lines import page, render, spaced, styled
from kvbench.report.charts.palette import RATIO_KEYS, is_dark, ratio_colour
from kvbench.report.ratios import Ratio, RatioMap

_ROW: Final = 0.21
_HATCH: Final = "////"
_FONT: Final = FontProperties(family="DejaVu Sans", size=7)
_BEHIND: Final = (0.66, 0.6)

Place = tuple[tuple[int, int], Ratio]


def ratio_chart(grid: Sequence[Sequence[RatioMap]], words: Words) -> dict[str, bytes]:
    """Return {"png": …, "svg": …}: a row of `grid` is a row of panels, sizes upward, numbers of blocks to the right."""
    with styled():
        shapes = {shape for row in grid for panel in row for shape in panel.cells}
        sizes, counts = (sorted({shape[axis] for shape in shapes}) for axis in (0, 1))
        keys = _legend()
        layout = lay_out(grid, words, [str(key.get_label()) for key in keys], height=_ROW * max(len(sizes), 6))
        figure = page(layout, keys)
        axes = figure.subplots(len(grid), max(map(len, grid)), squeeze=False, gridspec_kw=layout.gridspec)
        for row, line in zip(axes, grid, strict=True):
            for place, ax in enumerate(row):
                if place < len(line):
                    _draw(ax, line[place], sizes, counts, figure.dpi_scale_trans)
                else:
                    ax.set_axis_off()
        return render(figure)


def _draw(ax: Axes, panel: RatioMap, sizes: Sequence[int], counts: Sequence[int], inches_to_pixels: Transform) -> None:
    ax.set_title(panel.title)
    ax.grid(visible=False)
    places = [((counts.index(count), sizes.index(size)), ratio) for (size, count), ratio in panel.cells.items()]
    decided, undecided = ([place for place in places if place[1].decided is wanted] for wanted in (True, False))
    _boxes(ax, decided, (1, 1), edgecolors="white", linewidths=0.6)
    _boxes(ax, undecided, (1, 1), edgecolors="#999999", linewidths=0.6, hatch=_HATCH)
    _boxes(ax, undecided, _BEHIND, edgecolors="none")  # no hatching behind their figures
    _figures(ax, places, inches_to_pixels)
    ax.set_xlim(-0.5, len(counts) - 0.5)
    ax.set_ylim(-0.5, len(sizes) - 0.5)
    ax.set_xticks(range(len(counts)), [md.count(count) for count in counts], fontsize=7.5)
    ax.set_yticks(range(len(sizes)), [spaced(size) for size in sizes], fontsize=7)
    ax.tick_params(length=0)
    ax.set_xlabel("blocks")
    ax.label_outer()


def _boxes(ax: Axes, places: Sequence[Place], size: tuple[float, float], **style: Any) -> None:
    width, height = size
    corners = [(width * right / 2, height * up / 2) for right, up in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
    shapes = [[(x + right, y + up) for right, up in corners] for (x, y), _ in places]
    colours = [ratio_colour(ratio.value) for _, ratio in places]
    ax.add_collection(PolyCollection(shapes, facecolors=colours, **style), autolim=False)


def _figures(ax: Axes, places: Sequence[Place], inches_to_pixels: Transform) -> None:
    """Write the ratios letter by letter, equal letters of a place at once: laying out hundreds of texts is slow."""
    letters: dict[tuple[str, float, str], list[tuple[int, int]]] = {}
    for at, ratio in places:
        colour = "white" if ratio.decided and is_dark(ratio_colour(ratio.value)) else "black"
        for letter, left in _letters(md.figure(ratio.value)):
            letters.setdefault((letter, left, colour), []).append(at)
    for (letter, left, colour), offsets in letters.items():
        drawn = PathCollection(
            [_outline(letter, left)], offsets=offsets, offset_transform=ax.transData, facecolors=colour, linewidths=0
        )
        drawn.set_transform(Affine2D().scale(1 / 72) + inches_to_pixels)
        ax.add_collection(drawn, autolim=False)


def _letters(text: str) -> list[tuple[str, float]]:
    """Return the letters with their left edges in points from the middle of the text."""
    widths = [_width(letter) for letter in text]
    return [(letter, round(sum(widths[:place]) - sum(widths) / 2, 3)) for place, letter in enumerate(text)]


@cache
def _width(letter: str) -> float:
    width, _, _ = TextToPath().get_text_width_height_descent(letter, _FONT, ismath=False)
    return float(width)


@cache
def _outline(letter: str, left: float) -> Path:
    """Return the outline of a letter in points, digits at half their height."""
    middle = TextPath((0, 0), "0", prop=_FONT).get_extents().y1 / 2
    return TextPath((left, -middle), letter, prop=_FONT)


def _legend() -> list[Patch]:
    keys = [Patch(facecolor=ratio_colour(r), edgecolor="#999999", label=words) for r, words in RATIO_KEYS.items()]
    undecided = Patch(
        facecolor=ratio_colour(1.0), edgecolor="#999999", hatch=_HATCH, label="undecided: quartiles overlap"
    )
    return [*keys, undecided]
