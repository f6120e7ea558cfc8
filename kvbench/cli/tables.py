"""Rows in aligned columns, identical on a terminal and in a pipe; and lines that fit the terminal."""

import shutil
from collections.abc import Iterable, Sequence

from kvbench.text import WIDEST, printable, wrapped


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of plain text, wrapped at the width of the terminal, at most 80 columns."""
    width = min(WIDEST, shutil.get_terminal_size().columns)
    for line in lines:
        print(wrapped(line, width))


def print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of plain text in columns; lines are not wrapped."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*(Text(printable(text)) for text in row))
    console = Console(width=100_000, highlight=False)  # wider than any line
    with console.capture() as captured:
        console.print(table, no_wrap=True)
    for line in captured.get().splitlines():
        print(line.rstrip())
