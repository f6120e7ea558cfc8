"""Ways to swap beside a neighbour in words: a backend, and the axes that tell its cells apart."""

from collections.abc import Sequence

import pandas as pd

from kvbench.cells.axis import Role
from kvbench.cells.cell import AXES, axes_of
from kvbench.report.numbers import noun, size
from kvbench.report.tables import Row


def axes_apart(cells: pd.DataFrame) -> list[str]:
    """Return the axes that tell cells of one backend apart, the SM count not among them."""
    names = [name for name in axes_of(Role.SHAPE, Role.SIDE, Role.BESIDE) if name not in ("sms", "neighbour")]
    values = cells.groupby(["neighbour", "direction", "backend"])[names].nunique(dropna=False).max()
    return [name for name in names if values[name] > 1]


def way_of(row: Row, apart: Sequence[str]) -> str:
    """Return who swaps and how, the SM count not said."""
    return ", ".join([str(row["backend"]), *(text for name in apart if (text := axis_words(name, row[name])))])


def axis_words(name: str, value: object) -> str:
    """Return the value of a cell on an axis in words, "" where the cell does not use the axis."""
    axis = AXES[name]
    text = axis.show(value) if isinstance(value, int) else value
    used = isinstance(text, str) and text != axis.show(axis.unused)
    return f"{name} {size(str(text))}" if used else ""


def sms_of(row: Row) -> int:
    """Return the SM count, 0 where the backend has none."""
    return row["sms"] if isinstance(row["sms"], int) else 0


def label_of(row: Row, apart: Sequence[str]) -> str:
    sms = sms_of(row)
    return f"{way_of(row, apart)}, {noun(sms, 'SM')}" if sms else way_of(row, apart)
