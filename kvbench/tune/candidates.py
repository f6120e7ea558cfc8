"""What there is to choose from: the methods that were measured at a shape or beside a step, with what visits took."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, median_low
from types import MappingProxyType
from typing import Final, NamedTuple

from kvbench.analysis.compare import MIN_PAIRS, Visits, median_interval
from kvbench.cells.axes import Direction, Situation
from kvbench.cells.cell import Cell, SwapShape
from kvbench.cells.facts import BATCH_MAY_USE_SMS_FROM, BATCHED, MERGED, PER_BLOCK, PRIMED, SM, TRITON
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


def round_in(run: int, round_: int) -> int:
    """The number of a round among those of several runs."""
    return run * RUN_STEP + round_


def rounds_of(arms: Arms, keep: Callable[[int], bool]) -> dict[Choice, Visits]:
    """Some rounds of the methods, without the methods that have none of them."""
    kept = {choice: {number: us for number, us in visits.items() if keep(number)} for choice, visits in arms.items()}
    return {choice: visits for choice, visits in kept.items() if visits}


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
