"""The page that a chart stands on: its words, its panels, and where everything goes, in inches.

Positions are worked out here because matplotlib's own layouts differ in the last digit from run to run.
"""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvbench.report.curves import Curve

_DRAWN: Final = frozenset("\n\N{HORIZONTAL ELLIPSIS}\N{RIGHTWARDS ARROW}")
_LETTERS_PER_INCH: Final = 18  # of a footnote
PANEL_WIDTH: Final = 5.6
_ROW_GAP: Final = 0.45
_X_LABEL: Final = 0.55


@dataclass(frozen=True, slots=True)
class Words:
    """The text around a chart, plain: a title, a line under it, what the numbers include, a warning or ""."""

    title: str
    subtitle: str
    footer: str
    warning: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes: its title, its curves, the card's ceiling in GB/s (None where it was not measured)."""

    title: str
    curves: Sequence[Curve]
    ceiling_gbps: float | None


Grid = Sequence[Sequence[Panel]]


def plain(text: str) -> str:
    """Return `text` without what the charts' font has no glyphs for."""
    return "".join(
        char if char in _DRAWN or "\N{SPACE}" <= char <= "\N{LATIN SMALL LETTER Y WITH DIAERESIS}" else "?"
        for char in text
    )


@dataclass(frozen=True, slots=True)
class Layout:
    """A page in inches; `head` and `foot` are lines of text, `keys_per_row` how many legend keys stand side by side."""

    width: float
    height: float
    panel: float
    top: float
    bottom: float
    keys: float
    keys_per_row: int
    head: Sequence[str]
    foot: Sequence[str]
    notes: float

    @property
    def gridspec(self) -> dict[str, float]:
        """Where the panels stand, as matplotlib wants it: shares of the page, gaps as shares of a panel."""
        return {
            "left": 0.55 / self.width,
            "right": 1 - 0.15 / self.width,
            "top": self.up(self.top),
            "bottom": self.up(self.bottom),
            "hspace": _ROW_GAP / self.panel,
            "wspace": 0.06,
        }

    def up(self, inches: float) -> float:
        """Return a distance from the top edge as a share of the height from the bottom."""
        return 1 - inches / self.height


def lay_out(
    grid: Sequence[Sequence[object]], words: Words, key_labels: Sequence[str], height: float | None = None
) -> Layout:
    """Return the page for a grid of panels, each `height` inches high, under a head, over legend keys and footnotes."""
    rows, columns = len(grid), max(map(len, grid))
    width = max(7.6, PANEL_WIDTH * columns)
    panel = height or (3.6 if rows == 1 else 2.2)
    head = [text for text in (words.title, words.subtitle, words.warning) if text]
    letters = int(width * _LETTERS_PER_INCH)
    foot = [part for line in words.footer.splitlines() for part in textwrap.wrap(line, letters)]
    keys_per_row = max(1, int(width / (0.85 + 0.085 * max(map(len, key_labels)))))
    top = 0.42 + 0.24 * len(head)
    bottom = top + rows * panel + (rows - 1) * _ROW_GAP
    keys = bottom + _X_LABEL
    notes = keys + 0.28 * math.ceil(len(key_labels) / keys_per_row) + 0.2
    whole = notes + 0.15 * len(foot) + 0.05
    return Layout(width, whole, panel, top, bottom, keys, keys_per_row, head, foot, notes)
