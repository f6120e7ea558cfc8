"""The figure of a chart: its text, panels and legend, and where each of them goes, in inches.

Positions are worked out here because matplotlib's own layouts differ in the last digit from run to run.
"""

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from kvbench.report.charts.plot import ChartText

PANEL_WIDTH: Final = 5.6
_STYLE: Final = {
    "font.family": ["DejaVu Sans", "sans-serif"],
    "svg.fonttype": "none",  # text stays text
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
_DRAWN: Final = frozenset("\N{HORIZONTAL ELLIPSIS}\N{RIGHTWARDS ARROW}")
_LETTERS_PER_INCH: Final = 18  # of a footnote
_ROW_GAP: Final = 0.45
_X_LABEL: Final = 0.55
_DPI: Final = 120
_COLOURS: Final = 256
# Of the title, the subtitle and the warning: letters per inch, and the style.
_HEAD: Final[Sequence[tuple[int, dict[str, Any]]]] = (
    (9, {"fontsize": 12.5, "fontweight": "bold"}),
    (15, {"fontsize": 8.5, "color": "#444444"}),
    (12, {"fontsize": 9, "fontweight": "bold", "color": "#B00020"}),
)
_FOOTNOTE: Final[dict[str, Any]] = {"fontsize": 7, "color": "#555555"}


Panel = TypeVar("Panel")


@contextmanager
def styled() -> Iterator[None]:
    """Draw the same whatever matplotlibrc this machine has."""
    with matplotlib.style.context(["default", _STYLE]):
        yield


def drawable(text: str) -> str:
    """Return `text` without what the charts' font has no glyphs for."""
    return "".join(
        char if char in _DRAWN or " " <= char <= "~" or "\N{NO-BREAK SPACE}" <= char <= "ÿ" else "?" for char in text
    )


def new_figure(
    text: ChartText,
    keys: Sequence[Artist],
    grid: Sequence[Sequence[Panel]],
    panel_height: float | None = None,
    below: float = _X_LABEL,
) -> tuple[Figure, list[tuple[Axes, Panel]]]:
    """Return a figure with its head, legend and footnotes, and empty axes with each panel of `grid`.

    The height of a panel and the room `below` the panels for the x axis are in inches.
    """
    rows, columns = len(grid), max(map(len, grid))
    width = max(7.6, PANEL_WIDTH * columns)
    panel = panel_height or (3.6 if rows == 1 else 2.2)
    head = [
        (part, style)
        for line, (letters, style) in zip((text.title, text.subtitle, text.warning), _HEAD, strict=True)
        for part in textwrap.wrap(drawable(line), int(width * letters))
    ]
    foot = [part for line in text.footer for part in textwrap.wrap(drawable(line), int(width * _LETTERS_PER_INCH))]
    longest = max(len(str(key.get_label())) for key in keys)
    keys_per_row = max(1, int(width / (0.85 + 0.085 * longest)))
    top = 0.42 + 0.24 * len(head)
    bottom = top + rows * panel + (rows - 1) * _ROW_GAP
    legend = bottom + below
    notes = legend + 0.2 * math.ceil(len(keys) / keys_per_row) + 0.25
    height = notes + 0.15 * len(foot) + 0.05
    figure = Figure(figsize=(width, height))
    left = 0.15 / width
    for number, (line, style) in enumerate(head):
        figure.text(left, 1 - (0.24 + 0.24 * number) / height, line, va="center", **style)
    for number, line in enumerate(foot):
        figure.text(left, 1 - (notes + 0.15 * number) / height, line, va="center", **_FOOTNOTE)
    anchor = (0.5, 1 - legend / height)
    figure.legend(handles=keys, loc="upper center", bbox_to_anchor=anchor, ncols=keys_per_row, frameon=False)
    spec = figure.add_gridspec(rows, columns, hspace=_ROW_GAP / panel, wspace=0.06)
    spec.update(left=0.62 / width, right=1 - 0.15 / width, top=1 - top / height, bottom=1 - bottom / height)
    cells = [(row, column, item) for row, line in enumerate(grid) for column, item in enumerate(line)]
    return figure, [(figure.add_subplot(spec[row, column]), item) for row, column, item in cells]


def render(figure: Figure) -> dict[str, bytes]:
    """Return the same bytes for the same figure: no date, no random ids."""
    drawn, png, svg = io.BytesIO(), io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI, pil_kwargs={"compress_level": 0})
    # a chart has few colours: a palette makes the file a quarter of what it would be
    pixels = Image.open(drawn).convert("RGB")
    pixels.quantize(_COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(png, "PNG")
    figure.savefig(svg, format="svg", metadata={"Date": None})
    return {"png": png.getvalue(), "svg": svg.getvalue()}
