"""The answers of a tuning from the times of all candidates: the choice for each shape, and what is open."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvbench.analysis.compare import MIN_PAIRS, Comparison, Visits, compare_visits
from kvbench.analysis.intervals import median_interval
from kvbench.analysis.margins import IN_TURN, TIED
from kvbench.cells.axes import Direction, Reuse, StreamState
from kvbench.cells.backend_facts import BATCHED
from kvbench.cells.cell import EQUAL
from kvbench.cells.pattern import AS_PATTERN, SHUFFLED
from kvbench.errors import UsageError, brief
from kvbench.policy import Choice
from kvbench.results import CellRecord, Run
from kvbench.results.replays import trace_of
from kvbench.text import a_stream, counted, printable, short
from kvbench.tune.fit import (
    Arms,
    Decision,
    Kind,
    Point,
    candidates,
    decide_all,
    kind_text,
    machine_of,
    sms_of,
    typical,
    workload_axes,
)
from kvbench.tune.traced import in_contention, trace_parts, trace_text
from kvbench.units import gigabytes_per_second, parse_size, size_text, two_digits


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
        return gigabytes_per_second(self.block_bytes * self.blocks, self.time_us)

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

    def to_plain(self) -> dict[str, Any]:
        """Return the answer as JSON-compatible data."""
        gain = self.gain_over(BATCHED)
        return {
            "direction": self.direction.value,
            "stream_state": self.state.value,
            "quantity": self.state.quantity,
            "block_bytes": self.block_bytes,
            "blocks": self.blocks,
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


def check_measured(runs: Sequence[Run], backends: Collection[str]) -> None:
    """Raise UsageError for one of these backends that no run measured."""
    measured = {record.cell.backend for run in runs for record in run.records if isinstance(record, CellRecord)}
    if not set(backends) <= measured:
        raise UsageError(
            f"--backends {brief(','.join(backends))}: these runs measured only {', '.join(sorted(measured))}"
        )


def answers_of(runs: Sequence[Run], keep: Callable[[Choice], bool], state: str | None = None) -> list[Answer]:
    """Return an answer for every measured shape, from the candidates that `keep` accepts, in one stream state if named.

    The answers are sorted by direction, stream state, block size and number of blocks. Raises UsageError without
    any.
    """
    if all(map(trace_of, runs)):
        return _of_trace(runs, keep, state)
    answers = []
    to_choose, fresh, caller_us = candidates(runs)
    for kind, times in to_choose.items():
        if state not in (None, kind[1].value):
            continue
        kept = {point: {choice: arms[choice] for choice in arms if keep(choice)} for point, arms in times.items()}
        allowed = {point: arms for point, arms in sorted(kept.items()) if arms}
        for point, decision in decide_all(allowed).items():
            again, of_caller = fresh.get(kind, {}).get(point, {}), caller_us[kind][point]
            answers.append(Answer(*kind, *point, allowed[point], decision, times[point], again, of_caller))
    if not answers:
        where = f" on {a_stream(state)}" if state else ""
        raise UsageError(f"nothing to choose from: no swap was measured{where} with the allowed backends and SM counts")
    return answers


def _of_trace(runs: Sequence[Run], keep: Callable[[Choice], bool], state: str | None) -> list[Answer]:
    """Return an answer for every part of the swaps of a trace."""
    machine_of(runs)
    answers = []
    for kind, parts in trace_parts(runs).items():
        kept = {
            point: {one: visits for one, visits in times.items() if keep(one)} for point, (times, _) in parts.items()
        }
        allowed = {point: in_contention(arms) for point, arms in kept.items() if len({one.backend for one in arms}) > 1}
        for point, decision in decide_all(allowed).items():
            times, caller_us = parts[point]
            answers.append(Answer(*kind, *point, allowed[point], decision, times, {}, caller_us))
    if not answers or state not in (None, StreamState.IDLE.value):
        raise UsageError("nothing to choose from: a replay answers for an idle stream, from two backends or more")
    return answers


def workload_of(runs: Sequence[Run]) -> str:
    """Return which blocks most of the swaps behind answers move; "hot" means the same adjacent blocks every time.

    Blocks are shuffled unless a layout is named.
    """
    if all(map(trace_of, runs)):
        return trace_text(runs)
    axes = workload_axes(runs)
    pool, reuse = axes["pool"], axes["reuse"]
    from_pool = "from a dense pool" if pool == "dense" else f"from {size_text(parse_size(pool))}"
    layout = "" if axes["pattern"] == str(SHUFFLED) else f" in the layout {axes['pattern']}"
    layout += "".join(
        f", {axes[name]} {where}"
        for name, where in (("host_pattern", "on the host"), ("device_pattern", "on the GPU"), ("sizes", "in size"))
        if axes[name] not in (AS_PATTERN.kind, EQUAL)
    )
    if reuse == Reuse.FRESH.value:
        return f"fresh blocks{layout} {from_pool}"
    return f"{'hot: ' if pool == 'dense' else ''}the same blocks{layout} in every swap, {from_pool}"


def machine_plain(run: Run) -> dict[str, Any]:
    """Return what a run was measured on, and when, as JSON-compatible data."""
    info = run.info
    driver = info.identity.get("driver_version")
    return {"kvbench": info.kvbench, "device": info.device.get("title"), "driver": driver, "created": info.created}


def machine_text(*runs: Run) -> str:
    """Return what runs of one machine were measured on, and when the first and the last of them began."""
    info = runs[0].info
    on_host = info.device.get("kind") == "cpu"
    host = "; all figures are copies between two host buffers, without a GPU" if on_host else ""
    driver = info.identity.get("driver_version")
    first, last = (end(run.info.created[:10] for run in runs) for end in (min, max))
    dates = first if first == last else f"{first} to {last.removeprefix(first[:5])}"
    named = [info.device.get("title"), driver and f"driver {driver}", dates]
    return ", ".join(short(printable(part), 80) for part in named if part) + host


def by_kind(answers: Sequence[Answer]) -> Mapping[Kind, list[Answer]]:
    kinds: dict[Kind, list[Answer]] = {}
    for answer in answers:
        kinds.setdefault((answer.direction, answer.state), []).append(answer)
    return kinds


def open_points(answers: Sequence[Answer]) -> list[str]:
    """Return the shapes whose choice is open, with the cost of each alternative, the largest difference first."""
    every = [(answer, other, comparison) for answer in answers for other, comparison in answer.open.items()]
    return [_doubt(*one) for one in sorted(every, key=lambda one: -_apart(one[2]))]


def _alternative(choice: Choice, comparison: Comparison) -> dict[str, Any]:
    """Return what another run could choose, with its time over that of the choice; too few visits have no interval."""
    known = math.isfinite(comparison.high)
    ends = (
        {"low": round(comparison.low, 4), "high": round(comparison.high, 4)} if known else {"low": None, "high": None}
    )
    return {"choice": str(choice), "ratio": round(comparison.ratio, 4), **ends}


def _doubt(answer: Answer, other: Choice, comparison: Comparison) -> str:
    shape = f"{kind_text((answer.direction, answer.state))}, {answer.blocks} x {size_text(answer.block_bytes)}"
    cost, low, high = (f"{(ratio - 1) * 100:+.1f}%" for ratio in (comparison.ratio, comparison.low, comparison.high))
    interval = f" ({low} to {high})" if math.isfinite(comparison.high) else ", too few visits for an interval"
    return f"{shape}: {choice_text(answer.choice)}, or {choice_text(other)} for {cost}{interval} of the time"


def _apart(comparison: Comparison) -> float:
    """Return the ratio of the larger time to the smaller; times of an untrusted run can have any ratio."""
    return max(comparison.ratio, 1 / comparison.ratio if comparison.ratio else math.inf)


def _is_tie(comparison: Comparison) -> bool:
    return not _apart(comparison) > 1 + TIED.fraction  # NaN ties


def choice_text(choice: Choice) -> str:
    """Return a readable choice: "sm with 4 SMs, kernel bulk-8x6x4KiB"."""
    settings = dict(choice.axes)
    sms = settings.pop("sms", None)
    settings.pop("order", None)  # follows a rule that the reader does not need
    with_sms = f" with {counted(int(sms), 'SM')}" if sms else ""
    return ", ".join((f"{choice.backend}{with_sms}", *(f"{name} {value}" for name, value in settings.items())))


def speed_text(ratio: float, of: str) -> str:
    """Return a gain as text: "8.7x the speed of batched"."""
    return f"{two_digits(ratio)}x the speed of {of}"
