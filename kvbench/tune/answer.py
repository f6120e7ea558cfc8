"""The answers of a tuning: the choice for each shape and what is open, alone and beside a neighbour."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pandas as pd

from kvbench.analysis.compare import MIN_PAIRS, Comparison, Verdict, Visits, compare_visits, paired_interval
from kvbench.analysis.intervals import median_interval
from kvbench.analysis.margins import IN_TURN, TIED
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.backend_facts import BATCHED, NO_CHOICES, plug_ins_of
from kvbench.cells.policy import Choice
from kvbench.cells.units import gigabytes_per_second
from kvbench.errors import UsageError
from kvbench.results import Run
from kvbench.results.cost import Cost, costs_of, median_or_nan
from kvbench.results.frame import whole
from kvbench.results.replays import trace_of
from kvbench.text import a_stream
from kvbench.tune.fit import (
    SHAPE,
    Arms,
    Decision,
    Kind,
    Point,
    candidates,
    choice_of,
    contests_of,
    decide_all,
    kind_plain,
    machine_of,
    one_workload,
    preference,
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

    def interval_of(self, choice: Choice) -> tuple[float, float] | None:
        """Return the 95% interval of the time, or None with too few visits."""
        visits = list(self.visits_of(choice).values())
        return median_interval(visits) if len(visits) >= MIN_PAIRS else None

    @property
    def decided(self) -> bool:
        """Whether no other choice is possible, which takes the visits of a verdict to say."""
        return len(self.visits_of(self.choice)) >= MIN_PAIRS and not self.open

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
        gain = self.gain_over(BATCHED)
        return {
            **self.shape_plain(),
            "quantity": self.state.quantity,
            "choice": str(self.choice),
            **self._times(self.choice),
            "gbps": round(self.gbps_of(self.choice), 3),
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


class Shape(NamedTuple):
    """Swaps that one way is chosen for."""

    direction: Direction
    block_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class WayBeside:
    """One way to swap beside the neighbour, with 95% intervals, None with too few visits for one.

    `slowdown` (of the mean iteration) and `slowdown_p99` (of the 99th percentile, nan with too few iterations) are
    ratios. `us_per_gb` is what the swaps take, by visit.
    """

    choice: Choice
    gbps: float
    gbps_interval: tuple[float, float] | None
    slowdown: float
    slowdown_interval: tuple[float, float] | None
    slowdown_p99: float
    exposure_us_per_gb: float
    us_per_gb: Visits

    @classmethod
    def of(cls, choice: Choice, costs: Mapping[int, Cost], slowdown_p99: float) -> Self:
        rates = [cost.gbps for cost in costs.values()]
        slowdown, *ends = np.exp(paired_interval(np.log([cost.slowdown for cost in costs.values()]))).tolist()
        exposure, _, _ = paired_interval(np.array([cost.exposure_us_per_gb for cost in costs.values()]))
        rates_interval, slowdown_interval = _known(median_interval(rates)), _known(ends)
        us_per_gb = {number: 1e6 / cost.gbps for number, cost in costs.items()}
        return cls(
            choice, median(rates), rates_interval, slowdown, slowdown_interval, slowdown_p99, exposure, us_per_gb
        )

    def to_plain(self) -> dict[str, Any]:
        intervals = {"gbps_interval": self.gbps_interval, "slowdown_interval": self.slowdown_interval}
        return {
            "choice": str(self.choice),
            "gbps": round(self.gbps, 3),
            "slowdown": round(self.slowdown, 4),
            "slowdown_p99": round(self.slowdown_p99, 4) if math.isfinite(self.slowdown_p99) else None,
            "exposure_us_per_gb": round(self.exposure_us_per_gb, 1),
            **{name: ends and [round(end, 4) for end in ends] for name, ends in intervals.items()},
        }

    def verdict(self, limit: float) -> Verdict:
        """Return whether the whole interval of the slowdown lies above `limit` (SLOWER), or none of it does (SAME)."""
        low, high = self.slowdown_interval or (0.0, math.inf)
        within = Verdict.SAME if high <= limit else Verdict.UNDECIDED
        return Verdict.SLOWER if low > limit else within


@dataclass(frozen=True, slots=True)
class BesideAnswer:
    """What to use for swaps of one shape beside `neighbour`, which may be slowed by `max_slowdown`, a fraction.

    `ways` are all that were measured, the fastest first; `chosen` is None where each costs more.
    """

    neighbour: str
    max_slowdown: float
    shape: Shape
    ways: Sequence[WayBeside]
    chosen: WayBeside | None


def answers_beside(
    runs: Sequence[Run], neighbour: str, max_slowdown: float, keep: Callable[[Choice], bool]
) -> list[BesideAnswer]:
    """Return an answer for every shape that was measured beside `neighbour`, from the ways that `keep` takes.

    They stand by direction, block size and number of blocks. Raises UsageError where there is none, and for runs of
    several devices.
    """
    machine_of(runs)
    by_shape: dict[Shape, dict[Choice, tuple[dict[int, Cost], list[float]]]] = {}
    frames = [_measured(run.frame()) for run in runs]
    every = pd.concat(frames)
    seen = set(every["neighbour"])
    kept = set(one_workload(every[every["neighbour"] == neighbour])["cell_id"])
    first = 0  # the rounds of several runs are numbered consecutively
    for run, frame in zip(runs, frames, strict=True):
        costs = costs_of(run.visits)
        for row in frame[frame["cell_id"].isin(kept)].to_dict("records"):
            shape = Shape(Direction(row["direction"]), int(row["block_bytes"]), int(row["blocks"]))
            choice = choice_of(row, plug_ins_of(run.info.backends))
            if keep(choice):
                by_round, tails = by_shape.setdefault(shape, {}).setdefault(choice, ({}, []))
                by_round |= {first + number: cost for number, cost in costs[row["cell_id"]].items()}
                tails.append(float(row["neighbour_slowdown_p99"]))
        first += 1 + max((number for by_round in costs.values() for number in by_round), default=0)
    if neighbour not in seen:
        beside = f"beside {', '.join(sorted(seen))}" if seen else "without a neighbour"
        raise UsageError(
            f"{neighbour}: these runs measured swaps {beside}; measure with kvbench sweep neighbour -a "
            f"neighbour={neighbour}"
        )
    if not by_shape:
        raise UsageError(f"{neighbour}: none of the swaps beside it were made in a way that is allowed")
    answers = []
    for shape, by_choice in sorted(by_shape.items()):
        ways = [
            WayBeside.of(choice, by_round, median_or_nan(filter(math.isfinite, tails)))
            for choice, (by_round, tails) in by_choice.items()
        ]
        ways.sort(key=lambda way: -way.gbps)
        answers.append(BesideAnswer(neighbour, max_slowdown, shape, ways, _chosen(ways, max_slowdown)))
    return answers


def _measured(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of a run that were measured beside a neighbour, without those of `auto`."""
    return frame[
        whole(frame)
        & (frame["neighbour_slowdown"] > 0)
        & (frame["status"] == "ok")
        & ~frame["backend"].isin(NO_CHOICES)
    ]


def _chosen(ways: Sequence[WayBeside], max_slowdown: float) -> WayBeside | None:
    """Return the fastest that costs no more; of those as fast that with the fewest SMs, the simplest, the cheapest."""
    allowed = [way for way in ways if way.slowdown <= 1 + max_slowdown]
    if not allowed:
        return None
    enough = max(way.gbps for way in allowed) / (1 + TIED.fraction)
    tied = [way for way in allowed if way.gbps >= enough]
    return min(tied, key=lambda way: (preference(way.choice), len(way.choice.axes), way.slowdown, str(way.choice)))


def _known(ends: Sequence[float]) -> tuple[float, float] | None:
    return (ends[0], ends[1]) if math.isfinite(ends[1]) else None
