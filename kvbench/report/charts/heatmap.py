"""Maps as pictures: colour and figure say the ratio, hatching that it is undecided, grey that it was not measured."""

from collections.abc import Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Patch, Rectangle

from kvbench.report.charts.figure import drawable, new_figure, render, styled
from kvbench.report.charts.palette import RATIO_KEYS, UNDECIDED, UNMEASURED, is_dark, ratio_colour
from kvbench.report.charts.plot import ChartText, MapPanel, MapPlot, MapTile
from kvbench.report.numbers import bytes_size, count, figure

_ROW: Final = 0.21  # inches
_HATCH: Final = "////"
_GROUND: Final = "#C9C9C9"  # where nothing was measured
_BEHIND: Final = (0.66, 0.6)  # of a tile: what keeps the hatching off a figure

PlacedTile = tuple[tuple[int, int], MapTile]


def draw_map(plot: MapPlot, text: ChartText) -> dict[str, bytes]:
    """Return {"png": …, "svg": …}: sizes upward, numbers of blocks to the right, the same in every panel."""
    with styled():
        panels = [panel for row in plot.grid for panel in row]
        sizes = sorted({size for panel in panels for size in panel.sizes})
        counts = sorted({blocks for panel in panels for blocks in panel.counts})
        fig, axes = new_figure(text, _legend(), plot.grid, _ROW * max(len(sizes), 6))
        for ax, panel in axes:
            _draw(ax, panel, sizes, counts)
        return render(fig)


def _draw(ax: Axes, panel: MapPanel, sizes: Sequence[int], counts: Sequence[int]) -> None:
    ax.set_title(drawable(panel.title))
    ax.grid(visible=False)
    ax.set_facecolor(_GROUND)
    tiles = [((counts.index(blocks), sizes.index(size)), tile) for (size, blocks), tile in panel.tiles.items()]
    undecided = [placed for placed in tiles if not placed[1].decided]
    _boxes(ax, [placed for placed in tiles if placed[1].decided], (1, 1), edgecolor="white", linewidth=0.6)
    _boxes(ax, undecided, (1, 1), edgecolor="#999999", linewidth=0.6, hatch=_HATCH)
    _boxes(ax, undecided, _BEHIND, edgecolor="none")
    for (x, y), tile in tiles:
        white = tile.decided and is_dark(ratio_colour(tile.ratio))
        ax.text(x, y, figure(tile.ratio), ha="center", va="center", fontsize=7, color="white" if white else "black")
    ax.set_xlim(-0.5, len(counts) - 0.5)
    ax.set_ylim(-0.5, len(sizes) - 0.5)
    ax.set_xticks(range(len(counts)), [count(blocks) for blocks in counts], fontsize=7.5)
    ax.set_yticks(range(len(sizes)), [bytes_size(size) for size in sizes], fontsize=7)
    ax.tick_params(length=0)
    ax.set_xlabel("blocks")
    ax.label_outer()


def _boxes(ax: Axes, tiles: Sequence[PlacedTile], size: tuple[float, float], **style: Any) -> None:
    width, height = size
    boxes = [Rectangle((x - width / 2, y - height / 2), width, height) for (x, y), _ in tiles]
    colours = [ratio_colour(tile.ratio) for _, tile in tiles]
    ax.add_collection(PatchCollection(boxes, facecolor=colours, **style), autolim=False)


def _legend() -> list[Patch]:
    keys = [Patch(facecolor=ratio_colour(r), edgecolor="#999999", label=text) for r, text in RATIO_KEYS.items()]
    keys.append(Patch(facecolor=ratio_colour(1.0), edgecolor="#999999", hatch=_HATCH, label=UNDECIDED))
    return [*keys, Patch(facecolor=_GROUND, edgecolor="#999999", label=UNMEASURED)]
