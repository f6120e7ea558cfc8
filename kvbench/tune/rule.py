"""The rule of an answer: for each direction and stream state the method, by block size where that surely saves time.

A kernel takes the fewest SMs that suffice, by block size and number of blocks, and competes with these. Of the methods
that cannot be told apart from the best, the one with the fewest SMs is taken; where none can be told apart from batched
copies, these are. Noise makes more methods alike, and so takes fewer SMs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby, pairwise
from math import expm1, log
from statistics import fmean
from typing import Any, Final

from kvbench.analysis.compare import Verdict, compare_over, log_ratios
from kvbench.analysis.margins import KNEE, TIED
from kvbench.cells.cell import SwapKind
from kvbench.cells.facts import method_label
from kvbench.cells.policy import Choice
from kvbench.tune.candidates import FOLDS, MEASURED, Arms, KeptArms, Measured, Pick, alike_sms, fastest, of_fold, pick

# The share of a kernel's shapes that must have several SM counts for one to be chosen.
_SEVERAL_COUNTS: Final = 0.3
# The shapes on each side of a split.
_LEAST_SHAPES: Final = 2

# The first and the last of some values, None where there is no end.
Range = tuple[int | None, int | None]
_EVERY: Final[Range] = (None, None)


@dataclass(frozen=True, slots=True)
class _Need:
    """The method for blocks of `sizes` bytes, and of them for a number of `blocks`; (None, None) for all.

    A kernel's choice without an SM count is that of its default rule: no shape was measured with several. `counts` are
    the SM counts within `KNEE` of the best on average, or all of the default rule.
    """

    choice: Choice
    sizes: Range = _EVERY
    blocks: Range = _EVERY
    counts: Sequence[int] = ()

    @property
    def most_sms(self) -> int:
        return self.choice.sms or max(self.counts, default=0)

    def serves_size(self, block_bytes: int) -> bool:
        return _within(self.sizes, block_bytes)

    def serves(self, block_bytes: int, blocks: int) -> bool:
        return _within(self.sizes, block_bytes) and _within(self.blocks, blocks)

    def serves_shape(self, measured: Measured) -> bool:
        return _serves(measured, self.sizes, self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePart(_Need):
    """What to use for some `shapes` of a kind; `pick` has the methods that it was compared with."""

    pick: Pick
    shapes: Sequence[Measured]

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

    @cached_property
    def shapes_of(self) -> Mapping[SwapKind, Sequence[Measured]]:
        return {kind: [*chain.from_iterable(part.shapes for part in parts)] for kind, parts in self.parts.items()}

    @property
    def shapes(self) -> list[Measured]:
        return [*chain.from_iterable(self.shapes_of.values())]

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
        needs = [need for need in kernels.get(picked.choice, ()) if any(map(need.serves_shape, in_sizes))]
        for need in needs or [_Need(picked.choice)]:
            served, both_sizes = [*filter(need.serves_shape, in_sizes)], _overlap(sizes, need.sizes)
            parts.append(RulePart(need.choice, both_sizes, need.blocks, need.counts, pick=picked, shapes=served))
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
    if len(several) < _SEVERAL_COUNTS * len(kernel) and shapes_of_usual < MEASURED * len(kernel):
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
    alike = alike_sms([*shapes.values()])
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
            changed += [(arms, need.choice) for measured, arms in shapes.items() if need.serves_shape(measured)]
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
        needed = next((need.choice for need in needs if need.serves_shape(measured)), method)
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
        shapes = rule.shapes_of[kind]
        for fold in range(FOLDS):
            others = {measured: of_fold(measured.arms, fold, within=False) for measured in shapes}
            for part in _parts(others) if all(others.values()) else ():
                for measured in part.shapes:
                    judged = of_fold(measured.arms, fold, within=True)
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


def _log_losses(judged: Arms, chosen_by: Arms, choice: Choice) -> list[float]:
    """The log ratios of the times of a choice to those of the fastest method by other rounds."""
    best = fastest(chosen_by)
    return log_ratios(judged.get(best, {}), judged.get(choice, {}))
