"""The answer: what to use for swaps alone, beside decode steps and beside a prefill, in each direction.

Alone, the times decide. Beside a step, what a swap takes from it and from its thread for each GB decides, among the
methods that move as much as is asked for.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from operator import attrgetter
from statistics import median
from typing import Any, Final, NamedTuple, Self

from kvbench.analysis.compare import least_difference
from kvbench.analysis.margins import LOST
from kvbench.cells.axes import Direction, Situation, StreamState
from kvbench.cells.cell import Cell, SwapKind
from kvbench.cells.policy import Choice
from kvbench.cells.units import KIB
from kvbench.models.geometry import ModelSwap
from kvbench.results.outcomes import grouped, over_starts, slowdown_of
from kvbench.tune.candidates import LARGE_SWAP, Arm, Measured, nearest_shape, preference
from kvbench.tune.evidence import Evidence
from kvbench.tune.rule import Rule, RulePart

# Without --need, swaps in the background must move this share of the rate of large copies.
_NEEDED_SHARE: Final = 0.1
# A step that takes no longer than this is hardly slowed.
GENTLE: Final = 0.1
# The config that measures a situation.
_CONFIGS: Final = {Situation.ALONE: "engine", Situation.DECODE: "beside", Situation.PREFILL: "beside"}

# A centre and the ends of its interval, NaN where the visits are too few for one.
Interval = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of an answer: blocks of `block_bytes`, at least `need_gbps` beside a step (None: a tenth of the
    rate of large copies), whether the time of the thread that submits swaps counts, and by how much a step may take
    longer in a situation, as a fraction. Without `situations`, all. `swaps` are those of models; their loads are
    compared with a prefill of `prefill_tokens_per_s`, unless that is 0.
    """

    block_bytes: int = 16 * KIB
    need_gbps: float | None = None
    thread_counts: bool = True
    limits: Mapping[Situation, float] = field(default_factory=dict)
    situations: Sequence[Situation] = tuple(Situation)
    swaps: Sequence[ModelSwap] = ()
    prefill_tokens_per_s: float = 0


# What a report asks.
USUAL: Final = Question()


class Method(NamedTuple):
    """What a method does in a situation: GB/s, the time of a swap until it is complete, and per GB what it takes of its
    thread. Beside a step, also how many times as long the step takes, and the time that each GB takes from it.
    """

    choice: Choice
    gbps: float
    us: float
    thread_ms_per_gb: float
    slowdown: Interval | None = None
    lost_ms_per_gb: Interval | None = None

    @classmethod
    def beside_step(cls, arm: Arm) -> Self:
        """What a method does beside a step, over the starts of its visits."""
        costs = [*arm.costs.values()]
        gbps = median(cost.gbps for cost in costs)
        thread, *_ = over_starts(costs, lambda cost: cost.thread_ms_per_gb)
        lost = over_starts(costs, lambda cost: cost.lost_ms_per_gb)
        return cls(arm.choice, gbps, arm.cell.swap_bytes / gbps / 1e3, thread, slowdown_of(costs), lost)

    def cost(self, *, thread_counts: bool) -> float:
        """What each GB takes from the step, and from its thread."""
        assert self.lost_ms_per_gb is not None
        return self.lost_ms_per_gb[0] + (self.thread_ms_per_gb if thread_counts else 0.0)

    def to_plain(self) -> dict[str, Any]:
        return {
            "choice": str(self.choice),
            "gbps": _rounded(self.gbps),
            "us": _rounded(self.us),
            "thread_ms_per_gb": _rounded(self.thread_ms_per_gb),
            "slowdown": self.slowdown and [*map(_rounded, self.slowdown)],
            "lost_ms_per_gb": self.lost_ms_per_gb and [*map(_rounded, self.lost_ms_per_gb)],
        }


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Answer:
    """What to use in a direction and a situation for blocks of `block_bytes`, or why there is nothing (`none`).

    Alone, `parts` are the choices by number of blocks, and `use` has the figures of a large swap. `compared_with` are
    the other methods that were compared, `alike` those that cost the same, within the margin, and `undecided` those
    that another run could prefer. `otherwise` is the best by the other criterion: beside a step the fastest that keeps
    it within `GENTLE`, or at any price, alone the fastest of another method. `gentle` and `fastest` are of `methods`,
    all that were measured. The choice was made by `visits`. In `other_layouts` of the blocks, which some methods need
    and which are those of a cell, nothing competes. Beside a step `devices` swap at once, and the steps of `ranks` of
    these wait for each other.
    """

    direction: Direction
    situation: Situation
    block_bytes: int
    blocks: int = 0
    use: Method | None = None
    none: str = ""
    parts: Sequence[RulePart] = ()
    compared_with: Sequence[Choice] = ()
    alike: Sequence[Choice] = ()
    undecided: Sequence[Choice] = ()
    otherwise: Method | None = None
    gentle: Method | None = None
    fastest: Method | None = None
    methods: Sequence[Method] = ()
    visits: int = 0
    other_layouts: Sequence[tuple[Cell, Method]] = ()
    devices: int = 1
    ranks: int = 1

    @property
    def beside(self) -> str:
        """What runs beside the swaps: "decode", or "decode, 2 ranks"."""
        at_once = f", {self.ranks} ranks" if self.ranks > 1 else f", {self.devices} devices" if self.devices > 1 else ""
        return f"{self.situation.beside}{at_once}"

    @property
    def not_told_apart(self) -> list[Choice]:
        """The methods that another run could choose."""
        return sorted({*self.alike, *self.undecided}, key=preference)

    def to_plain(self) -> dict[str, Any]:
        return {
            "direction": self.direction.value,
            "situation": self.situation.value,
            "block_bytes": self.block_bytes,
            "blocks": self.blocks,
            "use": self.use and self.use.to_plain(),
            "none": self.none,
            "by_blocks": [{"choice": str(part.choice), "blocks": [*part.blocks]} for part in self.parts],
            "compared_with": [*map(str, self.compared_with)],
            "alike": [*map(str, self.alike)],
            "undecided_against": [*map(str, self.undecided)],
            "otherwise": self.otherwise and self.otherwise.to_plain(),
            "within_10_percent": self.gentle and self.gentle.to_plain(),
            "fastest": self.fastest and self.fastest.to_plain(),
            "methods": [method.to_plain() for method in self.methods],
            "visits": self.visits,
            "devices": self.devices,
            "ranks": self.ranks,
        }


def answer_situations(question: Question, evidence: Evidence, rule: Rule, no_rule: str) -> list[Answer]:
    """The answer for every direction of the runs in every situation that is asked for.

    Alone it follows the `rule`; `no_rule` says why that has no part for a direction. A situation whose run is missing
    is never answered from another. On the device cpu no step runs beside swaps.
    """
    answers = []
    for direction, situation in product(evidence.origin.directions, question.situations):
        if situation is Situation.ALONE:
            answers.append(_alone(question, direction, rule, no_rule))
        elif not evidence.origin.on_host:
            answers.append(_beside(question, direction, situation, evidence))
    return answers


def _beside(question: Question, direction: Direction, situation: Situation, evidence: Evidence) -> Answer:
    measured, others = (
        _of_nearest_size(arms.get((direction, situation), {}), question.block_bytes)
        for arms in (evidence.beside, evidence.other_layouts)
    )
    answer = Answer(direction, situation, question.block_bytes, none=not_measured(situation))
    if measured:
        ceiling_gbps = evidence.origin.ceilings_gbps.get(direction, 0.0)
        answer = _choose_beside(question, direction, situation, measured, ceiling_gbps)
    return replace(answer, other_layouts=_in_other_layouts(others))


def _in_other_layouts(arms: Sequence[Arm]) -> list[tuple[Cell, Method]]:
    """Of each backend the method that takes the least of a step and its thread, the least of all first."""
    methods = {arm.cell: Method.beside_step(arm) for arm in arms}
    by_cost = sorted(methods, key=lambda cell: methods[cell].cost(thread_counts=True))
    return [(cells[0], methods[cells[0]]) for cells in grouped(by_cost, lambda cell: cell.backend).values()]


def not_measured(situation: Situation) -> str:
    return f"not measured: kvbench sweep {_CONFIGS[situation]}"


def _alone(question: Question, direction: Direction, rule: Rule, no_rule: str) -> Answer:
    kind = SwapKind(direction, StreamState.IDLE)
    if kind not in rule.parts:
        return Answer(direction, Situation.ALONE, question.block_bytes, none=no_rule)
    shapes = rule.shapes_of[kind]
    block_bytes = nearest_shape(shapes, question.block_bytes, LARGE_SWAP).shape.block_bytes
    same_size = [measured for measured in shapes if measured.shape.block_bytes == block_bytes]
    with_figures = {*chain.from_iterable(part.with_figures for part in rule.parts[kind])}
    large = nearest_shape([*filter(with_figures.__contains__, same_size)] or same_size, block_bytes, LARGE_SWAP)
    use = rule.choices[large]
    methods = sorted((_method_alone(large, choice) for choice in large.arms), key=lambda method: method.us)
    others = (method for method in methods if method.choice.without_sms != use.without_sms)
    measured_there = dict.fromkeys(chain.from_iterable(measured.arms for measured in same_size))
    compared_with = [choice for choice in measured_there if choice.without_sms != use.without_sms]
    parts = [part for part in rule.parts[kind] if part.serves_size(block_bytes)]
    picked = next(part.pick for part in parts if part.serves(block_bytes, large.shape.blocks))
    return Answer(
        direction,
        Situation.ALONE,
        block_bytes,
        large.shape.blocks,
        _method_alone(large, use),
        parts=parts,
        compared_with=sorted(compared_with, key=preference),
        undecided=picked.open,
        otherwise=next(others, None),
        methods=methods,
        visits=len(large.visits_of(use)),
    )


def _method_alone(measured: Measured, choice: Choice) -> Method:
    swap_gb = measured.shape.blocks * measured.shape.block_bytes / 1e9
    thread_ms = measured.caller_us.get(choice, math.nan) / 1e3
    return Method(choice, measured.gbps_of(choice), measured.us_of(choice), thread_ms / swap_gb)


def _of_nearest_size(arms: Mapping[int, Sequence[Arm]], block_bytes: int) -> Sequence[Arm]:
    size = min(arms, key=lambda measured: abs(math.log(measured / block_bytes)), default=0)
    return arms.get(size, ())


def _choose_beside(
    question: Question, direction: Direction, situation: Situation, measured: Sequence[Arm], ceiling_gbps: float
) -> Answer:
    """Choose among methods beside a step: of those that move enough and keep the limit, the one that takes the least
    for each GB; the fastest of those that take no more than a margin above it, as far as the visits tell.
    """
    methods = [*map(Method.beside_step, measured)]
    contest = _Contest({arm.choice: arm for arm in measured}, question.thread_counts)
    by_cost = sorted(methods, key=contest.cost)
    need_gbps = _NEEDED_SHARE * ceiling_gbps if question.need_gbps is None else question.need_gbps
    moving = [method for method in by_cost if method.gbps >= need_gbps]
    limit = question.limits.get(situation, math.inf)
    allowed = [method for method in moving if _slowed(method) <= limit]
    alike = contest.alike(allowed)
    tied = (method for method in alike if method == alike[0] or contest.takes_more(alike[0], method) <= 0)
    # Among methods that cost a step the same, more GB/s are worth having: a load is there earlier.
    use = max(tied, key=attrgetter("gbps"), default=None)
    fastest = max(methods, key=attrgetter("gbps"))
    gentle = max((method for method in methods if _slowed(method) <= GENTLE), key=attrgetter("gbps"), default=None)
    none = ""
    if not moving:
        none = f"none moves {need_gbps:.3g} GB/s; most: {fastest.choice.label}, {fastest.gbps:.3g} GB/s"
    elif not allowed:
        least = min(moving, key=_slowed)
        none = f"none within {100 * limit:.3g}%; least: {least.choice.label}, {1 + _slowed(least):.2f}x"
    return Answer(
        direction,
        situation,
        measured[0].cell.block_bytes,
        measured[0].cell.blocks,
        use,
        none,
        compared_with=[method.choice for method in methods if use and method != use],
        alike=[method.choice for method in alike if method != use],
        undecided=[method.choice for method in allowed if use and contest.may_take_less(use, method)],
        otherwise=next((method for method in (gentle, fastest, *by_cost) if method and method != use), None),
        gentle=gentle,
        fastest=fastest,
        methods=by_cost,
        visits=len(contest.arms[use.choice].costs) if use else 0,
        devices=measured[0].cell.devices,
        ranks=measured[0].cell.ranks,
    )


def _slowed(method: Method) -> float:
    """The fraction by which a step takes longer."""
    assert method.slowdown is not None
    return method.slowdown[0] - 1


class _Contest(NamedTuple):
    """Methods beside a step, compared by what each GB takes of the step, and of the thread if that counts."""

    arms: Mapping[Choice, Arm]
    thread_counts: bool

    def cost(self, method: Method) -> float:
        return method.cost(thread_counts=self.thread_counts)

    def alike(self, by_cost: Sequence[Method]) -> list[Method]:
        """The methods that take no more than a margin above the first, which takes the least."""
        least = self.cost(by_cost[0]) if by_cost else 0.0
        return [method for method in by_cost if self.cost(method) <= least + LOST.allowed(least)]

    def takes_more(self, base: Method, other: Method) -> float:
        """By how much another method takes at least more for each GB, by the rounds that measured both."""
        first, second = (self.arms[method.choice].figures(thread_counts=self.thread_counts) for method in (base, other))
        return least_difference(first, second, self.arms[base.choice].starts)

    def may_take_less(self, use: Method, other: Method) -> bool:
        """Whether another method may take less than the choice, by more than the margin, in another run."""
        allowed = LOST.allowed(self.cost(use), self.cost(other))
        return other != use and self.takes_more(use, other) < -allowed
