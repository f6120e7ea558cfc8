"""What follows from a rule: its figures at known shapes, what it gains, what would change it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, NamedTuple

from kvbench.analysis.compare import Visits, compare_visits
from kvbench.analysis.margins import IN_TURN
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.backend_facts import BATCHED, MERGED
from kvbench.cells.pattern import SHUFFLED
from kvbench.cells.policy import Choice
from kvbench.cells.units import KIB, gigabytes_per_second
from kvbench.errors import UsageError
from kvbench.results import Run
from kvbench.results.frame import unqueued
from kvbench.results.replays import trace_of
from kvbench.sweep.installed import engines
from kvbench.tune.answer import Answer, by_kind
from kvbench.tune.fit import Kind, Point, candidates, contests_of, decide_all, kind_plain, typical, workload_axes
from kvbench.tune.rule import Line, SmallestRule
from kvbench.tune.traced import losses_by

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
    """Return how much longer, as a fraction, the swaps of a trace take by the choices for shuffled blocks.

    Empty for other runs, and where no shuffled blocks were measured.
    """
    if not all(map(trace_of, runs)):
        return {}
    chosen: dict[Direction, dict[Point, Choice]] = {}
    try:
        visits = candidates(runs)
    except UsageError:
        return {}
    contests = contests_of(visits[~visits["fresh"]])
    for (direction, _), points in contests.items():
        chosen[direction] = {point: decision.choice for point, decision in decide_all(points).items()}
    measured = {
        kind[0]: {one.point: one.measured for one in answers} for kind, answers in by_kind(rule.answers).items()
    }
    return dict(losses_by(chosen, measured))


@dataclass
class _Contest:
    """The times of merged copies and of other ways, for the swaps of one shape in runs of one length."""

    swap_bytes: int
    merged: Visits = field(default_factory=dict)
    others: list[Visits] = field(default_factory=list)

    @property
    def won(self) -> bool:
        """Whether merged copies are the fastest beyond doubt."""
        rival = min(self.others, key=lambda visits: typical(visits.values()))
        return compare_visits(self.merged, rival, IN_TURN).low > 1

    @property
    def gbps(self) -> float:
        return gigabytes_per_second(self.swap_bytes, typical(self.merged.values()))


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
    shortest: dict[Direction, RunLength] = {}
    every = _by_length(runs)
    for direction, lines in idle.items():
        others = any(line.choice.backend != MERGED for line in lines)
        lengths = every.get(direction, {}) if others else {}
        won = {length: [one for one in contests if one.won] for length, contests in sorted(lengths.items())}
        enough = [length for length, ours in won.items() if len(ours) >= _ENOUGH * len(lengths[length])]
        if enough:
            shortest[direction] = RunLength(enough[0], [one.gbps for one in won[enough[0]]])
    return shortest


def _by_length(runs: Sequence[Run]) -> dict[str, dict[int, list[_Contest]]]:
    """Return the contests on an idle stream by direction, then by the length of runs."""
    contests: dict[tuple[str, int, int, int, int], _Contest] = {}
    for number, run in enumerate(runs):
        frame = run.frame()
        frame = unqueued(frame[frame["pattern"].str.startswith("runs-") & (frame["status"] == "ok")])
        cells = frame[frame["stream_state"] == "idle"]
        alike = cells[["host_pattern", "device_pattern", "sizes"]].isna().all(axis="columns")
        visits = {} if cells.empty else run.visit_times()
        for row in cells[alike].to_dict("records"):
            match = _IN_RUNS.fullmatch(str(row["pattern"]))
            if match is None or row["cell_id"] not in visits:
                continue
            key = str(row["direction"]), int(match[1]), int(row["block_bytes"]), int(row["blocks"]), number
            contest = contests.setdefault(key, _Contest(int(row["swap_bytes"])))
            if row["backend"] == MERGED:
                contest.merged = visits[row["cell_id"]]
            else:
                contest.others.append(visits[row["cell_id"]])
    lengths: dict[str, dict[int, list[_Contest]]] = {}
    for (direction, length, *_), contest in contests.items():
        if contest.merged and contest.others:
            lengths.setdefault(direction, {}).setdefault(length, []).append(contest)
    return lengths
