"""Two lists of runs, cell by cell and round by round: how cells ended, which belong together, their paired times."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Final, Literal

import msgspec
import numpy as np

from kvbench.analysis.intervals import Floats
from kvbench.cells.cell import AXES, Cell
from kvbench.errors import MismatchError, UsageError
from kvbench.gate.judgement import Kind
from kvbench.machine.identity import OF_THE_BUILD, differences
from kvbench.results import CellRecord, Failure, Record, Run, Visit

# name in a rule -> column of the summary
QUANTITIES: Final = {
    "gbps": "gbps",
    "ceiling_share": "ceiling_share",
    **{f"{part}_us": f"{part}_us_median" for part in ("swap", "submit", "gpu", "wall", "prepare", "cpu")},
}
_FIGURES: Final = (*QUANTITIES.values(), "gbps_q1", "gbps_q3", "swap_us_q1", "swap_us_q3", "ceiling_gbps")
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """One cell in one run: `status` is ok, failed or skipped, with its reason; `figures` by column, NaN unless ok."""

    cell: Cell
    status: str
    reason: str
    path: str
    figures: Mapping[str, float]


Outcomes = Mapping[Cell, CellOutcome]


@dataclass(frozen=True, slots=True)
class PairedValues:
    """One thing to judge: a value a round of either side, paired, NaN where a round has none.

    `margin` is the log ratio that the sides may differ by. `worse` is 1 where a larger value is worse, -1 where a
    smaller one is.
    """

    kind: Kind
    name: str
    cells: Sequence[Cell]
    unit: Literal["us", "x", "bytes"]
    base: Floats
    cand: Floats
    margin: float
    worse: int = 1


@dataclass(frozen=True, slots=True)
class Pairs:
    """The cells of both sides in a fixed order, with `base_us` and `cand_us` (medians of swap_us) of shape (cells,
    rounds), NaN where a round did not measure a cell.

    `failed` has a reason for every cell that failed or is missing anywhere; its times are NaN throughout. `faults` are
    failures of whole runs, `paths` what ran where the effective path changed ("copy engine -> CPU inline").
    """

    cells: Sequence[Cell]
    base_us: Floats
    cand_us: Floats
    failed: Mapping[Cell, str]
    faults: Sequence[str]
    paths: Mapping[Cell, str]


def outcomes(run: Run) -> dict[Cell, CellOutcome]:
    """Return the outcome of every cell that the run's journal names.

    A cell with samples but without a verified byte counts as failed: its times are those of copies nobody compared.
    """
    cells = {record.cell.id: record.cell for record in run.records if isinstance(record, CellRecord)}
    found = {}
    for row in run.frame().to_dict("records"):
        cell = cells[str(row["cell_id"])]
        status, reason = str(row["status"]), "" if row["status"] == "ok" else str(row["reason"])
        if status == "ok" and int(row["verified_bytes"]) == 0:
            status, reason = "failed", "nothing was verified"
        figures = {name: float(row[name]) if status == "ok" else math.nan for name in _FIGURES}
        path = row["path"] if isinstance(row["path"], str) else ""
        found[cell] = CellOutcome(cell, status, reason, path, figures)
    return found


def pair(base: Sequence[Run], cand: Sequence[Run]) -> Pairs:
    """Pair `base[r]` with `cand[r]`; raises UsageError unless both are as long, and not empty.

    A round may measure fewer cells than another, but both sides of it the same ones: a cell that one side lacks failed.
    """
    if len(base) != len(cand) or not base:
        raise UsageError(
            f"{len(base)} runs of the base and {len(cand)} of the candidate: give as many of either, at least one, "
            "in the order of their rounds"
        )
    ours, theirs = [outcomes(run) for run in base], [outcomes(run) for run in cand]
    asked = {cell for found in (*ours, *theirs) for cell, outcome in found.items() if outcome.status != "skipped"}
    cells = sorted(asked, key=attrgetter("backend", "direction", "stream_state", "blocks", "block_bytes", "id"))
    reasons = {cell: _few(why) for cell in cells if (why := _failures(cell, ours, theirs))}
    paths = {cell: (_paths(cell, ours), _paths(cell, theirs)) for cell in cells}
    unfinished = [
        f"{side}, round {number}: {run.path} is {run.info.status}, not complete"
        for side, runs in (("base", base), ("cand", cand))
        for number, run in enumerate(runs)
        if run.info.status != "complete"
    ]
    return Pairs(
        cells,
        _times(ours, cells, reasons),
        _times(theirs, cells, reasons),
        reasons,
        unfinished,
        {cell: f"path: {old} -> {new}" for cell, (old, new) in paths.items() if new and old != new},
    )


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
    fields = [
        axis.field
        for name, axis in AXES.items()
        if name != "backend"
        and all(any(getattr(cell, axis.field) is not None for cell in side) for side in (ours, theirs))
    ]
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

    def named(record: Record) -> Record:
        if not isinstance(record, Visit | Failure):
            return record
        return msgspec.structs.replace(record, cell_text=names.get(record.cell, record.cell_text))

    return [replace(run, records=[named(record) for record in run.records]) for run in cand], [note]


def rounds_of(run: Run) -> list[Run]:
    """Return a run of several rounds as one run for each, in order; records without a round are in all."""
    numbers = sorted({record.round for record in run.records if isinstance(record, Visit | Failure)})
    return [
        replace(run, records=[record for record in run.records if getattr(record, "round", number) == number])
        for number in numbers
    ]


def check_identity(base: Sequence[Run], cand: Sequence[Run], *, forced: bool) -> list[str]:
    """Return warnings about runs of different machines; raises MismatchError about them unless `forced`.

    The build may differ between the sides, and only between them.
    """
    found = []
    for runs in (base, cand):
        build = {name: value for name, value in runs[0].info.identity.items() if name == OF_THE_BUILD}
        expected = {**base[0].info.identity, **build}
        found += [f"{run.path}: {text}" for run in runs for text in differences(expected, run.info.identity)]
    if found and not forced:
        raise MismatchError(f"these runs are not of one kind of machine: {_few(found)}; --force compares them anyway")
    return [f"forced: not one kind of machine: {line}" for line in found]


def slots(base: Sequence[Run], cand: Sequence[Run]) -> Floats:
    """Return for every round 1 where the candidate ran second, -1 where it ran first, 0 where the times do not tell."""

    def order(ours: Run, theirs: Run) -> float:
        try:
            first, second = (datetime.fromisoformat(run.info.created) for run in (ours, theirs))
            return float(np.sign((second - first).total_seconds()))
        except (ValueError, TypeError):  # a stranger's run, or one time with a zone and one without
            return 0.0

    return np.array([order(*runs) for runs in zip(base, cand, strict=True)])


def _failures(cell: Cell, base: Sequence[Outcomes], cand: Sequence[Outcomes]) -> list[str]:
    reasons = []
    for number, sides in enumerate(zip(base, cand, strict=True)):
        found = [side.get(cell) for side in sides]
        if all(outcome is None or outcome.status == "skipped" for outcome in found):
            continue
        for side, outcome in zip(("base", "cand"), found, strict=True):
            if outcome is None:
                reasons.append(f"{side}: missing, round {number}")
            elif outcome.status != "ok":
                reasons.append(f"{side}: {outcome.status}: {outcome.reason}, round {number}")
    return reasons


def _few(reasons: Sequence[str]) -> str:
    more = len(reasons) - _SHOWN
    return "; ".join(reasons[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _times(rounds: Sequence[Outcomes], cells: Sequence[Cell], failed: Mapping[Cell, str]) -> Floats:
    times = [
        [
            found[cell].figures["swap_us_median"] if cell in found and cell not in failed else math.nan
            for found in rounds
        ]
        for cell in cells
    ]
    known = np.reshape(times, (len(cells), len(rounds)))
    return np.where(known > 0, known, np.nan)  # a clock that stood still says nothing of a ratio


def _paths(cell: Cell, rounds: Sequence[Outcomes]) -> str:
    return "; ".join(sorted({found[cell].path for found in rounds if cell in found and found[cell].path}))


def _measured(runs: Iterable[Run]) -> list[Cell]:
    records = (record for run in runs for record in run.records if isinstance(record, Visit | Failure))
    return list(dict.fromkeys(record.cell for record in records))


def _two_backends(ours: Sequence[Cell], theirs: Sequence[Cell]) -> bool:
    names = {cell.backend for cell in ours}, {cell.backend for cell in theirs}
    return all(len(found) == 1 for found in names) and names[0] != names[1]


def _by_values(cells: Sequence[Cell], fields: Sequence[str]) -> dict[tuple[object, ...], Cell]:
    keys = {cell: tuple(getattr(cell, name) for name in fields) for cell in cells}
    counts = Counter(keys.values())
    twice = [cell.label for cell, values in keys.items() if counts[values] > 1]
    if twice:
        raise UsageError(
            f"{twice[0]} and {twice[1]} differ in an axis that the other backend does not support: keep one"
        )
    return {values: cell for cell, values in keys.items()}
