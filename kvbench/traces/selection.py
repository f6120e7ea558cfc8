"""Which swaps of a trace are replayed: every k-th of each direction, in order."""

import hashlib
from pathlib import Path
from statistics import median_low
from typing import NamedTuple, TypeVar

import numpy as np

from kvbench.cells.axes import Direction
from kvbench.errors import UsageError
from kvbench.traces.choice import MOST_SWAPS, Replay, SwapsOf
from kvbench.traces.file import Header, Swap, TraceReader

Swaps = TypeVar("Swaps")


class Numbered(NamedTuple):
    """A swap and its number among those of its direction, from 0."""

    number: int
    swap: Swap


def choose(path: Path, swaps: int, seed: int) -> Replay:
    """Return what to replay of a trace: at most about `swaps` of each direction; `seed` chooses the first.

    Raises UsageError for a file that is not a trace, or that has no swap.
    """
    reader = TraceReader(path)
    header: Header = reader.header
    if header.block_bytes % header.descriptors:
        parts = f"{header.descriptors} equal parts"
        raise UsageError(f"--trace {path}: its blocks of {header.block_bytes} bytes cannot be divided into {parts}")
    blocks: dict[str, list[int]] = {str(direction): [] for direction in Direction}
    for swap in reader:
        blocks[swap.direction].append(len(swap.gpu))
    if not any(blocks.values()):
        raise UsageError(f"--trace {path}: it has no swaps")
    found = {}
    for direction, counts in blocks.items():
        step = max(1, -(-len(counts) // swaps))
        first = int(np.random.default_rng(seed).integers(min(step, max(1, len(counts)))))
        found[direction] = SwapsOf(len(counts), median_low(counts) if counts else 0, first, step)
    return Replay(str(path.absolute()), _sha256(path), header.block_bytes, header.descriptors, **found)


def selected(replay: Replay) -> dict[str, list[Numbered]]:
    """Return the swaps to replay by direction, in order; raises UsageError if the file has changed."""
    path = Path(replay.path)
    if not path.is_file() or _sha256(path) != replay.sha256:
        raise UsageError(f"--trace {path}: the file is not the one that the run began with")
    numbers = dict.fromkeys(map(str, Direction), 0)
    found: dict[str, list[Numbered]] = {str(direction): [] for direction in Direction}
    for swap in TraceReader(path):
        number, of = numbers[swap.direction], replay.of(swap.direction)
        numbers[swap.direction] += 1
        if number >= of.first and (number - of.first) % of.step == 0 and len(found[swap.direction]) < MOST_SWAPS:
            found[swap.direction].append(Numbered(number, swap))
    return found


def chunk(swaps: list[Swaps], number: int, rounds: int) -> list[Swaps]:
    """Return the swaps of visit `number` of `rounds`: the trace in as many blocks of time, of equally many swaps.

    Fewer swaps than visits come again.
    """
    place, many = number % rounds, len(swaps)
    if many < rounds:
        return swaps[place % many :][:1] if many else []
    return swaps[many * place // rounds : many * (place + 1) // rounds]


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"--trace {path}: {str(error.strerror).lower()}") from None
