"""The rule of an answer: for each direction and stream state the method, by block size where that surely saves time.

A kernel takes the fewest SMs that suffice, by block size and number of blocks, and competes with these. Of the methods
that cannot be told apart from the best, the one with the fewest SMs is taken; where none can be told apart from batched
copies, these are. Noise makes more methods alike, and so takes fewer SMs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import chain, groupby, pairwise
from math import expm1, log
from statistics import fmean
from types import MappingProxyType
from typing import Any, Final

from kvbench.analysis.compare import (
    MIN_PAIRS,
    Comparison,
    Verdict,
    Visits,
    compare_apart,
    compare_over,
    log_ratios,
    mean_comparison,
)
from kvbench.analysis.margins import KNEE, TIED
from kvbench.cells.cell import SwapKind
from kvbench.cells.facts import BATCHED, method_label
from kvbench.cells.policy import Choice
from kvbench.tune.candidates import RUN_STEP, Arms, Measured, preference, rounds_of, typical

# The share of the shapes at which a method must have been measured to serve for all of them.
_MEASURED: Final = 0.7
# The share of a kernel's shapes that must have several SM counts for one to be chosen.
_SEVERAL_COUNTS: Final = 0.3
# The shapes on each side of a split, and those at which an SM count was compared.
_LEAST_SHAPES: Final = 2
_FOLDS: Final = 6

# The first and the last of some values, None where there is no end.
Range = tuple[int | None, int | None]
_EVERY: Final[Range] = (None, None)


class KeptArms(dict[Choice, Visits]):
    """The arms of a shape, and what many sets of shapes ask of it: `losses` and `ratios`, each computed once."""

    def __init__(self, visits: Arms, measured: Measured) -> None:
        super().__init__(visits)
        self.measured = measured
        self.ratios = cache(lambda base, other: log_ratios(self.get(base, {}), self.get(other, {})))
        self.apart = cache(self._apart)

    def _apart(self, base: Choice, other: Choice) -> Comparison:
        """Compare two methods that no round has both of: each start of kvbench moves them by the spread of starts."""
        between = max(map(self.measured.between, (base, other)))
        return compare_apart([*self[base].values()], [*self[other].values()], TIED, between)

    @cached_property
    def losses(self) -> Mapping[Choice, float]:
        """The log of the time of each method over that of the fastest."""
        middles = {choice: log(typical(times.values())) for choice, times in self.items()}
        least = min(middles.values())
        return {choice: middle - least for choice, middle in middles.items()}


def arms_of(measured: Measured) -> KeptArms:
    """Return the arms of a shape taken alone."""
    return KeptArms(measured.arms, measured)


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
    counts = Counter(choice for one in shapes for choice in one)
    visits = {choice: sum(len(one.get(choice, ())) for one in shapes) for choice in counts}
    enough, raced = min(_MEASURED * len(shapes), max(counts.values())), min(MIN_PAIRS, max(visits.values())) - 1
    means = {
        choice: fmean(one.losses[choice] for one in shapes if choice in one)
        for choice, count in counts.items()
        if count >= enough and visits[choice] >= raced
    }
    prefer = partial(preference, needed=needed)
    best = min(means, key=lambda choice: (means[choice], prefer(choice)))
    alike = [one for one in sorted(means, key=prefer) if one == best or _alike(shapes, best, one)]
    choice = alike[0]
    batched = min((one for one in means if one.backend == BATCHED), key=lambda one: means[one], default=None)
    if batched is not None:
        faster = (one for one in alike if one.backend != BATCHED and _slower(shapes, one, batched))
        choice = next(faster, batched)
    return Pick(choice, best, alike, [*means], shapes)


def compare_methods(shapes: Sequence[KeptArms], base: Choice, other: Choice) -> Comparison | None:
    """Compare the times of `other` with those of `base` over the shapes that measured both; None without any.

    Visits of a round alternate between methods, so they are a pair; so are blocks of samples that were taken in turn.
    Where most shapes have both in different rounds alone, these are compared apart: nothing is equal that was not
    compared.
    """
    both = [one for one in shapes if base in one and other in one]
    if not both:
        return None
    pairs = [ratios for one in both if (ratios := one.ratios(base, other))]
    if 2 * len(pairs) >= len(both):
        return compare_over(pairs, TIED)
    in_turn = [compare_over(pairs, TIED)] * len(pairs) if pairs else []
    return mean_comparison(in_turn + [one.apart(base, other) for one in both if not one.ratios(base, other)], TIED)


def _alike(shapes: Sequence[KeptArms], best: Choice, other: Choice) -> bool:
    """Return whether a method may lose nothing at all against the best, or loses no more than a margin.

    That is `TIED`, and `KNEE` between SM counts of one method: beyond it, more SMs cost the work beside more than they
    gain. Visits too few for an interval leave everything open, and the ratio says the most.
    """
    compared = compare_methods(shapes, best, other)
    if compared is None:
        return False
    margin = KNEE if best.without_sms == other.without_sms else TIED
    return compared.ratio <= 1 + margin.fraction or 0 < compared.low <= 1


def _slower(shapes: Sequence[KeptArms], base: Choice, other: Choice) -> bool:
    compared = compare_methods(shapes, base, other)
    return compared is not None and compared.verdict is Verdict.SLOWER


@dataclass(frozen=True, slots=True)
class RulePart:
    """What to use for some shapes of a kind: those with blocks of `sizes` bytes, and of them those with a number of
    `blocks`; (None, None) for all.

    A kernel's choice without an SM count is that of its default rule: no shape was measured with several. `counts` are
    the SM counts within `KNEE` of the best on average, or all of the default rule. `pick` has the methods that it was
    compared with.
    """

    choice: Choice
    pick: Pick
    shapes: Sequence[Measured]
    sizes: Range = _EVERY
    blocks: Range = _EVERY
    counts: Sequence[int] = ()

    @property
    def label(self) -> str:
        """The choice as readers see it: "sm (4 SMs)", or "sm (2 to 8 SMs, default rule)"."""
        if self.choice.sms:
            return self.choice.label
        return method_label(self.choice.label, self.counts, ("default rule",)) if self.counts else self.choice.label

    @property
    def has_count(self) -> bool:
        return self.choice.sms > 0

    def serves_size(self, block_bytes: int) -> bool:
        return _within(self.sizes, block_bytes)

    def serves(self, block_bytes: int, blocks: int) -> bool:
        """Whether swaps of this shape are of this part."""
        return _within(self.sizes, block_bytes) and _within(self.blocks, blocks)

    def to_plain(self) -> dict[str, Any]:
        return {
            "choice": str(self.choice),
            "block_bytes": list(self.sizes),
            "blocks": list(self.blocks),
            "sm_counts_alike": list(self.counts),
            "not_told_apart": [str(choice) for choice in self.pick.alike],
            "compared_with": [str(other) for other, compared in self.pick.compared.items() if compared],
            "undecided_against": [str(choice) for choice in self.pick.open],
        }


def _within(ends: Range, value: int) -> bool:
    low, high = ends
    return (low is None or low <= value) and (high is None or value <= high)


@dataclass(frozen=True)
class Rule:
    """What to use, by direction and stream state: one part, or several by block size and number of blocks."""

    parts: Mapping[SwapKind, Sequence[RulePart]]

    def shapes_of(self, kind: SwapKind) -> list[Measured]:
        return [one for part in self.parts[kind] for one in part.shapes]

    @property
    def shapes(self) -> list[Measured]:
        return [one for kind in self.parts for one in self.shapes_of(kind)]

    @cached_property
    def choices(self) -> Mapping[Measured, Choice]:
        """The choice at every measured shape: that of the rule, or what stands for it there."""
        return {
            one: part.choice if part.choice in one.every else one.standing_for(part.choice) or fastest(one.arms)
            for parts in self.parts.values()
            for part in parts
            for one in part.shapes
        }

    def to_plain(self) -> list[dict[str, Any]]:
        return [
            {**kind._asdict(), "quantity": kind.stream_state.quantity, **part.to_plain()}
            for kind, parts in self.parts.items()
            for part in parts
        ]


def nearest_shape(shapes: Iterable[Measured], block_bytes: int, blocks: int) -> Measured:
    """Return the measured shape that is nearest in ratio: by block size, then by number of blocks."""

    def distance(one: Measured) -> tuple[float, float]:
        return abs(log(one.shape.block_bytes / block_bytes)), abs(log(one.shape.blocks / blocks))

    return min(shapes, key=distance)


def rule_of(shapes: Sequence[Measured]) -> Rule:
    by_kind = groupby(sorted(shapes, key=lambda one: one.shape), key=lambda one: one.shape.kind)
    return Rule({kind: _parts({one: one.arms for one in of_kind}) for kind, of_kind in by_kind})


def _parts(shapes: Mapping[Measured, Arms]) -> list[RulePart]:
    """Return the parts of a kind, by block size and number of blocks."""
    methods = dict.fromkeys(choice.without_sms for arms in shapes.values() for choice in arms if choice.sms)
    kernels = {method: _needed_sms(method, shapes) for method in methods}
    competing = {one: KeptArms(_with_needed_sms(one, arms, kernels), one) for one, arms in shapes.items()}
    most = {method: max(need.most_sms for need in needs) for method, needs in kernels.items()}
    parts: list[RulePart] = []
    for made, sizes in _picks(competing, most):
        of_sizes = [one for one in shapes if _within(sizes, one.shape.block_bytes)]
        needs = [need for need in kernels.get(made.choice, ()) if any(map(need.serves, of_sizes))]
        for need in needs or [_Need(made.choice)]:
            ends = _overlap(sizes, need.sizes)
            parts.append(RulePart(need.choice, made, [*filter(need.serves, of_sizes)], ends, need.blocks, need.counts))
    return parts


def _overlap(one: Range, other: Range) -> Range:
    lows, highs = ([end for end in ends if end is not None] for ends in zip(one, other, strict=True))
    return max(lows, default=None), min(highs, default=None)


_Competing = Mapping[Measured, KeptArms]


def _picks(shapes: _Competing, needed: Mapping[Choice, int]) -> list[tuple[Pick, Range]]:
    """Return one method for all shapes, or the two that lose least, if that surely saves more than `TIED`."""
    single = pick([*shapes.values()], needed)
    picks, most = [(single, _EVERY)], 0.0
    for last, first in pairwise(sorted({one.shape.block_bytes for one in shapes})):
        sides = [
            {one: arms for one, arms in shapes.items() if _within(sizes, one.shape.block_bytes)}
            for sizes in ((None, last), (first, None))
        ]
        low, high = (pick([*side.values()], needed) for side in sides)
        changes = (_changes(side, one.choice, single.choice) for side, one in zip(sides, (low, high), strict=True))
        saved = compare_over([*chain.from_iterable(changes)], TIED)
        if saved.verdict is Verdict.SLOWER and saved.ratio > most:
            picks, most = [(low, (None, last)), (high, (first, None))], saved.ratio
    return picks


def _changes(shapes: _Competing, choice: Choice, single: Choice) -> Iterator[Sequence[float]]:
    """Yield the log ratios of the times of `single` to those of `choice` at each shape."""
    for arms in shapes.values():
        pairs = arms.ratios(choice, single) if choice != single else []
        yield pairs or [0.0] * max(1, len(arms.get(choice, ())))


@dataclass(frozen=True, slots=True)
class _Need:
    """The SMs that a kernel needs for blocks of some sizes, and some numbers of blocks; of a method without, none.

    `counts` are those within `KNEE` of the best on average, or all of a default rule.
    """

    choice: Choice
    sizes: Range = _EVERY
    blocks: Range = _EVERY
    counts: Sequence[int] = ()

    @property
    def most_sms(self) -> int:
        return self.choice.sms or max(self.counts, default=0)

    def serves(self, one: Measured) -> bool:
        return _within(self.sizes, one.shape.block_bytes) and _within(self.blocks, one.shape.blocks)


def _needed_sms(method: Choice, shapes: Mapping[Measured, Arms]) -> list[_Need]:
    """Return the fewest SMs that suffice for a kernel, by block size and number of blocks.

    A count is chosen among counts that were measured at one shape. A block size without such a shape has its only
    count, or that of the nearest size with one. Where each shape has one count, and not the same, they follow the
    kernel's default rule, which is then the method: nothing says that another count is worse.
    """
    measured: dict[Measured, Arms] = {}
    for one, arms in shapes.items():
        if of_method := {choice: visits for choice, visits in arms.items() if choice.without_sms == method}:
            measured[one] = of_method
    several = {one: KeptArms(arms, one) for one, arms in measured.items() if len(arms) > 1}
    choices = Counter(choice for arms in measured.values() for choice in arms)
    usual, shapes_of_usual = choices.most_common(1)[0]
    if len(choices) == 1:
        return [_Need(usual)]
    if len(several) < _SEVERAL_COUNTS * len(measured) and shapes_of_usual < _MEASURED * len(measured):
        return [_Need(method, counts=sorted(choice.sms for choice in choices))]
    at_sizes: dict[int, set[Choice]] = {one.shape.block_bytes: set() for one in shapes}
    for one, arms in measured.items():
        at_sizes[one.shape.block_bytes] |= arms.keys()
    compared = sorted({one.shape.block_bytes for one in several})
    by_size = []
    for size, of_size in sorted(at_sizes.items()):
        if size not in compared and (len(of_size) == 1 or not compared):
            needs = [_Need(next(iter(of_size)) if len(of_size) == 1 else usual)]
        else:
            nearest = _nearest_of(compared, size)
            needs = _by_blocks({one: arms for one, arms in several.items() if one.shape.block_bytes == nearest})
        by_size.append([replace(need, sizes=(size, size)) for need in needs])
    return _joined(by_size)


def _nearest_of(sizes: Sequence[int], size: int) -> int:
    return min(sizes, key=lambda other: abs(log(other / size)))


def _by_blocks(shapes: _Competing) -> list[_Need]:
    """Return the SMs needed by shapes of one block size, split by the number of blocks where that gains the most."""
    whole = _fewest(shapes)
    best, most = [whole], _NOTHING
    for last, first in pairwise(sorted({one.shape.blocks for one in shapes})):
        limits = (None, last), (first, None)
        sides = [{one: shapes[one] for one in shapes if _within(blocks, one.shape.blocks)} for blocks in limits]
        if min(map(len, sides)) >= _LEAST_SHAPES:
            split = [replace(_fewest(side), blocks=blocks) for side, blocks in zip(sides, limits, strict=True)]
            gain = _gain(shapes, whole, split)
            if gain > most:
                best, most = split, gain
    return best


def _fewest(shapes: _Competing) -> _Need:
    """Return the fewest SMs that cannot be told apart from the best count, of those measured at two shapes or more."""
    arms = [*shapes.values()]
    counts = Counter(choice for one in arms for choice in one)
    enough = min(_MEASURED * len(arms), max(counts.values()))
    means = {
        choice: fmean(one.losses[choice] for one in arms if choice in one)
        for choice, count in counts.items()
        if count >= enough
    }
    best = min(means, key=lambda choice: (means[choice], choice.sms))
    seen = (choice for choice, count in counts.items() if count >= min(_LEAST_SHAPES, len(arms)))
    alike = sorted((one for one in seen if one == best or _alike(arms, best, one)), key=lambda choice: choice.sms)
    return _Need(alike[0], counts=[choice.sms for choice in alike])


# What a split gains: whether it surely saves time, at how many shapes it takes fewer SMs, and the times before it over
# those after it.
_Gain = tuple[bool, int, float]
_NOTHING: Final[_Gain] = (False, 0, 0.0)


def _gain(shapes: _Competing, single: _Need, split: Sequence[_Need]) -> _Gain:
    """Return what a split gains where it changes the count: surely more than `KNEE` of the time, or SMs at every shape
    for no more than that.
    """
    changed = [(arms, need.choice) for need in split for one, arms in shapes.items() if need.serves(one)]
    changed = [(arms, choice) for arms, choice in changed if choice != single.choice]
    pairs = [ratios for arms, choice in changed if (ratios := arms.ratios(choice, single.choice))]
    if not pairs:
        return _NOTHING
    saved = compare_over(pairs, KNEE)
    if saved.verdict is Verdict.SLOWER:
        return True, 0, saved.ratio
    little = len(pairs) >= _LEAST_SHAPES and saved.ratio >= 1 / (1 + KNEE.fraction)
    fewer = little and all(choice.sms < single.choice.sms for _, choice in changed)
    return (False, len(changed), saved.ratio) if fewer else _NOTHING


def _joined(by_size: Sequence[Sequence[_Need]]) -> list[_Need]:
    """Return what a kernel needs with one entry for neighbouring sizes that need the same, the ends open."""
    joined: list[list[_Need]] = []
    for needs in by_size:
        if joined and [(one.choice, one.blocks) for one in joined[-1]] == [(one.choice, one.blocks) for one in needs]:
            joined[-1] = [
                replace(
                    one,
                    sizes=(one.sizes[0], other.sizes[1]),
                    counts=sorted({*one.counts} & {*other.counts}),
                )
                for one, other in zip(joined[-1], needs, strict=True)
            ]
        else:
            joined.append([*needs])
    joined[0] = [replace(need, sizes=(None, need.sizes[1])) for need in joined[0]]
    joined[-1] = [replace(need, sizes=(need.sizes[0], None)) for need in joined[-1]]
    return [*chain.from_iterable(joined)]


def _with_needed_sms(one: Measured, arms: Arms, kernels: Mapping[Choice, Sequence[_Need]]) -> dict[Choice, Visits]:
    """Return the methods of a shape, a kernel with the SMs that it needs, or with the next fewer that were measured."""
    methods = {choice: visits for choice, visits in arms.items() if choice.without_sms not in kernels}
    for method, needs in kernels.items():
        counts = sorted((choice for choice in arms if choice.without_sms == method), key=lambda choice: choice.sms)
        needed = next((need.choice for need in needs if need.serves(one)), method)
        if counts:
            fewer = [choice for choice in counts if choice.sms <= needed.sms]
            methods[method] = arms[fewer[-1] if fewer else counts[0]]
    return methods


def costs_of(rule: Rule) -> dict[Measured, float]:
    """The extra time of swaps by the rule over the fastest method of each shape that had a choice, as a fraction.

    Both are judged on rounds that did not choose them: on the fresh visits of a search, else on each sixth of the
    rounds in turn, by what the others choose. A shape without such rounds has no cost. Where kernels were measured with
    several SM counts, the other shapes had little to lose, and would thin the mean.
    """
    losses: dict[Measured, list[float]] = {}
    for kind in rule.parts:
        shapes = rule.shapes_of(kind)
        for fold in range(_FOLDS):
            others = {one: rounds_of(one.arms, partial(_is_of_fold, fold, False)) for one in shapes}
            for part in _parts(others) if all(others.values()) else ():
                for one in part.shapes:
                    judged = rounds_of(one.arms, partial(_is_of_fold, fold, True))
                    choice = one.standing_for(part.choice) or rule.choices[one]
                    losses.setdefault(one, []).extend(_lost(judged, others[one], choice))
    for one in rule.shapes:
        if again := _lost(one.fresh, one.arms, rule.choices[one]):
            losses[one] = again
    several = [one for one in losses if len({choice.without_sms for choice in one.arms}) < len(one.arms)]
    return {one: expm1(fmean(losses[one])) for one in several or losses if losses[one]}


def _is_of_fold(fold: int, within: bool, at: int) -> bool:
    return (at % RUN_STEP % _FOLDS == fold) is within


def _lost(judged: Arms, chosen_by: Arms, choice: Choice) -> list[float]:
    """Return the log ratios of the times of a choice to those of the fastest method by other rounds."""
    best = fastest(chosen_by)
    return log_ratios(judged.get(best, {}), judged.get(choice, {}))


def fastest(arms: Arms) -> Choice:
    return min(arms, key=lambda choice: typical(arms[choice].values()))
