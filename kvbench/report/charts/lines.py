"""The charts of a report over sizes and SM counts, and what every chart is drawn with; heatmap.py has the maps."""

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullFormatter
from PIL import Image

from kvbench.report.charts.layout import PANEL_WIDTH, Grid, Layout, Panel, Words, lay_out
from kvbench.report.charts.palette import Ink
from kvbench.report.curves import Curve
from kvbench.units import format_size

Mark = Callable[[Axes, Curve, Ink, int], None]

_STYLE: Final = {
    "font.family": ["DejaVu Sans", "sans-serif"],
    "svg.fonttype": "none",  # text stays text: files of half the size, drawn faster
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # not worked out from every tick's extent
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.8,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "legend.fontsize": 8.5,
    "legend.handlelength": 3.4,
    "svg.hashsalt": "kvbench",
    "text.parse_math": False,
}
_Dash = Literal["-"] | tuple[float, Sequence[float]]
_DASHES: Final[Sequence[_Dash]] = ("-", (0, (4, 1.8)))
_CEILING: Final = "#666666"
_LABEL_POINTS: Final = 14
_DPI: Final = 120
_COLOURS: Final = 256
_TITLE: Final[dict[str, Any]] = {"fontsize": 12.5, "fontweight": "bold"}
_SUBTITLE: Final[dict[str, Any]] = {"fontsize": 8.5, "color": "#444444"}
_WARNED: Final[dict[str, Any]] = {"fontsize": 9, "fontweight": "bold", "color": "#B00020"}
_FOOTNOTE: Final[dict[str, Any]] = {"fontsize": 7, "color": "#555555"}


def cliff_chart(grid: Grid, words: Words, inks: Mapping[str, Ink]) -> dict[str, bytes]:
    """Return {"png": …, "svg": …}: GB/s over block size, the cliffs marked; a row of `grid` is a row of panels."""
    return _chart(grid, words, inks, _size_axis, _mark_cliff)


def sm_chart(grid: Grid, words: Words, inks: Mapping[str, Ink]) -> dict[str, bytes]:
    """Return {"png": …, "svg": …}: GB/s over the SM count, the knees marked."""
    return _chart(grid, words, inks, _count_axis, _mark_knee)


def _chart(
    grid: Grid, words: Words, inks: Mapping[str, Ink], dress: Callable[[Axes, Sequence[int]], None], mark: Mark
) -> dict[str, bytes]:
    with styled():
        curves = [curve for row in grid for panel in row for curve in panel.curves]
        keys = _legend(curves, inks, bool(_ceilings(grid)))
        layout = lay_out(grid, words, [str(key.get_label()) for key in keys])
        figure = page(layout, keys)
        axes = figure.subplots(len(grid), max(map(len, grid)), squeeze=False, gridspec_kw=layout.gridspec)
        top = max([*(rate for curve in curves for rate in curve.gbps), *_ceilings(grid)])
        labels = max(sum(curve.cliff is not None for curve in panel.curves) for row in grid for panel in row)
        headroom = labels * _LABEL_POINTS / (72 * layout.panel) if mark is _mark_cliff else 0.0
        ticks = sorted({x for curve in curves for x in curve.x})
        for row, line in zip(axes, grid, strict=True):
            for ax, panel in zip(row, line, strict=True):
                dress(ax, ticks)
                _draw(ax, panel, inks, mark)
                ax.set_ylim(0, top * 1.08 / (1 - headroom))
                ax.label_outer()
            row[0].set_ylabel("GB/s")
        return render(figure)


def page(layout: Layout, keys: Sequence[Artist]) -> Figure:
    """Return a page with its head, legend and footnotes, and room for the panels."""
    figure = Figure(figsize=(layout.width, layout.height))
    left = 0.15 / layout.width
    for number, (text, style) in enumerate(zip(layout.head, (_TITLE, _SUBTITLE, _WARNED), strict=False)):
        figure.text(left, layout.up(0.24 + 0.24 * number), text, va="center", **style)
    for number, text in enumerate(layout.foot):
        figure.text(left, layout.up(layout.notes + 0.15 * number), text, va="center", **_FOOTNOTE)
    place = (0.5, layout.up(layout.keys))
    legend = figure.legend(handles=keys, loc="upper center", bbox_to_anchor=place, ncols=layout.keys_per_row)
    legend.set_frame_on(False)
    return figure


def _draw(ax: Axes, panel: Panel, inks: Mapping[str, Ink], mark: Mark) -> None:
    ax.set_title(panel.title)
    if panel.ceiling_gbps is not None:
        ax.axhline(panel.ceiling_gbps, color=_CEILING, linestyle=(0, (6, 4)), linewidth=1.0, zorder=1.5)
        ax.annotate(
            f"ceiling {panel.ceiling_gbps:.1f}",
            (1, panel.ceiling_gbps),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            fontsize=7.5,
            color=_CEILING,
        )
    for curve in panel.curves:
        ink = inks[curve.backend]
        low, high = curve.points["gbps_q1"], curve.points["gbps_q3"]
        ax.fill_between(curve.x, low, high, color=ink.colour, alpha=0.18, linewidth=0)
        ax.plot(
            curve.x,
            curve.gbps,
            color=ink.colour,
            linestyle=_DASHES[curve.variant],
            linewidth=1.7,
            marker=ink.marker,
            markersize=4.5,
            markerfacecolor="white" if curve.variant else ink.colour,
        )
    marked = [curve for curve in panel.curves if mark is _mark_knee or curve.cliff]
    for place, curve in enumerate(marked):
        mark(ax, curve, inks[curve.backend], place)
    if not panel.curves:
        ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", color=_CEILING)


def _mark_cliff(ax: Axes, curve: Curve, ink: Ink, place: int) -> None:
    """Shade the jump, draw its height, and write both in the headroom above the curves."""
    cliff = curve.cliff
    if cliff is None:
        return
    # opaque, so that curves with the same cliff shade it once
    ax.axvspan(cliff.below_bytes, cliff.above_bytes, color="#E6E6E6", linewidth=0, zorder=0.5)
    middle = math.sqrt(cliff.below_bytes * cliff.above_bytes)
    arrow = {"arrowstyle": "<->", "color": ink.colour, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (middle, cliff.above_gbps), xytext=(middle, cliff.below_gbps), arrowprops=arrow)
    sign = "\N{MULTIPLICATION SIGN}" if cliff.rises else "\N{DIVISION SIGN}"
    sizes = f"{spaced(cliff.below_bytes)} \N{RIGHTWARDS ARROW} {spaced(cliff.above_bytes)}"
    first, last = ax.get_xlim()
    across = math.log2(middle / first) / math.log2(last / first)
    ax.annotate(
        f"{curve.label}: {sign}{cliff.height:.1f}, {sizes}",
        (middle, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, -2 - _LABEL_POINTS * place),
        textcoords="offset points",
        ha="left" if across < 0.3 else "right" if across > 0.7 else "center",
        va="top",
        fontsize=8,
        fontweight="bold",
        color=ink.text,
        bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.9},
    )


def _mark_knee(ax: Axes, curve: Curve, ink: Ink, place: int) -> None:
    """Ring the knee, and write it in the lower right corner, where ladders leave room."""
    count = curve.knee
    if count is None:
        return
    rate = dict(zip(curve.x, curve.gbps, strict=True))[count]
    ax.plot([count], [rate], marker="o", markersize=11, markerfacecolor="none", markeredgecolor=ink.colour, zorder=4)
    ax.annotate(
        f"{curve.label}: knee at {count} SM{'s' if count > 1 else ''}",
        (1, 0),
        xycoords="axes fraction",
        xytext=(-4, 5 + _LABEL_POINTS * place),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        fontweight="bold",
        color=ink.text,
    )


def _size_axis(ax: Axes, sizes: Sequence[int]) -> None:
    _log_axis(ax, sizes, spaced, letters=6)
    ax.set_xlabel("block size")


def _count_axis(ax: Axes, counts: Sequence[int]) -> None:
    _log_axis(ax, counts, str, letters=2)
    ax.set_xlabel("SMs")


def _log_axis(ax: Axes, values: Sequence[int], show: Callable[[int], str], letters: int) -> None:
    """Label every value that has room for `letters`, powers of two first; the others get a tick."""
    octaves_a_label = (0.08 + 0.062 * letters) / PANEL_WIDTH * 1.1 * max(1.0, math.log2(values[-1] / values[0]))
    named: list[int] = []
    for value in sorted(values, key=lambda value: (value & (value - 1) != 0, value)):
        if all(abs(math.log2(value / other)) >= octaves_a_label for other in named):
            named.append(value)
    ax.set_xscale("log", base=2)
    margin = max(1.05, (values[-1] / values[0]) ** 0.05)
    ax.set_xlim(values[0] / margin, values[-1] * margin)  # the same in every panel, whatever it holds
    ax.set_xticks(named, [show(value) for value in named], fontsize=7.5)
    ax.xaxis.set_minor_locator(FixedLocator([value for value in values if value not in named]))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _legend(curves: Sequence[Curve], inks: Mapping[str, Ink], ceiling: bool) -> list[Line2D]:
    """Return a key for every backend, every stream state or run, and the ceiling."""
    keys = [
        Line2D([], [], color=inks[name].colour, marker=inks[name].marker, linewidth=1.7, markersize=5, label=name)
        for name in sorted({curve.backend for curve in curves})
    ]
    for variant, words in sorted({(curve.variant, curve.words) for curve in curves}):
        key = Line2D([], [], color="#444444", linestyle=_DASHES[variant], marker="o", markersize=4.5, label=words)
        key.set_markerfacecolor("white" if variant else "#444444")
        keys.append(key)
    if ceiling:
        keys.append(Line2D([], [], color=_CEILING, linestyle=(0, (6, 4)), linewidth=1.0, label="ceiling"))
    return keys


def _ceilings(grid: Grid) -> list[float]:
    return [panel.ceiling_gbps for row in grid for panel in row if panel.ceiling_gbps is not None]


def spaced(size_bytes: int) -> str:
    text = format_size(size_bytes)
    digits = text.rstrip("BGiKM")
    return f"{digits} {text[len(digits) :]}"


@contextmanager
def styled() -> Iterator[None]:
    """Draw the same whatever matplotlibrc this machine has."""
    with matplotlib.style.context(["default", _STYLE]):
        yield


def render(figure: Figure) -> dict[str, bytes]:
    """Return the same bytes for the same figure: no date, no random ids."""
    drawn, png, svg = io.BytesIO(), io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI, pil_kwargs={"compress_level": 0})
    # a chart has few colours: a palette makes the file a quarter of what it would be
    pixels = Image.open(drawn).convert("RGB")
    pixels.quantize(_COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(png, "PNG")
    figure.savefig(svg, format="svg", metadata={"Date": None})
    return {"png": png.getvalue(), "svg": svg.getvalue()}
