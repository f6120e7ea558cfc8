"""The rule of an answer: for each direction and stream state one method, or one up to a block size and one beyond it.

Of the methods that cannot be told apart from the best, the one with the fewest SMs is taken; where none can be told
apart from batched copies, these are. Noise makes more methods alike, and so takes fewer SMs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, groupby, pairwise
from math import expm1, log
from statistics import fmean
from typing import Any, Final

from kvbench.analysis.compare import MIN_PAIRS, Comparison, Verdict, Visits, compare_over, log_ratios
from kvbench.analysis.margins import TIED
from kvbench.cells.cell import SwapKind
from kvbench.cells.facts import BATCHED
from kvbench.cells.policy import Choice
from kvbench.tune.candidates import RUN_STEP, Arms, Measured, preference, rounds_of, typical

# The share of the shapes at which a method, or fewer SMs of it, must have been measured to serve for all of them, and
# the share at which it must have been measured itself.
_MEASURED: Final = 0.7
_ITSELF: Final = 0.3
_FOLDS: Final = 6


class KeptArms(dict[Choice, Visits]):
    """The arms of a shape, and what many sets of shapes ask of it: `losses` and `ratios`, each computed once."""

    def __init__(self, visits: Arms) -> None:
        super().__init__(visits)
        self.ratios = cache(lambda base, other: log_ratios(self.get(base, {}), self.get(other, {})))

    @cached_property
    def losses(self) -> Mapping[Choice, float]:
        """The log of the time of each method over that of the fastest."""
        middles = {choice: log(typical(times.values())) for choice, times in self.items()}
        least = min(middles.values())
        return {choice: middle - least for choice, middle in middles.items()}


def _with_stands(shapes: Sequence[Measured]) -> dict[Measured, KeptArms]:
    """Return the methods of some shapes of a kind, also those that another only stands for there.

    A kernel with more SMs is at least about as fast, so one with fewer stands for it where it was not measured.
    """
    counts = Counter(choice for one in shapes for choice in one.arms)
    methods = [choice for choice, count in counts.items() if count >= _ITSELF * len(shapes)]
    every: dict[Measured, KeptArms] = {}
    for one in shapes:
        stands = {choice: one.standing_for(choice) for choice in methods if choice not in one.arms}
        others = {choice: one.arms[stand] for choice, stand in stands.items() if stand and stand in one.arms}
        every[one] = KeptArms({**one.arms, **others})
    return every


@dataclass(frozen=True, slots=True)
class Pick:
    """The `choice` for some shapes, and the methods that cannot be told apart from the `best`, by preference."""

    choice: Choice
    best: Choice
    alike: Sequence[Choice]


def pick(shapes: Sequence[KeptArms]) -> Pick:
    """Choose the method for swaps of all these shapes.

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
    best = min(means, key=lambda choice: (means[choice], preference(choice)))
    alike = [one for one in sorted(means, key=preference) if one == best or _alike(shapes, best, one)]
    batched = min((one for one in means if one.backend == BATCHED), key=lambda one: means[one], default=None)
    if batched is None:
        return Pick(alike[0], best, alike)
    faster = (one for one in alike if one.backend != BATCHED and _slower(shapes, one, batched))
    return Pick(next(faster, batched), best, alike)


def compare_methods(shapes: Sequence[KeptArms], base: Choice, other: Choice) -> Comparison | None:
    """Compare the times of `other` with those of `base` over the shapes that measured both in one round; None without.

    Visits of a round alternate between methods, so they are a pair; so are blocks of samples that were taken in turn.
    """
    known = [pairs for one in shapes if (pairs := one.ratios(base, other))]
    return compare_over(known, TIED) if known else None


def _alike(shapes: Sequence[KeptArms], best: Choice, other: Choice) -> bool:
    """Return whether a method loses no more than `TIED` against the best, or may lose nothing at all."""
    compared = compare_methods(shapes, best, other)
    return compared is None or compared.ratio <= 1 + TIED.fraction or compared.low <= 1


def _slower(shapes: Sequence[KeptArms], base: Choice, other: Choice) -> bool:
    compared = compare_methods(shapes, base, other)
    return compared is not None and compared.verdict is Verdict.SLOWER


@dataclass(frozen=True, slots=True)
class RulePart:
    """What to use for some shapes of a kind: those with blocks of `sizes` bytes, (None, None) for all."""

    pick: Pick
    shapes: Sequence[Measured]
    sizes: tuple[int | None, int | None] = (None, None)

    @property
    def choice(self) -> Choice:
        return self.pick.choice

    def to_plain(self) -> dict[str, Any]:
        alike = [str(choice) for choice in self.pick.alike]
        return {"choice": str(self.choice), "block_bytes": list(self.sizes), "not_told_apart": alike}


@dataclass(frozen=True)
class Rule:
    """What to use, by direction and stream state: one part, or two that are split by the block size."""

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
    return Rule({kind: _parts(_with_stands([*of_kind])) for kind, of_kind in by_kind})


def _parts(shapes: Mapping[Measured, KeptArms]) -> list[RulePart]:
    """Return one part for all shapes, or the two that lose least, if that surely saves more than `TIED`."""
    parts = [RulePart(pick([*shapes.values()]), [*shapes])]
    single, most = parts[0].choice, 0.0
    for last, first in pairwise(sorted({one.shape.block_bytes for one in shapes})):
        low = {one: arms for one, arms in shapes.items() if one.shape.block_bytes <= last}
        high = {one: arms for one, arms in shapes.items() if one.shape.block_bytes >= first}
        picks = [pick([*side.values()]) for side in (low, high)]
        changes = (_changes(side, one.choice, single) for side, one in zip((low, high), picks, strict=True))
        saved = compare_over([*chain.from_iterable(changes)], TIED)
        if saved.verdict is Verdict.SLOWER and saved.ratio > most:
            most = saved.ratio
            parts = [RulePart(picks[0], [*low], (None, last)), RulePart(picks[1], [*high], (first, None))]
    return parts


def _changes(shapes: Mapping[Measured, KeptArms], choice: Choice, single: Choice) -> Iterator[Sequence[float]]:
    """Yield the log ratios of the times of `single` to those of `choice` at each shape."""
    for one in shapes.values():
        yield (one.ratios(choice, single) if choice != single else ()) or [0.0]


def costs_of(rule: Rule) -> dict[Measured, float]:
    """The extra time of swaps by the rule over the fastest method of each shape, as a fraction.

    Both are judged on rounds that did not choose them: on the fresh visits of a search, else on each sixth of the
    rounds in turn, by what the others choose. A shape without such rounds has no cost.
    """
    losses: dict[Measured, list[float]] = {}
    for parts in rule.parts.values():
        shapes = _with_stands([one for part in parts for one in part.shapes])
        for fold in range(_FOLDS):
            others = {one: _rounds(arms, fold, within=False) for one, arms in shapes.items()}
            for part in _parts(others) if all(others.values()) else ():
                for one in part.shapes:
                    choice = part.choice if part.choice in shapes[one] else rule.choices[one]
                    judged = _rounds(shapes[one], fold, within=True)
                    losses.setdefault(one, []).extend(_lost(judged, others[one], choice))
    for one in rule.shapes:
        if again := _lost(one.fresh, one.arms, rule.choices[one]):
            losses[one] = again
    return {one: expm1(fmean(of_shape)) for one, of_shape in losses.items() if of_shape}


def _rounds(arms: Arms, fold: int, *, within: bool) -> KeptArms:
    return KeptArms(rounds_of(arms, lambda at: (at % RUN_STEP % _FOLDS == fold) is within))


def _lost(judged: Arms, chosen_by: Arms, choice: Choice) -> list[float]:
    """Return the log ratios of the times of a choice to those of the fastest method by other rounds."""
    best = fastest(chosen_by)
    return log_ratios(judged.get(best, {}), judged.get(choice, {}))


def fastest(arms: Arms) -> Choice:
    return min(arms, key=lambda choice: typical(arms[choice].values()))
