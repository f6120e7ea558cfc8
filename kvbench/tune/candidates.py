"""What there is to choose from: the methods that runs measured for swaps of each shape, with the times of visits."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, median_low
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kvbench.analysis.compare import MIN_PAIRS, Visits, median_interval
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.blocks import TRACE
from kvbench.cells.cell import Cell, SwapShape
from kvbench.cells.facts import (
    BATCH_MAY_USE_SMS_FROM,
    BATCHED,
    COPIER,
    MERGED,
    NO_CHOICES,
    PER_BLOCK,
    PRIMED,
    SM,
    TRITON,
)
from kvbench.cells.installed import engines
from kvbench.cells.policy import Choice
from kvbench.cells.units import gigabytes_per_second
from kvbench.ground.errors import UsageError
from kvbench.ground.text import a_stream, printable
from kvbench.results import Run, Visit
from kvbench.results.between_runs import kind_of, spread_between
from kvbench.results.outcomes import by_cell
from kvbench.tune.origin import candidate_cells, machine_of, one_workload, usual_text

# Backends without SMs come first, with the single batched call as the simplest; then kvbench's kernel, then others.
_SIMPLEST: Final = (BATCHED, PRIMED, PER_BLOCK, SM, TRITON)
# A search visits what it chose afresh in rounds from this one on; a sweep has fewer.
FRESH_FROM: Final = 1000
# The rounds of several runs are apart by this much, so that only visits of one run are pairs.
RUN_STEP: Final = 100_000
# The swaps of a trace in one direction are divided by size into this many parts, or fewer.
PARTS: Final = 4
_SWAPS_OF: Final = ("sha256", "descriptors", *Direction)  # of a trace in a spec: its file, and which of its swaps

# The times of the methods for swaps of one shape.
Arms = Mapping[Choice, Visits]
_Blocks = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What was measured of swaps of one shape: all `methods`, and `arms`, those to choose from, by the visits that
    decide; and `fresh` visits, which had no part in the choice of a search. `caller_us` are the times that a swap
    takes from its thread. A copier, `called` from Python, follows such a choice and is none. `card` is the title of the
    device.
    """

    shape: SwapShape
    arms: Arms
    methods: Arms
    fresh: Arms = field(default_factory=dict)
    caller_us: Mapping[Choice, float] = field(default_factory=dict)
    called: Arms = field(default_factory=dict)
    card: str = ""

    def only(self, keep: Callable[[Choice], bool]) -> "Measured":
        """The same with only the methods that `keep` accepts to choose from."""
        return replace(self, arms={choice: visits for choice, visits in self.arms.items() if keep(choice)})

    def in_rounds_of(self, choice: Choice) -> "Measured":
        """The same with only the methods that share a round, and so a start of kvbench, with one of them."""
        rounds = self.methods[choice].keys()
        methods = {method: visits for method, visits in self.methods.items() if visits.keys() & rounds}
        called = {method: visits for method, visits in self.called.items() if visits.keys() & rounds}
        return replace(self, methods=methods, called=called)

    def visits_of(self, choice: Choice) -> Visits:
        """The visits that say what a method takes: fresh ones where there are any, since those that chose it flatter
        it.
        """
        return self.fresh.get(choice) or self.methods.get(choice) or self.called[choice]

    def us_of(self, choice: Choice, *others: Choice) -> float:
        """The time of a swap by a method, from the rounds that measured `others` too if any."""
        visits = self.visits_of(choice)
        common = set(visits).intersection(*map(self.visits_of, others))
        return typical([visits[number] for number in common or visits])

    def gbps_of(self, choice: Choice) -> float:
        return gigabytes_per_second(self.shape.blocks * self.shape.block_bytes, self.us_of(choice))

    def interval_of(self, choice: Choice) -> tuple[float, float] | None:
        visits = list(self.visits_of(choice).values())
        return median_interval(visits) if len(visits) >= MIN_PAIRS else None

    def best_of(self, *backends: str) -> Choice | None:
        """The fastest of all that was measured of some backends, or None."""
        return min((choice for choice in self.methods if choice.backend in backends), key=self.us_of, default=None)

    def standing_for(self, choice: Choice) -> Choice | None:
        """The method as it was measured here, or the same with the next smaller SM count, or None.

        For a method without an SM count, that of the default rule: the only one, or the fewest.
        """
        method = choice.without_sms
        counts = sorted((other for other in self.methods if other.without_sms == method), key=lambda other: other.sms)
        fewer = [other for other in counts if other.sms <= choice.sms]
        return fewer[-1] if fewer else counts[0] if counts and choice == method else None

    def between(self, choice: Choice) -> float:
        """The fraction by which times of a method at this shape differ from start to start of kvbench."""
        kind = kind_of(choice.backend, self.shape.blocks * self.shape.block_bytes)
        return spread_between(self.card, kind).fraction


def shapes_of(
    runs: Sequence[Run], keep: Callable[[Choice], bool], state: str | None = None, **only: str | None
) -> list[Measured]:
    """The measurements of every shape, or part of the swaps of a trace, by the methods that `keep` accepts.

    Raises UsageError where nothing is left to choose from.
    """
    traced = all(run.trace for run in runs)
    shapes = swaps_of_trace(runs) if traced else measured_in(runs, **only)
    in_state = [measured.only(keep) for measured in shapes if state in (None, measured.shape.stream_state)]
    allowed = [measured for measured in in_state if measured.arms]
    if not allowed:
        stream = f" on {a_stream(state)}" if state else ""
        limits = "with the allowed backends and SM counts"
        raise UsageError(f"nothing to choose from: no swap was measured{stream} {limits}")
    return allowed


def measured_in(runs: Sequence[Run], **only: str | None) -> list[Measured]:
    """The measurements of every shape for which runs of one device have two backends or more.

    `only` takes the swaps with these values of axes alone, such as a pause. A failed cell is no candidate. Raises
    UsageError without any, and for runs of several devices.
    """
    card, _ = machine_of(runs)
    wanted = {axis: value for axis, value in only.items() if value is not None}

    def is_wanted(cell: Cell) -> bool:
        return all(usual_text(cell, axis) == value for axis, value in wanted.items())

    workload = set(one_workload(filter(is_wanted, candidate_cells(runs))))
    arms, caller_us = _times_of(runs, workload)
    backends: dict[SwapShape, set[str]] = {}
    for cell in workload:
        # Failed cells too: at a shape where all others failed, the one that swapped is the answer.
        backends.setdefault(SwapShape.of_cell(cell), set()).add(cell.backend)
    several = [shape for shape in sorted(arms) if len(backends[shape].difference(NO_CHOICES)) > 1]
    if not several:
        names = sorted({cell.backend for cell in workload} - {*NO_CHOICES})
        what = f"{names[0]} alone was measured" if len(names) == 1 else "no shape was measured with two backends"
        raise UsageError(f"nothing to choose from: {what}; measure more, such as -a backend=batched,sm")
    return [_measured(shape, arms[shape], caller_us[shape], card) for shape in several]


_VisitTimes = dict[SwapShape, dict[Choice, dict[int, float]]]
_CallerTimes = dict[SwapShape, dict[Choice, list[float]]]


def _times_of(runs: Sequence[Run], cells: Collection[Cell]) -> tuple[_VisitTimes, _CallerTimes]:
    """The visits of each choice at each shape, and the median time of its caller in each run."""
    arms: _VisitTimes = {}
    caller_us: _CallerTimes = {}
    for number, run in enumerate(runs):
        for cell, outcome in run.outcomes.items():
            times_us = outcome.times() if cell in cells and cell.backend not in NO_CHOICES - {COPIER} else {}
            if times_us:
                choice, shape = Choice.of_cell(cell, plug_in=outcome.plug_in), SwapShape.of_cell(cell)
                visits = arms.setdefault(shape, {}).setdefault(choice, {})
                visits |= {number * RUN_STEP + round_: us for round_, us in times_us.items()}
                caller_us.setdefault(shape, {}).setdefault(choice, []).append(outcome.us("caller_us"))
    return arms, caller_us


def shapes_in_runs(runs: Sequence[Run]) -> dict[int, list[Measured]]:
    """The measurements of blocks in contiguous runs by the length of these, the shortest first; none of a length with
    too few backends.
    """
    patterns = {cell.pattern for run in runs for cell in run.outcomes}
    by_length: dict[int, list[Measured]] = {}
    for pattern in sorted((pattern for pattern in patterns if pattern.kind == "runs"), key=lambda pattern: pattern.run):
        with suppress(UsageError):
            by_length[pattern.run] = measured_in(runs, pattern=str(pattern))
    return by_length


def _measured(shape: SwapShape, arms: Arms, caller_us: Mapping[Choice, list[float]], card: str) -> Measured:
    called = {choice: visits for choice, visits in arms.items() if choice.backend == COPIER}
    methods = {choice: visits for choice, visits in arms.items() if choice.backend != COPIER}
    chosen_by = rounds_of(methods, lambda number: number % RUN_STEP < FRESH_FROM)
    fresh = rounds_of(methods, lambda number: number % RUN_STEP >= FRESH_FROM)
    medians_us = {choice: median(times) for choice, times in caller_us.items()}
    return Measured(shape, chosen_by, chosen_by, fresh, medians_us, called, card)


def rounds_of(arms: Arms, keep: Callable[[int], bool]) -> dict[Choice, Visits]:
    """Some rounds of the methods, without the methods that have none of them."""
    kept = {choice: {number: us for number, us in visits.items() if keep(number)} for choice, visits in arms.items()}
    return {choice: visits for choice, visits in kept.items() if visits}


class _ReplayedSwap(NamedTuple):
    blocks: int
    us: float
    thread_us: float


# The visits of swaps of a trace, by choice, then by the number of the swap.
_Replays = dict[Choice, dict[int, list[_ReplayedSwap]]]


def swaps_of_trace(runs: Sequence[Run]) -> list[Measured]:
    """The swaps of replays, a shape for each part of the swaps of a direction; a round is a swap's number.

    The times are those of a swap of the size that stands for the part, at the rate of the swap. Raises UsageError
    without swaps that every method made, and for runs of different swaps or of several devices.
    """
    machine_of(runs)
    # Numbers of swaps are the same swaps only in replays of one file with one choice from it.
    replayed = [{name: run.trace.get(name) for name in _SWAPS_OF} for run in runs]
    if any(swaps != replayed[0] for swaps in replayed):
        paths = (Path(str(run.trace.get("path", ""))) for run in runs)
        names = " and ".join(sorted({path.name or "the trace" for path in paths}))
        raise UsageError(
            printable(f"RUN: the runs replay different swaps, of {names}; give runs of one trace and seed")
        )
    by_side: dict[tuple[Direction, int], _Replays] = {}
    for run in runs:
        for cell, visits in by_cell(run.visits).items():
            if cell.sequence == TRACE and cell.backend not in NO_CHOICES and run.outcomes[cell].medians:
                replays = by_side.setdefault((cell.direction, cell.block_bytes), {})
                _add_swaps(replays.setdefault(Choice.of_cell(cell), {}), visits)
    parts: list[Measured] = []
    for (direction, block_bytes), replays in sorted(by_side.items()):
        if len({choice.backend for choice in replays}) > 1:
            parts += _parts_of(direction, block_bytes, replays)
    if not parts:
        raise UsageError("nothing to choose from: no swap of the trace was made by two backends or more")
    return parts


def _add_swaps(by_number: dict[int, list[_ReplayedSwap]], visits: Sequence[Visit]) -> None:
    """Add every swap that the visits of a cell replayed."""
    for visit in visits:
        samples = visit.samples
        numbers, blocks = samples.swap_numbers or (), samples.swap_blocks or ()
        for number, *swap in zip(numbers, blocks, samples.wall_us, samples.caller_us, strict=False):
            by_number.setdefault(number, []).append(_ReplayedSwap(int(swap[0]), swap[1], swap[2]))


def _parts_of(direction: Direction, block_bytes: int, replays: _Replays) -> list[Measured]:
    # Only swaps that every choice made are compared.
    numbers = sorted(set.intersection(*(set(by_number) for by_number in replays.values())))
    first = next(iter(replays.values()))
    blocks = np.array([first[number][0].blocks for number in numbers], dtype=np.int64)
    parts = []
    for indices in parts_of(blocks) if numbers else ():
        label = label_of(blocks[indices])
        in_part = [numbers[index] for index in indices.tolist()]
        arms: dict[Choice, Visits] = {}
        caller_us: dict[Choice, float] = {}
        for choice, by_number in replays.items():
            swaps = {number: _mean_at_rate(by_number[number], label) for number in in_part}
            times_us = {number: swap.us for number, swap in swaps.items() if swap.us > 0}
            if times_us:
                arms[choice] = times_us
            caller_us[choice] = median(swap.thread_us for swap in swaps.values())
        shape = SwapShape(direction, StreamState.IDLE, label, block_bytes)
        parts.append(Measured(shape, arms, arms, {}, caller_us))
    return parts


def _mean_at_rate(visits: Sequence[_ReplayedSwap], blocks: int) -> _ReplayedSwap:
    """The mean of the visits of a swap, as it would be with another number of blocks at the same rate."""

    def at_rate(times_us: Iterable[float]) -> float:
        return sum(times_us) / len(visits) / visits[0].blocks * blocks

    return _ReplayedSwap(blocks, at_rate(swap.us for swap in visits), at_rate(swap.thread_us for swap in visits))


def parts_of(blocks: _Blocks) -> list[_Blocks]:
    """The indices of the swaps of each part, of swaps with these numbers of blocks, the smallest first.

    The parts have about equal shares of the bytes, so that each counts for about its share of the time. A part without
    the swaps that a verdict needs joins the one below it, or the first the one above; so does one whose middle swap is
    as large.
    """
    order = np.argsort(blocks, kind="stable")
    before = np.cumsum(blocks[order]) - blocks[order]
    part = before * PARTS // max(1, int(blocks.sum()))
    parts: list[_Blocks] = []
    for indices in (order[part == number] for number in range(PARTS)):
        too_small = bool(parts) and min(len(indices), len(parts[-1])) < MIN_PAIRS
        if too_small or (parts and label_of(blocks[indices]) == label_of(blocks[parts[-1]])):
            parts[-1] = np.concatenate([parts[-1], indices])
        elif len(indices):
            parts.append(indices)
    return parts


def label_of(blocks: _Blocks) -> int:
    """The number of blocks that stands for a part: that of its middle swap."""
    return int(np.sort(blocks)[len(blocks) // 2])


def typical(times: Collection[float]) -> float:
    """The median of some visits; of too few for a verdict the lower middle, since a disturbance only slows."""
    return median(times) if len(times) >= MIN_PAIRS else median_low(times)


def preference(choice: Choice, needed: Mapping[Choice, int] = MappingProxyType({})) -> tuple[int, int, str]:
    """Sort key of choices that are not told apart: the SMs that one takes, or `needed` says, then how simple it is."""
    simplicity = _SIMPLEST.index(choice.backend) if choice.backend in _SIMPLEST else len(_SIMPLEST)
    return needed.get(choice, choice.sms), simplicity, str(choice)


def may_take_sms(choice: Choice, driver: int) -> bool:
    """Whether a driver (13010: CUDA 13.1) may make the copies of a choice with SMs: batched ones without the
    prefer-overlap flag.
    """
    copies = {BATCHED, MERGED, PRIMED, *(engine.same_as for engine in engines().values())}
    asks = dict(choice.axes).get("overlap") == "on"
    return driver >= BATCH_MAY_USE_SMS_FROM and choice.backend in copies and not asks
