"""Rows in aligned columns, and lines that fit the terminal."""

import math
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from kvbench.text import LOG_COLUMNS, WIDEST, printable, wrapped

_BETWEEN = "  "
_NARROWEST = 12  # of columns whose texts are wrapped


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of plain text, wrapped at the width of the terminal, at most 80 columns."""
    width = min(WIDEST, shutil.get_terminal_size().columns)
    for line in lines:
        print(wrapped(line, width))


def print_rows(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> None:
    """Print rows of plain text in columns. Columns that the terminal or the log of a CI has no room for follow below
    each row, by name.
    """
    shown = [[printable(text) for text in row] for row in ([header, *rows] if header else rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    fitting = len(widths)
    while fitting and _width(widths[:fitting]) > _room():
        fitting -= 1
    for number, row in enumerate(shown):
        if fitting:
            _print_row(row[:fitting], widths)
        if number or not header:
            rest = zip(header[fitting:] or [""] * len(row), row[fitting:], strict=False)
            below = ", ".join(filter(None, (f"{name} {text}".strip() for name, text in rest if text not in ("", "-"))))
            print_lines([f"{_BETWEEN}{below}"] if below else [])


def print_wrapped(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of plain text in columns; where these have no room, the texts of fewest rows are wrapped."""
    columns = [[printable(text) for text in column] for column in zip(*rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]

    def wrapped_at(column: int) -> tuple[int, int]:
        return sum(len(text) >= widths[column] for text in columns[column]), -widths[column]

    while _width(widths) > _room() and (wide := [one for one, width in enumerate(widths) if width > _NARROWEST]):
        widths[min(wide, key=wrapped_at)] -= 1
    for row in zip(*columns, strict=True):
        cells = (wrapped(text, width).splitlines() for text, width in zip(row, widths, strict=True))
        for line in zip_longest(*cells, fillvalue=""):
            _print_row(line, widths)


def _print_row(texts: Sequence[str], widths: Sequence[int]) -> None:
    print(_BETWEEN.join(text.ljust(width) for text, width in zip(texts, widths, strict=False)).rstrip())


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + len(_BETWEEN) * (len(widths) - 1)


def _room() -> float:
    """Return how many columns the terminal or the log of a CI has; another pipe has no width."""
    known = "COLUMNS" in os.environ or sys.stdout.isatty() or "CI" in os.environ
    return shutil.get_terminal_size((LOG_COLUMNS, 0)).columns if known else math.inf
