"""Colours and marks of backends: the same in every chart, told apart by colour-blind readers and in grey print."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Ink:
    """How a backend is drawn: colour (Okabe-Ito) and point marker."""

    colour: str
    marker: str

    @property
    def text(self) -> str:
        """The colour, darkened as far as text needs that is read on white (WCAG: contrast of 4.5 or more)."""
        rgb = [int(self.colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        while 1.05 / (_luminance(rgb) + 0.05) < 4.5:
            rgb = [channel * 0.95 for channel in rgb]
        return "#" + "".join(f"{round(channel * 255):02X}" for channel in rgb)


def _luminance(colour: Iterable[float]) -> float:
    """Return the relative luminance (WCAG 2) of red, green and blue, each from 0 to 1."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


_OWN: Final = {
    "per_block": Ink("#D55E00", "^"),
    "batched": Ink("#0072B2", "o"),
    "triton": Ink("#009E73", "s"),
    "sm": Ink("#CC79A7", "D"),
    "primed": Ink("#56B4E9", "P"),
}
_FREE: Final = (Ink("#E69F00", "v"), Ink("#000000", "X"), Ink("#8C6D31", "h"), Ink("#7F7F7F", "<"))


def inks(backends: Iterable[str]) -> dict[str, Ink]:
    """Return an ink for every backend; those of other packages take the free ones in the order of their names."""
    others = sorted(set(backends) - set(_OWN))
    return _OWN | {name: _FREE[number % len(_FREE)] for number, name in enumerate(others)}


Rgb = tuple[float, float, float]

# Ratios of times: blue where batched takes less, orange where the kernel does, told apart by colour-blind readers.
_RATIO_COLOURS: Final[tuple[Rgb, Rgb, Rgb]] = ((0x00, 0x72, 0xB2), (0xF7, 0xF7, 0xF7), (0xD5, 0x5E, 0x00))
RATIO_OCTAVES: Final = 3.0
UNDECIDED: Final = "not told apart"
RATIO_KEYS: Final = {
    1 / 8: "1/8 or less: batched faster",
    1 / 2: "1/2",
    1.0: "1",
    2.0: "2",
    8.0: "8 or more: kernel faster",
}


def ratio_colour(ratio: float) -> Rgb:
    """Return red, green and blue, each from 0 to 1, for a ratio of times; beyond 8 and 1/8 they stay the same."""
    place = max(-1.0, min(1.0, math.log2(ratio) / RATIO_OCTAVES))
    below, middle, above = _RATIO_COLOURS
    end, share = (below, -place) if place < 0 else (above, place)
    red, green, blue = ((m + (e - m) * share) / 255 for m, e in zip(middle, end, strict=True))
    return red, green, blue


def is_dark(colour: Rgb) -> bool:
    """Return whether text on this colour has to be white."""
    red, green, blue = colour
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.4
