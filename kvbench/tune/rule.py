"""The smallest rule that is good enough: the fewest choices, each for a range of shapes, that lose little.

A line of a rule is a choice for a rectangle of block sizes and numbers of blocks. A cut divides all shapes in two,
other cuts divide the parts. Of all such rules for a direction and stream state, `rule_of` finds the one with the fewest
lines.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import mean
from typing import Any, Final, NamedTuple

from kvbench.analysis.margins import AFTER_A_KERNEL, OF_A_RUN, TIED
from kvbench.cells.axes import StreamState
from kvbench.cells.policy import Choice
from kvbench.tune.answer import Answer, by_kind
from kvbench.tune.fit import Kind, Point, kind_plain, preference, sms_of, standard_errors

# The maximum loss at one shape, in another run too; on average it is `TIED`.
WORST: Final = 0.10
MOST_LINES: Final = 4
# The share of the shapes of a line at which its choice was measured itself.
_MEASURED: Final = 0.5
# Of choices whose average losses differ by less than this, the one with the fewest SMs is taken.
_STEP: Final = 0.005

# The first and the last value of a range, None where the range has no end.
Range = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Line:
    """A choice for the shapes of `answers`, which have these block sizes in bytes and numbers of blocks.

    `rival` is the other choice that loses least, and by how much more on average; None if nothing else was measured.
    """

    choice: Choice
    sizes: Range
    counts: Range
    answers: Sequence[Answer]
    rival: tuple[Choice, float] | None = None

    def to_plain(self) -> dict[str, Any]:
        return {"choice": str(self.choice), "block_bytes": list(self.sizes), "blocks": list(self.counts)}


@dataclass(frozen=True)
class SmallestRule:
    """The lines of a rule by direction and stream state."""

    lines: Mapping[Kind, Sequence[Line]]

    @property
    def answers(self) -> list[Answer]:
        return [answer for kind in self.lines for answer in self.answers_of(kind)]

    def answers_of(self, kind: Kind) -> list[Answer]:
        return [answer for line in self.lines[kind] for answer in line.answers]

    @cached_property
    def choices(self) -> dict[Answer, Choice]:
        """The choice of the rule for every answer, or what stands for it there."""
        return {
            answer: stand
            for lines in self.lines.values()
            for line in lines
            for answer in line.answers
            if (stand := _standing_for(line.choice, answer.decision.ratios))
        }

    def choices_by_point(self, *, exact: bool) -> dict[Kind, dict[Point, Choice]]:
        """Return the choice for every shape: that of the rule, or, if `exact`, the best of the shape."""
        return {
            kind: {answer.point: answer.choice if exact else line.choice for line in lines for answer in line.answers}
            for kind, lines in self.lines.items()
        }

    @cached_property
    def losses(self) -> dict[Answer, float]:
        """How much more time than the fastest candidate the choice of the rule takes, as a fraction, by answer."""
        return {answer: answer.loss(choice) for answer, choice in self.choices.items()}

    @property
    def beyond(self) -> list[Kind]:
        """The directions and stream states where even `MOST_LINES` choices lose more than they may."""
        losses = self.losses
        of_kinds = {kind: [losses[answer] for answer in self.answers_of(kind)] for kind in self.lines}
        return [kind for kind, of_kind in of_kinds.items() if mean(of_kind) > TIED.fraction or max(of_kind) > WORST]

    def nearest(self, kind: Kind, block_bytes: int, blocks: int) -> Answer:
        """Return the answer whose shape is nearest in ratio: by block size, then by number of blocks."""

        def distance(answer: Answer) -> tuple[float, float]:
            return abs(math.log(answer.block_bytes / block_bytes)), abs(math.log(answer.blocks / blocks))

        return min(self.answers_of(kind), key=distance)

    def to_plain(self) -> list[dict[str, Any]]:
        return [
            {**kind_plain(kind), "quantity": kind[1].quantity, **line.to_plain()}
            for kind, lines in self.lines.items()
            for line in lines
        ]


class _Part(NamedTuple):
    """A rectangle of shapes: half-open ranges of the indexes of block sizes and of numbers of blocks."""

    sizes: tuple[int, int]
    counts: tuple[int, int]

    def halves(self) -> Iterator[tuple["_Part", "_Part"]]:
        for at in range(self.sizes[0] + 1, self.sizes[1]):
            yield self._replace(sizes=(self.sizes[0], at)), self._replace(sizes=(at, self.sizes[1]))
        for at in range(self.counts[0] + 1, self.counts[1]):
            yield self._replace(counts=(self.counts[0], at)), self._replace(counts=(at, self.counts[1]))


class _Loss(NamedTuple):
    """What a choice loses, as a fraction, and how often that is more than it may."""

    too_much: int
    fraction: float


class _Fit(NamedTuple):
    too_much: float = math.inf
    loss: float = math.inf  # the sum over all shapes
    lines: tuple[Line, ...] = ()

    def beside(self, other: "_Fit") -> "_Fit":
        return _Fit(self.too_much + other.too_much, self.loss + other.loss, self.lines + other.lines)


def rule_of(answers: Sequence[Answer]) -> SmallestRule:
    """Return the rule with the fewest lines that loses at most `TIED` on average and `WORST` at one shape.

    If none of `MOST_LINES` lines does, return the one that loses least. A chain of swaps begins on an idle stream:
    where the rule copies with SMs there, copies of the copy engine behind it count as slower by `AFTER_A_KERNEL`.
    """
    rule = SmallestRule({})
    for kind, kind_answers in by_kind(answers).items():
        rule = SmallestRule({**rule.lines, kind: _fewest_lines(kind_answers, rule)})
    return rule


def _fewest_lines(answers: Sequence[Answer], idle: SmallestRule) -> tuple[Line, ...]:
    """Return the lines of one direction and stream state.

    Every cut goes through a whole part, from edge to edge, which makes the optimum a dynamic program over rectangles:
    the guillotine cuts of Gilmore and Gomory, "Multistage cutting stock problems of two and more dimensions",
    Operations Research 13 (1965).
    """
    sizes, counts = (sorted({answer.point[axis] for answer in answers}) for axis in (0, 1))
    every = {choice for answer in answers for choice in answer.decision.ratios}
    losses = {answer: _losses(answer, every, _after(answer, idle)) for answer in answers}

    @cache
    def best(part: _Part, lines: int) -> _Fit:
        if lines > 1:
            fits = (
                best(one, number).beside(best(other, lines - number))
                for one, other in part.halves()
                for number in range(1, lines)
            )
            return min(fits, key=lambda fit: fit[:2], default=_Fit())
        spans = (sizes[slice(*part.sizes)], counts[slice(*part.counts)])
        inside = {answer: losses[answer] for answer in answers if all(map(list.__contains__, spans, answer.point))}
        if not inside:
            return _Fit(0, 0.0)
        found = _best_choice(inside)
        if found is None:
            return _Fit()
        choice, loss = found
        line = Line(choice, _range(spans[0], sizes), _range(spans[1], counts), list(inside))
        return _Fit(loss.too_much, loss.fraction * len(inside), (line,))

    whole = _Part((0, len(sizes)), (0, len(counts)))
    fits = [_Fit()]
    while fits[-1][:2] > (0, TIED.fraction * len(answers)) and len(fits) <= MOST_LINES:
        fits.append(best(whole, len(fits)))
    # A run may lack some candidates at some shapes: a line needs one that was measured at all of its shapes.
    alone = (Line(a.choice, (a.block_bytes,) * 2, (a.blocks,) * 2, [a]) for a in answers)
    lines = min(fits, key=lambda fit: fit[:2]).lines or alone
    return tuple(replace(line, rival=_rival(line.choice, [losses[one] for one in line.answers])) for line in lines)


def _best_choice(losses: Mapping[Answer, Mapping[Choice, _Loss]]) -> tuple[Choice, _Loss] | None:
    """Return the choice of a line for these shapes, with its mean loss; None if no choice has one at all of them."""
    common = set.intersection(*(set(by_choice) for by_choice in losses.values()))
    measured = Counter(choice for answer in losses for choice in answer.decision.ratios)
    means = {
        choice: _Loss(
            sum(by_choice[choice].too_much for by_choice in losses.values()),
            sum(by_choice[choice].fraction for by_choice in losses.values()) / len(losses),
        )
        for choice in common
        if measured[choice] >= _MEASURED * len(losses)
    }
    if not means:
        return None
    least = min(means.values())
    enough = least._replace(fraction=least.fraction + _STEP)
    choice = min((one for one in means if means[one] <= enough), key=lambda one: (preference(one), str(one)))
    return choice, means[choice]


def _rival(choice: Choice, losses: Sequence[Mapping[Choice, _Loss]]) -> tuple[Choice, float] | None:
    """Return the rival of a choice, by the losses at each shape; of what was measured at the most of them."""
    more: dict[Choice, list[float]] = {}
    for by_choice in losses:
        for other in by_choice.keys() - {choice}:
            more.setdefault(other, []).append(by_choice[other].fraction - by_choice[choice].fraction)
    most = max(map(len, more.values()), default=0)
    means = {other: sum(differences) / most for other, differences in more.items() if len(differences) == most}
    rival = min(means, key=lambda other: (means[other], str(other)), default=None)
    return None if rival is None else (rival, means[rival])


def _after(answer: Answer, idle: SmallestRule) -> float:
    """Return how many times as long copies of the copy engine take in the chain of an answer as measured."""
    begin = answer.direction, StreamState.IDLE
    if answer.state is not StreamState.SUSTAINED or begin not in idle.lines:
        return 1.0
    return 1 + AFTER_A_KERNEL.fraction * (sms_of(idle.choices[idle.nearest(begin, *answer.point)]) > 0)


def _standing_for(choice: Choice, measured: Iterable[Choice]) -> Choice | None:
    """Return what was measured of a choice: itself, or the same with the largest smaller SM count.

    A kernel with more SMs is at least about as fast.
    """
    kin, sms = _without_sms(choice), sms_of(choice)
    alike = [
        one for one in measured if one.backend == choice.backend and sms_of(one) <= sms and _without_sms(one) == kin
    ]
    return max(alike, key=sms_of, default=None)


def _without_sms(choice: Choice) -> tuple[tuple[str, str], ...]:
    return tuple(axis for axis in choice.axes if axis[0] != "sms")


def _losses(answer: Answer, choices: Iterable[Choice], after: float) -> dict[Choice, _Loss]:
    """Return how much more time than the fastest each candidate takes, as a fraction, also those that others stand for.

    A loss must stay below `WORST` when it is larger by its standard error, or be below half.
    """
    errors = standard_errors(answer.arms)
    ratios = {
        choice: max(ratio, 1.0) * (1 if sms_of(choice) else after) for choice, ratio in answer.decision.ratios.items()
    }
    fastest = min(ratios, key=lambda choice: (ratios[choice], choice != answer.decision.fastest))
    losses = {}
    for choice in choices:
        stand = _standing_for(choice, ratios)
        if stand is None:
            continue
        loss = ratios[stand] / ratios[fastest] - 1
        error = math.hypot(errors[fastest], errors[stand], OF_A_RUN.fraction, OF_A_RUN.fraction)
        losses[choice] = _Loss(stand != fastest and loss > max(WORST - error, WORST / 2), loss)
    return losses


def _range(values: Sequence[int], every: Sequence[int]) -> Range:
    """Return the range of some of the consecutive values of `every`."""
    return (None if values[0] == every[0] else values[0], None if values[-1] == every[-1] else values[-1])
