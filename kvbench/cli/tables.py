"""Rows in aligned columns, and lines that fit the terminal."""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from kvbench.text import LOG_COLUMNS, WIDEST, longest_word, printable, wrapped

if TYPE_CHECKING:
    from kvbench.report.model import DataTable

_BETWEEN = "  "


def room() -> int | None:
    """Return the columns of the terminal, or of the log of a CI; another pipe has no width."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return LOG_COLUMNS if "CI" in os.environ else None


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of plain text, wrapped at the width of the terminal, at most 80 columns."""
    width = min(WIDEST, room() or WIDEST)
    for line in lines:
        print(wrapped(line, width))


def print_rows(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> None:
    """Print rows of plain text in columns; where they have no room, the texts of few rows are wrapped first."""
    shown = [[printable(text) for text in row] for row in ([header, *rows] if header else rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    if columns := room():
        shown = _wrapped_rows(shown, widths, columns)
    for row in shown:
        print(_BETWEEN.join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


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
    """Reduce `widths` until `columns` hold them where that wraps fewest texts, none below its longest word, and return
    the lines of these.
    """
    most = columns - len(_BETWEEN) * (len(widths) - 1)
    longest = [max(longest_word(text) for text in column) + len(_BETWEEN) for column in zip(*rows, strict=True)]
    while sum(widths) > most and (wide := [one for one, width in enumerate(widths) if width > longest[one]]):
        wrapping = {one: sum(len(row[one]) >= widths[one] for row in rows) for one in wide}
        widths[min(wide, key=lambda one: (wrapping[one], -widths[one]))] -= 1
    cells = ([wrapped(*pair).splitlines() for pair in zip(row, widths, strict=True)] for row in rows)
    return [[*line] for row in cells for line in zip_longest(*row, fillvalue="")]
