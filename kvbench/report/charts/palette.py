"""Colours and marks of backends: the same in every chart, told apart by colour-blind readers and in grey print.

Every colour has a contrast of 3 or more (WCAG 2, for lines) on a white page and on the dark one, so that a chart needs
one set of colours; black stands for the colour of the text.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvbench.cells.backend_facts import AUTO, BATCHED, MERGED, PER_BLOCK, PRIMED, SM, STAGED, TRITON


@dataclass(frozen=True, slots=True)
class Ink:
    """How a backend is drawn: colour and point marker.

    A `wide` line with large markers is drawn below the others, so that it is seen on both sides of a line that it
    lies on.
    """

    colour: str
    marker: str
    wide: bool = False

    @property
    def text(self) -> str:
        """The colour, darkened as far as text needs that is read on white (WCAG: contrast of 4.5 or more)."""
        red, green, blue = rgb_of(self.colour)
        while contrast((red, green, blue), _WHITE) < 4.5:
            red, green, blue = (channel * 0.95 for channel in (red, green, blue))
        return "#" + "".join(f"{round(channel * 255):02X}" for channel in (red, green, blue))


Rgb = tuple[float, float, float]
_WHITE: Final[Rgb] = (1.0, 1.0, 1.0)
_BLACK: Final[Rgb] = (0.0, 0.0, 0.0)


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


_KNOWN: Final = {
    PER_BLOCK: Ink("#B05426", "^"),
    BATCHED: Ink("#2C60DD", "o"),
    TRITON: Ink("#00825B", "s"),
    SM: Ink("#A553AB", "D"),
    PRIMED: Ink("#0A9AED", "P"),
    MERGED: Ink("#FF196B", "d"),
    STAGED: Ink("#A884A8", "p"),
    AUTO: Ink("#B68C0C", "v", wide=True),  # it is one of the others, and as fast
}
_FREE: Final = (Ink("#000000", "X"), Ink("#7F7F7F", "<"), Ink("#008B9A", "h"), Ink("#D0406A", ">"))


def inks(backends: Iterable[str]) -> dict[str, Ink]:
    """Return an ink for every backend; those of other packages take the free ones in the order of their names."""
    others = sorted(set(backends) - set(_KNOWN))
    free = {}
    for number, name in enumerate(others):
        turn, index = divmod(number, len(_FREE))  # where the colours come again, they come with other markers
        free[name] = Ink(_FREE[index].colour, _FREE[(index + turn) % len(_FREE)].marker)
    return _KNOWN | free


def is_hollow(variant: int) -> bool:
    """Return whether the markers of a line's variant are hollow: each stroke comes with either kind."""
    return 0 < variant <= STROKES


def spokes_of(variant: int) -> tuple[int, ...]:
    """Return the angles, in degrees, of the lines through a variant's hollow markers: a lone point shows no stroke."""
    return _SPOKES[variant % STROKES] if is_hollow(variant) else ()


STROKES: Final = 6  # different ones, by which variants of a backend are told apart
_SPOKES: Final = ((45,), (), (90,), (0,), (0, 90), (45, 135))

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
