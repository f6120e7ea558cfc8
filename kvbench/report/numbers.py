"""Numbers as a report shows them: three significant digits, no exponents, spaces that do not break."""

import math
from typing import Final

from kvbench.analysis.compare import Verdict
from kvbench.analysis.margins import WIDE
from kvbench.cells.units import size_text, two_digits

TIMES: Final = "\N{MULTIPLICATION SIGN}"
ABSENT: Final = "\N{EN DASH}"
# What stands before a figure that is compared; a figure that differs has none.
SIGNS: Final = {Verdict.SAME: "= ", Verdict.UNDECIDED: "? "}


def count(number: float) -> str:
    """10000 as "10 000"."""
    return f"{number:,.0f}".replace(",", "\N{NO-BREAK SPACE}")


def figure(value: float) -> str:
    """A number with three significant digits: 0.0123, 6.84, 54.5, 1234; a dash for none."""
    if not math.isfinite(value):
        return ABSENT
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    digits = 2 - int(f"{value:.2e}".split("e")[1])
    return f"{value:.{min(digits, 6)}f}"


def with_interval(value: float, low: float, high: float) -> str:
    """A figure, and its interval where half of that is above `WIDE` of the figure: "6.32 (2.61 to 8.60)"."""
    return f"{figure(value)} ({figure(low)} to {figure(high)})" if is_wide(value, low, high) else figure(value)


def is_wide(value: float, low: float, high: float) -> bool:
    return math.isfinite(low) and math.isfinite(high) and (high - low) / 2 > WIDE.fraction * value


def slower_text(ratio: float) -> str:
    """What the slower does, from a ratio of times of 1 or more: "is 20% slower", "takes 4.2x as long"."""
    return f"takes {two_digits(ratio)}x as long" if ratio >= 1.95 else f"is {two_digits((ratio - 1) * 100)}% slower"


def bytes_size(size_bytes: int) -> str:
    """4096 as "4 KiB"."""
    return size_text(size_bytes).replace(" ", "\N{NO-BREAK SPACE}")


def noun(number: int, singular: str) -> str:
    return f"{count(number)} {singular}{'' if number == 1 else 's'}"
