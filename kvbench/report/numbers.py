"""Numbers as a report shows them: three significant digits, no exponents, spaces that do not break."""

import math
import re
from typing import Final

from kvbench.units import parse_size, size_words, two_digits

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


def slower_words(ratio: float) -> str:
    """Return how much more time something takes, from its time over the other's: "20% slower", "4.2 times slower".

    0.82 and 1 / 0.82 are the same fact.
    """
    word = "slower"
    if ratio < 1:
        ratio, word = 1 / max(ratio, 1e-9), "faster"  # times of an untrusted run can have any ratio
    return f"{two_digits(ratio)} times {word}" if ratio >= 1.95 else f"{two_digits((ratio - 1) * 100)}% {word}"


def size(text: str) -> str:
    """Return text with the sizes in it as people read them: "4KiB" is "4 KiB", "25088B" is "24.5 KiB"."""

    def shown(found: re.Match[str]) -> str:
        try:
            return bytes_size(parse_size(found[0]))
        except ValueError:  # of an untrusted run: no whole number of bytes
            return found[0]

    return _SIZE.sub(shown, text)


def bytes_size(size_bytes: int) -> str:
    """Return 4096 as "4 KiB"."""
    return size_words(size_bytes).replace(" ", "\N{NO-BREAK SPACE}")


def noun(number: int, singular: str) -> str:
    """Return "1 cell", "2 cells"."""
    return f"{count(number)} {singular}{'' if number == 1 else 's'}"
