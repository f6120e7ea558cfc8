"""What the swaps of a model take by a rule: its loads and stores, and lines over its tokens for planners."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from kvbench.analysis.compare import Floats
from kvbench.cells.axes import Direction, ListPlace, Situation, StreamState
from kvbench.cells.cell import AXES, SwapKind
from kvbench.cells.policy import Choice
from kvbench.cells.units import size_text
from kvbench.errors import UsageError
from kvbench.models.geometry import ModelSwap, model_swap
from kvbench.models.steps import BATCH
from kvbench.results import Run
from kvbench.tune.answer import shapes_of
from kvbench.tune.candidates import Measured, sms_of
from kvbench.tune.rule import Rule, nearest_shape, rule_of
from kvbench.tune.situations import Advice, Answer

# The tokens at which a line is fitted, where all groups of the model were measured.
_TOKENS: Final = tuple(2**power for power in range(4, 21))

# Shares of the rows that a decode step reads by ids and does not find on the GPU.
_MISSES: Final = (0.001, 0.2, 1.0)


# What engines let a load take of a step, in milliseconds, and a long prompt, in tokens.
_BUDGETS_MS: Final = (1, 2, 5)
_PROMPT: Final = 8192
_STORES_BESIDE_DECODE: Final = (Direction.D2H, Situation.DECODE)


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
        """Return the line of a load with the number of tokens from which it is faster, and what a hit saves."""
        gain_us, prefill_us = 1e6 / tokens_per_s - self.us_per_token, 1e6 * hit / tokens_per_s
        first = max(1, math.floor(self.us / gain_us) + 1) if gain_us > 0 else None
        load_us = round(self.us + self.us_per_token * hit, 1)
        saved = Hit(tokens=hit, load_us=load_us, prefill_us=round(prefill_us, 1), extrapolated=hit > self.tokens[1])
        return msgspec.structs.replace(self, faster_than_prefill_from_tokens=first, hit=saved)


def token_lines(
    runs: Sequence[Run], keep: Callable[[Choice], bool], swaps: Sequence[ModelSwap], prefill: float
) -> Iterator[TokenLine]:
    """Yield a line for each model and each direction, stream state and pause of runs with enough measured shapes.

    Loads are compared with `prefill` tokens a second, unless it is 0.
    """
    most = {key[:2]: groups for key, groups in sorted(_by_model(swaps).items(), key=lambda item: item[0][2])}
    for us in sorted({cell.pause_us for run in runs for cell in run.outcomes}) if swaps else ():
        pause = str(AXES["pause"].show(us))
        with suppress(UsageError):  # too few backends after this pause
            rule = rule_of(shapes_of(runs, keep, pause=pause))
            for groups, kind in product(most.values(), rule.parts):
                if line := _line(rule, kind, groups, pause):
                    loads = prefill and kind.direction is Direction.H2D
                    yield line.beside_prefill(prefill, groups[0].tokens) if loads else line


@dataclass(frozen=True, slots=True)
class _GroupCurve:
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
    """Return the curve of a group, from the measured block size that is nearest to that of the group."""
    shapes = sorted(rule.shapes_of(kind), key=lambda measured: measured.shape)
    size = nearest_shape(shapes, group.block_bytes, group.blocks).shape.block_bytes
    alike = [measured for measured in shapes if measured.shape.block_bytes == size]
    return _GroupCurve(
        np.array([_bytes_of(group, tokens) for tokens in _TOKENS], dtype=np.float64),
        [size * measured.shape.blocks for measured in alike],
        [measured.us_of(rule.choices[measured]) for measured in alike],
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
    groups: dict[tuple[str, int, int], list[ModelSwap]] = {}
    for swap in swaps:
        groups.setdefault((swap.geometry.name, swap.tp, swap.tokens), []).append(swap)
    return groups


@dataclass(frozen=True, slots=True)
class Load:
    """The swap of a model in one direction and stream state, at the GB/s of the choice for the `nearest` shape."""

    swap: ModelSwap
    nearest: Measured
    choice: Choice
    caller_us: float

    @property
    def us(self) -> float:
        return self.swap.block_bytes * self.swap.blocks / self.gbps / 1e3

    @property
    def gbps(self) -> float:
        return self.nearest.gbps_of(self.choice)

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
            "sms": sms_of(self.choice),
            "measured": {"block_bytes": self.nearest.shape.block_bytes, "blocks": self.nearest.shape.blocks},
        }


def loads_of(rule: Rule, swap: ModelSwap) -> Iterator[Load]:
    """Yield the swap of a model in every direction and stream state of a rule."""
    choices = rule.choices
    for kind in rule.parts:
        nearest = nearest_shape(rule.shapes_of(kind), swap.block_bytes, swap.blocks)
        alike = [one for one in rule.shapes_of(kind) if choices[one].backend == choices[nearest].backend]
        times = {one: us for one in alike if math.isfinite(us := one.caller_us.get(choices[one], math.nan))}
        yield Load(swap, nearest, choices[nearest], _caller_us(times, swap))


def _caller_us(times: Mapping[Measured, float], swap: ModelSwap) -> float:
    """Return the time of the calling thread between those of measured numbers of blocks, of the nearest size each."""
    by_size = sorted(times, key=lambda one: abs(math.log(one.shape.block_bytes / swap.block_bytes)))
    known = sorted({one.shape.blocks: times[one] for one in reversed(by_size)}.items())
    if not known:
        return math.nan
    counts, us = np.array(known, dtype=np.float64).T
    slope = np.diff([0, *us])[-1] / np.diff([0, *counts])[-1]
    return float(np.interp(swap.blocks, counts, us) + max(0.0, slope) * max(0, swap.blocks - counts[-1]))


def totals_of(rule: Rule, swaps: Sequence[ModelSwap]) -> Iterator[str]:
    """Yield a line for each model of several groups: what all of them take, one after another."""
    for (name, tp, tokens), groups in _by_model(swaps).items():
        if len(groups) > 1:
            times: dict[SwapKind, float] = {}
            for load in (load for swap in groups for load in loads_of(rule, swap)):
                times[load.kind] = times.get(load.kind, 0) + load.us
            texts = ", ".join(f"{kind} {us:.0f} us" for kind, us in times.items())
            ranks = f", TP {tp}" if tp > 1 else ""
            yield f"{name}{ranks}, {tokens} tokens, all {len(groups)} groups: {texts}"


def setting_lines(advice: Advice, swaps: Sequence[ModelSwap], lines: Sequence[TokenLine]) -> Iterator[str]:
    """Yield what settings of engines ask of a model: the bytes that a load moves in some time, and what the stores of
    a prompt and of a step's own tokens take from decode steps beside them.
    """
    for line in lines:
        if (line.direction, line.stream_state, line.pause) == (Direction.H2D, StreamState.IDLE, "0"):
            yield _budget_text(line)
    stores = next((one for one in advice.answers if (one.direction, one.situation) == _STORES_BESIDE_DECODE), None)
    if stores is None:
        return
    most = {key[:2]: groups for key, groups in sorted(_by_model(swaps).items(), key=lambda item: item[0][2])}
    for (name, tp), groups in most.items():
        prompt_gb = sum(_bytes_of(group, _PROMPT) for group in groups) / 1e9
        step_gb = prompt_gb / _PROMPT * BATCH
        model = f"{name}{f', TP {tp}' if tp > 1 else ''}"
        stored = {f"a prompt of {_PROMPT} tokens ({prompt_gb:.3g} GB)": prompt_gb}
        stored |= {f"what a step of {BATCH} requests writes ({1e3 * step_gb:.3g} MB)": step_gb}
        for what, gigabytes in stored.items():
            yield f"{model}: to store {what} takes from decode: {_lost_text(stores, gigabytes)}"
    yield "One GPU at a time; N at once share the host: a pace for N is a share of it"


def _budget_text(line: TokenLine) -> str:
    """Say how many bytes of a model a load moves within some milliseconds."""
    tokens = [max(0.0, (1000 * ms - line.us) / line.us_per_token) for ms in _BUDGETS_MS]
    sizes = " / ".join(f"{number * line.bytes_per_token / 1e6:.3g}" for number in tokens)
    beyond = ", extrapolated" if tokens[-1] > line.tokens[1] else ""
    times = " / ".join(map(str, _BUDGETS_MS))
    tp = f", TP {line.tp}" if line.tp > 1 else ""
    return f"{line.model}{tp}: a load of {sizes} MB takes {times} ms{beyond} (sync_load_budget_bytes)"


def _lost_text(stores: Answer, gigabytes: float) -> str:
    """Say what storing so much takes from decode steps, by each method that was measured beside them."""
    lost = [(method.choice.label, method.lost_ms_per_gb[0]) for method in stores.methods if method.lost_ms_per_gb]
    return ", ".join(f"{label} {gigabytes * ms_per_gb:.2g} ms" for label, ms_per_gb in lost) or stores.none


def gather_lines(runs: Sequence[Run], swaps: Sequence[ModelSwap]) -> Iterator[str]:
    """Yield for how long decode steps of latent attention wait that read as many rows as a swap has tokens, by ids on
    the GPU, at the best grid for rows of the nearest size. Fewer misses than were measured count as the fewest.
    """
    known: dict[int, dict[int, float]] = {}
    for cell, outcome in (pair for run in runs for pair in run.outcomes.items()):
        if cell.list_place is ListPlace.GPU and math.isfinite(us := outcome.us()):
            times = known.setdefault(cell.block_bytes, {})
            times[cell.blocks] = min(us, times.get(cell.blocks, us))
    for group, rows in {swap.geometry: swap.tokens for swap in swaps if swap.geometry.is_latent and known}.items():
        size = min(known, key=lambda measured: abs(measured - group.layer_bytes))
        counts, missing = sorted(known[size]), [rows * share for share in _MISSES]
        if missing[-1] <= counts[-1]:
            times_us = np.exp(np.interp(np.log(missing), np.log(counts), np.log([known[size][n] for n in counts])))
            waits_ms = (group.layers * us / 1e3 for us in times_us)
            yield (
                f"{group.name}: a decode step that reads {rows} rows of {size_text(size)} in each of {group.layers} "
                f"layers waits {' / '.join(f'{ms:.3g}' if ms < 100 else f'{ms:.0f}' for ms in waits_ms)} ms with "
                f"{' / '.join(f'{share:.3g}%' for share in 100 * np.array(_MISSES))} of them missing"
            )
