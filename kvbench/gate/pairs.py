"""Pairs the cells of two sides, round by round: partners, outcomes and paired times."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Final

import numpy as np

from kvbench.analysis.intervals import Floats
from kvbench.analysis.margins import SLOW_CPU
from kvbench.cells.axes import StreamState
from kvbench.cells.cell import AXES, Cell
from kvbench.errors import MismatchError, UsageError, brief
from kvbench.gate.disturbance import CPU, Mask, spoiled
from kvbench.machine.identity import OF_THE_BUILD, differences
from kvbench.results import Ceiling, Control, Failure, Run, Skip, Visit
from kvbench.results.cost import cost_of
from kvbench.results.schema import EffectivePath

_SHOWN: Final = 3
# Between two sides with the same code, on a busy host, the lower tenths of visits differ by a third to a half of the
# difference of their medians (H200, driver 580.159.04, 114 cells).
FAST_SHARE: Final = 0.1
# The shares of a swap's time from which its submission is protected from a slow CPU, and judged itself.
CPU_BOUND: Final = 1 / 3
SUBMISSION_BOUND: Final = 1 / 2
NO_FIGURE: Final = "no delay outlasted the submission in every sample, so execution could not be measured separately"


@dataclass(frozen=True, slots=True)
class Pairs:
    """The cells of both sides in a fixed order, under the base's names, and their times by `visit_us`.

    `base_us` and `cand_us` have the shape (cells, rounds), with NaN if a round did not measure a cell, or if the pair
    was spoiled. `slowdowns` are those of the cells' neighbours on each side, with the shape (2, cells, rounds), and
    NaN for cells without a neighbour too. `submissions_us` has the same shape, and NaN for cells whose submission takes
    less than `SUBMISSION_BOUND` of their time or copies; it is None for runs that were not made in turn.

    `order` is 1 for every round in which the candidate ran second, -1 if it ran first, 0 if unknown. `controls` maps a
    name to the log ratios of the candidate's time to the base's, by round, of controls that no build affects. `failed`
    has a reason for every cell that failed or is missing on a side; all its times are NaN. `faults` are failures of
    whole runs; `paths` are changes of the effective path ("copy engine -> CPU inline"), `inline` the cells that the CPU
    copies on both sides. `disturbed` is the number of pairs that each cause spoiled; `in_turn` is true if visits were
    paired with visits, not runs with runs.
    """

    cells: Sequence[Cell]
    base_us: Floats
    cand_us: Floats
    order: Floats
    controls: Mapping[str, Floats]
    slowdowns: Floats | None = None
    submissions_us: Floats | None = None
    failed: Mapping[Cell, str] = field(default_factory=dict)
    faults: Sequence[str] = ()
    paths: Mapping[Cell, str] = field(default_factory=dict)
    inline: frozenset[Cell] = frozenset()
    notes: Sequence[str] = ()
    disturbed: Mapping[str, int] = field(default_factory=dict)
    in_turn: bool = False


class _Side:
    """The runs of one side, and for every round its run and its number in that run."""

    def __init__(self, name: str, runs: Sequence[Run]) -> None:
        self.name = name
        self.runs = runs
        self._visits: dict[Cell, dict[tuple[int, int], Visit]] = {}
        self._failures: dict[Cell, list[Failure]] = {}
        self._skips: dict[Cell, Skip] = {}
        rounds = set()
        for place, run in enumerate(runs):
            for record in run.records:
                match record:
                    case Visit():
                        self._visits.setdefault(record.cell, {})[place, record.round] = record
                        rounds.add((place, record.round))
                    case Failure():
                        self._failures.setdefault(record.cell, []).append(record)
                        rounds.add((place, record.round))
                    case Skip():
                        self._skips[record.cell] = record
        self.rounds: Sequence[tuple[int, int]] = sorted(rounds)

    @property
    def measured(self) -> list[Cell]:
        return list(dict.fromkeys([*self._visits, *self._failures]))

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """The begin and the end of the visits of a single run, or None if unknown or for several runs."""
        every = [visit for own in self._visits.values() for visit in own.values()]
        spans = [visit.span_ns for visit in every if visit.span_ns is not None]
        if len(self.runs) != 1 or not spans or len(spans) < len(every):
            return None
        return min(begin for begin, _ in spans), max(end for _, end in spans)

    def values(self, cells: Sequence[Cell], value: Callable[[Visit], float]) -> Floats:
        """Return a positive value of every visit, of shape (cells, rounds), NaN if there is none."""
        rows = [[value(own[key]) if key in own else math.nan for key in self.rounds] for own in self._of(cells)]
        return np.reshape(_positive(rows), (len(cells), len(self.rounds)))

    def begun_s(self, *, in_turn: bool) -> list[float]:
        """Return the begin of each round in seconds, from its visits or its run; NaN if unknown."""
        if not in_turn:
            return [_created_s(self.runs[place]) for place, _ in self.rounds]
        first: dict[tuple[int, int], float] = {}
        for own in self._visits.values():
            for key, visit in own.items():
                began_s = visit.span_ns[0] / 1e9 if visit.span_ns else math.nan
                first[key] = min(first.get(key, math.inf), began_s)
        return [first.get(key, math.nan) for key in self.rounds]

    def trouble(self, cell: Cell) -> list[str]:
        """Return why the cell has no timing on this side, or []; an unverified cell has none."""
        visits = self._visits.get(cell, {}).values()
        why = [f"failed: {failure.kind}: {failure.message}" for failure in self._failures.get(cell, ())]
        if not visits and not why:
            why = [f"skipped: {self._skips[cell].reason}" if cell in self._skips else "missing"]
        elif not why and not any(visit.verified_bytes for visit in visits):
            why = ["failed: no bytes were verified"]
        elif not why and not any(has_figure(visit) for visit in visits):
            why = [f"no figure: {NO_FIGURE}"]
        return [f"{self.name}: {reason}" for reason in why]

    def paths(self, cell: Cell) -> str:
        """Return the most frequent effective path."""
        counts = Counter(visit.path for visit in self._visits.get(cell, {}).values())
        return counts.most_common(1)[0][0] if counts else ""

    def copies_us(self, kind: type[Control] | type[Ceiling]) -> dict[str, Floats]:
        """Return direction -> undisturbed time of the large copies of every round, NaN if there are none."""
        found: dict[str, dict[tuple[int, int], float]] = {}
        for place, run in enumerate(self.runs):
            for record in run.records:
                if isinstance(record, kind) and record.gpu_us:
                    found.setdefault(record.direction, {})[place, record.round] = _undisturbed_us(record.gpu_us)
        return {way: _positive([own.get(key, math.nan) for key in self.rounds]) for way, own in found.items()}

    def _of(self, cells: Sequence[Cell]) -> list[dict[tuple[int, int], Visit]]:
        return [self._visits.get(cell, {}) for cell in cells]


def has_figure(visit: Visit) -> bool:
    """Return whether a visit has samples and, on a busy stream, the delay outlasted the submission in all of them."""
    samples = visit.samples
    return len(samples) > 0 and (visit.cell.stream_state is not StreamState.BUSY or all(samples.pending_after))


def visit_us(visit: Visit) -> float:
    """Return the undisturbed time of a swap in a visit: the `FAST_SHARE` quantile of swap_us, in microseconds.

    Disturbances of the machine only make copies slower. NaN for a visit without a figure.
    """
    if not has_figure(visit):
        return math.nan
    return _undisturbed_us(getattr(visit.samples, visit.cell.stream_state.swap_clock))


def _undisturbed_us(times_us: Sequence[float]) -> float:
    return float(np.quantile(times_us, FAST_SHARE))


def _slowdown(visit: Visit) -> float:
    """Return how much slower the visit's neighbour was, a ratio; NaN without one."""
    cost = cost_of(visit.beside)
    return math.nan if cost is None else cost.slowdown


def _disturbances(visit: Visit) -> int:
    """Return the number of disturbances of a visit except a slow CPU, because the CPUs of both sides are compared."""
    return len(visit.disturbed) - ((visit.slowdown or 0) > 1 + SLOW_CPU.fraction)


def _submission_us(visit: Visit) -> float:
    """Return the undisturbed time of the submission; NaN where the time of the swap does not hold it."""
    if visit.cell.stream_state is StreamState.BUSY or not has_figure(visit):
        return math.nan
    return _undisturbed_us(visit.samples.submit_us)


def _shares(submissions_us: Floats, times_us: Floats) -> Floats:
    """Return the submission's share of each cell's time, 0 where the time does not hold it."""
    with np.errstate(over="ignore"):  # an untrusted run may hold any time
        shares = submissions_us / times_us
    known = (own[np.isfinite(own)] for own in np.swapaxes(shares, 0, 1))
    return np.array([float(np.median(own)) if own.size else 0.0 for own in known])


def pair(base: Sequence[Run], cand: Sequence[Run]) -> Pairs:
    """Pair the rounds of `base` with those of `cand`; raises UsageError unless both have the same number, at least one.

    Rounds can measure different cells. If the sides are two backends, cells are paired by all other axes. Raises
    MismatchError if both sides measured cells but have none in common.
    """
    ours, theirs = _Side("base", base), _Side("cand", cand)
    in_turn = _in_turn(ours.span_ns, theirs.span_ns)
    if len(base) == len(cand) == 1:  # after an interruption one side can lack a round of the other
        ours.rounds = theirs.rounds = sorted({*ours.rounds, *theirs.rounds})
    if len(ours.rounds) != len(theirs.rounds) or not ours.rounds:
        raise UsageError(
            f"{len(ours.rounds)} rounds of the base and {len(theirs.rounds)} of the candidate; give runs with the same "
            "number of rounds, at least one, in the order of their rounds"
        )
    partner = partners(ours.measured, theirs.measured)
    if ours.measured and theirs.measured and not partner:
        raise MismatchError(
            f"the runs have no cell in common: the base has, for example, {ours.measured[0].label}, the candidate "
            f"{theirs.measured[0].label}; compare runs of one suite"
        )
    back = {there: here for here, there in partner.items()}
    every = dict.fromkeys([*ours.measured, *(back.get(cell, cell) for cell in theirs.measured)])
    cells = sorted(every, key=attrgetter("backend", "direction", "stream_state", "blocks", "block_bytes", "id"))
    names = [partner.get(cell, cell) for cell in cells]
    troubles = {cell: [*ours.trouble(cell), *theirs.trouble(name)] for cell, name in zip(cells, names, strict=True)}
    failed = {cell: _few(list(dict.fromkeys(why))) for cell, why in troubles.items() if why}
    paths = {cell: (ours.paths(cell), theirs.paths(name)) for cell, name in zip(cells, names, strict=True)}
    copies, notes = _large_copies(ours, theirs)

    def both(value: Callable[[Visit], float]) -> Floats:
        return np.array([ours.values(cells, value), theirs.values(names, value)])

    times, slowdowns, submissions = both(visit_us), both(_slowdown), both(_submission_us)
    probes_us = both(lambda visit: visit.probe_us or math.nan)
    disturbed = np.isfinite(both(_disturbances))
    clocks = both(lambda visit: visit.sm_clock_mhz or math.nan)
    shares = _shares(submissions, times)
    inline = frozenset(cell for cell, own in paths.items() if {*own} == {EffectivePath.CPU_INLINE})
    submissions[:, (shares < SUBMISSION_BOUND) | [cell in inline for cell in cells]] = math.nan
    marks = spoiled(disturbed, probes_us, shares >= CPU_BOUND, clocks, copies) if in_turn else {}
    for values in (times, slowdowns, submissions):
        values[:, [cell in failed for cell in cells]] = math.nan
    made = np.isfinite(times).all(axis=0)
    for mark in marks.values():
        times[:, mark] = slowdowns[:, mark] = submissions[:, mark] = math.nan
    return Pairs(
        cells,
        times[0],
        times[1],
        order=np.nan_to_num(np.sign(np.subtract(theirs.begun_s(in_turn=in_turn), ours.begun_s(in_turn=in_turn)))),
        controls=_controls(probes_us, copies, marks),
        slowdowns=slowdowns,
        submissions_us=submissions if in_turn else None,
        failed=failed,
        faults=_unfinished([ours, theirs]) if not _stopped(base, cand) else [],
        paths={cell: f"path: {old} -> {new}" for cell, (old, new) in paths.items() if new and old != new},
        inline=inline,
        notes=[*_about_backends(ours.measured, theirs.measured), *notes, *_stopped(base, cand)],
        disturbed={cause: count for cause, mark in marks.items() if (count := int((mark & made).sum()))},
        in_turn=in_turn,
    )


def _in_turn(base_ns: tuple[int, int] | None, cand_ns: tuple[int, int] | None) -> bool:
    """Whether two runs overlap in time, which only runs made in turn do."""
    if base_ns is None or cand_ns is None:
        return False
    return base_ns[0] < cand_ns[1] and cand_ns[0] < base_ns[1]


def partners(base: Iterable[Cell], cand: Iterable[Cell]) -> dict[Cell, Cell]:
    """Return each cell of the base -> its partner; cells without a partner are omitted.

    A cell's partner is itself, unless each side has a single backend and the two differ: then two backends are
    compared, and a cell's partner is the cell with the same values on all other axes that both backends support.
    Raises UsageError if two cells of a side have the same partner.
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


def check_two(base: Sequence[Run], cand: Sequence[Run]) -> None:
    """Raise UsageError if a run, or a copy of its journal, is on both sides; the message names it."""
    by_path = {run.path.resolve(): run for run in base}
    by_end: dict[str, list[Run]] = {}  # a copied journal also has the same last record
    for run in base:
        if run.records:
            by_end.setdefault(repr(run.records[-1]), []).append(run)
    for theirs in cand:
        ended_so = by_end.get(repr(theirs.records[-1]), []) if theirs.records else []
        copied = next((run for run in ended_so if run.records == theirs.records), None)
        ours = by_path.get(theirs.path.resolve(), copied)
        if ours is not None:
            names = " and ".join(dict.fromkeys(brief(str(run.path)) for run in (ours, theirs)))
            raise UsageError(f"the same run is on both sides of --: {names}; use another run on one side")


def check_identity(base: Sequence[Run], cand: Sequence[Run], *, forced: bool) -> list[str]:
    """Return warnings about runs of different machines; raises MismatchError instead unless `forced`.

    The build can differ between the sides, but not within a side.
    """
    found = []
    for runs in (base, cand):
        build = {name: value for name, value in runs[0].info.identity.items() if name == OF_THE_BUILD}
        expected = {**base[0].info.identity, **build}
        found += [f"{run.path}: {text}" for run in runs for text in differences(expected, run.info.identity)]
    if found and not forced:
        raise MismatchError(
            f"the runs are of different kinds of machines: {_few(found)}; to compare them anyway, add --force"
        )
    return [f"forced: different kinds of machines: {line}" for line in found]


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
    return {way: np.array([ours[way], theirs[way]]) for way in sorted(ours.keys() & theirs.keys())}, notes


def _controls(probes_us: Floats, copies_us: Mapping[str, Floats], marks: Mapping[str, Mask]) -> dict[str, Floats]:
    """Return name -> log ratio of the candidate's time to the base's in every round that was not spoiled."""
    found = {way: np.log(sides[1]) - np.log(sides[0]) for way, sides in copies_us.items()}
    if "link" in marks:
        for logs in found.values():
            logs[marks["link"].any(axis=0)] = math.nan
    if CPU in marks:
        logs = np.where(marks[CPU] | marks["disturbed visit"], math.nan, np.log(probes_us[1]) - np.log(probes_us[0]))
        found[CPU] = np.array([_middle(column) for column in logs.T])
    return found


def _created_s(run: Run) -> float:
    try:
        return datetime.fromisoformat(run.info.created).timestamp()
    except (ValueError, TypeError, OverflowError):  # an untrusted run
        return math.nan


def _stopped(base: Sequence[Run], cand: Sequence[Run]) -> list[str]:
    """Return a note if both sides were interrupted together, which is not a fault of either side."""
    if all(run.info.status == "interrupted" for run in (*base, *cand)):
        return ["both sides were interrupted: only what both measured is judged"]
    return []


def _unfinished(sides: Sequence[_Side]) -> list[str]:
    return [
        f"{side.name}: {run.path} is {run.info.status}, not complete"
        for side in sides
        for run in side.runs
        if run.info.status != "complete"
    ]


def _few(reasons: Sequence[str]) -> str:
    more = len(reasons) - _SHOWN
    return "; ".join(reasons[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _positive(times_us: Sequence[float] | Sequence[Sequence[float]]) -> Floats:
    known = np.asarray(times_us, dtype=np.float64)
    return np.where(known > 0, known, np.nan)  # a time of zero has no ratio


def _middle(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else math.nan


def _about_backends(ours: Sequence[Cell], theirs: Sequence[Cell]) -> list[str]:
    """Return a note if each side has a single backend and the two differ."""
    names = {cell.backend for cell in ours}, {cell.backend for cell in theirs}
    if names[0] == names[1] or any(len(found) != 1 for found in names):
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
