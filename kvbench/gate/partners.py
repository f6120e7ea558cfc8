"""Which cells and runs belong together: partners of cells, and whether two sets of runs can be compared."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from kvbench.cells.cell import AXES, Cell
from kvbench.errors import MismatchError, UsageError, brief
from kvbench.machine.identity import OF_THE_BUILD, differences
from kvbench.results import Run

_SHOWN: Final = 3


def partners(base: Iterable[Cell], cand: Iterable[Cell]) -> dict[Cell, Cell]:
    """Return each cell of the base -> its partner; cells without a partner are omitted.

    A cell's partner is itself, unless each side has a single backend and the two differ: then two backends are
    compared, and a cell's partner is the cell with the same values on all other axes that both backends support.
    Raises UsageError if two cells of a side have the same partner.
    """
    ours, theirs = list(dict.fromkeys(base)), list(dict.fromkeys(cand))
    if not about_backends(ours, theirs):
        same = set(theirs)
        return {cell: cell for cell in ours if cell in same}
    fields = [
        axis.field
        for name, axis in AXES.items()
        if name != "backend"
        and all(any(getattr(cell, axis.field) is not None for cell in side) for side in (ours, theirs))
    ]
    by_values = _by_values(theirs, fields)
    return {cell: by_values[values] for values, cell in _by_values(ours, fields).items() if values in by_values}


def check_two(base: Sequence[Run], cand: Sequence[Run]) -> None:
    """Raise UsageError if a run, or a copy of its journal, is on both sides; the message names it."""
    by_path = {run.path.resolve(): run for run in base}
    for theirs in cand:
        copied = next((run for run in base if run.records and run.records == theirs.records), None)
        if ours := by_path.get(theirs.path.resolve(), copied):
            names = " and ".join(dict.fromkeys(brief(str(run.path)) for run in (ours, theirs)))
            raise UsageError(f"the same run is on both sides of --: {names}; use another run on one side")


def check_identity(base: Sequence[Run], cand: Sequence[Run], *, forced: bool) -> list[str]:
    """Return warnings about runs of different machines; raises MismatchError instead unless `forced`.

    The build can differ between the sides, but not within a side.
    """
    differing = []
    for runs in (base, cand):
        build = {name: value for name, value in runs[0].info.identity.items() if name == OF_THE_BUILD}
        expected = {**base[0].info.identity, **build}
        differing += [f"{run.path}: {text}" for run in runs for text in differences(expected, run.info.identity)]
    if differing and not forced:
        raise MismatchError(
            f"the runs are of different kinds of machines: {few(differing)}; to compare them anyway, add --force"
        )
    return [f"forced: different kinds of machines: {line}" for line in differing]


def about_backends(ours: Sequence[Cell], theirs: Sequence[Cell]) -> list[str]:
    """Return a note if each side has a single backend and the two differ."""
    names = {cell.backend for cell in ours}, {cell.backend for cell in theirs}
    if names[0] == names[1] or any(len(backends) != 1 for backends in names):
        return []
    first, second = ours[0].backend, theirs[0].backend
    return [f"comparing two backends, {first} (base) and {second} (candidate): cells are paired by the axes of both"]


def _by_values(cells: Sequence[Cell], fields: Sequence[str]) -> dict[tuple[object, ...], Cell]:
    keys = {cell: tuple(getattr(cell, name) for name in fields) for cell in cells}
    counts = Counter(keys.values())
    twice = [cell.label for cell, values in keys.items() if counts[values] > 1]
    if twice:
        raise UsageError(
            f"{twice[0]} and {twice[1]} differ only in an axis that the other backend does not support: keep one"
        )
    return {values: cell for cell, values in keys.items()}


def few(reasons: Sequence[str]) -> str:
    more = len(reasons) - _SHOWN
    return "; ".join(reasons[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
