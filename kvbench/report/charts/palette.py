"""Colours and marks of backends: the same in every chart of every card, told apart by colour-blind readers.

Every colour has a contrast of 3 or more (WCAG 2, for lines) on a white page; `on_dark` returns what it becomes on a
dark one.
"""

import colorsys
import math
import zlib
from dataclasses import dataclass
from typing import Final

from kvbench.cells.backend_facts import AUTO, BATCHED, MERGED, PER_BLOCK, PRIMED, SM, TRITON

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
        red, green, blue = rgb_of(self.colour)
        while contrast((red, green, blue), _WHITE) < 4.5:
            red, green, blue = (channel * 0.95 for channel in (red, green, blue))
        return _hex((red, green, blue))


Rgb = tuple[float, float, float]
_WHITE: Final[Rgb] = (1.0, 1.0, 1.0)
_BLACK: Final[Rgb] = (0.0, 0.0, 0.0)

PAPER: Final = "#FFFFFF"
TEXT: Final = "#1B1F24"
FAINT: Final = "#57606A"
GRID: Final = "#E3E3E3"
SHADE: Final = "#E6E6E6"  # behind a jump
_ON_DARK: Final = {PAPER: "#16191D", TEXT: "#E6E9ED", FAINT: "#A3ACB7", GRID: "#3A4149", SHADE: "#30363D"}
_BLACK_INK: Final = "#000000"

KNOWN: Final = {
    PER_BLOCK: Ink("#B05426", "^"),
    BATCHED: Ink("#2C60DD", "o"),
    TRITON: Ink("#00825B", "s"),
    SM: Ink("#A553AB", "D"),
    PRIMED: Ink("#605430", "P"),
    MERGED: Ink("#FF196B", "d"),
    AUTO: Ink("#B68C0C", "v", wide=True),  # it is one of the others, and as fast
    "vllm_batch": Ink(_BLACK_INK, "X"),
    "vllm_triton": Ink("#949596", "<"),
    "sglang_aot": Ink("#7303F7", ">"),
    "sglang_jit": Ink("#B484B4", "h"),
    "lmcache": Ink("#0F9BD8", "*"),
    "lmcache_direct": Ink("#843C60", "8"),
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


def on_dark(colour: str) -> str:
    """Return what a colour of a chart becomes on a dark page: as light as text needs, of the same hue."""
    if known := (_ON_DARK | {_BLACK_INK: _ON_DARK[TEXT]}).get(colour):
        return known
    hue, light, saturation = colorsys.rgb_to_hls(*rgb_of(colour))
    dark = rgb_of(_ON_DARK[PAPER])
    while contrast(colorsys.hls_to_rgb(hue, light, saturation), dark) < 4.5:
        light += 0.02
    return _hex(colorsys.hls_to_rgb(hue, light, saturation))


def is_page_colour(colour: str) -> bool:
    """Return whether a colour is that of the page and its text, not of something drawn."""
    return colour in _ON_DARK


def _hex(rgb: Rgb) -> str:
    return "#" + "".join(f"{round(channel * 255):02X}" for channel in rgb)


def rgb_of(colour: str) -> Rgb:
    """Return red, green and blue of "#RRGGBB", each from 0 to 1."""
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return red, green, blue


def contrast(one: Rgb, other: Rgb) -> float:
    """Return the contrast (WCAG 2) of two colours, from 1 to 21."""
    dark, light = sorted(map(_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Rgb) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


STROKES: Final = 6  # different ones, by which variants of a backend are told apart

# Ratios of times: blue where batched takes less, orange where the kernel does, told apart by colour-blind readers.
_RATIO_COLOURS: Final[tuple[Rgb, Rgb, Rgb]] = ((0x00, 0x72, 0xB2), (0xF7, 0xF7, 0xF7), (0xD5, 0x5E, 0x00))
RATIO_OCTAVES: Final = 3.0
UNDECIDED: Final = "no clear difference"
UNMEASURED: Final = "not measured"
RATIO_KEYS: Final = {
    1 / 8: "1/8 or less: batched faster",
    1 / 2: "1/2",
    1.0: "1",
    2.0: "2",
    8.0: "8 or more: kernel faster",
}


def ratio_colour(ratio: float) -> Rgb:
    """Return red, green and blue, each from 0 to 1, for a ratio of times; beyond 8 and 1/8 they stay the same."""
    position = max(-1.0, min(1.0, math.log2(ratio) / RATIO_OCTAVES))
    below, middle, above = _RATIO_COLOURS
    end, share = (below, -position) if position < 0 else (above, position)
    red, green, blue = ((m + (e - m) * share) / 255 for m, e in zip(middle, end, strict=True))
    return red, green, blue


def is_dark(colour: Rgb) -> bool:
    """Return whether text on this colour has to be white."""
    return contrast(colour, _WHITE) > contrast(colour, _BLACK)
