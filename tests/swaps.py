"""Swaps of mixed sizes and alignments, run through a backend and compared byte for byte."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvbench.backends.base import Backend, SwapRequest
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.policy import Policy, Table
from kvbench.engine.device import (
    DIRECTIONS,
    STREAM_STATES,
    Buffer,
    Device,
    MemoryKind,
    Stream,
    Swap,
    SwapMemory,
    TimedRegion,
)

POISON = 0xA5  # stands where no swap has written
MAX_GAP_BYTES = 40
SEED = 7


@dataclass(frozen=True)
class MixedSwap:
    """Descriptors as offsets into two buffers of `span_bytes`; destinations never overlap."""

    source_offsets: NDArray[np.uint64]
    destination_offsets: NDArray[np.uint64]
    sizes: NDArray[np.uint64]
    span_bytes: int


def always(backend: str) -> Policy:
    """Return a policy with one choice for every list."""
    shape = {"stream_state": StreamState.IDLE, "block_bytes": (4096,), "blocks": (16,)}
    return Policy(device="any", tables=tuple(Table(direction=way, choices=((backend,),), **shape) for way in Direction))


def mixed_swap(sizes: list[int], seed: int) -> MixedSwap:
    """Lay `sizes` out with random gaps, so that every alignment of either side occurs, in a shuffled order."""
    rng = np.random.default_rng(seed)

    def offsets() -> tuple[NDArray[np.uint64], int]:
        gaps = rng.integers(1, MAX_GAP_BYTES, len(sizes))
        ends = np.cumsum(gaps + np.array(sizes))
        return (ends - np.array(sizes)).astype(np.uint64), int(ends[-1]) + MAX_GAP_BYTES

    source, source_end = offsets()
    destination, destination_end = offsets()
    order = rng.permutation(len(sizes))
    return MixedSwap(
        source[order], destination[order], np.array(sizes, np.uint64)[order], max(source_end, destination_end)
    )


def aligned_swap(sizes: list[int], alignment: int, seed: int) -> MixedSwap:
    """Lay `sizes` out at multiples of `alignment`."""
    strides = [-(-size // alignment) * alignment + alignment for size in sizes]
    starts = np.concatenate([[alignment], alignment + np.cumsum(strides)]).astype(np.uint64)
    order = np.random.default_rng(seed).permutation(len(sizes))
    return MixedSwap(starts[:-1][order], starts[:-1][order], np.array(sizes, np.uint64)[order], int(starts[-1]))


def run_and_compare(
    device: Device,
    backend: Backend,
    direction: Direction,
    swap: MixedSwap,
    *,
    memory_kind: MemoryKind = MemoryKind.allocated,
    sms: int | None = None,
    times: int = 1,
    state: StreamState = StreamState.IDLE,
) -> tuple[int, int, int | None]:
    """Run `swap` on `backend` `times` times; return (wrong bytes, first wrong offset, its descriptor or None)."""
    stream = Stream(device.driver)
    region = TimedRegion(device.driver, stream.handle, 50_000)
    host = Buffer(device.driver, memory_kind, swap.span_bytes)
    other = Buffer(device.driver, MemoryKind.device, swap.span_bytes)
    staging = Buffer(device.driver, MemoryKind.allocated, swap.span_bytes)
    into_gpu = direction is Direction.H2D
    source, destination = (host, other) if into_gpu else (other, host)
    if into_gpu:
        host.fill_random(swap.span_bytes, SEED)
        device.driver.fill(other.address, POISON, swap.span_bytes, stream.handle)
    else:
        staging.fill_random(swap.span_bytes, SEED)
        _transfer(device, stream, other, staging, Direction.H2D)
        host.fill_value(swap.span_bytes, POISON)
    stream.synchronize()

    def at(offsets: NDArray[np.uint64], address: int) -> NDArray[np.uint64]:
        return offsets + np.uint64(address)

    request = SwapRequest(
        device,
        Cell(backend.name, direction, len(swap.sizes), int(swap.sizes.max()), sms=sms, descriptors_per_call=0),
        SwapMemory(
            sources=at(swap.source_offsets, source.address),
            destinations=at(swap.destination_offsets, destination.address),
            kernel_sources=at(swap.source_offsets, source.device_address),
            kernel_destinations=at(swap.destination_offsets, destination.device_address),
            sizes=swap.sizes,
        ),
    )
    prepared = backend.create(request).swap
    for _ in range(times):
        if isinstance(prepared, Swap):
            region.measure(prepared, STREAM_STATES[state])
        else:
            region.measure_python(prepared.submit, STREAM_STATES[state])
    del prepared  # before its stream: torch records an event there when it takes pinned memory back
    if into_gpu:
        _transfer(device, stream, staging, other, Direction.D2H)
        host.fill_random(swap.span_bytes, SEED)  # the swap may have spoiled its own source
    compared, original = (staging, host) if into_gpu else (host, staging)
    return compare(swap, compared, original)


def compare(swap: MixedSwap, destination: Buffer, source: Buffer) -> tuple[int, int, int | None]:
    """Compare a destination that was full of POISON: (wrong bytes, first wrong offset, its descriptor or None)."""
    source_bytes = source.array()[: swap.span_bytes]
    expected = np.full(swap.span_bytes, POISON, np.uint8)
    offsets = zip(swap.source_offsets.tolist(), swap.destination_offsets.tolist(), swap.sizes.tolist(), strict=True)
    for from_, to, size in offsets:
        expected[to : to + size] = source_bytes[from_ : from_ + size]
    wrong = np.flatnonzero(destination.array()[: swap.span_bytes] != expected)
    if not len(wrong):
        return 0, 0, None
    first = int(wrong[0])
    inside = np.flatnonzero((swap.destination_offsets <= first) & (first < swap.destination_offsets + swap.sizes))
    return len(wrong), first, int(inside[0]) if len(inside) else None


def _transfer(device: Device, stream: Stream, to: Buffer, source: Buffer, direction: Direction) -> None:
    device.driver.transfer(to.address, source.address, to.size_bytes, DIRECTIONS[direction], stream.handle)
    stream.synchronize()
