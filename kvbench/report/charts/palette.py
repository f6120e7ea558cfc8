"""Colours and marks of backends: the same in every chart of every card, told apart by colour-blind readers.

Every colour has a contrast of 3 or more (WCAG 2, for lines) on white.
"""

import math
import zlib
from dataclasses import dataclass
from typing import Final

from kvbench.cells.facts import AUTO, BATCHED, MERGED, PER_BLOCK, PRIMED, SM, TRITON

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
    red, green, blue = (channel + share * (1 - channel) for channel in rgb_of(colour))
    return _hex((red, green, blue))


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
