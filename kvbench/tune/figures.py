"""The figures of an answer: what the rule gains, what would change it; and the answer as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, Final, NamedTuple

from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.backend_facts import BATCHED, MERGED
from kvbench.cells.pattern import SHUFFLED
from kvbench.errors import UsageError
from kvbench.policy import Choice
from kvbench.results import Run
from kvbench.results.replays import trace_of
from kvbench.tune.answer import Answer, by_kind, machine_plain, workload_of
from kvbench.tune.exports import ENGINES
from kvbench.tune.fit import Kind, Point, candidates, decide_all, workload_axes
from kvbench.tune.layouts import RunLength, shortest_runs
from kvbench.tune.rule import Line, SmallestRule
from kvbench.tune.traced import losses_by

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
    ratios: dict[tuple[str, str, Direction], list[tuple[StreamState, float]]] = {}
    for over, backends in _COMPARED.items():
        for answer, choice in rule.choices.items():
            other = answer.best_of(*backends) if answer.decided else None
            if other is not None:
                key = over, "" if pooled else answer.state.quantity, answer.direction
                ratios.setdefault(key, []).append((answer.state, answer.ratio(choice, other)))
    return [
        Gain(over, direction, [*dict.fromkeys(state for state, _ in pairs)], [ratio for _, ratio in pairs])
        for (over, _, direction), pairs in ratios.items()
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
        kind[0]: {one.point: one.measured for one in answers} for kind, answers in by_kind(rule.answers).items()
    }
    return dict(losses_by(chosen, measured))


def merged_from(rule: SmallestRule, runs: Sequence[Run]) -> dict[Direction, RunLength]:
    """Return the shortest runs of blocks in which merged copies would replace a choice for shuffled blocks."""
    if all(map(trace_of, runs)) or workload_axes(runs)["pattern"] != str(SHUFFLED):
        return {}
    idle = {kind[0]: lines for kind, lines in rule.lines.items() if kind[1] is StreamState.IDLE}
    return shortest_runs(runs, [way for way in idle if any(line.choice.backend != MERGED for line in idle[way])])


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
