"""What follows from a rule: its figures at known shapes, what it gains, what would change it."""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, Final, NamedTuple

from kvbench.analysis.compare import compare_visits
from kvbench.analysis.margins import IN_TURN
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.backend_facts import BATCHED, MERGED
from kvbench.cells.pattern import SHUFFLED
from kvbench.cells.policy import Choice
from kvbench.cells.units import KIB, gigabytes_per_second
from kvbench.errors import UsageError
from kvbench.results import Run
from kvbench.results.replays import trace_of
from kvbench.sweep.installed import engines
from kvbench.tune.answer import Answer, over_fastest
from kvbench.tune.fit import Arms, Kind, Point, candidates, contests_of, decide_all, kind_plain, typical, workload_axes
from kvbench.tune.rule import Line, SmallestRule

# The shapes at which every answer has figures: a small swap, for its time, and a large one, for its rate.
SMALL: Final[Point] = (4 * KIB, 64)
LARGE: Final[Point] = (4 * KIB, 10_000)
_IN_RUNS: Final = re.compile(r"runs-(\d+)")
_ENOUGH: Final = 2 / 3


@dataclass(frozen=True, slots=True)
class AtShape:
    """What swaps of a measured shape take by the choice of a rule, and by batched copies."""

    answer: Answer
    choice: Choice

    @property
    def batched(self) -> Choice | None:
        """The batched copies to compare with; None if they were not measured, or are the choice."""
        return None if self.choice.backend == BATCHED else self.answer.best_of(BATCHED)

    def us(self, choice: Choice) -> float:
        return self.answer.time_of(choice)

    def gbps(self, choice: Choice) -> float:
        return self.answer.gbps_of(choice)

    def to_plain(self) -> dict[str, Any]:
        batched = self.batched
        return {
            **self.answer.shape_plain(),
            "choice": str(self.choice),
            "us": round(self.us(self.choice), 3),
            "gbps": round(self.gbps(self.choice), 3),
            "batched_us": batched and round(self.us(batched), 3),
            "batched_gbps": batched and round(self.gbps(batched), 3),
        }


def at_known_shapes(rule: SmallestRule) -> dict[Kind, tuple[AtShape, AtShape]]:
    """Return the figures of a rule at the measured shapes nearest to `SMALL` and to `LARGE`."""
    choices = rule.choices
    nearest = {kind: (rule.nearest(kind, *SMALL), rule.nearest(kind, *LARGE)) for kind in rule.lines}
    return {
        kind: (AtShape(small, choices[small]), AtShape(large, choices[large]))
        for kind, (small, large) in nearest.items()
    }


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times as fast as `over`, batched copies or the code of an engine, the choices of a rule are.

    There is a ratio for each shape whose choice is decided, in one direction and stream state.
    """

    over: str
    kind: Kind
    ratios: Sequence[float]

    def to_plain(self) -> dict[str, Any]:
        times = {"median": median(self.ratios), "low": min(self.ratios), "high": max(self.ratios)}
        return {
            "over": self.over,
            **kind_plain(self.kind),
            "shapes": len(self.ratios),
            "times_as_fast": {name: round(ratio, 3) for name, ratio in times.items()},
        }


def gains_of(rule: SmallestRule) -> list[Gain]:
    """Return the gains over batched copies, unless they are the choice throughout, and over the code of engines that
    was measured.
    """
    compared = {BATCHED: (BATCHED,), **{one.name: one.backends for one in engines().values() if not one.pages}}
    ratios: dict[tuple[str, Kind], list[tuple[Choice, float]]] = {}
    for over, backends in compared.items():
        for answer, choice in rule.choices.items():
            other = answer.best_of(*backends) if answer.decided else None
            if other is not None:
                kind = answer.direction, answer.state
                ratios.setdefault((over, kind), []).append((choice, answer.ratio(choice, other)))
    return [
        Gain(over, kind, [ratio for _, ratio in pairs])
        for (over, kind), pairs in ratios.items()
        if any(choice.backend not in compared[over] for choice, _ in pairs)
    ]


class Call(NamedTuple):
    """How much slower, as a fraction, another choice is in place of a line of the rule."""

    kind: Kind
    line: Line
    other: Choice
    slower: float

    def to_plain(self) -> dict[str, Any]:
        rival = {"other": str(self.other), "slower": round(self.slower, 4)}
        return {**kind_plain(self.kind), **self.line.to_plain(), **rival}


def closest_call(rule: SmallestRule) -> Call | None:
    """Return the other choice that is nearest to replacing one of the rule; None if nothing else was measured."""
    calls = [
        Call(kind, line, *line.rival) for kind, lines in rule.lines.items() for line in lines if line.rival is not None
    ]
    return min(calls, key=lambda call: abs(call.slower), default=None)


def losses_as_shuffled(rule: SmallestRule, runs: Sequence[Run]) -> dict[Direction, float]:
    """Return how much longer, as a fraction, the swaps of a trace take, each by the choice for shuffled blocks of the
    nearest number; 0.04 is 4% longer than by the fastest choice of each part.

    Empty for other runs, and where no shuffled blocks were measured.
    """
    if not all(map(trace_of, runs)):
        return {}
    try:
        visits = candidates(runs)
    except UsageError:
        return {}
    losses = {}
    for (direction, _), points in contests_of(visits[~visits["fresh"]]).items():
        chosen = {blocks: decision.choice for (_, blocks), decision in decide_all(points).items()}
        ratios = []
        for answer in (one for one in rule.answers if one.direction is direction):
            nearest = min(chosen, key=lambda blocks: abs(math.log(blocks / answer.blocks)))
            slower = over_fastest(answer.measured).get(chosen[nearest])
            ratios += [] if slower is None else [slower - 1]
        if ratios:
            losses[direction] = mean(ratios)
    return losses


@dataclass(frozen=True, slots=True)
class RunLength:
    """Runs of `blocks` blocks, and the GB/s of merged copies at the shapes where they are the fastest."""

    blocks: int
    gbps: Sequence[float]

    def to_plain(self) -> dict[str, Any]:
        return {"from_blocks": self.blocks, "gbps": [round(end(self.gbps), 3) for end in (min, max)]}


def merged_from(rule: SmallestRule, runs: Sequence[Run]) -> dict[Direction, RunLength]:
    """Return the shortest runs of blocks in which merged copies would replace a choice for shuffled blocks.

    There, they are the fastest beyond doubt in two thirds of the measured shapes on an idle stream.
    """
    if all(map(trace_of, runs)) or workload_axes(runs)["pattern"] != str(SHUFFLED):
        return {}
    idle = {kind[0]: lines for kind, lines in rule.lines.items() if kind[1] is StreamState.IDLE}
    open_ = [way for way, lines in idle.items() if any(line.choice.backend != MERGED for line in lines)]
    patterns = {name for run in runs for name in run.frame()["pattern"].unique() if _IN_RUNS.fullmatch(str(name))}
    shortest: dict[Direction, RunLength] = {}
    for pattern in sorted(patterns, key=lambda name: int(name.removeprefix("runs-"))):
        with suppress(UsageError):  # too few backends in this layout
            contests = contests_of(candidates(runs, pattern=pattern))
            for direction in [way for way in open_ if way not in shortest]:
                points = contests.get((direction, StreamState.IDLE), {})
                won, among = _merged_wins(points)
                if won and len(won) >= _ENOUGH * among:
                    shortest[direction] = RunLength(int(pattern.removeprefix("runs-")), won)
    return {direction: shortest[direction] for direction in idle if direction in shortest}


def _merged_wins(points: Mapping[Point, Arms]) -> tuple[list[float], int]:
    """Return the GB/s of merged copies where they are the fastest beyond doubt, and at how many points they compete."""
    won, among = [], 0
    for (size, count), arms in points.items():
        times = {choice: typical(visits.values()) for choice, visits in arms.items()}
        merged = min((choice for choice in times if choice.backend == MERGED), key=lambda one: times[one], default=None)
        rival = min((choice for choice in times if choice.backend != MERGED), key=lambda one: times[one], default=None)
        if merged is not None and rival is not None:
            among += 1
            if compare_visits(arms[merged], arms[rival], IN_TURN).low > 1:
                won.append(gigabytes_per_second(size * count, times[merged]))
    return won, among
