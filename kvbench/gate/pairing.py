"""Which cell of one side answers to which of the other, also where the two sides are two backends."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from kvbench.cells.cell import AXES, Cell
from kvbench.errors import UsageError
from kvbench.results import Failure, Record, Run, Visit


def partners(base: Iterable[Cell], cand: Iterable[Cell]) -> dict[Cell, Cell]:
    """Return each cell of the base -> its partner; a cell without one is left out.

    A cell's partner is itself. But where either side has cells of one backend alone and the two differ, they are two
    backends under comparison, and a cell's partner is the one that agrees with it on every other axis that both
    support. Raises UsageError where two cells of a side have one partner.
    """
    ours, theirs = list(dict.fromkeys(base)), list(dict.fromkeys(cand))
    if not _two_backends(ours, theirs):
        same = set(theirs)
        return {cell: cell for cell in ours if cell in same}
    fields = _heeded_by_both(ours, theirs)
    found = _by_values(theirs, fields)
    return {cell: found[values] for values, cell in _by_values(ours, fields).items() if values in found}


def aligned(base: Sequence[Run], cand: Sequence[Run]) -> tuple[Sequence[Run], list[str]]:
    """Return `cand` with its cells under the names of their partners, and a note where two backends are compared.

    Raises UsageError as `partners`.
    """
    ours, theirs = _measured(base), _measured(cand)
    if not _two_backends(ours, theirs):
        return cand, []
    names = {partner: cell.as_strings() for cell, partner in partners(ours, theirs).items()}
    first, second = ours[0].backend, theirs[0].backend
    note = f"two backends are compared, {first} (base) and {second} (candidate): cells are paired by the axes of both"
    return [_renamed(run, names) for run in cand], [note]


def rounds_of(run: Run) -> list[Run]:
    """Return a run of several rounds as one run for each, in order; records without a round are in all."""
    numbers = sorted({record.round for record in run.records if isinstance(record, Visit | Failure)})
    return [
        replace(run, records=[record for record in run.records if getattr(record, "round", number) == number])
        for number in numbers
    ]


def _two_backends(ours: Sequence[Cell], theirs: Sequence[Cell]) -> bool:
    names = {cell.backend for cell in ours}, {cell.backend for cell in theirs}
    return all(len(found) == 1 for found in names) and names[0] != names[1]


def _heeded_by_both(ours: Sequence[Cell], theirs: Sequence[Cell]) -> list[str]:
    """Return the fields of the axes, but for the backend, on which both sides have values."""
    fields = [axis.field for name, axis in AXES.items() if name != "backend"]
    sides = (ours, theirs)
    return [name for name in fields if all(any(getattr(cell, name) is not None for cell in side) for side in sides)]


def _by_values(cells: Sequence[Cell], fields: Sequence[str]) -> dict[tuple[object, ...], Cell]:
    keys = {cell: tuple(getattr(cell, name) for name in fields) for cell in cells}
    counts = Counter(keys.values())
    twice = [cell.label for cell, values in keys.items() if counts[values] > 1]
    if twice:
        raise UsageError(
            f"{twice[0]} and {twice[1]} differ in an axis that the other backend lacks: keep one"
        )
    return {values: cell for cell, values in keys.items()}


def _measured(runs: Iterable[Run]) -> list[Cell]:
    records = (record for run in runs for record in run.records if isinstance(record, Visit | Failure))
    return list(dict.fromkeys(record.cell for record in records))


def _renamed(run: Run, names: Mapping[Cell, dict[str, str | None]]) -> Run:
    def named(record: Record) -> Record:
        if not isinstance(record, Visit | Failure):
            return record
        return msgspec.structs.replace(record, cell_text=names.get(record.cell, record.cell_text))

    return replace(run, records=[named(record) for record in run.records])
