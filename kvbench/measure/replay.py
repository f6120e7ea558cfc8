"""Replays swaps of a trace with their own block ids and sizes, one after the other; each is verified."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kvbench.backends.base import Backend, PreparedSwap
from kvbench.cells.cell import Cell
from kvbench.ground.errors import KvbenchError
from kvbench.measure.bench import Bench
from kvbench.measure.layout import Layout
from kvbench.measure.samples import AnySample, Sampler, Taken, create_swap
from kvbench.measure.workload import Workload
from kvbench.sweep.spec import Replay, Sampling
from kvbench.sweep.swap_file import Numbered

_Ids = npt.NDArray[np.int64]

# The share of swaps that are compared in full, beside the first of a visit, and the blocks compared of the others: to
# compare all takes several times as long as to swap.
_COMPARED_IN_FULL: Final = 1 / 20
_COMPARED_BLOCKS: Final = 256


def places(ids: _Ids, room: int) -> _Ids | None:
    """Return distinct places below `room`, where runs of `ids` stay runs; None if the swap does not fit.

    Ids that fit stay as they are. Others wrap around, or are packed with gaps of one place, if two would meet.
    """
    wrapped = ids % room if room else ids
    if room and len(np.unique(wrapped)) == len(ids):
        return wrapped
    ordered, back = np.unique(ids, return_inverse=True)
    packed = np.cumsum(np.minimum(np.diff(ordered, prepend=ordered[0]), 2))
    return packed[back] if packed[-1] < room else None


class Placed(NamedTuple):
    """A swap of a trace in a pool: number, and the ids of both sides; `moved` where they are not the trace's."""

    number: int
    source: _Ids
    destination: _Ids
    moved: bool


def place(swaps: Iterable[Numbered], trace: Replay, pool_bytes: int) -> list[Placed]:
    """Return the swaps that fit into pools of this size."""
    room = trace.capacity(pool_bytes)
    placed = []
    for number, swap in swaps:
        sides = (swap.host, swap.gpu) if swap.direction == "h2d" else (swap.gpu, swap.host)
        source, destination = (places(np.asarray(side), room) for side in sides)
        if source is not None and destination is not None:
            moved = not all(map(np.array_equal, (source, destination), sides))
            placed.append(Placed(number, source, destination, moved))
    return placed


class ReplaySampler(Sampler):
    """Makes the swaps of a trace one after the other; its cell, blocks and swap are those of the current one.

    Each swap is made twice: first on blocks half a pool away, then on its own. Both are compared: of some swaps, chosen
    at random, every byte, of the others a sample of blocks.
    """

    def __init__(
        self, bench: Bench, backend: Backend, cell: Cell, trace: Replay, swaps: Sequence[Placed], seed: Sequence[int]
    ) -> None:
        """Prepare the first swap. Raises EngineError, KvbenchError without a swap, and any error of a backend."""
        if not swaps:
            enough = trace.enough_for(trace.swaps_of(cell.direction).blocks)
            raise KvbenchError(f"no selected swap of the trace fits into the pool; -a pool={enough} holds most of them")
        self._backend, self._trace, self._placed = backend, trace, swaps
        self._rng = np.random.default_rng(seed)
        workload, prepared = self._set_up(bench, cell, swaps[0])
        super().__init__(bench, self.cell, workload, prepared)

    def take_all(self, _sampling: Sampling, _begin: Callable[[], None] | None) -> Taken:
        samples: list[AnySample] = []
        columns: dict[str, list[Any]] = {"swap_blocks": [], "pieces": [], "swap_numbers": []}
        verified_bytes = 0
        for swap in self._placed:
            self.workload, self.swaps = self._set_up(self.bench, self.cell, swap)
            most = None if not samples or self._rng.random() < _COMPARED_IN_FULL else _COMPARED_BLOCKS
            self.take_idle()
            verified_bytes += self.workload.verify(most)
            samples.append(self.take_idle())
            verified_bytes += self.workload.verify(most)
            blocks = self.cell.blocks
            pieces = getattr(self.prepared.swap, "descriptors", blocks)
            for name, value in zip(columns, (blocks, pieces, swap.number), strict=True):
                columns[name].append(value)
        moved = sum(swap.moved for swap in self._placed)
        closer = f"{moved} of {len(self._placed)} swaps of the trace placed closer together to fit the smaller pool"
        warnings, last = [closer] if moved else [], len(samples) - 1
        return Taken(samples, "max_samples", None, columns, verified_bytes, warnings, first_alike=last)

    def _set_up(self, bench: Bench, cell: Cell, swap: Placed) -> tuple[Workload, list[PreparedSwap]]:
        """Make `cell` one of this swap, and return its blocks, and the backend's swap of them."""
        trace = self._trace
        room, blocks = trace.capacity(bench.pools.pool_bytes), len(swap.source) * trace.descriptors
        self.cell = replace(cell, blocks=blocks, pattern=trace.pattern)
        shifted = (((swap.source + by) % room, (swap.destination + by) % room) for by in (room // 2, 0))
        layouts = [_layout(source, destination, trace, room) for source, destination in shifted]
        workload = Workload(bench.pools, self.cell, layouts, self._rng)
        request = bench.request(self.cell, workload.memories[0])
        # The SM time of one swap says nothing of swaps of other sizes.
        return workload, [create_swap(self._backend, request)]


def _layout(source: _Ids, destination: _Ids, trace: Replay, room: int) -> Layout:
    """Place a tensor of `room` rows, and one that stays free, for every descriptor of a block."""
    starts = np.arange(trace.descriptors, dtype=np.uint64) * np.uint64(room + 1) + np.uint64(1)
    sides = (np.add.outer(starts, ids.astype(np.uint64)).reshape(-1) for ids in (source, destination))
    return Layout(*sides)
