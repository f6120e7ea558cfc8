"""Two sides, cell by cell and round by round: which cells belong together, how they ended, their paired times."""

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from statistics import median
from typing import Final

import numpy as np

from kvbench.analysis.intervals import Floats
from kvbench.cells.cell import AXES, Cell
from kvbench.errors import MismatchError, UsageError
from kvbench.gate.outcomes import CellOutcome, Outcomes, outcomes
from kvbench.machine.identity import OF_THE_BUILD, differences
from kvbench.results import Ceiling, Control, Failure, Run, Visit

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Pairs:
    """The cells of both sides in a fixed order, under the base's names, with `base_us` and `cand_us` (medians of
    swap_us) of shape (cells, rounds), NaN where a round did not measure a cell.

    `order` has 1 for every round in which the candidate ran second, -1 where it ran first, 0 where that is not known.
    `controls` are name -> log ratio of the candidate's time to the base's for what no build changes, by round.
    `failed` has a reason for every cell that failed or is missing on a side; its times are NaN throughout. `faults` are
    failures of whole runs, `paths` what ran where the effective path changed ("copy engine -> CPU inline").
    """

    cells: Sequence[Cell]
    base_us: Floats
    cand_us: Floats
    order: Floats
    controls: Mapping[str, Floats]
    failed: Mapping[Cell, str]
    faults: Sequence[str]
    paths: Mapping[Cell, str]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Side:
    """The runs of one side: the outcomes of each, and of every round the run and the number that it has there."""

    name: str
    runs: Sequence[Run]
    found: Sequence[Outcomes]
    rounds: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, name: str, runs: Sequence[Run]) -> "_Side":
        numbers = [
            sorted({record.round for record in run.records if isinstance(record, Visit | Failure)}) for run in runs
        ]
        rounds = [(place, number) for place, own in enumerate(numbers) for number in own]
        return cls(name, runs, [outcomes(run) for run in runs], rounds)

    @property
    def measured(self) -> list[Cell]:
        return list(dict.fromkeys(cell for own in self.found for cell, each in own.items() if each.status != "skipped"))

    def outcomes_of(self, cell: Cell) -> list[CellOutcome]:
        return [own[cell] for own in self.found if cell in own]

    def times_us(self, cell: Cell) -> list[float]:
        visits = [own[cell].visits if cell in own else {} for own in self.found]
        return [visits[place].get(number, math.nan) for place, number in self.rounds]

    def trouble(self, cell: Cell) -> list[str]:
        """Return why the cell has no timing on this side, if so."""
        own = [each for each in self.outcomes_of(cell) if each.status != "skipped"] or self.outcomes_of(cell)
        if not own:
            return [f"{self.name}: missing"]
        return [f"{self.name}: {each.status}: {each.reason}" for each in own if each.status != "ok"]

    def paths(self, cell: Cell) -> str:
        return "; ".join(sorted({each.path for each in self.outcomes_of(cell) if each.path}))

    def copies_us(self, kind: type[Control] | type[Ceiling]) -> dict[str, list[float]]:
        """Return direction -> median time of the large copies of every round, NaN where there are none."""
        found: dict[str, dict[tuple[int, int], float]] = {}
        for place, run in enumerate(self.runs):
            for record in run.records:
                if isinstance(record, kind) and record.gpu_us:
                    found.setdefault(record.direction, {})[place, record.round] = median(record.gpu_us)
        return {way: [own.get(key, math.nan) for key in self.rounds] for way, own in found.items()}


def pair(base: Sequence[Run], cand: Sequence[Run]) -> Pairs:
    """Pair the rounds of `base` with those of `cand`; raises UsageError unless there are as many of either, and some.

    A round may measure fewer cells than another. Where the sides are two backends, cells are paired by all other axes.
    """
    ours, theirs = _Side.of("base", base), _Side.of("cand", cand)
    if len(ours.rounds) != len(theirs.rounds) or not ours.rounds:
        raise UsageError(
            f"{len(ours.rounds)} rounds of the base and {len(theirs.rounds)} of the candidate: give runs with as many "
            "of either, at least one, in the order of their rounds"
        )
    partner = partners(ours.measured, theirs.measured)
    back = {there: here for here, there in partner.items()}
    every = dict.fromkeys([*ours.measured, *(back.get(cell, cell) for cell in theirs.measured)])
    cells = sorted(every, key=attrgetter("backend", "direction", "stream_state", "blocks", "block_bytes", "id"))
    troubles = {cell: [*ours.trouble(cell), *theirs.trouble(partner.get(cell, cell))] for cell in cells}
    failed = {cell: _few(list(dict.fromkeys(why))) for cell, why in troubles.items() if why}
    paths = {cell: (ours.paths(cell), theirs.paths(partner.get(cell, cell))) for cell in cells}
    controls, notes = _controls(ours, theirs)
    return Pairs(
        cells,
        _grid(ours, cells, failed),
        _grid(theirs, [partner.get(cell, cell) for cell in cells], {partner.get(cell, cell) for cell in failed}),
        _order(ours, theirs),
        controls,
        failed,
        [fault for side in (ours, theirs) for fault in _unfinished(side)],
        {cell: f"path: {old} -> {new}" for cell, (old, new) in paths.items() if new and old != new},
        [*_about_backends(ours.measured, theirs.measured), *notes],
    )


def partners(base: Iterable[Cell], cand: Iterable[Cell]) -> dict[Cell, Cell]:
    """Return each cell of the base -> its partner; a cell without one is left out.

    A cell's partner is itself. But where either side has cells of one backend alone and the two differ, they are two
    backends under comparison, and a cell's partner is the one that agrees with it on every other axis that both
    support. Raises UsageError where two cells of a side have one partner.
    """
    ours, theirs = list(dict.fromkeys(base)), list(dict.fromkeys(cand))
    if not _about_backends(ours, theirs):
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


def _controls(base: _Side, cand: _Side) -> tuple[dict[str, Floats], list[str]]:
    """Return direction -> log ratios of the controls' times, and warnings. Without controls, ceilings stand in."""
    ours, theirs = base.copies_us(Control), cand.copies_us(Control)
    notes = []
    if not ours or ours.keys() != theirs.keys():
        notes = ["not every run has control copies: the engine's own large copies, the ceilings, stand in for them"]
        ours, theirs = base.copies_us(Ceiling), cand.copies_us(Ceiling)
    if not ours or ours.keys() != theirs.keys():
        notes = ["no run has control copies or ceilings: whether the machine was steady is not known"]
    ways = sorted(ours.keys() & theirs.keys())
    return {way: np.log(_positive(theirs[way])) - np.log(_positive(ours[way])) for way in ways}, notes


def _order(base: _Side, cand: _Side) -> Floats:
    """Return for every round 1 where the candidate ran second, -1 where it ran first, 0 where the times do not tell."""

    def order(ours: Run, theirs: Run) -> float:
        try:
            first, second = (datetime.fromisoformat(run.info.created) for run in (ours, theirs))
            return float(np.sign((second - first).total_seconds()))
        except (ValueError, TypeError):  # a stranger's run, or one time with a zone and one without
            return 0.0

    rounds = zip(base.rounds, cand.rounds, strict=True)
    return np.array([order(base.runs[ours], cand.runs[theirs]) for (ours, _), (theirs, _) in rounds])


def _unfinished(side: _Side) -> list[str]:
    runs = [run for run in side.runs if run.info.status != "complete"]
    return [f"{side.name}: {run.path} is {run.info.status}, not complete" for run in runs]


def _few(reasons: Sequence[str]) -> str:
    more = len(reasons) - _SHOWN
    return "; ".join(reasons[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _grid(side: _Side, cells: Sequence[Cell], failed: Container[Cell]) -> Floats:
    unknown = [math.nan] * len(side.rounds)
    times_us = [unknown if cell in failed else side.times_us(cell) for cell in cells]
    return np.reshape(_positive(times_us), (len(cells), len(side.rounds)))


def _positive(times_us: Sequence[float] | Sequence[Sequence[float]]) -> Floats:
    known = np.asarray(times_us, dtype=np.float64)
    return np.where(known > 0, known, np.nan)  # a clock that stood still says nothing of a ratio


def _about_backends(ours: Sequence[Cell], theirs: Sequence[Cell]) -> list[str]:
    """Return a note where either side has one backend and the two differ."""
    names = {cell.backend for cell in ours}, {cell.backend for cell in theirs}
    if names[0] == names[1] or any(len(found) != 1 for found in names):
        return []
    first, second = ours[0].backend, theirs[0].backend
    return [f"two backends are compared, {first} (base) and {second} (candidate): cells are paired by the axes of both"]


def _by_values(cells: Sequence[Cell], fields: Sequence[str]) -> dict[tuple[object, ...], Cell]:
    keys = {cell: tuple(getattr(cell, name) for name in fields) for cell in cells}
    counts = Counter(keys.values())
    twice = [cell.label for cell, values in keys.items() if counts[values] > 1]
    if twice:
        raise UsageError(
            f"{twice[0]} and {twice[1]} differ in an axis that the other backend does not support: keep one"
        )
    return {values: cell for cell, values in keys.items()}
