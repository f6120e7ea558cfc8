"""The swaps of one visit: which blocks each of them moves, and whether every byte of them arrived."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from kvbench.cells.cell import Cell
from kvbench.engine.device import Addresses, Audit, SwapMemory
from kvbench.ground.errors import KvbenchError
from kvbench.measure.layout import Layout, stacked
from kvbench.measure.pools import Pools, Spots

# Bytes that a watched list names hold other words in the source before its submission, and others again from then on:
# what was read ahead of that, or of the same blocks before, is of no use.
SPOILED_SEED, CHANGED_SEED = 3, 4
# Bytes compared next to a copied block and at each spot of the pool (inside of a block at most these), and such spots.
EDGE_BYTES = 256
SPOT_CHECKS = 256
# How long on average a list lies there before its swap is submitted: a thread that copies ahead of it has time to.
WATCHED_S = 0.0003
NOT_ORDERED = "the swap did not wait for earlier work: it is not ordered in its stream"


class VerificationError(KvbenchError):
    """Bytes did not arrive, or were written where they must not be."""


class Workload:
    """The swaps of one visit, `slots` at a time: each of `memories` holds the descriptors of one swap.

    `advance` writes the next set of blocks into one of them, in place.
    """

    def __init__(
        self, pools: Pools, cell: Cell, layouts: Sequence[Layout], rng: np.random.Generator, slots: int = 1
    ) -> None:
        self._pools = pools
        self._cell = cell
        self._rng = rng
        self._layouts = layouts
        self._set_index = -1
        self._used: set[int] = set()
        self._spots: Spots | None = None  # inside the blocks of the last swaps, if these were at rest before
        self.guarded = False  # whether all swaps are prepared as those that are watched
        self.watching = False
        self.guarded_s = 0.0  # that the preparation took
        self.overwrote = False  # whether a set was swapped again before it was verified
        self._sizes = np.full(cell.blocks, np.uint64(cell.block_bytes))
        small, small_bytes = cell.small_blocks
        self._sizes[small] = small_bytes
        self.siblings: Sequence[Workload] = ()  # the other arms of the visit, whose blocks lie in the same pools
        self.memories = [_memory_of(pools, cell, layouts[0], self._sizes) for _ in range(slots)]
        self._written = [layouts[0]] * slots

    def advance(self, slots: int = 1) -> None:
        """Write the descriptors of the next sets of blocks into the first `slots` memories.

        Bytes inside of their blocks are put back to rest if the same blocks were swapped before: a swap that skips what
        it finds at the ends of a block leaves them so. A watched swap reads wrong bytes there if it begins before its
        submission. To a backend all other swaps are prepared alike: in their case these are bytes of the sets before,
        because to touch pages of the next blocks would make their swap faster.
        """
        start = self._set_index + 1
        again = [self._note_next() for _ in range(slots)]
        self._spots = None
        if not (self._pools.at_rest and (self.guarded or self.watching)):
            self._write(start, slots)
            return
        began_s = time.perf_counter()
        self._spots = self._inside(start, slots)
        if any(again):
            self._pools.put_spots(self._cell, self._spots, copied=False)
        spots = self._spots if self.watching else self._inside(start - slots, slots)
        self._pools.change(self._cell, spots, SPOILED_SEED)
        self._write(start, slots)
        time.sleep(WATCHED_S * self._rng.uniform(0.5, 1.5))
        early = self._wrong_at_rest(spots)
        self._pools.change(self._cell, spots, self._seed)
        self.guarded_s += time.perf_counter() - began_s
        if early and self.watching:
            self._fail("bytes arrived before the swap was submitted")

    def watch(self, take: Callable[[], object]) -> None:
        """Make swaps that count for nothing, with `take`, and watch bytes inside some of their blocks.

        None of them may arrive before the submission, or before earlier work of its stream, and all of them have to be
        there once the swaps are complete, as the source held them then. Raises VerificationError.
        """
        self.watching = True
        try:
            take()
            self.check_arrived()
        finally:
            self.watching = False
            if self._spots is not None:
                self._pools.change(self._cell, self._spots, self._seed)
                self._pools.put_spots(self._cell, self._spots, copied=True)

    @property
    def _seed(self) -> int | None:
        """Of what a swap reads at its spots; None for the source at rest."""
        return CHANGED_SEED if self.watching else None

    def check_arrived(self) -> None:
        """Raise VerificationError unless bytes inside of the blocks of the last swaps have arrived.

        This comes before anything that takes time.
        """
        if self._spots is not None and not self._pools.spots_arrived(self._cell, self._spots, self._seed):
            self._fail("bytes inside of blocks had not arrived when the swap was complete")

    def moved(self) -> bool:
        """Whether bytes of the watched swap, which has to wait for other work, are already in the destination."""
        queued = self._cell.queued  # swaps of the same blocks, which may have begun
        return self._spots is not None and not queued and self._wrong_at_rest(self._spots)

    def _wrong_at_rest(self, spots: Spots) -> bool:
        return self._pools.audit_at_rest(self._cell, 1, spots.destinations, spots.sizes).wrong_bytes > 0

    def _fail(self, message: str) -> NoReturn:
        self._pools.at_rest = False
        raise VerificationError(message)

    def _note_next(self) -> bool:
        """Go to the next set; return whether it was swapped since the last `verify`."""
        self._set_index = (self._set_index + 1) % self.sets
        again = self._set_index in self._used
        self.overwrote = self.overwrote or again
        self._used.add(self._set_index)
        return again

    def arrays(self) -> list[Addresses]:
        """Return the arrays of the first list, which differ from set to set."""
        return _arrays(self.memories[0])

    def contents(self) -> list[Addresses]:
        """Return the contents of `arrays` for all sets, from the next one on, as arrays of shape (sets, length)."""
        start = self._set_index + 1
        turn = stacked([*self._layouts[start:], *self._layouts[:start]])
        return _arrays(_memory_of(self._pools, self._cell, turn, np.tile(self._sizes, (self.sets, 1))))

    def passed(self, swaps: int) -> None:
        """Note that the next sets were swapped, whose lists were written from `contents`."""
        for _ in range(min(swaps, 2 * self.sets)):
            self._note_next()
        self._set_index = (self._set_index + max(0, swaps - 2 * self.sets)) % self.sets
        self._written[0] = self._layouts[self._set_index]

    def chance(self, share: float) -> bool:
        """Return True in this share of the calls, at random."""
        return bool(self._rng.random() < share)

    @property
    def sets(self) -> int:
        return len(self._layouts)

    @contextmanager
    def on_other_blocks(self, layouts: Sequence[Layout]) -> Iterator[None]:
        """Within the context, swaps go through these sets; `verify` before its end."""
        usual, self._layouts, self._set_index = self._layouts, layouts, -1
        try:
            yield
        finally:
            self._layouts, self._set_index = usual, -1

    @property
    def descriptors(self) -> int:
        return len(self._layouts) * self._cell.blocks

    def current(self) -> Addresses:
        """Return the offsets of the current blocks in the destination, in bytes."""
        return self._layouts[self._set_index].destination_rows * np.uint64(self._cell.block_bytes)

    def verify(self, most: int | None = None) -> int:
        """Compare the result of the swaps since the last call, restore it, and return the number of compared bytes.

        Compares every byte of every copied block, or of up to `most` blocks at random, the rows next to these, and a
        sample of the rest. Raises VerificationError, after everything is restored.
        """
        if not self._used:
            return 0
        used, stride = [self._layouts[index] for index in sorted(self._used)], np.uint64(self._cell.block_bytes)
        self._used.clear()
        sources = np.concatenate([layout.source_rows for layout in used])
        destinations = np.concatenate([layout.destination_rows for layout in used])
        sizes = np.tile(self._sizes, len(used))
        offsets = destinations * stride
        some = self._some(len(sources), most)
        copied = self._pools.audit_arrived(self._cell, offsets[some], sizes[some], sources[some] * stride)
        around = self._pools.audit_at_rest(self._cell, 1, *self._beside(destinations, sizes, some))
        spoiled = self._pools.audit_at_rest(self._cell, 0, *self._firsts(sources))
        if copied.wrong_bytes or around.wrong_bytes or spoiled.wrong_bytes:
            self._pools.refill()
            block = None if copied.first_wrong_range is None else some[copied.first_wrong_range] % self._cell.blocks
            raise VerificationError(_mismatch_message(copied, around, spoiled, block))
        self._pools.put_back(self._cell.direction, self._cell.memory, offsets, sizes)
        return copied.checked_bytes + around.checked_bytes + spoiled.checked_bytes

    def leave(self) -> None:
        """Skip the comparison of the swaps since the last call of `verify`."""
        self._used.clear()
        self._pools.at_rest = False

    def arrived_early(self) -> bool:
        """Whether bytes of the current swap, which must wait for other work, are already in the destination.

        Looks at its first and its last blocks.
        """
        offsets = self.current()
        # not np.unique, whose first call imports for longer than the other work lasts
        some = np.concatenate([offsets[:SPOT_CHECKS], offsets[SPOT_CHECKS:][-SPOT_CHECKS:]])
        sizes = np.full(len(some), np.uint64(self._cell.block_bytes))
        return self._pools.audit_at_rest(self._cell, 1, some, sizes).wrong_bytes > 0

    def _some(self, blocks: int, most: int | None) -> NDArray[np.int64]:
        """Return the indices of all blocks, or of up to `most` that are chosen at random."""
        if most is None or blocks <= most:
            return np.arange(blocks)
        return self._rng.choice(blocks, most, replace=False)

    def _beside(
        self, rows: NDArray[np.uint64], sizes: Addresses, some: NDArray[np.int64]
    ) -> tuple[Addresses, Addresses]:
        """Return (offsets, sizes) of the bytes next to `some` of `rows`, of what blocks of these sizes leave of them,
        and of a sample of all rows, without `rows` and those that other arms have swapped.
        """
        stride = self._cell.block_bytes
        edge = min(stride, EDGE_BYTES)
        end = int(rows.max()) + 2
        copied = np.zeros(end, dtype=bool)
        copied[rows] = True
        for workload in self.siblings:
            for index in workload._used:
                swapped = workload._layouts[index].destination_rows
                copied[swapped[swapped < end]] = True
        rows, sizes = rows[some], sizes[some]
        before, behind = rows[~copied[rows - np.uint64(1)]], rows[~copied[rows + np.uint64(1)]]
        spots = self._rng.integers(0, end, SPOT_CHECKS, dtype=np.uint64)
        spots = spots[~copied[spots]]
        ends = before * np.uint64(stride) - np.uint64(edge)
        starts = np.concatenate([behind + np.uint64(1), spots]) * np.uint64(stride)
        small = sizes < stride
        rests = rows[small] * np.uint64(stride) + sizes[small]
        edges = np.full(len(ends) + len(starts), np.uint64(edge))
        return np.concatenate([ends, starts, rests]), np.concatenate([edges, np.uint64(stride) - sizes[small]])

    def _inside(self, start: int, sets: int) -> Spots:
        """Return ranges of random sizes inside some blocks of the next `sets` sets from `start` on."""
        smallest = int(self._sizes.min())
        size, stride = min(smallest, EDGE_BYTES), np.uint64(self._cell.block_bytes)
        sources, destinations, sizes = [], [], list[Addresses]()
        for index in {(start + step) % self.sets for step in range(sets)}:
            some = self._some(self._cell.blocks, -(-SPOT_CHECKS // sets))
            sizes.append(self._rng.integers(1, size, len(some), dtype=np.uint64, endpoint=True))
            inside = self._rng.integers(0, np.uint64(smallest) - sizes[-1], dtype=np.uint64, endpoint=True)
            layout = self._layouts[index]
            sources.append(layout.source_rows[some] * stride + inside)
            destinations.append(layout.destination_rows[some] * stride + inside)
        return Spots(*map(np.concatenate, (sources, destinations, sizes)))

    def _firsts(self, rows: NDArray[np.uint64]) -> tuple[Addresses, Addresses]:
        """Return (offsets, sizes) of the first bytes of some of `rows`."""
        some = self._rng.choice(rows, min(len(rows), SPOT_CHECKS), replace=False) * np.uint64(self._cell.block_bytes)
        return some, np.full(len(some), np.uint64(min(int(self._sizes.min()), EDGE_BYTES)))

    def _write(self, start: int, slots: int) -> None:
        for slot in range(slots):
            layout = self._layouts[(start + slot) % self.sets]
            if self._written[slot] is layout:
                continue
            self._written[slot] = layout
            fresh = _memory_of(self._pools, self._cell, layout, self._sizes)
            for array, new in zip(_arrays(self.memories[slot]), _arrays(fresh), strict=True):
                array[:] = new


def _arrays(memory: SwapMemory) -> list[Addresses]:
    """Return the arrays that a caller writes for every swap."""
    return [memory.sources, memory.destinations, memory.kernel_sources, memory.kernel_destinations, memory.sizes]


def _memory_of(pools: Pools, cell: Cell, layout: Layout, sizes: Addresses) -> SwapMemory:
    source, destination = pools.sides(cell.direction, cell.memory)
    stride = np.uint64(cell.block_bytes)
    sources = source.places(layout.source_rows * stride)
    destinations = destination.places(layout.destination_rows * stride)
    starts = source.buffer.device_address, destination.buffer.device_address
    return SwapMemory(
        sources=sources + np.uint64(source.buffer.address),
        destinations=destinations + np.uint64(destination.buffer.address),
        kernel_sources=sources + np.uint64(starts[0]),
        kernel_destinations=destinations + np.uint64(starts[1]),
        sizes=sizes.copy(),
        starts=starts,
    )


def _mismatch_message(copied: Audit, around: Audit, spoiled: Audit, block: int | None) -> str:
    if not copied.wrong_bytes and not around.wrong_bytes:
        return f"the swap wrote into its own source, first at offset {spoiled.first_wrong_offset}"
    wrong_bytes = copied.wrong_bytes + around.wrong_bytes
    checked_bytes = copied.checked_bytes + around.checked_bytes
    if block is None:
        offset, where = around.first_wrong_offset, "outside of every copied block"
    else:
        offset, where = copied.first_wrong_offset, f"in the block of descriptor {block}"
    return f"{wrong_bytes} of {checked_bytes} bytes are wrong, the first at offset {offset}, {where}"
