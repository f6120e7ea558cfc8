"""What the swaps of models take by a rule: their loads and stores, and lines over their tokens for planners."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np

from kvbench.analysis.compare import Floats
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import SwapKind
from kvbench.cells.policy import Choice
from kvbench.models.geometry import LayerGroup, Model, ModelSwap, model_swap, models_of
from kvbench.results.outcomes import grouped
from kvbench.tune.candidates import Measured, nearest_shape
from kvbench.tune.rule import Rule

# The tokens at which a line is fitted, where all groups of the model were measured.
_TOKENS: Final = tuple(2**power for power in range(4, 21))

# Shares of the rows that a decode step reads by ids and does not find on the GPU.
MISSES: Final = (0.001, 0.2, 1.0)
# What engines let a load take of a step, in milliseconds, and a long prompt, in tokens.
BUDGETS_MS: Final = (1, 2, 5)
PROMPT_TOKENS: Final = 8192


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
    measured: Annotated[list[int], msgspec.Meta(
        description="the numbers of tokens in the range at which swaps were measured; all between are interpolated")]
    error: Annotated[float | None, msgspec.Meta(
        description="largest deviation of a measured time, as a fraction; null with fewer than three in the range")]
    bytes_per_token: float
    faster_than_prefill_from_tokens: Annotated[int | msgspec.UnsetType | None, msgspec.Meta(
        description="of loads, with a rate of prefill: null where loading is never faster")] = msgspec.UNSET
    hit: Hit | msgspec.UnsetType = msgspec.UNSET
    # fmt: on

    def beside_prefill(self, tokens_per_s: float, hit: int) -> "TokenLine":
        """The line of a load with the number of tokens from which it is faster, and what a hit saves."""
        gain_us, prefill_us = 1e6 / tokens_per_s - self.us_per_token, 1e6 * hit / tokens_per_s
        first = max(1, math.floor(self.us / gain_us) + 1) if gain_us > 0 else None
        load_us = round(self.us + self.us_per_token * hit, 1)
        saved = Hit(tokens=hit, load_us=load_us, prefill_us=round(prefill_us, 1), extrapolated=hit > self.tokens[1])
        return msgspec.structs.replace(self, faster_than_prefill_from_tokens=first, hit=saved)

    @property
    def is_warm_load(self) -> bool:
        return (self.direction, self.stream_state, self.pause) == (Direction.H2D, StreamState.IDLE, "0")

    def tokens_within(self, ms: float) -> float:
        """The number of tokens that a swap moves in some time."""
        return max(0.0, (1000 * ms - self.us) / self.us_per_token)


def _token_lines(
    models: Sequence[Sequence[ModelSwap]], after_pauses: Mapping[str, Rule], prefill_tokens_per_s: float
) -> Iterator[TokenLine]:
    """Yield a line for each model and each direction, stream state and pause with enough measured shapes.

    Loads are compared with the rate of prefill, unless it is 0.
    """
    for pause, rule in after_pauses.items():
        for groups, kind in product(models, rule.parts):
            if line := _line(rule, kind, groups, pause):
                loads = prefill_tokens_per_s and kind.direction is Direction.H2D
                yield line.beside_prefill(prefill_tokens_per_s, groups[0].tokens) if loads else line


class _GroupCurve(NamedTuple):
    """What the swaps of a group of layers take: the bytes of the group by tokens, and measured times by bytes."""

    bytes_at: Floats  # at the tokens of `_TOKENS`
    measured_bytes: Sequence[int]
    times_us: Sequence[float]

    def time_us(self, tokens: float) -> float:
        """Interpolate the time of a swap of the group, as of the same bytes in blocks of the measured size; NaN beyond
        what was measured.
        """
        moved = np.interp(tokens, _TOKENS, self.bytes_at)
        return float(np.interp(moved, self.measured_bytes, self.times_us, math.nan, math.nan))

    @property
    def measured_tokens(self) -> Floats:
        """The tokens at which swaps were measured; none where the bytes do not tell tokens apart."""
        if self.bytes_at[0] >= self.bytes_at[-1]:
            return np.array([])
        measured = np.array(self.measured_bytes)
        within = measured[(measured >= self.bytes_at[0]) & (measured <= self.bytes_at[-1])]
        tokens: Floats = np.interp(within, self.bytes_at, _TOKENS)
        return tokens


def _curve_of(rule: Rule, kind: SwapKind, group: ModelSwap) -> _GroupCurve:
    """The curve of a group, from the measured block size that is nearest to that of the group."""
    shapes = sorted(rule.shapes_of[kind], key=lambda measured: measured.shape)
    size = nearest_shape(shapes, group.block_bytes, group.blocks).shape.block_bytes
    same_size = [measured for measured in shapes if measured.shape.block_bytes == size]
    return _GroupCurve(
        np.array([_bytes_of(group, tokens) for tokens in _TOKENS], dtype=np.float64),
        [size * measured.shape.blocks for measured in same_size],
        [measured.us_of(rule.choices[measured]) for measured in same_size],
    )


def _us_per_token_line(tokens: Floats, times_us: Floats) -> tuple[float, float, Floats]:
    """Fit us = start + slope x tokens with the least relative errors, and return these too; a start below zero becomes
    zero.
    """
    # Each row is divided by its time, so that small swaps count as much as large ones.
    shares = np.column_stack([1 / times_us, tokens / times_us])
    start, slope = np.linalg.lstsq(shares, np.ones(len(tokens)), rcond=None)[0].tolist()
    if start < 0:
        start, slope = 0.0, float(shares[:, 1].sum() / np.square(shares[:, 1]).sum())
    return start, slope, np.abs(shares @ [start, slope] - 1)


def _line(rule: Rule, kind: SwapKind, groups: Sequence[ModelSwap], pause: str) -> TokenLine | None:
    curves = [_curve_of(rule, kind, group) for group in groups]
    # The times of several groups are sums: no number of tokens was measured of all.
    measured = curves[0].measured_tokens if len(curves) == 1 else np.array([])
    times: dict[float, float] = {}
    for tokens in sorted({*map(float, _TOKENS), *measured.tolist()}):
        time_us = sum(curve.time_us(tokens) for curve in curves)
        if math.isfinite(time_us):
            times[tokens] = time_us
    if len(times) < 2:
        return None
    counts = np.array([*times])
    start, slope, errors = _us_per_token_line(counts, np.array([*times.values()]))
    was_measured = np.isin(counts, measured)
    last = float(counts[-1])
    return TokenLine(
        model=groups[0].geometry.name,
        tp=groups[0].tp,
        direction=kind.direction.value,
        stream_state=kind.stream_state.value,
        pause=pause,
        us=round(start, 3),
        us_per_token=round(slope, 6),
        tokens=(math.ceil(counts[0]), int(last)),
        measured=[round(tokens) for tokens in counts[was_measured].tolist()],
        # A line passes through two points.
        error=math.ceil(errors[was_measured].max() * 1e4) / 1e4 if was_measured.sum() > 2 else None,
        bytes_per_token=round(sum(float(np.interp(last, _TOKENS, curve.bytes_at)) for curve in curves) / last, 1),
    )


def _bytes_of(swap: ModelSwap, tokens: int) -> int:
    resized = model_swap(
        swap.geometry,
        tp=swap.tp,
        tokens=tokens,
        block_tokens=swap.block_tokens,
        layout=swap.layout,
        chunk_tokens=swap.chunk_tokens,
    )
    return resized.block_bytes * resized.blocks


def _by_model(swaps: Sequence[ModelSwap]) -> Mapping[tuple[str, int, int], list[ModelSwap]]:
    """The groups of layers of each model, its ranks and its number of tokens."""
    return grouped(swaps, lambda swap: (swap.geometry.name, swap.tp, swap.tokens))


def _most_tokens(swaps: Sequence[ModelSwap]) -> list[list[ModelSwap]]:
    """The groups of layers of each model and its ranks, of the largest number of tokens."""
    by_tokens = sorted(_by_model(swaps).items(), key=lambda item: item[0][2])
    return [*{(name, tp): groups for (name, tp, _), groups in by_tokens}.values()]


class Load(NamedTuple):
    """The swap of a model in one direction and stream state, at the GB/s of the choice for the `nearest` shape."""

    swap: ModelSwap
    nearest: Measured
    choice: Choice
    gbps: float
    caller_us: float

    @property
    def us(self) -> float:
        return self.swap.block_bytes * self.swap.blocks / self.gbps / 1e3

    @property
    def kind(self) -> SwapKind:
        return self.nearest.shape.kind

    def to_plain(self) -> dict[str, Any]:
        return {
            "model": self.swap.geometry.name,
            "group": self.swap.geometry.label,
            "tokens": self.swap.tokens,
            "block_bytes": self.swap.block_bytes,
            "blocks": self.swap.blocks,
            **self.kind._asdict(),
            "quantity": self.kind.stream_state.quantity,
            "choice": str(self.choice),
            "us": round(self.us, 1),
            "gbps": round(self.gbps, 3),
            "caller_us": round(self.caller_us, 1),
            "sms": self.choice.sms,
            "measured": {"block_bytes": self.nearest.shape.block_bytes, "blocks": self.nearest.shape.blocks},
        }


def _loads(rule: Rule, swap: ModelSwap) -> Iterator[Load]:
    """Yield the swap of a model in every direction and stream state of a rule."""
    choices = rule.choices
    for kind in rule.parts:
        nearest = nearest_shape(rule.shapes_of[kind], swap.block_bytes, swap.blocks)
        choice = choices[nearest]
        times_us = {
            measured: measured.caller_us.get(choices[measured], math.nan)
            for measured in rule.shapes_of[kind]
            if choices[measured].backend == choice.backend
        }
        yield Load(swap, nearest, choice, nearest.gbps_of(choice), _caller_us(times_us, swap))


def _caller_us(times_us: Mapping[Measured, float], swap: ModelSwap) -> float:
    """The time of the calling thread between those of measured numbers of blocks, of the nearest size each; NaN
    without any.
    """

    def distance(measured: Measured) -> float:
        return abs(math.log(measured.shape.block_bytes / swap.block_bytes))

    by_blocks: dict[int, float] = {}
    for measured in sorted(times_us, key=distance):
        if math.isfinite(times_us[measured]):
            by_blocks.setdefault(measured.shape.blocks, times_us[measured])
    if not by_blocks:
        return math.nan
    blocks, us = np.array(sorted(by_blocks.items()), dtype=np.float64).T
    # Beyond the largest swap the time grows as between the last two, or from nothing where there is one alone.
    slope = np.diff([0, *us])[-1] / np.diff([0, *blocks])[-1]
    return float(np.interp(swap.blocks, blocks, us) + max(0.0, slope) * max(0, swap.blocks - blocks[-1]))


# What all groups of layers of a model take, one after another, by direction and stream state: one of the groups, their
# number, and the times in microseconds.
Total = tuple[ModelSwap, int, Mapping[SwapKind, float]]


def _totals(swaps: Sequence[ModelSwap], loads: Sequence[Load]) -> Iterator[Total]:
    """Yield the total of each model of several groups."""
    for groups in _by_model(swaps).values():
        if len(groups) > 1:
            times_us: dict[SwapKind, float] = {}
            for load in (load for load in loads if load.swap in groups):
                times_us[load.kind] = times_us.get(load.kind, 0) + load.us
            yield groups[0], len(groups), times_us


class ModelAnswers(NamedTuple):
    """What the swaps of models take: in each direction and stream state, of all groups of layers together, and over
    tokens; and the gigabytes of a prompt of `PROMPT_TOKENS` tokens of each model.
    """

    models: Sequence[Model]
    swaps: Sequence[ModelSwap]
    loads: Sequence[Load]
    totals: Sequence[Total]
    lines: Sequence[TokenLine]
    prompts: Sequence[tuple[ModelSwap, float]]


def answer_models(
    swaps: Sequence[ModelSwap], prefill_tokens_per_s: float, rule: Rule, after_pauses: Mapping[str, Rule]
) -> ModelAnswers:
    """Answer for the swaps of models by the rule for swaps alone, and for their tokens by those after pauses."""
    loads = [*chain.from_iterable(_loads(rule, swap) for swap in swaps)]
    models = _most_tokens(swaps)
    prompts = [(groups[0], sum(_bytes_of(group, PROMPT_TOKENS) for group in groups) / 1e9) for groups in models]
    lines = [*_token_lines(models, after_pauses, prefill_tokens_per_s)]
    return ModelAnswers(models_of(swaps), swaps, loads, [*_totals(swaps, loads)], lines, prompts)


class GatherWait(NamedTuple):
    """For how long a decode step waits for rows of `row_bytes` bytes in each layer, by the shares `MISSES` of those
    that it reads.
    """

    group: LayerGroup
    rows: int
    row_bytes: int
    waits_ms: Sequence[float]


def gather_waits(times_us: Mapping[int, Mapping[int, float]], swaps: Sequence[ModelSwap]) -> Iterator[GatherWait]:
    """Yield for how long decode steps of latent attention wait that read as many rows as a swap has tokens, by ids on
    the GPU, by the times of gathers of rows of the nearest size. Fewer misses than were measured count as the fewest.
    """
    latent = {swap.geometry: swap.tokens for swap in swaps if swap.geometry.is_latent}
    for group, rows in latent.items() if times_us else ():
        row_bytes = min(times_us, key=lambda measured: abs(measured - group.rank_bytes()))
        counts, us = np.array(sorted(times_us[row_bytes].items())).T
        missing = rows * np.array(MISSES)
        if missing[-1] <= counts[-1]:
            layer_us = np.exp(np.interp(np.log(missing), np.log(counts), np.log(us)))
            yield GatherWait(group, rows, row_bytes, (group.layers * layer_us / 1e3).tolist())
