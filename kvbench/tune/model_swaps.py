"""What the swaps of models take by a rule: from the nearest measured shapes, and as a line over their tokens."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from kvbench.cells.policy import Choice
from kvbench.models.geometry import ModelSwap, model_swap
from kvbench.tune.answer import Answer
from kvbench.tune.fit import Kind, kind_plain, sms_of
from kvbench.tune.rule import SmallestRule

# The tokens at which a line is fitted, where all groups of the model were measured.
_TOKENS: Final = tuple(2**power for power in range(4, 21))


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
    error: Annotated[float, msgspec.Meta(description="largest deviation of a measured time, as a fraction")]
    bytes_per_token: float
    # fmt: on

    def us_of(self, tokens: int) -> float:
        return self.us + self.us_per_token * tokens

    def faster_from(self, prefill_tokens_per_s: float) -> int | None:
        """Return the number of tokens from which loading is faster than to compute them again; None for never."""
        gain_us = 1e6 / prefill_tokens_per_s - self.us_per_token
        return max(1, math.floor(self.us / gain_us) + 1) if gain_us > 0 else None


def token_lines(rule: SmallestRule, swaps: Sequence[ModelSwap], pause: str) -> list[TokenLine]:
    """Return a line for each model and each direction and stream state of a rule with enough measured shapes."""
    lines = (_line(rule, kind, groups, pause) for groups in _by_model(swaps) for kind in rule.lines)
    return [line for line in lines if line]


def _line(rule: SmallestRule, kind: Kind, groups: Sequence[ModelSwap], pause: str) -> TokenLine | None:
    choices = rule.choices
    curves: list[tuple[ModelSwap, list[int], list[float]]] = []
    for group in groups:
        size = rule.nearest(kind, group.block_bytes, group.blocks).block_bytes
        alike = sorted(
            (one.blocks, one) for line in rule.lines[kind] for one in line.answers if one.block_bytes == size
        )
        times = [one.time_of(choices[one]) * group.block_bytes / size for _, one in alike]
        curves.append((group, [blocks for blocks, _ in alike], times))

    def us_at(tokens: int) -> float:
        """Return the time of all groups, NaN beyond what was measured of one."""
        swaps = [(_of_tokens(group, tokens), counts, times) for group, counts, times in curves]
        return sum(float(np.interp(one.blocks, counts, times, math.nan, math.nan)) for one, counts, times in swaps)

    measured = {tokens: time_us for tokens in _TOKENS if math.isfinite(time_us := us_at(tokens))}
    if len(measured) < 2:
        return None
    counts, times_us = np.array([*measured], dtype=np.float64), np.array([*measured.values()], dtype=np.float64)
    shares = np.column_stack([1 / times_us, counts / times_us])  # so that relative errors are least
    start, slope = np.linalg.lstsq(shares, np.ones(len(counts)), rcond=None)[0].tolist()
    if start < 0:
        start, slope = 0.0, float(shares[:, 1].sum() / np.square(shares[:, 1]).sum())
    first, last = groups[0], max(measured)
    moved = sum(one.block_bytes * one.blocks for one in (_of_tokens(group, last) for group in groups))
    return TokenLine(
        model=first.geometry.name,
        tp=first.tp,
        direction=kind[0].value,
        stream_state=kind[1].value,
        pause=pause,
        us=round(start, 3),
        us_per_token=round(slope, 6),
        tokens=(min(measured), last),
        error=round(float(np.abs(shares @ [start, slope] - 1).max()), 4),
        bytes_per_token=round(moved / last, 1),
    )


def _of_tokens(swap: ModelSwap, tokens: int) -> ModelSwap:
    """Return the swap of another number of tokens of the same model."""
    return model_swap(swap.geometry, tp=swap.tp, tokens=tokens, block_tokens=swap.block_tokens, layout=swap.layout)


def _by_model(swaps: Sequence[ModelSwap]) -> list[list[ModelSwap]]:
    """Return the groups of each model; of several numbers of tokens, those of the most."""
    of_model: dict[tuple[str, int], dict[str, ModelSwap]] = {}
    for swap in sorted(swaps, key=lambda swap: swap.tokens):
        of_model.setdefault((swap.geometry.name, swap.tp), {})[swap.geometry.label] = swap
    return [[*groups.values()] for groups in of_model.values()]


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
        return self.nearest.gbps_of(self.choice)

    @property
    def caller_us(self) -> float:
        """What the swap takes from the thread that makes it, in microseconds."""
        return self.nearest.caller_us[self.choice] / self.nearest.blocks * self.swap.blocks

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
        yield Load(swap, nearest, choices[nearest])


def totals_of(rule: SmallestRule, swaps: Sequence[ModelSwap]) -> Iterator[str]:
    """Yield a line for each model of several groups: what all of them take, one after another."""
    of_model: dict[tuple[str, int, int], list[ModelSwap]] = {}
    for swap in swaps:
        of_model.setdefault((swap.geometry.name, swap.tp, swap.tokens), []).append(swap)
    for (name, tp, tokens), groups in of_model.items():
        if len(groups) > 1:
            times: dict[tuple[str, str], float] = {}
            for load in (load for swap in groups for load in loads_of(rule, swap)):
                kind = load.nearest.direction.value, load.nearest.state.value
                times[kind] = times.get(kind, 0) + load.us
            texts = ", ".join(f"{direction} {state} {us:.0f} us" for (direction, state), us in times.items())
            ranks = f", TP {tp}" if tp > 1 else ""
            yield f"{name}{ranks}, {tokens} tokens, all {len(groups)} groups: {texts}"
