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


def arms_of(measured: Measured) -> KeptArms:
    """The arms of a shape taken alone."""
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
    enough = min(_MEASURED * len(shapes), max(counts.values()))
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
    def with_figures(self) -> list[Measured]:
        """The shapes at which the choice was measured itself."""
        return [measured for measured in self.shapes if self.choice in measured.arms or not self.choice.sms]

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


def _serves(measured: Measured, sizes: Range, blocks: Range) -> bool:
    return _within(sizes, measured.shape.block_bytes) and _within(blocks, measured.shape.blocks)


@dataclass(frozen=True)
class Rule:
    """What to use, by direction and stream state: one part, or several by block size and number of blocks."""

    parts: Mapping[SwapKind, Sequence[RulePart]]

    def shapes_of(self, kind: SwapKind) -> list[Measured]:
        return [*chain.from_iterable(part.shapes for part in self.parts[kind])]

    @property
    def shapes(self) -> list[Measured]:
        return [*chain.from_iterable(map(self.shapes_of, self.parts))]

    @cached_property
    def choices(self) -> Mapping[Measured, Choice]:
        """The choice at every measured shape: that of the rule, or what stands for it there."""
        choices: dict[Measured, Choice] = {}
        for part in chain.from_iterable(self.parts.values()):
            for measured in part.shapes:
                choice = part.choice if part.choice in measured.methods else measured.standing_for(part.choice)
                choices[measured] = choice or fastest(measured.arms)
        return choices

    def to_plain(self) -> list[dict[str, Any]]:
        return [
            {**kind._asdict(), "quantity": kind.stream_state.quantity, **part.to_plain()}
            for kind, parts in self.parts.items()
            for part in parts
        ]


def nearest_shape(shapes: Iterable[Measured], block_bytes: int, blocks: int) -> Measured:
    """The measured shape that is nearest in ratio: by block size, then by number of blocks."""

    def distance(measured: Measured) -> tuple[float, float]:
        return abs(log(measured.shape.block_bytes / block_bytes)), abs(log(measured.shape.blocks / blocks))

    return min(shapes, key=distance)


def rule_of(shapes: Sequence[Measured]) -> Rule:
    in_order = sorted(shapes, key=lambda measured: measured.shape)
    by_kind = groupby(in_order, key=lambda measured: measured.shape.kind)
    return Rule({kind: _parts({measured: measured.arms for measured in swaps}) for kind, swaps in by_kind})


def _parts(shapes: Mapping[Measured, Arms]) -> list[RulePart]:
    """The parts of a kind, by block size and number of blocks."""
    choices = chain.from_iterable(shapes.values())
    methods = dict.fromkeys(choice.without_sms for choice in choices if choice.sms)
    kernels = {method: _needed_sms(method, shapes) for method in methods}
    competing = {measured: _with_needed_sms(measured, arms, kernels) for measured, arms in shapes.items()}
    most = {method: max(need.most_sms for need in needs) for method, needs in kernels.items()}
    parts: list[RulePart] = []
    for picked, sizes in _picks(competing, most):
        in_sizes = [measured for measured in shapes if _serves(measured, sizes, _EVERY)]
        needs = [need for need in kernels.get(picked.choice, ()) if any(map(need.serves, in_sizes))]
        for need in needs or [_Need(picked.choice)]:
            served, both_sizes = [*filter(need.serves, in_sizes)], _overlap(sizes, need.sizes)
            parts.append(RulePart(need.choice, picked, served, both_sizes, need.blocks, need.counts))
    return parts


def _overlap(first: Range, second: Range) -> Range:
    lows, highs = ([end for end in ends if end is not None] for ends in zip(first, second, strict=True))
    return max(lows, default=None), min(highs, default=None)


_Competing = Mapping[Measured, KeptArms]


def _picks(shapes: _Competing, needed: Mapping[Choice, int]) -> list[tuple[Pick, Range]]:
    """One method for all shapes, or the two that lose least, if that surely saves more than `TIED`."""
    single = pick([*shapes.values()], needed)
    picks, most_saved = [(single, _EVERY)], 0.0
    for last, first in pairwise(_sizes(shapes)):
        ranges: list[Range] = [(None, last), (first, None)]
        sides = [_within_ends(shapes, sizes) for sizes in ranges]
        split = [pick([*side.values()], needed) for side in sides]
        changes = (_changes(side, half.choice, single.choice) for side, half in zip(sides, split, strict=True))
        saved = compare_over([*chain.from_iterable(changes)], TIED)
        if saved.verdict is Verdict.SLOWER and saved.ratio > most_saved:
            picks, most_saved = [*zip(split, ranges, strict=True)], saved.ratio
    return picks


def _sizes(shapes: Iterable[Measured]) -> list[int]:
    return sorted({measured.shape.block_bytes for measured in shapes})


def _within_ends(shapes: _Competing, sizes: Range = _EVERY, blocks: Range = _EVERY) -> _Competing:
    return {measured: arms for measured, arms in shapes.items() if _serves(measured, sizes, blocks)}


def _changes(shapes: _Competing, choice: Choice, single: Choice) -> Iterator[Sequence[float]]:
    """Yield the log ratios of the times of `single` to those of `choice` at each shape."""
    for arms in shapes.values():
        pairs = arms.ratios(choice, single) if choice != single else []
        # A shape without a change, or without pairs, saves nothing, and counts as much as the others.
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

    def serves(self, measured: Measured) -> bool:
        return _serves(measured, self.sizes, self.blocks)


def _needed_sms(method: Choice, shapes: Mapping[Measured, Arms]) -> list[_Need]:
    """The fewest SMs that suffice for a kernel, by block size and number of blocks.

    A count is chosen among counts that were measured at one shape. A block size without such a shape has its only
    count, or that of the nearest size with one. Where each shape has one count, and not the same, they follow the
    kernel's default rule, which is then the method: nothing says that another count is worse.
    """
    kernel: dict[Measured, Arms] = {}
    for measured, arms in shapes.items():
        with_counts = {choice: visits for choice, visits in arms.items() if choice.without_sms == method}
        if with_counts:
            kernel[measured] = with_counts
    several = {measured: KeptArms(arms, measured) for measured, arms in kernel.items() if len(arms) > 1}
    choices = Counter(chain.from_iterable(kernel.values()))
    usual, shapes_of_usual = choices.most_common(1)[0]
    if len(choices) == 1:
        return [_Need(usual)]
    if len(several) < _SEVERAL_COUNTS * len(kernel) and shapes_of_usual < _MEASURED * len(kernel):
        return [_Need(method, counts=sorted(choice.sms for choice in choices))]
    at_sizes: dict[int, set[Choice]] = {size: set() for size in _sizes(shapes)}
    for measured, arms in kernel.items():
        at_sizes[measured.shape.block_bytes] |= arms.keys()
    compared = _sizes(several)
    by_size = []
    for size, measured_there in at_sizes.items():
        if size not in compared and (len(measured_there) == 1 or not compared):
            needs = [_Need(next(iter(measured_there)) if len(measured_there) == 1 else usual)]
        else:
            nearest = min(compared, key=lambda other: abs(log(other / size)))
            needs = _by_blocks(_within_ends(several, (nearest, nearest)))
        by_size.append([replace(need, sizes=(size, size)) for need in needs])
    return _merged(by_size)


def _by_blocks(shapes: _Competing) -> list[_Need]:
    """The SMs needed by shapes of one block size, split by the number of blocks where that gains the most."""
    whole = _fewest(shapes)
    best, best_gain = [whole], _NOTHING
    for last, first in pairwise(sorted({measured.shape.blocks for measured in shapes})):
        ranges = (None, last), (first, None)
        sides = [_within_ends(shapes, blocks=blocks) for blocks in ranges]
        if min(map(len, sides)) >= _LEAST_SHAPES:
            split = [replace(_fewest(side), blocks=blocks) for side, blocks in zip(sides, ranges, strict=True)]
            gain = _gain(shapes, whole, split)
            if gain > best_gain:
                best, best_gain = split, gain
    return best


def _fewest(shapes: _Competing) -> _Need:
    """The fewest SMs that cannot be told apart from the best count, of those measured at two shapes or more.

    One of them has the fewest blocks: a count that suffices for large swaps can be too few for small ones.
    """
    kernel = [*shapes.values()]
    counts, means = Counter(chain.from_iterable(kernel)), _mean_losses(kernel)
    at_fewest_blocks = shapes[min(shapes, key=lambda measured: measured.shape.blocks)]
    best = min(means, key=lambda choice: (choice not in at_fewest_blocks, means[choice], choice.sms))
    compared = [choice for choice in at_fewest_blocks if counts[choice] >= min(_LEAST_SHAPES, len(kernel))]
    alike = [choice for choice in {best, *compared} if choice == best or _is_as_good(kernel, best, choice)]
    alike.sort(key=lambda choice: choice.sms)
    return _Need(alike[0], counts=[choice.sms for choice in alike])


# What a split gains: whether it surely saves time, at how many shapes it takes fewer SMs, and the times before it over
# those after it.
_Gain = tuple[bool, int, float]
_NOTHING: Final[_Gain] = (False, 0, 0.0)


def _gain(shapes: _Competing, single: _Need, split: Sequence[_Need]) -> _Gain:
    """What a split gains where it changes the count: surely more than `KNEE` of the time, or SMs at every shape for no
    more than that.
    """
    changed: list[tuple[KeptArms, Choice]] = []
    for need in split:
        if need.choice != single.choice:
            changed += [(arms, need.choice) for measured, arms in shapes.items() if need.serves(measured)]
    pairs = [*filter(None, (arms.ratios(choice, single.choice) for arms, choice in changed))]
    if not pairs:
        return _NOTHING
    saved = compare_over(pairs, KNEE)
    if saved.verdict is Verdict.SLOWER:
        return True, 0, saved.ratio
    little = len(pairs) >= _LEAST_SHAPES and saved.ratio >= 1 / (1 + KNEE.fraction)
    fewer = little and all(choice.sms < single.choice.sms for _, choice in changed)
    return (False, len(changed), saved.ratio) if fewer else _NOTHING


def _merged(by_size: Sequence[Sequence[_Need]]) -> list[_Need]:
    """What a kernel needs with one entry for neighbouring sizes that need the same, the ends open."""
    merged: list[list[_Need]] = []
    for needs in by_size:
        if merged and [*map(_use_of, merged[-1])] == [*map(_use_of, needs)]:
            merged[-1] = [_both_sizes(*pair) for pair in zip(merged[-1], needs, strict=True)]
        else:
            merged.append([*needs])
    # Sizes beyond what was measured take what the outermost measured size takes.
    merged[0] = [replace(need, sizes=(None, need.sizes[1])) for need in merged[0]]
    merged[-1] = [replace(need, sizes=(need.sizes[0], None)) for need in merged[-1]]
    return [*chain.from_iterable(merged)]


def _use_of(need: _Need) -> tuple[Choice, Range]:
    return need.choice, need.blocks


def _both_sizes(smaller: _Need, larger: _Need) -> _Need:
    """What is needed up to the larger of two sizes; counts suffice that do at each of them."""
    counts = sorted({*smaller.counts} & {*larger.counts})
    return replace(smaller, sizes=(smaller.sizes[0], larger.sizes[1]), counts=counts)


def _with_needed_sms(measured: Measured, arms: Arms, kernels: Mapping[Choice, Sequence[_Need]]) -> KeptArms:
    """The methods of a shape, a kernel with the SMs that it needs, or with the next fewer that were measured."""
    methods = {choice: visits for choice, visits in arms.items() if choice.without_sms not in kernels}
    for method, needs in kernels.items():
        counts = sorted((choice for choice in arms if choice.without_sms == method), key=lambda choice: choice.sms)
        needed = next((need.choice for need in needs if need.serves(measured)), method)
        if counts:
            fewer = [choice for choice in counts if choice.sms <= needed.sms]
            methods[method] = arms[fewer[-1] if fewer else counts[0]]
    return KeptArms(methods, measured)


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
            others = {measured: rounds_of(measured.arms, partial(_is_of_fold, fold, False)) for measured in shapes}
            for part in _parts(others) if all(others.values()) else ():
                for measured in part.shapes:
                    judged = rounds_of(measured.arms, partial(_is_of_fold, fold, True))
                    choice = measured.standing_for(part.choice) or rule.choices[measured]
                    losses.setdefault(measured, []).extend(_log_losses(judged, others[measured], choice))
    for measured in rule.shapes:
        afresh = _log_losses(measured.fresh, measured.arms, rule.choices[measured])
        if afresh:
            losses[measured] = afresh
    several = [measured for measured in losses if _has_counts(measured.arms)]
    return {measured: expm1(fmean(losses[measured])) for measured in several or losses if losses[measured]}


def _has_counts(arms: Arms) -> bool:
    """Whether a kernel was measured with several SM counts."""
    return len({choice.without_sms for choice in arms}) < len(arms)


def _is_of_fold(fold: int, within: bool, number: int) -> bool:
    return (number % RUN_STEP % _FOLDS == fold) is within


def _log_losses(judged: Arms, chosen_by: Arms, choice: Choice) -> list[float]:
    """The log ratios of the times of a choice to those of the fastest method by other rounds."""
    best = fastest(chosen_by)
    return log_ratios(judged.get(best, {}), judged.get(choice, {}))


def fastest(arms: Arms) -> Choice:
    return min(arms, key=lambda choice: typical(arms[choice].values()))
