"""Pairs the cells of two sides, round by round: outcomes and paired times."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter

import numpy as np

from kvbench.analysis.intervals import Floats, middle_of
from kvbench.cells.cell import Cell
from kvbench.errors import MismatchError, UsageError
from kvbench.gate.disturbance import CPU, Mask, spoiled
from kvbench.gate.partners import about_backends, few, partners
from kvbench.gate.visit_times import (
    CALLER_BOUND,
    CPU_BOUND,
    VisitValues,
    fast_us,
    shares_of,
    unknown,
    values_of,
)
from kvbench.results import Ceiling, Control, Failure, Run, Skip, Visit
from kvbench.results.columns import NO_FIGURE
from kvbench.results.schema import EffectivePath


@dataclass(frozen=True, slots=True)
class Pairs:
    """The cells of both sides in a fixed order, under the base's names, and their paired visits.

    `visits` have the shape (2, cells, rounds), without values if a round did not measure a cell, or if the pair was
    spoiled. Their `caller_us` is NaN for cells whose caller takes less than `CALLER_BOUND` of their time or copies, and
    for runs that were not made in turn.

    `order` is 1 for every round in which the candidate ran second, -1 if it ran first, 0 if unknown. `controls` maps a
    name to the log ratios of the candidate's time to the base's, by round, of controls that no build affects. `failed`
    has a reason for every cell that failed or is missing on a side; all its times are NaN. `without_figure` are those
    of them that ran. `faults` are failures of whole runs; `paths` are changes of the effective path ("copy engine ->
    CPU inline"), `inline` the cells that the CPU copies on both sides. `disturbed` is the number of pairs that each
    cause spoiled; `in_turn` is true if visits were paired with visits, not runs with runs.
    `processes` counts, for every round, how often both sides had new worker processes before; None if unknown, and for
    runs that were not made in turn.
    """

    cells: Sequence[Cell]
    visits: VisitValues
    order: Floats
    controls: Mapping[str, Floats]
    failed: Mapping[Cell, str] = field(default_factory=dict)
    without_figure: frozenset[Cell] = frozenset()
    faults: Sequence[str] = ()
    paths: Mapping[Cell, str] = field(default_factory=dict)
    inline: frozenset[Cell] = frozenset()
    notes: Sequence[str] = ()
    disturbed: Mapping[str, int] = field(default_factory=dict)
    in_turn: bool = False
    processes: Floats | None = None


class _Side:
    """The runs of one side, and for every round its run and its number in that run."""

    def __init__(self, name: str, runs: Sequence[Run]) -> None:
        self.name = name
        self.runs = runs
        self._visits: dict[Cell, dict[tuple[int, int], Visit]] = {}
        self._failures: dict[Cell, list[Failure]] = {}
        self._skips: dict[Cell, Skip] = {}
        rounds = set()
        for index, run in enumerate(runs):
            for record in run.records:
                match record:
                    case Visit():
                        self._visits.setdefault(record.cell, {})[index, record.round] = record
                        rounds.add((index, record.round))
                    case Failure():
                        self._failures.setdefault(record.cell, []).append(record)
                        rounds.add((index, record.round))
                    case Skip():
                        self._skips[record.cell] = record
        self.rounds: Sequence[tuple[int, int]] = sorted(rounds)

    @property
    def measured(self) -> list[Cell]:
        return list(dict.fromkeys([*self._visits, *self._failures]))

    @property
    def has_spans(self) -> bool:
        """Whether every visit says when it began and ended."""
        return all(visit.span_ns for by_round in self._visits.values() for visit in by_round.values())

    def values(self, cells: Sequence[Cell]) -> VisitValues:
        """Return the values of every visit, of shape (cells, rounds)."""
        index_of = {key: index for index, key in enumerate(self.rounds)}
        values = unknown(len(cells), len(index_of))
        for row, cell in zip(values, cells, strict=True):
            for key, visit in self._visits.get(cell, {}).items():
                row[index_of[key]] = values_of(visit)
        return values

    def errors(self, cell: Cell) -> list[str]:
        """Return why the cell has no timing on this side, or []; an unverified cell has none."""
        visits = self._visits.get(cell, {}).values()
        why = [f"failed: {failure.kind}: {failure.message}" for failure in self._failures.get(cell, ())]
        if not visits and not why:
            why = [f"skipped: {self._skips[cell].reason}" if cell in self._skips else "missing"]
        elif not why and not any(visit.verified_bytes for visit in visits):
            why = ["failed: no bytes were verified"]
        return [f"{self.name}: {reason}" for reason in why]

    def no_figure(self, cell: Cell) -> list[str]:
        """Return that no visit of the cell has a figure on this side, or []."""
        visits = self._visits.get(cell, {}).values()
        return [] if any(visit.swap_times_us for visit in visits) else [f"{self.name}: no figure: {NO_FIGURE}"]

    def paths(self, cell: Cell) -> str:
        counts = Counter(visit.path for visit in self._visits.get(cell, {}).values())
        return counts.most_common(1)[0][0] if counts else ""

    def copies_us(self, kind: type[Control] | type[Ceiling]) -> dict[str, Floats]:
        """Return direction -> time of the large copies of every round, NaN if there are none."""
        times_us: dict[str, dict[tuple[int, int], float]] = {}
        for index, run in enumerate(self.runs):
            for record in run.records:
                if isinstance(record, kind) and record.gpu_us:
                    # a time of zero has no ratio
                    times_us.setdefault(record.direction, {})[index, record.round] = fast_us(record.gpu_us) or math.nan
        return {
            direction: np.array([by_round.get(key, math.nan) for key in self.rounds])
            for direction, by_round in times_us.items()
        }

    def created_s(self) -> list[float]:
        """Return when the run of each round was created, in seconds; NaN if unknown."""
        return [_created_s(self.runs[index]) for index, _ in self.rounds]

    def unfinished(self) -> list[str]:
        unfinished = (run for run in self.runs if run.info.status != "complete")
        return [f"{self.name}: {run.path} is {run.info.status}, not complete" for run in unfinished]


@np.errstate(all="ignore")  # an untrusted run can hold any time
def pair(base: Sequence[Run], cand: Sequence[Run]) -> Pairs:
    """Pair the rounds of `base` with those of `cand`; raises UsageError unless both have the same number, at least one.

    Rounds can measure different cells. If the sides are two backends, cells are paired by all other axes. Raises
    MismatchError if both sides measured cells but have none in common.
    """
    ours, theirs = _sides(base, cand)
    names = _partnered(ours, theirs)
    cells = list(names)
    failed, without_figure = _without_times(ours, theirs, names)
    paths = {cell: (ours.paths(cell), theirs.paths(name)) for cell, name in names.items()}
    copies, notes = _large_copies(ours, theirs)
    # Both sides were interrupted together: this is not a fault of either.
    if stopped := all(run.info.status == "interrupted" for run in (*base, *cand)):
        notes.append("both sides were interrupted: only what both measured is judged")

    visits = np.stack([ours.values(cells), theirs.values([*names.values()])])
    # Spans count from the start of the machine, which may have been another one.
    known = len(base) == len(cand) == 1 and ours.has_spans and theirs.has_spans
    in_turn = known and _overlap(visits["began_ns"], visits["ended_ns"]) and _overlap(*[visits["began_s"]] * 2)
    # Only runs made in turn overlap in time; the rounds of others are ordered by when their runs were created.
    began = visits["began_ns"] if in_turn else np.array([[side.created_s()] for side in (ours, theirs)])
    shares = shares_of(visits["caller_us"], visits["fast_us"])
    inline = frozenset(cell for cell, both in paths.items() if {*both} == {EffectivePath.CPU_INLINE})
    by_cpu = np.array([cell in inline for cell in cells], dtype=bool)  # their margin allows for its changes
    marks = spoiled(visits, (shares >= CPU_BOUND) & ~by_cpu, copies) if in_turn else {}
    controls = _controls(visits["probe_us"], copies, marks)
    processes = _new_processes(visits["process"]) if in_turn else None
    visits["caller_us"][:, (shares < CALLER_BOUND) | by_cpu | (not in_turn)] = math.nan
    visits[:, [cell in failed for cell in cells]] = math.nan
    made = np.isfinite(visits["fast_us"]).all(axis=0)
    for mark in marks.values():
        visits[:, mark] = math.nan
    return Pairs(
        cells,
        visits,
        order=np.nan_to_num(np.sign(np.subtract(*np.fmin.reduce(began, axis=1)[::-1]))),
        controls=controls,
        failed=failed,
        without_figure=without_figure,
        faults=[] if stopped else [*ours.unfinished(), *theirs.unfinished()],
        paths={cell: f"path: {old} -> {new}" for cell, (old, new) in paths.items() if new and old != new},
        inline=inline,
        notes=[*about_backends(ours.measured, theirs.measured), *notes],
        disturbed={cause: count for cause, mark in marks.items() if (count := int((mark & made).sum()))},
        in_turn=in_turn,
        processes=processes,
    )


def _without_times(ours: _Side, theirs: _Side, names: Mapping[Cell, Cell]) -> tuple[dict[Cell, str], frozenset[Cell]]:
    """Return why cells have no times to compare, and which of them were measured but have no figure."""
    errors = {cell: [*ours.errors(cell), *theirs.errors(name)] for cell, name in names.items()}
    no_figure = {
        cell: [*ours.no_figure(cell), *theirs.no_figure(name)] for cell, name in names.items() if not errors[cell]
    }
    failed = {cell: few(list(dict.fromkeys(why))) for cell, why in {**errors, **no_figure}.items() if why}
    return failed, frozenset(cell for cell, why in no_figure.items() if why)


def _overlap(began: Floats, ended: Floats) -> bool:
    """Return whether neither side began after the other had ended, as far as is known; shape (2, cells, rounds)."""
    first, last = np.fmin.reduce(began, axis=(1, 2)), np.fmax.reduce(ended, axis=(1, 2))
    return not bool((first > last[::-1]).any())


def _sides(base: Sequence[Run], cand: Sequence[Run]) -> tuple[_Side, _Side]:
    """Return both sides, which have the same number of rounds; raises UsageError if they do not, or have none."""
    ours, theirs = _Side("base", base), _Side("cand", cand)
    if len(base) == len(cand) == 1:  # after an interruption one side can lack a round of the other
        ours.rounds = theirs.rounds = sorted({*ours.rounds, *theirs.rounds})
    if len(ours.rounds) != len(theirs.rounds) or not ours.rounds:
        raise UsageError(
            f"{len(ours.rounds)} rounds of the base and {len(theirs.rounds)} of the candidate; give runs with the same "
            "number of rounds, at least one, in the order of their rounds"
        )
    return ours, theirs


def _partnered(ours: _Side, theirs: _Side) -> dict[Cell, Cell]:
    """Return the cells of both sides in a fixed order, under the base's names, with their names on the other side."""
    partner = partners(ours.measured, theirs.measured)
    if ours.measured and theirs.measured and not partner:
        raise MismatchError(
            f"the runs have no cell in common: the base has, for example, {ours.measured[0].label}, the candidate "
            f"{theirs.measured[0].label}; compare runs of one suite"
        )
    back = {there: here for here, there in partner.items()}
    every = dict.fromkeys([*ours.measured, *(back.get(cell, cell) for cell in theirs.measured)])
    cells = sorted(every, key=attrgetter("backend", "direction", "stream_state", "blocks", "block_bytes", "id"))
    return {cell: partner.get(cell, cell) for cell in cells}


def _new_processes(numbers: Floats) -> Floats | None:
    """Return how often both sides had new worker processes before each round; None if unknown.

    `numbers` are those of each side's process by cell and round, NaN if unknown.
    """
    sides = np.fmin.reduce(numbers, axis=1)
    if np.isnan(sides).all(axis=1).any():
        return None
    return np.asarray(np.fmin(*(sides - np.nanmin(sides, axis=1, keepdims=True))))


def _large_copies(base: _Side, cand: _Side) -> tuple[dict[str, Floats], list[str]]:
    """Return direction -> times of both sides' control copies, of shape (2, rounds), and warnings.

    Without controls, ceilings are used instead.
    """
    ours, theirs = base.copies_us(Control), cand.copies_us(Control)
    notes = []
    if not ours or ours.keys() != theirs.keys():
        notes = ["not every run has control copies; the ceilings, which are copies by the engine, are used instead"]
        ours, theirs = base.copies_us(Ceiling), cand.copies_us(Ceiling)
    if not ours or ours.keys() != theirs.keys():
        notes = ["no run has control copies or ceilings, so it is unknown whether the machine was steady"]
    directions = sorted(ours.keys() & theirs.keys())
    return {direction: np.array([ours[direction], theirs[direction]]) for direction in directions}, notes


def _controls(probes_us: Floats, copies_us: Mapping[str, Floats], marks: Mapping[str, Mask]) -> dict[str, Floats]:
    """Return name -> log ratio of the candidate's time to the base's, by round; the CPU's is without spoiled pairs."""
    controls = {direction: np.log(sides[1]) - np.log(sides[0]) for direction, sides in copies_us.items()}
    if marks:
        logs = np.where(marks[CPU] | marks["disturbed visit"], math.nan, np.log(probes_us[1]) - np.log(probes_us[0]))
        controls[CPU] = np.array([middle_of(column) for column in logs.T])
    return controls


def _created_s(run: Run) -> float:
    try:
        return datetime.fromisoformat(run.info.created).timestamp()
    except (ValueError, OverflowError):  # an untrusted run
        return math.nan
