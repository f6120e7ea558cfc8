"""The figure of a chart: its text, panels and legend, and where each of them goes, in inches; colours and marks.

Positions are worked out here because matplotlib's own layouts differ in the last digit from run to run. Colours and
marks of backends are the same in every chart of every card, told apart by colour-blind readers; every colour has a
contrast of 3 or more (WCAG 2, for lines) on white.
"""

import io
import math
import textwrap
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from kvbench.cells.facts import AUTO, BATCHED, MERGED, PER_BLOCK, PRIMED, SM, TRITON
from kvbench.report.charts.plot import ChartText

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

    @property
    def text(self) -> str:
        """The colour, darkened as far as text needs that is read on white (WCAG: contrast of 4.5 or more)."""
        red, green, blue = to_rgb(self.colour)
        while contrast((red, green, blue), _WHITE) < 4.5:
            red, green, blue = (channel * 0.95 for channel in (red, green, blue))
        return to_hex((red, green, blue))


Rgb = tuple[float, float, float]
_WHITE: Final[Rgb] = (1.0, 1.0, 1.0)

TEXT: Final = "#1B1F24"
FAINT: Final = "#57606A"
GRID: Final = "#E3E3E3"

KNOWN: Final = {
    PER_BLOCK: Ink("#B05426", "^"),
    BATCHED: Ink("#2C60DD", "o"),
    TRITON: Ink("#00825B", "s"),
    SM: Ink("#A553AB", "D"),
    PRIMED: Ink("#605430", "P"),
    MERGED: Ink("#FF196B", "d"),
    AUTO: Ink("#B68C0C", "v", wide=True),  # it is one of the others, and as fast
    "vllm_batch": Ink("#000000", "X"),
    "vllm_hisparse": Ink("#6B48B2", (5, 1, 0)),
    "vllm_triton": Ink("#949596", "<"),
    "vllm_handler": Ink("#632D46", "p"),
    "sglang_aot": Ink("#7303F7", ">"),
    "sglang_jit": Ink("#B484B4", "h"),
    "sglang_hisparse": Ink("#731D01", "8"),
    "lmcache": Ink("#0F9BD8", "*"),
    "copier": Ink("#244878", "H"),
    "empty": Ink("#5601A6", (4, 1, 0)),
}
_FREE_COLOURS: Final = ("#7F6A00", "#B0008B", "#5F7F8F", "#3F6F00", "#8A4A6A", "#6F6F6F", "#D0561A")
_FREE_MARKERS: Final[tuple[Marker, ...]] = ((3, 1, 0), (4, 1, 45), (6, 1, 0), (3, 1, 180), (8, 1, 0))


def ink_of(backend: str) -> Ink:
    """Return the ink of a backend; that of another package's comes from its name alone, and is no built-in's."""
    if known := KNOWN.get(backend):
        return known
    turn, index = divmod(zlib.crc32(backend.encode()), len(_FREE_COLOURS))
    return Ink(_FREE_COLOURS[index], _FREE_MARKERS[turn % len(_FREE_MARKERS)])


def lighter(colour: str, share: float) -> str:
    """Return a colour with a share, from 0 to 1, of white in it."""
    red, green, blue = (channel + share * (1 - channel) for channel in to_rgb(colour))
    return to_hex((red, green, blue))


def contrast(one: Rgb, other: Rgb) -> float:
    """Return the contrast (WCAG 2) of two colours, from 1 to 21."""
    dark, light = sorted(map(_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Rgb) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


STROKES: Final = 6  # different ones, by which variants of a backend are told apart
PANEL_WIDTH: Final = 4.9
LEFT: Final = 0.66  # of the axes in their panel: tick labels and the label of the y axis
RIGHT: Final = 0.14
_TITLE: Final = 0.26
AXES_HEIGHT: Final = 3.3
X_LABEL: Final = 0.45
_STYLE: Final = {
    "font.family": ["DejaVu Sans", "sans-serif"],
    "svg.fonttype": "none",  # text stays text
    "font.size": 9.0,
    "text.color": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": TEXT,
    "axes.labelsize": 8.5,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # not worked out from every tick's extent
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": TEXT,
    "ytick.labelcolor": TEXT,
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
    (15, {"fontsize": 8.5, "color": FAINT}),
    (12, {"fontsize": 9, "fontweight": "bold", "color": "#B00020"}),
)
_FOOTNOTE: Final[dict[str, Any]] = {"fontsize": 7, "color": FAINT}


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart as the bytes of its two files: the same for the same chart, without dates and random ids."""

    png: bytes
    svg: bytes

    @property
    def files(self) -> dict[str, bytes]:
        return {"png": self.png, "svg": self.svg}


class Canvas(NamedTuple):
    """A figure while it is drawn, and its axes, each with its panel."""

    figure: Figure
    panels: Sequence[tuple[Axes, Any]]

    def drawing(self) -> Drawing:
        for text in self.figure.findobj(Text):
            assert isinstance(text, Text)
            text.set_text(_drawable(text.get_text()))
        svg, drawn, png = io.BytesIO(), io.BytesIO(), io.BytesIO()
        self.figure.savefig(svg, format="svg", metadata={"Date": None})
        self.figure.savefig(drawn, format="png", dpi=_DPI, pil_kwargs={"compress_level": 0})
        # a chart has few colours: a palette makes the file a quarter of what it would be
        pixels = Image.open(drawn).convert("RGB")
        pixels.quantize(_COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(png, "PNG")
        return Drawing(png.getvalue(), svg.getvalue())


@contextmanager
def styled() -> Iterator[None]:
    """Draw the same whatever matplotlibrc this machine has."""
    with matplotlib.style.context(["default", _STYLE]):
        yield


def _drawable(text: str) -> str:
    """Return `text` without what the charts' font has no glyphs for."""
    return "".join(
        char if char in _DRAWN or " " <= char <= "~" or "\N{NO-BREAK SPACE}" <= char <= "ÿ" else "?" for char in text
    )


def new_canvas(
    text: ChartText,
    keys: Sequence[Artist],
    side_by_side: Sequence[Any],
    right: float = RIGHT,
) -> Canvas:
    """Return a figure with its head, legend and footnotes, and empty axes with each panel, side by side.

    The height of the axes and the room to their `right` are in inches.
    """
    columns = len(side_by_side)
    width = PANEL_WIDTH * max(columns, 1.4)
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
    legend = top + _TITLE + AXES_HEIGHT + X_LABEL + 0.05
    notes = legend + 0.2 * math.ceil(len(keys) / keys_per_row) + 0.2
    height = notes + 0.15 * len(foot) + 0.05
    figure = Figure(figsize=(width, height))
    for number, (line, style) in enumerate(head):
        figure.text(0.15 / width, 1 - (0.24 + 0.24 * number) / height, line, va="center", **style)
    for number, line in enumerate(foot):
        figure.text(0.15 / width, 1 - (notes + 0.15 * number) / height, line, va="center", **_FOOTNOTE)
    if keys:
        anchor = (0.5, 1 - legend / height)
        figure.legend(handles=keys, loc="upper center", bbox_to_anchor=anchor, ncols=keys_per_row, frameon=False)
    panels = []
    for column, panel in enumerate(side_by_side):
        lower = 1 - (top + _TITLE + AXES_HEIGHT) / height
        place = (column * panel_width + LEFT) / width, lower, (panel_width - LEFT - right) / width, AXES_HEIGHT / height
        panels.append((figure.add_axes(place), panel))
    return Canvas(figure, panels)
