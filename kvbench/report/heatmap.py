"""The crossover map as a picture: colour and figure say the ratio, hatching that it is undecided, white nothing."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.patches import Patch, Rectangle

from kvbench.report import markdown as md
from kvbench.report.charts import page, render, spaced, styled
from kvbench.report.layout import Words, lay_out
from kvbench.report.ratios import Ratio, RatioMap

_Rgb = tuple[float, float, float]

# Blue where batched takes less time, orange where the kernel does: told apart by colour-blind readers.
_COLOURS: Final = LinearSegmentedColormap.from_list("kvbench", ["#0072B2", "#F7F7F7", "#D55E00"])
_OCTAVES: Final = 3.0
_ROW: Final = 0.21
_KEYS: Final = (1 / 8, 1 / 2, 1.0, 2.0, 8.0)
_HATCH: Final = "////"


def ratio_chart(grid: Sequence[Sequence[RatioMap]], words: Words) -> dict[str, bytes]:
    """Return {"png": …, "svg": …}: a row of `grid` is a row of panels, sizes upward, numbers of blocks to the right."""
    with styled():
        shapes = {shape for row in grid for panel in row for shape in panel.cells}
        sizes, counts = (sorted({shape[axis] for shape in shapes}) for axis in (0, 1))
        keys = _legend()
        layout = lay_out(grid, words, [str(key.get_label()) for key in keys], height=_ROW * max(len(sizes), 6))
        figure = page(layout, keys)
        axes = figure.subplots(
            len(grid), max(map(len, grid)), squeeze=False, sharex=True, sharey=True, gridspec_kw=layout.gridspec
        )
        for row, line in zip(axes, grid, strict=True):
            for place, ax in enumerate(row):
                if place < len(line):
                    _draw(ax, line[place], sizes, counts)
                else:
                    ax.set_axis_off()
        return render(figure)


def _draw(ax: Axes, panel: RatioMap, sizes: Sequence[int], counts: Sequence[int]) -> None:
    contest, kernel = panel.contest, panel.kernel
    ax.set_title(f"{contest.direction}, {contest.state} stream: batched / {kernel.backend}")
    ax.grid(visible=False)
    for (size, count), ratio in panel.cells.items():
        _cell(ax, counts.index(count), sizes.index(size), ratio)
    ax.set_xlim(-0.5, len(counts) - 0.5)
    ax.set_ylim(-0.5, len(sizes) - 0.5)
    ax.set_xticks(range(len(counts)), [md.count(count) for count in counts], fontsize=7.5)
    ax.set_yticks(range(len(sizes)), [spaced(size) for size in sizes], fontsize=7)
    ax.tick_params(length=0)
    ax.set_xlabel("blocks")
    ax.label_outer()


def _cell(ax: Axes, x: int, y: int, ratio: Ratio) -> None:
    colour = _colour(ratio.value)
    hatch = None if ratio.decided else _HATCH
    edge = "white" if ratio.decided else "#999999"
    ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor=edge, hatch=hatch, linewidth=0.6))
    dark = ratio.decided and _luminance(colour) < 0.4
    box = {"boxstyle": "round,pad=0.1", "facecolor": colour, "edgecolor": "none"}
    ax.text(
        x,
        y,
        md.figure(ratio.value),
        ha="center",
        va="center",
        fontsize=7,
        color="white" if dark else "black",
        bbox=None if ratio.decided else box,
    )


def _colour(ratio: float) -> _Rgb:
    octaves = max(-_OCTAVES, min(_OCTAVES, math.log2(ratio)))
    return to_rgb(_COLOURS(0.5 + octaves / (2 * _OCTAVES)))


def _luminance(colour: _Rgb) -> float:
    red, green, blue = colour
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _legend() -> list[Patch]:
    words: Mapping[float, str] = {
        _KEYS[0]: "1/8 or less: batched faster",
        0.5: "1/2",
        1.0: "1",
        2.0: "2",
        _KEYS[-1]: "8 or more: kernel faster",
    }
    keys = [Patch(facecolor=_colour(r), edgecolor="#999999", label=words[r]) for r in _KEYS]
    undecided = Patch(facecolor=_colour(1.0), edgecolor="#999999", hatch=_HATCH, label="undecided: quartiles overlap")
    return [*keys, undecided]
