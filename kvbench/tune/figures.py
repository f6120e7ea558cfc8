"""The figures of an answer: what the rule gains, what would change it, what it makes of models; the answer as JSON.

Runs of adjacent blocks would change it from the length on from which merged copies, which take no SM, are the fastest.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, Final, NamedTuple

from kvbench.analysis.compare import Visits, compare_visits
from kvbench.analysis.margins import IN_TURN
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.backend_facts import BATCHED, MERGED
from kvbench.cells.pattern import SHUFFLED
from kvbench.errors import UsageError
from kvbench.models.geometry import ModelSwap
from kvbench.policy import Choice
from kvbench.results import Run
from kvbench.results.frame import unqueued
from kvbench.results.replays import trace_of
from kvbench.tune.answer import Answer, by_kind, machine_plain, workload_of
from kvbench.tune.exports import ENGINES
from kvbench.tune.fit import Kind, Point, candidates, decide_all, sms_of, typical, workload_axes
from kvbench.tune.rule import Line, SmallestRule
from kvbench.tune.traced import losses_by
from kvbench.units import gigabytes_per_second

_IN_RUNS: Final = re.compile(r"runs-(\d+)")
_ENOUGH: Final = 2 / 3
_COMPARED: Final[Mapping[str, Sequence[str]]] = {
    BATCHED: (BATCHED,),
    **{name: engine.backends for name, engine in ENGINES.items()},
}


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times the speed of `over`, batched copies or the code of an engine, the choices of a rule have.

    There is a ratio for each shape whose choice is decided, in one direction and some stream states.
    """

    over: str
    direction: Direction
    states: Sequence[StreamState]
    ratios: Sequence[float]

    def to_plain(self) -> dict[str, Any]:
        """Return the gain as JSON-compatible data."""
        times = {"median": median(self.ratios), "low": min(self.ratios), "high": max(self.ratios)}
        return {
            "over": self.over,
            "direction": self.direction.value,
            "stream_states": [state.value for state in self.states],
            "shapes": len(self.ratios),
            "times_the_speed": {name: round(ratio, 3) for name, ratio in times.items()},
        }


def gains_of(rule: SmallestRule, *, pooled: bool = False) -> list[Gain]:
    """Return the gains by the quantity that stream states measure, or `pooled` over all states, and by direction."""
    found: dict[tuple[str, str, Direction], list[tuple[StreamState, float]]] = {}
    for over, backends in _COMPARED.items():
        for answer, choice in rule.choices.items():
            other = answer.best_of(*backends) if answer.decided else None
            if other is not None:
                key = over, "" if pooled else answer.state.quantity, answer.direction
                found.setdefault(key, []).append((answer.state, answer.ratio(choice, other)))
    return [
        Gain(over, direction, [*dict.fromkeys(state for state, _ in own)], [ratio for _, ratio in own])
        for (over, _, direction), own in found.items()
    ]


class Call(NamedTuple):
    """How much slower, as a fraction, another choice is in place of a line of the rule."""

    kind: Kind
    line: Line
    other: Choice
    slower: float

    def to_plain(self) -> dict[str, Any]:
        """Return the call as JSON-compatible data."""
        direction, state = self.kind
        where = {"direction": direction.value, "stream_state": state.value, **self.line.to_plain()}
        return {**where, "other": str(self.other), "slower": round(self.slower, 4)}


def closest_call(rule: SmallestRule) -> Call | None:
    """Return the other choice that is nearest to replacing one of the rule; None if nothing else was measured."""
    calls = [
        Call(kind, line, *line.rival) for kind, lines in rule.lines.items() for line in lines if line.rival is not None
    ]
    return min(calls, key=lambda call: abs(call.slower), default=None)


def gate_shares(answers: Sequence[Answer]) -> dict[Direction, list[float]]:
    """Return what batched copies take behind a gate that is closed as shares of their time behind an open one."""
    closed, opened = (
        {
            (one.direction, one.point): one.time_of(choice)
            for one in answers
            if one.state is state and (choice := one.best_of(BATCHED))
        }
        for state in (StreamState.GATED, StreamState.OPENED)
    )
    shares: dict[Direction, list[float]] = {}
    for key in closed:
        if key in opened:
            shares.setdefault(key[0], []).append(closed[key] / opened[key])
    return shares


def losses_as_shuffled(rule: SmallestRule, runs: Sequence[Run]) -> dict[Direction, float]:
    """Return how much longer, as a fraction, the swaps of a trace take by the choices for shuffled blocks.

    Empty for other runs, and where no shuffled blocks were measured.
    """
    if not all(map(trace_of, runs)):
        return {}
    chosen: dict[Direction, dict[Point, Choice]] = {}
    try:
        contests = candidates(runs).to_choose
    except UsageError:
        return {}
    for (direction, _), points in contests.items():
        chosen[direction] = {point: decision.choice for point, decision in decide_all(points).items()}
    measured = {
        kind[0]: {own.point: own.measured for own in answers} for kind, answers in by_kind(rule.answers).items()
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
        """Return the length as JSON-compatible data."""
        return {"from_blocks": self.blocks, "gbps": [round(end(self.gbps), 3) for end in (min, max)]}


def shortest_runs(runs: Sequence[Run], directions: Iterable[Direction]) -> dict[Direction, RunLength]:
    """Return the shortest runs in which merged copies are the choice, where there are such, by direction.

    There, they are the fastest beyond doubt in two thirds of the measured shapes on an idle stream.
    """
    shortest: dict[Direction, RunLength] = {}
    every = _by_length(runs)
    for direction in directions:
        lengths = every.get(direction, {})
        won = {length: [one for one in contests if one.won] for length, contests in sorted(lengths.items())}
        enough = [length for length, ours in won.items() if len(ours) >= _ENOUGH * len(lengths[length])]
        if enough:
            shortest[direction] = RunLength(enough[0], [one.gbps for one in won[enough[0]]])
    return shortest


def _by_length(runs: Sequence[Run]) -> dict[str, dict[int, list[_Contest]]]:
    """Return the contests on an idle stream by direction, then by the length of runs."""
    found: dict[tuple[str, int, int, int, int], _Contest] = {}
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
            contest = found.setdefault(key, _Contest(int(row["swap_bytes"])))
            if row["backend"] == MERGED:
                contest.merged = visits[row["cell_id"]]
            else:
                contest.others.append(visits[row["cell_id"]])
    lengths: dict[str, dict[int, list[_Contest]]] = {}
    for (direction, length, *_), contest in found.items():
        if contest.merged and contest.others:
            lengths.setdefault(direction, {}).setdefault(length, []).append(contest)
    return lengths


def merged_from(rule: SmallestRule, runs: Sequence[Run]) -> dict[Direction, RunLength]:
    """Return the shortest runs of blocks in which merged copies would replace a choice for shuffled blocks."""
    if all(map(trace_of, runs)) or workload_axes(runs)["pattern"] != str(SHUFFLED):
        return {}
    idle = {kind[0]: lines for kind, lines in rule.lines.items() if kind[1] is StreamState.IDLE}
    return shortest_runs(runs, [way for way in idle if any(line.choice.backend != MERGED for line in idle[way])])


@dataclass(frozen=True, slots=True)
class Load:
    """The swap of a model in one direction and stream state: at the GB/s, and the time of the calling thread per block,
    of the choice for the `nearest` measured shape.
    """

    swap: ModelSwap
    nearest: Answer
    choice: Choice

    @property
    def us(self) -> float:
        """The time of the swap in microseconds."""
        return self.swap.block_bytes * self.swap.blocks / self.gbps / 1e3

    @property
    def gbps(self) -> float:
        moved = self.nearest.block_bytes * self.nearest.blocks
        return gigabytes_per_second(moved, self.nearest.time_of(self.choice))

    @property
    def caller_us(self) -> float:
        """What the swap takes from the thread that makes it, in microseconds."""
        return self.nearest.caller_us[self.choice] / self.nearest.blocks * self.swap.blocks

    def to_plain(self) -> dict[str, Any]:
        """Return the load as JSON-compatible data."""
        return {
            "model": self.swap.geometry.name,
            "tokens": self.swap.tokens,
            "block_bytes": self.swap.block_bytes,
            "blocks": self.swap.blocks,
            "direction": self.nearest.direction.value,
            "stream_state": self.nearest.state.value,
            "quantity": self.nearest.state.quantity,
            "choice": str(self.choice),
            "us": round(self.us, 1),
            "gbps": round(self.gbps, 3),
            "caller_us": round(self.caller_us, 1),
            "sms": sms_of(self.choice),
            "measured": {"block_bytes": self.nearest.block_bytes, "blocks": self.nearest.blocks},
        }


def loads_of(rule: SmallestRule, swap: ModelSwap) -> Iterator[Load]:
    """Yield the swap of a model in every direction and stream state of a rule."""
    choices = rule.choices
    for kind in rule.lines:
        nearest = rule.nearest(kind, swap.block_bytes, swap.blocks)
        yield Load(swap, nearest, choices[nearest])


def to_plain(rule: SmallestRule, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the answer of a rule of `runs` as JSON-compatible data."""
    losses, call = rule.losses, closest_call(rule)
    return {
        **machine_plain(runs[0]),
        "runs": [{"created": run.info.created, "command": run.info.command} for run in runs],
        "workload": {"words": workload_of(runs), **workload_axes(runs)},
        "rule": rule.to_plain(),
        "loss": {
            "mean": round(mean(losses.values()), 4),
            "worst": round(max(losses.values()), 4),
            "beyond": [{"direction": direction.value, "stream_state": state.value} for direction, state in rule.beyond],
        },
        "gains": [gain.to_plain() for gain in gains_of(rule)],
        "closest_call": call and call.to_plain(),
        "merged_in_runs": {way.value: length.to_plain() for way, length in merged_from(rule, runs).items()},
        "gated_over_opened": {
            way.value: [round(end(shares), 3) for end in (min, max)]
            for way, shares in gate_shares(rule.answers).items()
        },
        "loss_as_shuffled": {way.value: round(loss, 4) for way, loss in losses_as_shuffled(rule, runs).items()},
        "answers": [
            {**answer.to_plain(), "rule": {"choice": str(choice), "loss": round(losses[answer], 4)}}
            for answer, choice in rule.choices.items()
        ],
    }
