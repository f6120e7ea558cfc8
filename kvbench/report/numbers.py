"""Numbers as a report shows them: three significant digits, no exponents, spaces that do not break."""

import math
import re
from typing import Final

from kvbench.cells.units import parse_size, size_text, two_digits

TIMES: Final = "\N{MULTIPLICATION SIGN}"
ABSENT: Final = "\N{EN DASH}"

_SIZE: Final = re.compile(r"(?<![\w.])\d{1,12}(\.\d{1,6})?([KMG]i)?B\b")


def count(number: float) -> str:
    """Return 10000 as "10 000"."""
    return f"{number:,.0f}".replace(",", "\N{NO-BREAK SPACE}")


def figure(value: float) -> str:
    """Return a number with three significant digits: 0.0123, 6.84, 54.5, 1234; a dash for none."""
    if not math.isfinite(value):
        return ABSENT
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    digits = 2 - int(f"{value:.2e}".split("e")[1])
    return f"{value:.{min(digits, 6)}f}"


def slower_text(ratio: float) -> str:
    """Return a ratio of times of 1 or more as what the slower does: "is 20% slower", "takes 4.2x as long"."""
    return f"takes {two_digits(ratio)}x as long" if ratio >= 1.95 else f"is {two_digits((ratio - 1) * 100)}% slower"


def size(text: str) -> str:
    """Return text with the sizes in it as people read them: "4KiB" is "4 KiB", "25088B" is "24.5 KiB"."""

    def readable(match: re.Match[str]) -> str:
        try:
            return bytes_size(parse_size(match[0]))
        except ValueError:  # of an untrusted run: no whole number of bytes
            return match[0]

    return _SIZE.sub(readable, text)


def bytes_size(size_bytes: int) -> str:
    """Return 4096 as "4 KiB"."""
    return size_text(size_bytes).replace(" ", "\N{NO-BREAK SPACE}")


def noun(number: int, singular: str) -> str:
    return f"{count(number)} {singular}{'' if number == 1 else 's'}"
