"""The answers of a tuning from the times of all candidates: the choice for each shape, and what is open."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from kvbench.analysis.compare import MIN_PAIRS, Comparison, Visits, compare_visits
from kvbench.analysis.intervals import median_interval
from kvbench.analysis.margins import IN_TURN, TIED
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.backend_facts import BATCHED
from kvbench.cells.policy import Choice
from kvbench.cells.units import gigabytes_per_second
from kvbench.errors import UsageError
from kvbench.results import Run
from kvbench.results.replays import trace_of
from kvbench.text import a_stream
from kvbench.tune.fit import (
    SHAPE,
    Arms,
    Decision,
    Kind,
    Point,
    candidates,
    contests_of,
    decide_all,
    kind_plain,
    sms_of,
    trace_visits,
    typical,
)

# A choice for swaps of a trace with more than this multiple of the fastest one's time does not win in another run.
_IN_CONTENTION: Final = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The choice for swaps of one shape, in one direction and stream state, and the times of all candidates, `arms`.

    `measured` has also what was not allowed to be chosen. `fresh` are visits that had no part in the choice; where
    there are any, they give the times. `caller_us` are the times that a swap takes from the thread that makes it.
    """

    direction: Direction
    state: StreamState
    block_bytes: int
    blocks: int
    arms: Arms
    decision: Decision
    measured: Arms
    fresh: Arms = field(default_factory=dict)
    caller_us: Mapping[Choice, float] = field(default_factory=dict)

    @property
    def point(self) -> Point:
        return self.block_bytes, self.blocks

    @property
    def choice(self) -> Choice:
        return self.decision.choice

    @property
    def time_us(self) -> float:
        return self.time_of(self.choice)

    @property
    def interval_us(self) -> tuple[float, float] | None:
        """The 95% interval of the time, or None with too few visits."""
        return self.interval_of(self.choice)

    def interval_of(self, choice: Choice) -> tuple[float, float] | None:
        visits = list(self.visits_of(choice).values())
        return median_interval(visits) if len(visits) >= MIN_PAIRS else None

    @property
    def decided(self) -> bool:
        """Whether no other choice is possible, which takes the visits of a verdict to say."""
        return len(self.visits_of(self.choice)) >= MIN_PAIRS and not self.open

    @property
    def gbps(self) -> float:
        return self.gbps_of(self.choice)

    def gbps_of(self, choice: Choice) -> float:
        return gigabytes_per_second(self.block_bytes * self.blocks, self.time_of(choice))

    def time_of(self, choice: Choice) -> float:
        """Return what a swap by this candidate takes in microseconds."""
        return typical(self.visits_of(choice).values())

    def visits_of(self, choice: Choice) -> Visits:
        return self.fresh.get(choice) or self.measured[choice]

    def ratio(self, choice: Choice, other: Choice) -> float:
        """Return the time of `other` divided by that of `choice`, from fresh visits if both have them."""
        visits = self.fresh if {choice, other} <= self.fresh.keys() else self.measured
        return compare_visits(visits[choice], visits[other], IN_TURN).ratio

    def loss(self, choice: Choice) -> float:
        """Return how much more time than the fastest candidate a choice takes, as a fraction."""
        fastest = self.decision.fastest
        known = None if {choice, fastest} <= self.fresh.keys() else self.decision.ratios.get(choice)
        return (self.ratio(fastest, choice) if known is None else known) - 1

    def best_of(self, *backends: str, sms: int | None = None) -> Choice | None:
        """Return the fastest of all that was measured of some backends, optionally with an SM count, or None."""
        choices = [c for c in self.measured if c.backend in backends and sms in (None, sms_of(c))]
        return min(choices, key=self.time_of, default=None)

    @property
    def tied(self) -> list[Choice]:
        """What another run could choose instead for a difference within `TIED`."""
        return [other for other, comparison in self.decision.others.items() if _is_tie(comparison)]

    @property
    def open(self) -> Mapping[Choice, Comparison]:
        """What another run could choose instead for a larger difference, with its time over that of the choice."""
        return {other: comparison for other, comparison in self.decision.others.items() if not _is_tie(comparison)}

    def gain_over(self, *backends: str) -> float | None:
        """Return how many times the speed of the best of some backends the choice has, None unless it is decided."""
        other = self.best_of(*backends) if self.decided else None
        return None if other is None else self.ratio(self.choice, other)

    def shape_plain(self) -> dict[str, Any]:
        kind = kind_plain((self.direction, self.state))
        return {**kind, "block_bytes": self.block_bytes, "blocks": self.blocks}

    def to_plain(self) -> dict[str, Any]:
        """Return the answer as JSON-compatible data."""
        gain = self.gain_over(BATCHED)
        return {
            **self.shape_plain(),
            "quantity": self.state.quantity,
            "choice": str(self.choice),
            **self._times(self.choice),
            "gbps": round(self.gbps, 3),
            "decided": self.decided,
            "times_the_speed_of": {} if gain is None else {BATCHED: round(gain, 3)},
            "tied": [_alternative(choice, self.decision.others[choice]) for choice in self.tied],
            "open": [_alternative(choice, comparison) for choice, comparison in self.open.items()],
            "candidates": [{"choice": str(choice), **self._times(choice)} for choice in self.measured],
        }

    def _times(self, choice: Choice) -> dict[str, Any]:
        interval, caller_us = self.interval_of(choice), self.caller_us.get(choice, math.nan)
        return {
            "us": round(self.time_of(choice), 3),
            "interval_us": interval and [round(end, 3) for end in interval],
            "caller_us": round(caller_us, 3) if math.isfinite(caller_us) else None,
            "sms": sms_of(choice),
        }


def answers_of(
    runs: Sequence[Run], keep: Callable[[Choice], bool], state: str | None = None, pause: str | None = None
) -> list[Answer]:
    """Return an answer for every measured shape, or part of the swaps of a trace, from the candidates that `keep`
    accepts, in one stream state and after one pause if named.

    The answers are sorted by direction, stream state, block size and number of blocks. Raises UsageError without any.
    """
    traced = all(map(trace_of, runs))
    visits = trace_visits(runs) if traced else candidates(runs, pause=pause)
    fresh = contests_of(visits[visits["fresh"]])
    by_shape: Any = visits.groupby([*SHAPE])  # pandas types its keys as Hashable
    caller_us = {key: rows.set_index("choice")["caller_us"].to_dict() for key, rows in by_shape}
    answers = []
    for kind, times in contests_of(visits[~visits["fresh"]]).items():
        if state not in (None, kind[1].value):
            continue
        kept: dict[Point, Arms] = {
            point: {choice: arms[choice] for choice in arms if keep(choice)} for point, arms in times.items()
        }
        if traced:
            kept = {point: _in_contention(arms) for point, arms in kept.items() if len({a.backend for a in arms}) > 1}
        allowed = {point: arms for point, arms in sorted(kept.items()) if arms}
        for point, decision in decide_all(allowed).items():
            again, of_caller = fresh.get(kind, {}).get(point, {}), caller_us[(*kind, *point)]
            answers.append(Answer(*kind, *point, allowed[point], decision, times[point], again, of_caller))
    if not answers and traced:
        raise UsageError("nothing to choose from: a replay answers for an idle stream, from two backends or more")
    if not answers:
        where = f" on {a_stream(state)}" if state else ""
        raise UsageError(f"nothing to choose from: no swap was measured{where} with the allowed backends and SM counts")
    return answers


def over_fastest(arms: Arms) -> dict[Choice, float]:
    """Return the time of each candidate divided by that of the fastest."""
    middle = {choice: median(visits.values()) for choice, visits in arms.items()}
    fastest = min(middle.values())
    return {choice: us / fastest for choice, us in middle.items()}


def _in_contention(arms: Arms) -> Arms:
    """Return the candidates for a part of a trace that could be chosen in another run.

    The scatter of all is pooled to say what is open, and that of swaps that the CPU copies is many times larger.
    """
    slower = over_fastest(arms)
    return {choice: visits for choice, visits in arms.items() if slower[choice] <= _IN_CONTENTION}


def by_kind(answers: Sequence[Answer]) -> Mapping[Kind, list[Answer]]:
    kinds: dict[Kind, list[Answer]] = {}
    for answer in answers:
        kinds.setdefault((answer.direction, answer.state), []).append(answer)
    return kinds


def _alternative(choice: Choice, comparison: Comparison) -> dict[str, Any]:
    """Return what another run could choose, with its time over that of the choice; too few visits have no interval."""
    known = math.isfinite(comparison.high)
    ends = (
        {"low": round(comparison.low, 4), "high": round(comparison.high, 4)} if known else {"low": None, "high": None}
    )
    return {"choice": str(choice), "ratio": round(comparison.ratio, 4), **ends}


def apart(comparison: Comparison) -> float:
    """Return the ratio of the larger time to the smaller; times of an untrusted run can have any ratio."""
    return max(comparison.ratio, 1 / comparison.ratio if comparison.ratio else math.inf)


def _is_tie(comparison: Comparison) -> bool:
    return not apart(comparison) > 1 + TIED.fraction  # NaN ties
