"""The cells of a report: a table whose columns are their axes and whose last column holds their outcomes.

pandas selects, groups and pivots by the axes; what a figure of a cell means, the outcome says.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from kvbench.cells.cell import AXES, Cell
from kvbench.cells.facts import FLOORS
from kvbench.results.outcomes import Outcome, is_measured

OUTCOME: Final = "outcome"


def cells_of(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """A row per outcome, in their order: a column for each axis of its cell, numbers as such, and the outcome."""
    rows = list(outcomes)
    columns = {
        axis.field if axis.number else name: _values([outcome.cell for outcome in rows], name)
        for name, axis in AXES.items()
    }
    return pd.DataFrame({**columns, OUTCOME: pd.Series(rows, dtype=object)})


def _values(cells: Sequence[Cell], name: str) -> "pd.Series[Any]":
    axis = AXES[name]
    values = [getattr(cell, axis.field) for cell in cells]
    if not axis.number:
        values = [axis.show(value) for value in values]
    # A column with gaps holds objects: as floats, 4 SMs would read as 4.0.
    return pd.Series(values, dtype=object if None in values or not axis.number else "int64")


def outcomes_in(cells: pd.DataFrame) -> list[Outcome]:
    return cells[OUTCOME].tolist()


def rows_with(cells: pd.DataFrame, **values: str | int) -> pd.DataFrame:
    """The rows with these values on these axes."""
    masks = [(cells[axis] == value).to_numpy(bool) for axis, value in values.items()]
    return cells[np.logical_and.reduce(masks)]


def selected(cells: pd.DataFrame, keep: Callable[[Outcome], object]) -> pd.DataFrame:
    """The rows whose outcomes `keep` accepts."""
    return cells[np.array([bool(keep(outcome)) for outcome in outcomes_in(cells)], dtype=bool)]


def measured(cells: pd.DataFrame) -> pd.DataFrame:
    """The rows of cells with figures."""
    return selected(cells, is_measured)


def copied(cells: pd.DataFrame) -> pd.DataFrame:
    """The rows of cells with figures whose blocks were copied."""
    return measured(cells[~cells["backend"].isin(FLOORS)])


def ladders(cells: pd.DataFrame, axis: str, least: int, *alike: str) -> pd.DataFrame:
    """The rows of which those that are equal on the axes `alike` have figures at `least` values of an axis or more."""
    has_figures = np.array([is_measured(outcome) for outcome in outcomes_in(cells)], dtype=bool)
    values = cells.assign(value=cells[axis].where(has_figures)).groupby(list(alike), dropna=False)["value"]
    return cells[(values.transform("nunique") >= least).to_numpy(bool)]


def grid_of(cells: pd.DataFrame, index: str | Sequence[str], columns: str | Sequence[str]) -> pd.DataFrame:
    """The outcomes by axes down and across, None where there is no cell; of several in one place, the first measured.

    Rows ascend; columns stand in the order of their first cells.
    """
    down, across = ([axes] if isinstance(axes, str) else list(axes) for axes in (index, columns))
    no_figure = np.array([not is_measured(outcome) for outcome in outcomes_in(cells)], dtype=bool)
    first = cells.iloc[np.argsort(no_figure, kind="stable")].drop_duplicates([*down, *across])
    order = cells[across].drop_duplicates()
    heads = order[across[0]] if len(across) == 1 else pd.MultiIndex.from_frame(order)
    grid = first.pivot(index=down, columns=across if len(across) > 1 else across[0], values=OUTCOME)
    grid = grid.sort_index()[heads].astype(object)
    # pandas leaves NaN, which is true, where there is no cell.
    return grid.where(grid.notna(), None)


def lines_of(grid: pd.DataFrame) -> list[tuple[Any, list[Outcome | None]]]:
    """The rows of a grid of outcomes: what they are of, and their outcomes."""
    return [(value, line.tolist()) for value, line in grid.iterrows()]


def by_axes(cells: pd.DataFrame, *axes: str) -> list[tuple[Any, pd.DataFrame]]:
    """The rows by their values on one axis, or on several: ascending."""
    return [(value, group) for value, group in cells.groupby(list(axes) if len(axes) > 1 else axes[0])]
