"""The answer: what to use for swaps alone, beside decode steps and beside a prefill, in each direction.

Alone, the times decide. Beside a step, what a swap takes from it and from its thread for each GB decides, among the
methods that move as much as is asked for.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import Any, Final

from kvbench.analysis.compare import Difference, Verdict, difference_of
from kvbench.analysis.margins import LOST
from kvbench.cells.axes import Direction, Neighbour, Situation, StreamState
from kvbench.cells.cell import Cell, SwapKind
from kvbench.cells.facts import NO_CHOICES, plug_ins_of
from kvbench.cells.pattern import SHUFFLED
from kvbench.cells.policy import Choice
from kvbench.cells.units import KIB
from kvbench.errors import UsageError
from kvbench.results import Run
from kvbench.results.outcomes import Cost, over_starts, slowdown_of
from kvbench.tune.answer import shapes_of
from kvbench.tune.candidates import RUN_STEP, Measured, ceilings_of, choice_of, preference, tried, without_sms
from kvbench.tune.rule import Rule, RulePart, nearest_shape, rule_of

# Without --need, swaps in the background must move this share of the rate of large copies.
_NEEDED_SHARE: Final = 0.1
# A step that takes no longer than this is hardly slowed.
GENTLE: Final = 0.1
# The number of blocks of a large swap, as beside a step.
_BLOCKS: Final = 4096
WAYS: Final = (Direction.H2D, Direction.D2H)
# The config that measures a situation.
_CONFIGS: Final = {Situation.ALONE: "engine", Situation.DECODE: "beside", Situation.PREFILL: "beside"}

# A centre and the ends of its interval, NaN where the visits are too few for one.
Interval = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of an answer: blocks of `block_bytes`, at least `need_gbps` beside a step (None: a tenth of the
    rate of large copies), whether the time of the thread that submits swaps counts, and by how much a step may take
    longer in a situation, as a fraction. Without `situations`, all.
    """

    block_bytes: int = 16 * KIB
    need_gbps: float | None = None
    thread_counts: bool = True
    limits: Mapping[Situation, float] = field(default_factory=dict)
    situations: Sequence[Situation] = tuple(Situation)


@dataclass(frozen=True, slots=True)
class Method:
    """What a method does in a situation: GB/s, the time of a swap until it is complete, and per GB what it takes of its
    thread. Beside a step, also how many times as long the step takes, and the time that each GB takes from it.
    """

    choice: Choice
    gbps: float
    us: float
    thread_ms_per_gb: float
    slowdown: Interval | None = None
    lost_ms_per_gb: Interval | None = None

    def cost(self, *, thread_counts: bool) -> float:
        """Return what each GB takes from the step, and from its thread."""
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
    all that were measured. The choice was made by `visits`.
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
        }


@dataclass(frozen=True, slots=True)
class Arm:
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

    @property
    def method(self) -> Method:
        costs = [*self.costs.values()]
        gbps = median(cost.gbps for cost in costs)
        return Method(
            self.choice,
            gbps,
            self.cell.swap_bytes / gbps / 1e3,
            over_starts(costs, lambda cost: cost.thread_ms_per_gb)[0],
            slowdown_of(costs),
            over_starts(costs, lambda cost: cost.lost_ms_per_gb),
        )


# What was measured beside steps, by direction and situation.
MeasuredBeside = Mapping[tuple[Direction, Situation], Sequence[Arm]]


@dataclass(frozen=True)
class Advice:
    """The answers of runs of one machine; what they rest on: the rule for swaps alone, or why there is none
    (`no_rule`), and what was `measured` beside steps, of shuffled blocks and of others.
    """

    runs: Sequence[Run]
    question: Question
    rule: Rule | None
    no_rule: str
    measured: MeasuredBeside
    other_layouts: MeasuredBeside

    @property
    def on_host(self) -> bool:
        """Whether the runs are of the device cpu, on which no step runs beside swaps."""
        return self.runs[0].info.device.get("kind") == "cpu"

    @cached_property
    def answers(self) -> list[Answer]:
        """The answer for every direction of the runs in every situation that is asked for.

        A situation whose run is missing is never answered from another. Without a GPU, no step runs beside swaps.
        """
        ceilings, answers = ceilings_of(self.runs), []
        directions = {cell.direction for run in self.runs for cell in run.outcomes}
        for direction in (way for way in WAYS if way in directions):
            for situation in self.question.situations:
                if situation is Situation.ALONE:
                    answers.append(_alone(self.question, direction, self.rule, self.no_rule))
                elif not self.on_host:
                    arms = self.measured.get((direction, situation), ())
                    answers.append(_beside(self.question, direction, situation, arms, ceilings.get(direction, 0.0)))
        return answers

    @property
    def sizes_beside(self) -> list[int]:
        """The block sizes that were measured beside steps, in bytes."""
        return sorted({arm.cell.block_bytes for arms in self.measured.values() for arm in arms})

    def of_size(self, block_bytes: int) -> "Advice":
        """Return the same for blocks of another size."""
        return replace(self, question=replace(self.question, block_bytes=block_bytes))


def advise(runs: Sequence[Run], question: Question, keep: Callable[[Choice], bool]) -> Advice:
    """Answer by the methods that `keep` accepts; raises UsageError where there is nothing to choose from at all."""
    beside, others = (measured_beside(runs, keep, shuffled=shuffled) for shuffled in (True, False))
    try:
        return Advice(runs, question, rule_of(shapes_of(runs, keep)), not_measured(Situation.ALONE), beside, others)
    except UsageError as none:
        if not beside:
            raise
        why = str(none).partition(";")[0] if tried(runs) else not_measured(Situation.ALONE)
        return Advice(runs, question, None, why, beside, others)


def not_measured(situation: Situation) -> str:
    return f"not measured: kvbench sweep {_CONFIGS[situation]}"


def _alone(question: Question, direction: Direction, rule: Rule | None, why: str) -> Answer:
    kind = SwapKind(direction, StreamState.IDLE)
    if rule is None or kind not in rule.parts:
        return Answer(direction, Situation.ALONE, question.block_bytes, none=why)
    shapes = rule.shapes_of(kind)
    block_bytes = nearest_shape(shapes, question.block_bytes, _BLOCKS).shape.block_bytes
    parts = [part for part in rule.parts[kind] if part.serves_size(block_bytes)]
    of_size = [one for one in shapes if one.shape.block_bytes == block_bytes]
    shown = nearest_shape([one for one in of_size if _has_figures(one, rule)] or of_size, block_bytes, _BLOCKS)
    use = rule.choices[shown]
    methods = sorted((_method_alone(shown, choice) for choice in shown.arms), key=lambda method: method.us)
    others = (method for method in methods if without_sms(method.choice) != without_sms(use))
    picked = next(part.pick for part in parts if part.serves(block_bytes, shown.shape.blocks))
    return Answer(
        direction,
        Situation.ALONE,
        block_bytes,
        shown.shape.blocks,
        _method_alone(shown, use),
        parts=parts,
        compared_with=_others(of_size, use),
        undecided=picked.open,
        otherwise=next(others, None),
        methods=methods,
        visits=len(shown.visits_of(use)),
    )


def _others(shapes: Sequence[Measured], use: Choice) -> list[Choice]:
    """Return the other methods, with their SM counts, that were measured at some shapes."""
    others = (choice for one in shapes for choice in one.arms if without_sms(choice) != without_sms(use))
    return sorted(dict.fromkeys(others), key=preference)


def _has_figures(one: Measured, rule: Rule) -> bool:
    """Whether the choice for a shape was measured there itself."""
    part = next(part for part in rule.parts[one.shape.kind] if one in part.shapes)
    return part.choice in one.arms or not part.has_count


def _method_alone(one: Measured, choice: Choice) -> Method:
    swap_gb = one.shape.blocks * one.shape.block_bytes / 1e9
    thread_ms = one.caller_us.get(choice, math.nan) / 1e3
    return Method(choice, one.gbps_of(choice), one.us_of(choice), thread_ms / swap_gb)


def measured_beside(runs: Sequence[Run], keep: Callable[[Choice], bool], *, shuffled: bool = True) -> MeasuredBeside:
    """Return the methods that were measured beside steps, of blocks that are shuffled on both sides, or of others."""
    costs: dict[tuple[Direction, Situation], dict[tuple[Choice, Cell], dict[int, Cost]]] = {}
    for number, run in enumerate(runs):
        plug_ins = plug_ins_of(run.info.backends)
        for cell, outcome in run.outcomes.items():
            situation = cell.situation
            is_shuffled = cell.sides == (SHUFFLED, SHUFFLED)
            usual = is_shuffled is shuffled and not cell.layers and cell.backend not in NO_CHOICES
            if situation in (None, Situation.ALONE) or not usual or outcome.status != "ok" or not outcome.costs:
                continue
            choice = choice_of(cell, plug_ins)
            if situation and keep(choice):
                of_cell = costs.setdefault((cell.direction, situation), {}).setdefault((choice, cell), {})
                of_cell |= {number * RUN_STEP + round_: cost for round_, cost in outcome.costs.items()}
    return {key: _of_one_neighbour(of_key) for key, of_key in costs.items()}


def _of_one_neighbour(costs: Mapping[tuple[Choice, Cell], Mapping[int, Cost]]) -> list[Arm]:
    """Return the arms beside the usual neighbour of a situation, or the one that most cells have."""
    counts = Counter(cell.neighbour for _, cell in costs)
    usual = next((one for one in (Neighbour.DECODE, Neighbour.PREFILL) if counts[one]), counts.most_common(1)[0][0])
    return [Arm(choice, cell, visits) for (choice, cell), visits in costs.items() if cell.neighbour == usual]


def arms_of_size(arms: Sequence[Arm], block_bytes: int) -> list[Arm]:
    """Return the arms of the nearest block size, each choice by its swap that is nearest to a large one."""
    if not arms:
        return []
    size = min((arm.cell.block_bytes for arm in arms), key=lambda measured: abs(math.log(measured / block_bytes)))
    nearest: dict[Choice, Arm] = {}
    for arm in sorted(arms, key=lambda arm: -abs(math.log(arm.cell.blocks / _BLOCKS))):
        if arm.cell.block_bytes == size:
            nearest[arm.choice] = arm
    return sorted(nearest.values(), key=lambda arm: preference(arm.choice))


def _beside(
    question: Question, direction: Direction, situation: Situation, every: Sequence[Arm], ceiling: float
) -> Answer:
    arms = {arm.choice: arm for arm in arms_of_size(every, question.block_bytes)}
    if not arms:
        return Answer(direction, situation, question.block_bytes, none=not_measured(situation))
    methods = {choice: arm.method for choice, arm in arms.items()}
    cell = next(iter(arms.values())).cell
    choosing = _Choosing(question, situation, arms, methods, ceiling)
    use = choosing.use
    fastest = max(methods.values(), key=lambda method: method.gbps)
    kept = [method for method in methods.values() if _slowed(method) <= GENTLE]
    gentle = max(kept, key=lambda method: method.gbps, default=None)
    return Answer(
        direction,
        situation,
        cell.block_bytes,
        cell.blocks,
        use,
        choosing.none,
        compared_with=[choice for choice in arms if use and choice != use.choice],
        alike=[method.choice for method in choosing.alike if method != use],
        undecided=choosing.undecided,
        otherwise=next((other for other in (gentle, fastest, *choosing.by_cost) if other and other != use), None),
        gentle=gentle,
        fastest=fastest,
        methods=choosing.by_cost,
        visits=len(arms[use.choice].costs) if use else 0,
    )


def measured_choices(advice: Advice) -> dict[tuple[Direction, Situation], dict[int, Choice]]:
    """Return the choices beside steps for every block size that was measured there and has one, the sizes ascending."""
    of_situation: dict[tuple[Direction, Situation], dict[int, Choice]] = {}
    for size in advice.sizes_beside:
        for answer in advice.of_size(size).answers:
            if answer.use and answer.situation is not Situation.ALONE and answer.block_bytes == size:
                of_situation.setdefault((answer.direction, answer.situation), {})[size] = answer.use.choice
    return of_situation


def _slowed(method: Method) -> float:
    """Return by which fraction a step takes longer."""
    assert method.slowdown is not None
    return method.slowdown[0] - 1


@dataclass(frozen=True)
class _Choosing:
    """The choice among methods beside a step."""

    question: Question
    situation: Situation
    arms: Mapping[Choice, Arm]
    methods: Mapping[Choice, Method]
    ceiling_gbps: float

    @cached_property
    def by_cost(self) -> list[Method]:
        """All methods, the one that takes the least per GB first."""
        return sorted(self.methods.values(), key=self._cost)

    def _cost(self, method: Method) -> float:
        return method.cost(thread_counts=self.question.thread_counts)

    @property
    def _need_gbps(self) -> float:
        need = self.question.need_gbps
        return _NEEDED_SHARE * self.ceiling_gbps if need is None else need

    @cached_property
    def _moving(self) -> list[Method]:
        return [method for method in self.by_cost if method.gbps >= self._need_gbps]

    @cached_property
    def _allowed(self) -> list[Method]:
        limit = self.question.limits.get(self.situation, math.inf)
        return [method for method in self._moving if _slowed(method) <= limit]

    @cached_property
    def alike(self) -> list[Method]:
        """The methods that take no more than a margin above the least."""
        least = self._cost(self._allowed[0]) if self._allowed else 0.0
        return [method for method in self._allowed if self._cost(method) <= least + LOST.allowed(least)]

    @cached_property
    def use(self) -> Method | None:
        """The fastest of those of `alike` that the visits do not tell apart from the one that takes the least."""
        if not self.alike:
            return None
        least = self._allowed[0]
        tied = [method for method in self.alike if method == least or self._difference(least, method).low <= 0]
        return max(tied, key=lambda method: method.gbps)

    def _difference(self, base: Method, other: Method) -> Difference:
        """By how much another method takes more for each GB, by the rounds that measured both."""
        counts = self.question.thread_counts
        first, second = self.arms[base.choice], self.arms[other.choice]
        return difference_of(
            first.figures(thread_counts=counts), second.figures(thread_counts=counts), first.starts, LOST
        )

    @property
    def none(self) -> str:
        if not self._moving:
            most = max(self.methods.values(), key=lambda method: method.gbps)
            return f"none moves {self._need_gbps:.3g} GB/s; most: {most.choice.label}, {most.gbps:.3g} GB/s"
        if not self._allowed:
            least = min(self._moving, key=_slowed)
            limit = self.question.limits[self.situation]
            return f"none within {100 * limit:.3g}%; least: {least.choice.label}, {1 + _slowed(least):.2f}x"
        return ""

    @property
    def undecided(self) -> list[Choice]:
        """The methods that may take less than the choice, by more than the margin, in another run."""
        if self.use is None:
            return []
        others = []
        for method in self._allowed:
            compared = self._difference(self.use, method)
            allowed = LOST.allowed(self._cost(self.use), self._cost(method))
            if method != self.use and compared.verdict is not Verdict.SLOWER and compared.low < -allowed:
                others.append(method.choice)
        return others
