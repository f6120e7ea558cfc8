"""The memory of a swap: pools on both sides, where blocks lie in them, poison before and verification after."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvbench.cells.axes import Direction, Memory
from kvbench.cells.cell import Cell
from kvbench.cells.facts import pool_rows
from kvbench.cells.pattern import Pattern, Tensors
from kvbench.engine.device import DIRECTIONS, Buffer, Device, MemoryKind, Stream, verify
from kvbench.engine.memory import SwapMemory, TensorGrid
from kvbench.errors import KvbenchError

POISON: Final = 0xA5


class VerificationError(KvbenchError):
    """Bytes that did not arrive, or arrived where nothing belongs."""


@dataclass(frozen=True)
class TensorRows:
    """Tensors of one kind: the pool's row at which each begins, alike on both sides, and the ids (rows of a tensor)."""

    starts: NDArray[np.uint64]
    source_ids: NDArray[np.uint64]
    destination_ids: NDArray[np.uint64]


@dataclass(frozen=True)
class Layout:
    """Which row of the source pool goes to which row of the destination pool, in descriptor order; rows in a pool.

    `tensors` says the same for the pattern `tensors-…`, in short: kind by kind and tensor by tensor, ids inside.
    """

    source_rows: NDArray[np.uint64]
    destination_rows: NDArray[np.uint64]
    pool_rows: int
    tensors: tuple[TensorRows, ...] = ()


def lay_out(pattern: Pattern, blocks: int, rng: np.random.Generator) -> Layout:
    """Choose the rows of `blocks` descriptors in pools of `pattern.pool_rows(blocks)` rows; the rest stays untouched.

    shuffled: both sides random. contiguous: both ascend together. reversed: the source descends, the destination
    ascends. runs-R: runs of R neighbours on both sides, the runs shuffled. tensors-…: as `Layout.tensors`, each kind
    with random ids on both sides. `blocks` is one that the pattern has no objection to (`Pattern.unfit`).
    """
    if pattern.kind == "tensors":
        return _lay_out_tensors(pattern.tensors(blocks), rng)
    rows = pool_rows(blocks)
    if pattern.kind == "shuffled":
        return Layout(_sample(rng, rows, blocks), _sample(rng, rows, blocks), rows)
    if pattern.kind == "runs":
        source = _shuffled_runs(rng, blocks, pattern.run)
        destination = _shuffled_runs(rng, blocks, pattern.run)
        return Layout(source, destination, rows)
    ascending = np.arange(1, blocks + 1, dtype=np.uint64)
    return Layout(ascending[::-1].copy() if pattern.kind == "reversed" else ascending, ascending, rows)


def _lay_out_tensors(kinds: Sequence[Tensors], rng: np.random.Generator) -> Layout:
    tensors = []
    end = 0
    for kind in kinds:
        rows = pool_rows(kind.ids)
        starts = np.arange(kind.count, dtype=np.uint64) * np.uint64(rows) + np.uint64(end)
        tensors.append(TensorRows(starts, _sample(rng, rows, kind.ids), _sample(rng, rows, kind.ids)))
        end += kind.count * rows
    return Layout(
        source_rows=np.concatenate([np.add.outer(part.starts, part.source_ids).reshape(-1) for part in tensors]),
        destination_rows=np.concatenate(
            [np.add.outer(part.starts, part.destination_ids).reshape(-1) for part in tensors]
        ),
        pool_rows=end,
        tensors=tuple(tensors),
    )


def _sample(rng: np.random.Generator, rows: int, blocks: int) -> NDArray[np.uint64]:
    return rng.permutation(rows)[:blocks].astype(np.uint64)


def _shuffled_runs(rng: np.random.Generator, blocks: int, run: int) -> NDArray[np.uint64]:
    # Each descriptor keeps its place inside its run; only the runs' places are drawn. The last run may be shorter and
    # stays last in memory, so that a run's neighbours in the list are its neighbours in memory.
    whole = blocks // run
    starts = rng.permutation(whole).astype(np.uint64) * np.uint64(run)
    rows = (starts[:, None] + np.arange(run, dtype=np.uint64)).reshape(-1)
    return np.concatenate([rows, np.arange(whole * run, blocks, dtype=np.uint64)]) + np.uint64(1)


class Pools:
    """Equal pools on device and host, and a staging buffer that holds the other side's bytes for comparison."""

    def __init__(self, device: Device, stream: Stream, pool_bytes: int) -> None:
        self._device = device
        self._stream = stream
        self._pool_bytes = pool_bytes
        self._device_pool = Buffer(device.driver, MemoryKind.device, pool_bytes)
        self._staging = Buffer(device.driver, MemoryKind.allocated, pool_bytes)
        self._host_pools: dict[Memory, Buffer] = {}
        self._seed = 0

    def host_pool(self, memory: Memory | None) -> Buffer:
        """Return the host pool pinned in this way, made on first use; one kind is held at a time."""
        kind = memory or Memory.ALLOCATED
        if kind not in self._host_pools:
            self._host_pools.clear()
            self._host_pools[kind] = Buffer(self._device.driver, MemoryKind[kind.value], self._pool_bytes)
        return self._host_pools[kind]

    def large_copy(self, direction: Direction, copy_bytes: int) -> SwapMemory:
        """Return one descriptor of `copy_bytes` from the start of one pool to the start of the other."""
        row = np.zeros(1, dtype=np.uint64)
        return self._addresses(direction, Memory.ALLOCATED, Layout(row, row, 1), copy_bytes)

    def addresses(self, cell: Cell, layout: Layout) -> SwapMemory:
        """Return the descriptors of `cell` laid out as `layout`."""
        return self._addresses(cell.direction, cell.memory, layout, cell.block_bytes)

    def _addresses(self, direction: Direction, memory: Memory | None, layout: Layout, block_bytes: int) -> SwapMemory:
        host, device = self.host_pool(memory), self._device_pool
        source, destination = (host, device) if direction is Direction.H2D else (device, host)
        stride = np.uint64(block_bytes)
        source_offsets, destination_offsets = layout.source_rows * stride, layout.destination_rows * stride
        return SwapMemory(
            sources=source_offsets + np.uint64(source.address),
            destinations=destination_offsets + np.uint64(destination.address),
            kernel_sources=source_offsets + np.uint64(source.device_address),
            kernel_destinations=destination_offsets + np.uint64(destination.device_address),
            sizes=np.full(len(layout.source_rows), stride),
            grids=tuple(
                TensorGrid(
                    source_bases=part.starts * stride + np.uint64(source.device_address),
                    destination_bases=part.starts * stride + np.uint64(destination.device_address),
                    source_ids=part.source_ids,
                    destination_ids=part.destination_ids,
                    row_bytes=block_bytes,
                )
                for part in layout.tensors
            ),
        )

    def fill(self, cell: Cell, layout: Layout, seed: int) -> None:
        """Put fresh random bytes in the source and poison in the destination."""
        used_bytes = layout.pool_rows * cell.block_bytes
        self._seed = seed
        if cell.direction is Direction.H2D:
            self.host_pool(cell.memory).fill_random(used_bytes, seed)
        else:
            self._staging.fill_random(used_bytes, seed)
            self._transfer(Direction.H2D, used_bytes)
        self.poison(cell, layout)

    def poison(self, cell: Cell, layout: Layout) -> None:
        """Put poison in the whole destination."""
        used_bytes = layout.pool_rows * cell.block_bytes
        if cell.direction is Direction.H2D:
            self._device.driver.fill(self._device_pool.address, POISON, used_bytes, self._stream.handle)
            self._stream.synchronize()
        else:
            self.host_pool(cell.memory).fill_value(used_bytes, POISON)

    def verify(self, cell: Cell, layout: Layout) -> int:
        """Compare every byte of the destination, copied or not, with what `fill` put in the source; return how many.

        Raises VerificationError.
        """
        used_bytes = layout.pool_rows * cell.block_bytes
        host = self.host_pool(cell.memory)
        if cell.direction is Direction.H2D:
            self._transfer(Direction.D2H, used_bytes)
            host.fill_random(used_bytes, self._seed)  # a swap may have spoiled its own source
            source, destination = host, self._staging
        else:
            source, destination = self._staging, host
        stride = np.uint64(cell.block_bytes)
        wrong_bytes, offset, descriptor = verify(
            destination,
            source,
            used_bytes,
            layout.source_rows * stride,
            layout.destination_rows * stride,
            np.full(cell.blocks, stride),
            POISON,
        )
        if wrong_bytes:
            where = (
                "outside of every copied block" if descriptor is None else f"in the block of descriptor {descriptor}"
            )
            raise VerificationError(
                f"{wrong_bytes} of {used_bytes} bytes are wrong, the first at offset {offset}, {where}"
            )
        return used_bytes

    def _transfer(self, direction: Direction, size_bytes: int) -> None:
        staging, device = self._staging.address, self._device_pool.address
        destination, source = (device, staging) if direction is Direction.H2D else (staging, device)
        self._device.driver.transfer(destination, source, size_bytes, DIRECTIONS[direction], self._stream.handle)
        self._stream.synchronize()
