"""Pools of memory on both sides whose every byte is known from its place, so that any wrong one is found."""

import time
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvbench.cells.axes import Direction, Memory, slots_of
from kvbench.cells.cell import Cell
from kvbench.engine.device import (
    Addresses,
    Audit,
    Buffer,
    Device,
    MemoryKind,
    Stream,
    audit_words,
    register_pages,
    unregister_pages,
    write_words,
)

# A pool at rest holds the words of its side's seed, which differ at every place. This detects every byte that did not
# arrive, arrived from elsewhere or was written elsewhere, and no pool needs to be filled twice.
HOST_SEED, DEVICE_SEED = 1, 2


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


def _one_entry(value: int) -> Addresses:
    return np.array([value], dtype=np.uint64)
