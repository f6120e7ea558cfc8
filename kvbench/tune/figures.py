"""What follows from a rule: its figures at known shapes, what it gains, what would change it, the swaps of models."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from statistics import mean, median
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np

from kvbench.analysis.compare import compare_visits
from kvbench.analysis.margins import IN_TURN
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.backend_facts import BATCHED, MERGED
from kvbench.cells.cell import AXES
from kvbench.cells.pattern import SHUFFLED
from kvbench.cells.policy import Choice
from kvbench.cells.units import KIB, gigabytes_per_second
from kvbench.errors import UsageError
from kvbench.models.geometry import ModelSwap, model_swap
from kvbench.results import Run
from kvbench.results.replays import trace_of
from kvbench.sweep.installed import engines
from kvbench.tune.answer import Answer, answers_of, over_fastest
from kvbench.tune.fit import (
    Arms,
    Kind,
    Point,
    candidates,
    contests_of,
    decide_all,
    kind_plain,
    kind_text,
    sms_of,
    typical,
    workload_axes,
)
from kvbench.tune.rule import Line, SmallestRule, rule_of

# The shapes at which every answer has figures: a small swap, for its time, and a large one, for its rate.
SMALL: Final[Point] = (4 * KIB, 64)
LARGE: Final[Point] = (4 * KIB, 10_000)
_IN_RUNS: Final = re.compile(r"runs-(\d+)")
_ENOUGH: Final = 2 / 3
# The tokens at which a line is fitted, where all groups of the model were measured.
_TOKENS: Final = tuple(2**power for power in range(4, 21))


@dataclass(frozen=True, slots=True)
class AtShape:
    """What swaps of a measured shape take by the choice of a rule, and by batched copies."""

    answer: Answer
    choice: Choice

    @property
    def batched(self) -> Choice | None:
        """The batched copies to compare with; None if they were not measured, or are the choice."""
        return None if self.choice.backend == BATCHED else self.answer.best_of(BATCHED)

    def to_plain(self) -> dict[str, Any]:
        answer, batched = self.answer, self.batched
        return {
            **answer.shape_plain(),
            "choice": str(self.choice),
            "us": round(answer.time_of(self.choice), 3),
            "gbps": round(answer.gbps_of(self.choice), 3),
            "batched_us": batched and round(answer.time_of(batched), 3),
            "batched_gbps": batched and round(answer.gbps_of(batched), 3),
        }


def at_known_shapes(rule: SmallestRule) -> dict[Kind, tuple[AtShape, AtShape]]:
    """Return the figures of a rule at the measured shapes nearest to `SMALL` and to `LARGE`."""
    shapes = {}
    for kind in rule.lines:
        small, large = rule.nearest(kind, *SMALL), rule.nearest(kind, *LARGE)
        if small is large:  # the most blocks of the size
            large = max(rule.answers_of(kind), key=lambda one: (one.block_bytes == small.block_bytes, one.blocks))
        shapes[kind] = AtShape(small, rule.choices[small]), AtShape(large, rule.choices[large])
    return shapes


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
        if len(shortest) == len(open_):
            break
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


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A hit of `tokens` tokens in the cache: it saves the difference of the times."""

    tokens: int
    load_us: float
    prefill_us: float
    extrapolated: Annotated[bool, msgspec.Meta(description="whether the line was fitted to fewer tokens")]


class TokenLine(msgspec.Struct, frozen=True, kw_only=True):
    """What loading or storing the cache of some tokens of a model takes: us = `us` + `us_per_token` x tokens."""

    # fmt: off
    model: str
    tp: Annotated[int, msgspec.Meta(description="ranks; the times are those of one")]
    direction: str
    stream_state: Annotated[str, msgspec.Meta(description="idle: one swap; sustained: one more behind others")]
    pause: Annotated[str, msgspec.Meta(
        description="0: called in a tight loop (warm); else the other work of the CPU before each call (cold)")]
    us: float
    us_per_token: float
    tokens: Annotated[tuple[int, int], msgspec.Meta(description="the range for which the line was fitted")]
    error: Annotated[float | None, msgspec.Meta(
        description="largest deviation of a measured time, as a fraction; null with fewer than three in the range")]
    bytes_per_token: float
    faster_than_prefill_from_tokens: Annotated[int | msgspec.UnsetType | None, msgspec.Meta(
        description="of loads, with a rate of prefill: null where loading is never faster")] = msgspec.UNSET
    hit: Hit | msgspec.UnsetType = msgspec.UNSET
    # fmt: on

    def beside_prefill(self, tokens_per_s: float, hit: int) -> "TokenLine":
        """Return the line of a load with the number of tokens from which it is faster, and what a hit saves."""
        gain_us, prefill_us = 1e6 / tokens_per_s - self.us_per_token, 1e6 * hit / tokens_per_s
        first = max(1, math.floor(self.us / gain_us) + 1) if gain_us > 0 else None
        load_us = round(self.us + self.us_per_token * hit, 1)
        saved = Hit(tokens=hit, load_us=load_us, prefill_us=round(prefill_us, 1), extrapolated=hit > self.tokens[1])
        return msgspec.structs.replace(self, faster_than_prefill_from_tokens=first, hit=saved)


def token_lines(
    runs: Sequence[Run], keep: Callable[[Choice], bool], state: str | None, swaps: Sequence[ModelSwap], prefill: float
) -> Iterator[TokenLine]:
    """Yield a line for each model and each direction, stream state and pause of runs with enough measured shapes.

    Loads are compared with `prefill` tokens a second, unless it is 0.
    """
    most = {key[:2]: groups for key, groups in sorted(_by_model(swaps).items(), key=lambda item: item[0][2])}
    for us in sorted({int(us) for run in runs for us in run.frame()["pause_us"].dropna()}) if swaps else ():
        pause = str(AXES["pause"].show(us))
        with suppress(UsageError):  # too few backends after this pause
            rule = rule_of(answers_of(runs, keep, state, pause))
            for groups, kind in product(most.values(), rule.lines):
                if line := _line(rule, kind, groups, pause):
                    loads = prefill and kind[0] is Direction.H2D
                    yield line.beside_prefill(prefill, groups[0].tokens) if loads else line


def _line(rule: SmallestRule, kind: Kind, groups: Sequence[ModelSwap], pause: str) -> TokenLine | None:
    tokens = np.array(_TOKENS, dtype=np.float64)
    moved = [np.array([_bytes_of(group, number) for number in _TOKENS], dtype=np.float64) for group in groups]
    curves = []  # bytes and times of the block size nearest to that of each group
    for group in groups:
        size = rule.nearest(kind, group.block_bytes, group.blocks).block_bytes
        alike = sorted((one for one in rule.answers_of(kind) if one.block_bytes == size), key=lambda one: one.blocks)
        curves.append(([size * one.blocks for one in alike], [one.time_of(rule.choices[one]) for one in alike]))

    def us_at(number: float) -> float:
        """Return the time of all groups, each as of the same bytes in blocks of the measured size; NaN beyond these."""
        every = zip(curves, moved, strict=True)
        return sum(float(np.interp(np.interp(number, tokens, of), *curve, math.nan, math.nan)) for curve, of in every)

    own, of = np.array(curves[0][0]), moved[0]
    one = len(groups) == 1 and of[0] < of[-1]
    measured = np.interp(own[(own >= of[0]) & (own <= of[-1])], of, tokens) if one else np.array([])
    times = {number: us for number in sorted({*tokens, *measured}) if math.isfinite(us := us_at(number))}
    if len(times) < 2:
        return None
    counts, times_us = np.array([*times]), np.array([*times.values()])
    shares = np.column_stack([1 / times_us, counts / times_us])  # so that relative errors are least
    start, slope = np.linalg.lstsq(shares, np.ones(len(counts)), rcond=None)[0].tolist()
    if start < 0:
        start, slope = 0.0, float(shares[:, 1].sum() / np.square(shares[:, 1]).sum())
    errors = np.abs(shares @ [start, slope] - 1)[np.isin(counts, measured)]
    last = float(counts[-1])
    return TokenLine(
        model=groups[0].geometry.name,
        tp=groups[0].tp,
        direction=kind[0].value,
        stream_state=kind[1].value,
        pause=pause,
        us=round(start, 3),
        us_per_token=round(slope, 6),
        tokens=(math.ceil(counts[0]), int(last)),
        error=round(float(errors.max()), 4) if len(errors) > 2 else None,  # it passes through two
        bytes_per_token=round(sum(float(np.interp(last, tokens, of)) for of in moved) / last, 1),
    )


def _bytes_of(swap: ModelSwap, tokens: int) -> int:
    """Return the bytes of the swap of another number of tokens of the same model."""
    of = model_swap(
        swap.geometry,
        tp=swap.tp,
        tokens=tokens,
        block_tokens=swap.block_tokens,
        layout=swap.layout,
        chunk_tokens=swap.chunk_tokens,
    )
    return of.block_bytes * of.blocks


def _by_model(swaps: Sequence[ModelSwap]) -> Mapping[tuple[str, int, int], list[ModelSwap]]:
    """Return the groups of each model, number of ranks and number of tokens."""
    groups: dict[tuple[str, int, int], list[ModelSwap]] = {}
    for swap in swaps:
        groups.setdefault((swap.geometry.name, swap.tp, swap.tokens), []).append(swap)
    return groups


@dataclass(frozen=True, slots=True)
class Load:
    """The swap of a model in one direction and stream state, at the GB/s of the choice for the `nearest` shape."""

    swap: ModelSwap
    nearest: Answer
    choice: Choice
    caller_us: float

    @property
    def us(self) -> float:
        return self.swap.block_bytes * self.swap.blocks / self.gbps / 1e3

    @property
    def gbps(self) -> float:
        return self.nearest.gbps_of(self.choice)

    def to_plain(self) -> dict[str, Any]:
        return {
            "model": self.swap.geometry.name,
            "group": self.swap.geometry.label,
            "tokens": self.swap.tokens,
            "block_bytes": self.swap.block_bytes,
            "blocks": self.swap.blocks,
            **kind_plain((self.nearest.direction, self.nearest.state)),
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
        alike = [one for one in rule.answers_of(kind) if choices[one].backend == choices[nearest].backend]
        times = {one: us for one in alike if math.isfinite(us := one.caller_us.get(choices[one], math.nan))}
        yield Load(swap, nearest, choices[nearest], _caller_us(times, swap))


def _caller_us(times: Mapping[Answer, float], swap: ModelSwap) -> float:
    """Return the time of the calling thread between those of measured numbers of blocks, of the nearest size each."""
    by_size = sorted(times, key=lambda one: abs(math.log(one.block_bytes / swap.block_bytes)))
    known = sorted({one.blocks: times[one] for one in reversed(by_size)}.items())
    if not known:
        return math.nan
    counts, us = np.array(known, dtype=np.float64).T
    slope = np.diff([0, *us])[-1] / np.diff([0, *counts])[-1]
    return float(np.interp(swap.blocks, counts, us) + max(0.0, slope) * max(0, swap.blocks - counts[-1]))


def totals_of(rule: SmallestRule, swaps: Sequence[ModelSwap]) -> Iterator[str]:
    """Yield a line for each model of several groups: what all of them take, one after another."""
    for (name, tp, tokens), groups in _by_model(swaps).items():
        if len(groups) > 1:
            times: dict[str, float] = {}
            for load in (load for swap in groups for load in loads_of(rule, swap)):
                kind = kind_text((load.nearest.direction, load.nearest.state))
                times[kind] = times.get(kind, 0) + load.us
            texts = ", ".join(f"{kind} {us:.0f} us" for kind, us in times.items())
            ranks = f", TP {tp}" if tp > 1 else ""
            yield f"{name}{ranks}, {tokens} tokens, all {len(groups)} groups: {texts}"
