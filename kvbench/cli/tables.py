"""Rows in aligned columns, and lines that fit the terminal."""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence

from kvbench.text import LOG_COLUMNS, WIDEST, printable, wrapped

_BETWEEN = "  "


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
    if "COLUMNS" in os.environ or sys.stdout.isatty() or "CI" in os.environ:  # another pipe has no width
        columns = shutil.get_terminal_size((LOG_COLUMNS, 0)).columns
        while fitting and sum(widths[:fitting]) + len(_BETWEEN) * (fitting - 1) > columns:
            fitting -= 1
    for number, row in enumerate(shown):
        if fitting:
            cells = zip(row[:fitting], widths, strict=False)
            print(_BETWEEN.join(text.ljust(width) for text, width in cells).rstrip())
        if number or not header:
            rest = zip(header[fitting:] or [""] * len(row), row[fitting:], strict=False)
            below = ", ".join(filter(None, (f"{name} {text}".strip() for name, text in rest if text not in ("", "-"))))
            print_lines([f"{_BETWEEN}{below}"] if below else [])
