"""What there is to choose from: the methods that were measured at a shape or beside a step, what visits took, and which
method is the best for some shapes.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import chain
from math import log
from statistics import fmean, median, median_low
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from kvbench.analysis.compare import (
    MIN_PAIRS,
    Comparison,
    Verdict,
    Visits,
    compare_apart,
    compare_over,
    log_ratios,
    mean_comparison,
    median_interval,
)
from kvbench.analysis.margins import KNEE, TIED
from kvbench.cells.axes import Direction, Situation
from kvbench.cells.cell import Cell, SwapShape
from kvbench.cells.facts import BATCH_MAY_USE_SMS_FROM, BATCHED, COPIER, MERGED, PER_BLOCK, PRIMED, SM, TRITON
from kvbench.cells.installed import engines
from kvbench.cells.policy import Choice
from kvbench.cells.units import gigabytes_per_second
from kvbench.results.between_runs import kind_of, spread_between
from kvbench.results.outcomes import Cost

# Backends without SMs come first, with the single batched call as the simplest; then kvbench's kernel, then others.
_SIMPLEST: Final = (BATCHED, PRIMED, PER_BLOCK, SM, TRITON)
# A search visits what it chose afresh in rounds from this one on; a sweep has fewer.
FRESH_FROM: Final = 1000
# The rounds of several runs are apart by this much, so that only visits of one run are pairs.
RUN_STEP: Final = 100_000
# The share of the shapes at which a method must have been measured to serve for all of them.
MEASURED: Final = 0.7
# The shapes at which an SM count was compared.
_LEAST_SHAPES: Final = 2
# The parts of the rounds that are judged in turn.
FOLDS: Final = 6

# The number of blocks of a large swap, as beside a step.
LARGE_SWAP: Final = 4096

# The times of the methods for swaps of one shape.
Arms = Mapping[Choice, Visits]


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

    @classmethod
    def of_visits(cls, shape: SwapShape, visits: Arms, caller_us: Mapping[Choice, list[float]], card: str) -> Self:
        """What all visits say, and the times of the caller in each run."""
        called = {choice: times for choice, times in visits.items() if choice.backend == COPIER}
        methods = {choice: times for choice, times in visits.items() if choice.backend != COPIER}
        chosen_by = _rounds_of(methods, lambda number: number % RUN_STEP < FRESH_FROM)
        fresh = _rounds_of(methods, lambda number: number % RUN_STEP >= FRESH_FROM)
        medians_us = {choice: median(times) for choice, times in caller_us.items()}
        return cls(shape, chosen_by, chosen_by, fresh, medians_us, called, card)

    def only(self, keep: Callable[[Choice], bool]) -> "Measured":
        """The same with only the methods that `keep` accepts to choose from."""
        return replace(self, arms={choice: visits for choice, visits in self.arms.items() if keep(choice)})

    def in_rounds_of(self, choice: Choice) -> "Measured":
        """The same with only the methods that share a round, and so a start of kvbench, with one of them."""
        rounds = self.methods[choice].keys()
        methods = {method: visits for method, visits in self.methods.items() if visits.keys() & rounds}
        called = {method: visits for method, visits in self.called.items() if visits.keys() & rounds}
        return replace(self, methods=methods, called=called)

    @property
    def kept_arms(self) -> "KeptArms":
        """The arms of the shape taken alone."""
        return KeptArms(self.arms, self)

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


class Arm(NamedTuple):
    """A method beside a step: what each visit cost, by round; the rounds of several runs are apart."""

    choice: Choice
    cell: Cell
    costs: Mapping[int, Cost]

    @property
    def starts(self) -> dict[int, object]:
        """The start of a worker that made each visit."""
        return {number: (number // RUN_STEP, cost.process) for number, cost in self.costs.items()}

    def figures(self, *, thread_counts: bool) -> dict[int, float]:
        """What each GB takes from the step, and from its thread, in ms."""
        return {
            number: cost.lost_ms_per_gb + (cost.thread_ms_per_gb if thread_counts else 0.0)
            for number, cost in self.costs.items()
        }


# What was measured beside steps, by direction and situation.
MeasuredBeside = Mapping[tuple[Direction, Situation], Sequence[Arm]]


def arms_by_size(arms: Sequence[Arm]) -> dict[int, list[Arm]]:
    """The arms of each block size, each choice by its swap that is nearest to a large one."""
    nearest: dict[int, dict[Choice, Arm]] = {arm.cell.block_bytes: {} for arm in arms}
    # The farthest first, so that the last of a choice, which stays, is the nearest to a large swap.
    for arm in sorted(arms, key=lambda arm: -abs(log(arm.cell.blocks / LARGE_SWAP))):
        nearest[arm.cell.block_bytes][arm.choice] = arm
    return {size: sorted(by.values(), key=lambda arm: preference(arm.choice)) for size, by in nearest.items()}


def round_in(run: int, round_: int) -> int:
    """The number of a round among those of several runs."""
    return run * RUN_STEP + round_


def _rounds_of(arms: Arms, keep: Callable[[int], bool]) -> dict[Choice, Visits]:
    """Some rounds of the methods, without the methods that have none of them."""
    kept = {choice: {number: us for number, us in visits.items() if keep(number)} for choice, visits in arms.items()}
    return {choice: visits for choice, visits in kept.items() if visits}


def of_fold(arms: Arms, fold: int, *, within: bool) -> dict[Choice, Visits]:
    """The rounds of a fold, or all others."""
    return _rounds_of(arms, lambda number: (number % RUN_STEP % FOLDS == fold) is within)


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


def nearest_shape(shapes: Iterable[Measured], block_bytes: int, blocks: int) -> Measured:
    """The measured shape that is nearest in ratio: by block size, then by number of blocks."""

    def distance(measured: Measured) -> tuple[float, float]:
        return abs(log(measured.shape.block_bytes / block_bytes)), abs(log(measured.shape.blocks / blocks))

    return min(shapes, key=distance)


def fastest(arms: Arms) -> Choice:
    return min(arms, key=lambda choice: typical(arms[choice].values()))


class KeptArms(dict[Choice, Visits]):
    """The arms of a shape, and what many sets of shapes ask of it: `losses` and `ratios`, each computed once."""

    def __init__(self, visits: Arms, measured: Measured) -> None:
        super().__init__(visits)
        self.measured = measured
        self.ratios = cache(lambda base, other: log_ratios(self.get(base, {}), self.get(other, {})))
        self.across_starts = cache(self._compare_across_starts)

    def _compare_across_starts(self, base: Choice, other: Choice) -> Comparison:
        """Compare two methods that no round has both of: each start of kvbench moves them by the spread of starts."""
        between = max(map(self.measured.between, (base, other)))
        return compare_apart([*self[base].values()], [*self[other].values()], TIED, between)

    @cached_property
    def losses(self) -> Mapping[Choice, float]:
        """The log of the time of each method over that of the fastest."""
        middles = {choice: log(typical(times.values())) for choice, times in self.items()}
        least = min(middles.values())
        return {choice: middle - least for choice, middle in middles.items()}


@dataclass(frozen=True)
class Pick:
    """The `choice` for some shapes, and the methods that cannot be told apart from the `best`, by preference."""

    choice: Choice
    best: Choice
    alike: Sequence[Choice]
    methods: Sequence[Choice]
    shapes: Sequence[KeptArms]

    @cached_property
    def compared(self) -> Mapping[Choice, Comparison | None]:
        """The choice against every other method, None where no shape was measured with both."""
        others = (method for method in self.methods if method != self.choice)
        return {other: compare_methods(self.shapes, self.choice, other) for other in others}

    @property
    def open(self) -> Sequence[Choice]:
        """The other methods that could be faster than the choice by more than `TIED`, those never compared included."""
        return [other for other, compared in self.compared.items() if compared is None or could_gain(compared)]


def could_gain(compared: Comparison) -> bool:
    """Whether another method could be faster than a choice by more than `TIED` in another run."""
    return compared.low < 1 / (1 + TIED.fraction)


def pick(shapes: Sequence[KeptArms], needed: Mapping[Choice, int] = MappingProxyType({})) -> Pick:
    """Choose the method for swaps of all these shapes; `needed` has the SMs of methods whose choice does not say.

    A method that lacks two visits or more for a verdict, while others have enough, was dropped by a search.
    """
    visits = Counter[Choice]()
    for arms in shapes:
        visits.update({choice: len(times) for choice, times in arms.items()})
    raced = min(MIN_PAIRS, max(visits.values())) - 1
    means = {choice: loss for choice, loss in _mean_losses(shapes).items() if visits[choice] >= raced}
    prefer = partial(preference, needed=needed)
    best = min(means, key=lambda choice: (means[choice], prefer(choice)))
    alike = [choice for choice in sorted(means, key=prefer) if choice == best or _is_as_good(shapes, best, choice)]
    chosen = alike[0]
    batched = min((choice for choice in means if choice.backend == BATCHED), key=means.__getitem__, default=None)
    if batched is not None:
        # What replaces batched copies must be told apart from them.
        faster = (choice for choice in alike if choice.backend != BATCHED and _is_slower(shapes, choice, batched))
        chosen = next(faster, batched)
    return Pick(chosen, best, alike, [*means], shapes)


def _mean_losses(shapes: Sequence[KeptArms]) -> dict[Choice, float]:
    """The mean loss of each method over the shapes that measured it, of those measured at enough of the shapes."""
    counts = Counter(chain.from_iterable(shapes))
    enough = min(MEASURED * len(shapes), max(counts.values()))
    frequent = [choice for choice, count in counts.items() if count >= enough]
    return {choice: fmean(arms.losses[choice] for arms in shapes if choice in arms) for choice in frequent}


def compare_methods(shapes: Sequence[KeptArms], base: Choice, other: Choice) -> Comparison | None:
    """Compare the times of `other` with those of `base` over the shapes that measured both; None without any.

    Visits of a round alternate between methods, so they are a pair; so are blocks of samples that were taken in turn.
    Where most shapes have both in different rounds alone, these are compared apart: nothing is equal that was not
    compared.
    """
    common = [arms for arms in shapes if base in arms and other in arms]
    if not common:
        return None
    pairs = [*filter(None, (arms.ratios(base, other) for arms in common))]
    if 2 * len(pairs) >= len(common):
        return compare_over(pairs, TIED)
    # The mean weighs the shapes with pairs, which share one comparison, as much as the others.
    in_turn = [compare_over(pairs, TIED)] * len(pairs) if pairs else []
    apart = [arms.across_starts(base, other) for arms in common if not arms.ratios(base, other)]
    return mean_comparison(in_turn + apart, TIED)


def _is_as_good(shapes: Sequence[KeptArms], best: Choice, other: Choice) -> bool:
    """Whether a method may lose nothing at all against the best, or loses no more than a margin.

    That is `TIED`, and `KNEE` between SM counts of one method: beyond it, more SMs cost the work beside more than they
    gain. Visits too few for an interval leave everything open, and the ratio says the most.
    """
    compared = compare_methods(shapes, best, other)
    if compared is None:
        return False
    margin = KNEE if best.without_sms == other.without_sms else TIED
    return compared.ratio <= 1 + margin.fraction or 0 < compared.low <= 1


def _is_slower(shapes: Sequence[KeptArms], base: Choice, other: Choice) -> bool:
    compared = compare_methods(shapes, base, other)
    return compared is not None and compared.verdict is Verdict.SLOWER


def alike_sms(shapes: Sequence[KeptArms]) -> list[Choice]:
    """The SM counts of a kernel that cannot be told apart from the best, the fewest first, of those measured at two
    shapes or more.

    One of these has the fewest blocks: a count that suffices for large swaps can be too few for small ones.
    """
    counts, means = Counter(chain.from_iterable(shapes)), _mean_losses(shapes)
    at_fewest_blocks = min(shapes, key=lambda arms: arms.measured.shape.blocks)
    best = min(means, key=lambda choice: (choice not in at_fewest_blocks, means[choice], choice.sms))
    compared = [choice for choice in at_fewest_blocks if counts[choice] >= min(_LEAST_SHAPES, len(shapes))]
    alike = [choice for choice in {best, *compared} if choice == best or _is_as_good(shapes, best, choice)]
    return sorted(alike, key=lambda choice: choice.sms)
