"""Rows in aligned columns, and lines that fit the terminal."""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from kvbench.text import LOG_COLUMNS, WIDEST, printable, wrapped

if TYPE_CHECKING:
    from kvbench.report.model import DataTable

_BETWEEN = "  "
_NARROWEST = 12  # of columns whose texts are wrapped


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of plain text, wrapped at the width of the terminal, at most 80 columns."""
    width = min(WIDEST, shutil.get_terminal_size().columns)
    for line in lines:
        print(wrapped(line, width))


def print_rows(rows: Sequence[Sequence[str]], header: Sequence[str] = (), *, wrap: bool = False) -> None:
    """Print rows of plain text in columns. Columns that the terminal or the log of a CI has no room for follow below
    each row, by name; with `wrap`, the texts of few rows are wrapped first.
    """
    shown = [[printable(text) for text in row] for row in ([header, *rows] if header else rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    fitting = len(widths)
    if "COLUMNS" in os.environ or sys.stdout.isatty() or "CI" in os.environ:  # another pipe has no width
        columns = shutil.get_terminal_size((LOG_COLUMNS, 0)).columns
        if wrap:
            shown = _wrapped_rows(shown, widths, columns)
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


def print_table(table: "DataTable") -> None:
    """Print a table of a report in the terminal, with its caption and its notes."""
    # rich takes as long to import as most commands take
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from kvbench.report.model import Strong, plain

    drawn = Table(box=box.SIMPLE_HEAD, title=Text(plain(table.title)), title_justify="left", pad_edge=False)
    for number, head in enumerate(table.header):
        drawn.add_column(Text(plain(head)), justify="left" if number < table.left else "right")
    for row in table.rows:
        drawn.add_row(*(Text(plain(text), "bold" if isinstance(text, Strong) else "") for text in row))
    Console(highlight=False).print(drawn)
    print_lines([plain(table.caption), *map(plain, table.notes), ""])


def _wrapped_rows(rows: Sequence[Sequence[str]], widths: list[int], columns: int) -> list[list[str]]:
    """Reduce `widths` until `columns` hold them where that wraps fewest texts, and return the lines of these."""
    room = columns - len(_BETWEEN) * (len(widths) - 1)
    while sum(widths) > room and (wide := [one for one, width in enumerate(widths) if width > _NARROWEST]):
        wrapping = {one: sum(len(row[one]) >= widths[one] for row in rows) for one in wide}
        widths[min(wide, key=lambda one: (wrapping[one], -widths[one]))] -= 1
    cells = ([wrapped(*pair).splitlines() for pair in zip(row, widths, strict=True)] for row in rows)
    return [[*line] for row in cells for line in zip_longest(*row, fillvalue="")]
