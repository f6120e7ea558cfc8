"""Which swaps of a trace are replayed, in order: every k-th of each direction, or some that follow each other."""

import hashlib
import math
from pathlib import Path
from statistics import median_low
from typing import NamedTuple, TypeVar

import numpy as np

from kvbench.cells.axes import Direction
from kvbench.errors import UsageError
from kvbench.files import or_usage_error
from kvbench.sweep.replay_spec import MOST_SPAN_S, SIDES, Replay, SwapsOf
from kvbench.sweep.swap_file import Header, Swap, TraceReader
from kvbench.text import printable, short

Swaps = TypeVar("Swaps")


class Numbered(NamedTuple):
    """A swap and its number among those of its direction, from 0."""

    number: int
    swap: Swap


def choose(path: Path, swaps: int, seed: int, speed: float | None = None) -> Replay:
    """Return what to replay of a trace: at most about `swaps` of each direction; `seed` chooses the first.

    With `speed` they follow each other, to be replayed at their times. Raises UsageError for a file that is not a
    trace, or that has no swap, and for swaps too far apart in time.
    """
    reader = TraceReader(path)
    header: Header = reader.header
    if header.block_bytes % header.descriptors:
        parts = f"{header.descriptors} equal parts"
        raise UsageError(f"--trace {path}: its blocks of {header.block_bytes} bytes cannot be divided into {parts}")
    blocks: dict[str, list[int]] = {str(direction): [] for direction in Direction}
    times_s: dict[str, list[float]] = {str(direction): [] for direction in Direction}
    for swap in reader:
        blocks[swap.direction].append(len(swap.gpu))
        times_s[swap.direction].append(swap.at_s)
    if not any(blocks.values()):
        raise UsageError(f"--trace {path}: it has no swaps")
    rng, chosen = np.random.default_rng(seed), {}
    for direction, counts in blocks.items():
        total, median, least = len(counts), median_low(counts) if counts else 0, min(counts, default=0)
        if speed is None:
            step = max(1, -(-total // swaps))
            chosen[direction] = SwapsOf(total, median, int(rng.integers(min(step, max(1, total)))), step, least=least)
            continue
        first = int(rng.integers(max(1, total - swaps + 1)))
        chosen[direction] = SwapsOf(total, median, first, 1, swaps, least)
        _check_span(direction, times_s[direction][first : first + swaps], speed)
    return Replay(
        str(path.absolute()),
        _sha256(path),
        header.block_bytes,
        header.descriptors,
        **chosen,
        speed=speed,
        swaps=swaps,
        origin=_origin(header, max(at_s[-1] for at_s in times_s.values() if at_s)),
    )


def _origin(header: Header, span_s: float) -> str:
    """Return what a trace was made from: "60 min of conversation_trace.jsonl, llama-3-8b, vllm"; "" if unknown."""
    made_from = [str(header.made_from.get(name, "")) for name in ("requests", "model", "allocator")]
    return short(printable(f"{span_s / 60:.0f} min of {', '.join(made_from)}")) if all(made_from) else ""


def _check_span(direction: str, times_s: list[float], speed: float) -> None:
    """Raise UsageError if swaps at these times would take too long."""
    span_s = times_s[-1] - times_s[0] if times_s else 0.0
    if span_s / speed <= MOST_SPAN_S:
        return
    swaps = f"{len(times_s)} {SIDES[direction].lower()} of the trace span {span_s:.0f} s"
    enough = f"--speed {math.ceil(span_s / MOST_SPAN_S)}"
    raise UsageError(
        f"--speed {speed:g}: {swaps}; at most {MOST_SPAN_S:g} s are replayed: {enough}, or fewer --trace-swaps"
    )


def selected(replay: Replay) -> dict[str, list[Numbered]]:
    """Return the swaps to replay by direction, in order; raises UsageError if the file has changed."""
    path = Path(replay.path)
    if not path.is_file() or _sha256(path) != replay.sha256:
        raise UsageError(f"--trace {path}: the file is not the one that the run began with")
    numbers = dict.fromkeys(map(str, Direction), 0)
    swaps: dict[str, list[Numbered]] = {str(direction): [] for direction in Direction}
    for swap in TraceReader(path):
        number, of = numbers[swap.direction], replay.of(swap.direction)
        numbers[swap.direction] += 1
        if number >= of.first and (number - of.first) % of.step == 0 and len(swaps[swap.direction]) < of.most:
            swaps[swap.direction].append(Numbered(number, swap))
    return swaps


def chunk(swaps: list[Swaps], number: int, rounds: int) -> list[Swaps]:
    """Return the swaps of visit `number` of `rounds`: the trace in as many blocks of time, of equally many swaps.

    Fewer swaps than visits come again.
    """
    index, many = number % rounds, len(swaps)
    if many < rounds:
        return swaps[index % many :][:1] if many else []
    return swaps[many * index // rounds : many * (index + 1) // rounds]


def _sha256(path: Path) -> str:
    with or_usage_error(f"--trace {path}"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
