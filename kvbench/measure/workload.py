"""The memory that swaps use: a pool on each side whose every byte is known, and the swaps of one visit."""

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from kvbench.cells.axes import Direction, Memory, slots_of
from kvbench.cells.cell import Cell
from kvbench.engine.device import (
    Addresses,
    Audit,
    Buffer,
    Device,
    MemoryKind,
    Stream,
    SwapMemory,
    audit_words,
    register_pages,
    unregister_pages,
    write_words,
)
from kvbench.ground.errors import KvbenchError
from kvbench.measure.layout import Layout, stacked

# A pool at rest holds the words of its side's seed, which differ at every place. This detects every byte that did not
# arrive, arrived from elsewhere or was written elsewhere, and no pool needs to be filled twice.
HOST_SEED, DEVICE_SEED = 1, 2
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


class Spots(NamedTuple):
    """Ranges inside some blocks: their offsets in the source and in the destination, and their sizes, in bytes."""

    sources: Addresses
    destinations: Addresses
    sizes: Addresses


class Pool:
    """One side: memory whose bytes at rest are those of `seed`. Offsets count its bytes, slot after slot."""

    def __init__(self, device: Device, pool_bytes: int, seed: int, memory: str | None = None) -> None:
        """On the device, or on the host, pinned as `memory` says. Raises EngineError."""
        self.seed, self._slots, self._bytes = seed, slots_of(memory), pool_bytes
        if self._slots is None:
            self.buffer = Buffer(device.driver, MemoryKind[(memory or "device").replace("-", "_").lower()], pool_bytes)
            self.register_s = self.buffer.register_s
            return
        slot_bytes, ranks = self._slots
        count = -(-pool_bytes // slot_bytes)
        self.buffer = Buffer(device.driver, MemoryKind.mapped, count * slot_bytes * ranks)
        registered: list[int] = []
        weakref.finalize(self, _unregister, device, registered)
        began_s = time.monotonic()
        for address in range(self.buffer.address, self.buffer.address + self.buffer.size_bytes, slot_bytes * ranks):
            register_pages(device.driver, address, slot_bytes)
            registered.append(address)
        self.register_s = time.monotonic() - began_s

    def places(self, offsets: Addresses) -> Addresses:
        if self._slots is None:
            return offsets
        slot = np.uint64(self._slots.slot_bytes)
        return offsets // slot * (slot * np.uint64(self._slots.ranks)) + offsets % slot

    def write(
        self, offsets: Addresses, sizes: Addresses, seed: int, stream: int, origins: Addresses | None = None
    ) -> None:
        """Write the bytes of the pool of `seed` into ranges, by default those of the same places."""
        offsets, sizes, origins = self._within_slots(offsets, sizes, offsets if origins is None else origins)
        write_words(self.buffer, self.places(offsets), sizes, origins, seed, stream)

    def audit(self, offsets: Addresses, sizes: Addresses, origins: Addresses, seed: int, stream: int) -> Audit:
        """Compare ranges with the bytes of the pool of `seed` at `origins`."""
        offsets, sizes, origins = self._within_slots(offsets, sizes, origins)
        return audit_words(self.buffer, self.places(offsets), sizes, origins, seed, stream)

    def fill(self, stream: int) -> None:
        self.write(_one_entry(0), _one_entry(self._bytes), self.seed, stream)

    def _within_slots(
        self, offsets: Addresses, sizes: Addresses, origins: Addresses
    ) -> tuple[Addresses, Addresses, Addresses]:
        """Return the ranges, divided where slots end."""
        if self._slots is None or not len(offsets):
            return offsets, sizes, origins
        slot = np.uint64(self._slots.slot_bytes)
        firsts = offsets // slot
        parts = (offsets + sizes + slot - np.uint64(1)) // slot - firsts
        owner = np.repeat(np.arange(len(offsets)), parts.astype(np.int64))
        number = np.arange(len(owner), dtype=np.uint64) - (np.cumsum(parts) - parts)[owner]
        starts = np.maximum(offsets[owner], (firsts[owner] + number) * slot)
        ends = np.minimum(offsets[owner] + sizes[owner], (firsts[owner] + number + np.uint64(1)) * slot)
        return starts, ends - starts, origins[owner] + (starts - offsets[owner])


def _unregister(device: Device, addresses: Sequence[int]) -> None:
    for address in addresses:
        unregister_pages(device.driver, address)


class Pools:
    """A pool of `pool_bytes` on the device and up to `host_pools` on the host, filled once, restored after a visit."""

    def __init__(self, device: Device, stream: Stream, pool_bytes: int, host_pools: int = 1) -> None:
        self._device = device
        self._stream = stream
        self._beside = Stream(device.driver)
        self.pool_bytes = pool_bytes
        self._device_pool = Pool(device, pool_bytes, DEVICE_SEED)
        self._device_pool.fill(stream.handle)
        self._host_pools: dict[str, Pool] = {}
        self._most_host_pools = host_pools
        self.at_rest = True

    def host_pool(self, memory: str | None) -> Pool:
        """Return the host pool pinned in this way, made and filled on first use; the oldest makes room for it."""
        kind = memory or Memory.ALLOCATED
        if kind not in self._host_pools:
            while len(self._host_pools) >= self._most_host_pools:
                del self._host_pools[next(iter(self._host_pools))]
            pool = Pool(self._device, self.pool_bytes, HOST_SEED, kind)
            pool.fill(self._stream.handle)
            self._host_pools[kind] = pool
        return self._host_pools[kind]

    def sides(self, direction: Direction, memory: str | None) -> tuple[Pool, Pool]:
        host = self.host_pool(memory)
        return (host, self._device_pool) if direction is Direction.H2D else (self._device_pool, host)

    def large_copy(self, direction: Direction, copy_bytes: int) -> tuple[Addresses, Addresses, Addresses]:
        """Return one descriptor of `copy_bytes` from the start of one pool to the start of the other: where it copies
        from, where to, and its size.
        """
        source, destination = self.sides(direction, Memory.ALLOCATED)
        return _one_entry(source.buffer.address), _one_entry(destination.buffer.address), _one_entry(copy_bytes)

    def put_back(self, direction: Direction, memory: str | None, offsets: Addresses, sizes: Addresses) -> None:
        """Restore ranges of the destination of `direction` to their bytes at rest."""
        _, destination = self.sides(direction, memory)
        destination.write(offsets, sizes, destination.seed, self._stream.handle)

    def change(self, cell: Cell, spots: Spots, seed: int | None) -> None:
        """Write the bytes of the pool of `seed` into the source, or its own. Does not wait for the measured stream."""
        source, _ = self.sides(cell.direction, cell.memory)
        source.write(spots.sources, spots.sizes, seed or source.seed, self._beside.handle)

    def audit_arrived(self, cell: Cell, offsets: Addresses, sizes: Addresses, origins: Addresses) -> Audit:
        """Compare ranges of the destination with the source's bytes at `origins`, once the measured stream is idle."""
        source, destination = self.sides(cell.direction, cell.memory)
        return destination.audit(offsets, sizes, origins, source.seed, self._stream.handle)

    def spots_arrived(self, cell: Cell, spots: Spots, seed: int | None) -> bool:
        """Whether what `change` wrote to the source is in the destination. Does not wait for the measured stream."""
        source, destination = self.sides(cell.direction, cell.memory)
        to = spots.destinations, spots.sizes, spots.sources, seed or source.seed, self._beside.handle
        return destination.audit(*to).wrong_bytes == 0

    def put_spots(self, cell: Cell, spots: Spots, *, copied: bool) -> None:
        """Write these bytes of the destination as at rest, or as copied. Does not wait for the measured stream."""
        source, destination = self.sides(cell.direction, cell.memory)
        pool, origins = (source, spots.sources) if copied else (destination, spots.destinations)
        destination.write(spots.destinations, spots.sizes, pool.seed, self._beside.handle, origins)

    def audit_at_rest(self, cell: Cell, side: int, offsets: Addresses, sizes: Addresses) -> Audit:
        """Compare ranges of the source (side 0) or of the destination (side 1) with their bytes at rest.

        Does not wait for the measured stream.
        """
        pool = self.sides(cell.direction, cell.memory)[side]
        return pool.audit(offsets, sizes, offsets, pool.seed, self._beside.handle)

    def holds(self, memory: str | None) -> bool:
        """Whether a host pool that is pinned in this way exists."""
        return (memory or Memory.ALLOCATED) in self._host_pools

    def rest(self) -> None:
        """Restore everything, if a swap changed bytes that were neither compared nor restored."""
        if not self.at_rest:
            self.refill()

    def refill(self) -> None:
        """Restore everything, after a swap that wrote to wrong places."""
        self.at_rest = True
        for pool in (self._device_pool, *self._host_pools.values()):
            pool.fill(self._stream.handle)


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

    def arrays(self, slot: int = 0) -> list[Addresses]:
        """Return the arrays of the list of `slot`, which differ from set to set."""
        return _arrays(self.memories[slot])

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


def _one_entry(value: int) -> Addresses:
    return np.array([value], dtype=np.uint64)


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
