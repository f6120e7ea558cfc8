"""Pools whose bytes follow from their offset: ranges are written and compared anywhere, on both sides."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvbench.cells.axes import Direction
from kvbench.engine.device import (
    DIRECTIONS,
    Buffer,
    Device,
    MemoryKind,
    Stream,
    audit_words,
    open_device,
    per_block,
    write_words,
)
from kvbench.engine.faults import Fault, FaultPlan

POOL_BYTES = 1 << 20
SEED, OTHER, POISON = 11, 12, 13

Words = NDArray[np.uint64]


def words(*numbers: int) -> Words:
    return np.array(numbers, dtype=np.uint64)


@dataclass
class Bench:
    """A source pool and a destination pool of the cpu device, both filled whole, and their stream."""

    device: Device
    source: Buffer
    destination: Buffer
    stream: Stream

    @classmethod
    def on(cls, device: Device) -> "Bench":
        stream = Stream(device.driver)
        source = Buffer(device.driver, MemoryKind.allocated, POOL_BYTES)
        destination = Buffer(device.driver, MemoryKind.device, POOL_BYTES)
        whole = words(0), words(POOL_BYTES), words(0)
        write_words(source, *whole, OTHER, stream.handle)
        write_words(destination, *whole, SEED, stream.handle)
        return cls(device, source, destination, stream)


@pytest.fixture
def bench() -> Bench:
    return Bench.on(open_device("cpu", FaultPlan()))


@pytest.mark.parametrize("kind", [MemoryKind.device, MemoryKind.allocated], ids=["device", "host"])
@settings(max_examples=60, deadline=None)
@given(ranges=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5000), st.integers(0, 10**12)), max_size=30))
def test_written_blocks_pass_the_audit(kind: MemoryKind, ranges: list[tuple[int, int, int]]) -> None:
    device = open_device("cpu", FaultPlan())
    pool, pool_stream = Buffer(device.driver, kind, POOL_BYTES), Stream(device.driver)
    stream = pool_stream.handle
    sizes, sources = words(*(size for _, size, _ in ranges)), words(*(source for *_, source in ranges))
    offsets = np.cumsum(words(*(gap for gap, *_ in ranges)) + np.concatenate([words(0), sizes])[: len(ranges)])
    offsets = offsets.astype(np.uint64)
    write_words(pool, offsets, sizes, sources, SEED, stream)
    audit = audit_words(pool, offsets, sizes, sources, SEED, stream)
    assert (audit.wrong_bytes, audit.first_wrong_range, audit.checked_bytes) == (0, None, int(sizes.sum()))


def test_a_swap_in_a_large_pool_is_checked_without_touching_the_rest(bench: Bench) -> None:
    stream = bench.stream.handle
    sources, destinations, sizes = words(8, 70_001, 300_000), words(500_003, 16, 90_000), words(4096, 577, 24_576)
    write_words(bench.destination, destinations, sizes, sources, POISON, stream)
    swap = per_block(
        bench.device.driver,
        sources + np.uint64(bench.source.address),
        destinations + np.uint64(bench.destination.address),
        sizes,
        DIRECTIONS[Direction.H2D],
    )
    bench.device.arm(Fault("corrupt@descriptor", 1))
    swap.submit(stream)
    spoiled = audit_words(bench.destination, destinations, sizes, sources, OTHER, stream)
    assert (spoiled.wrong_bytes, spoiled.first_wrong_offset, spoiled.first_wrong_range) == (1, 16 + 576, 1)
    bench.device.arm(Fault("stray@descriptor", 1))
    swap.submit(stream)
    assert audit_words(bench.destination, destinations, sizes, sources, OTHER, stream).wrong_bytes == 0
    behind = destinations + sizes
    beside = audit_words(bench.destination, behind, words(64, 64, 64), behind, SEED, stream)
    assert (beside.wrong_bytes, beside.first_wrong_offset, beside.first_wrong_range) == (1, 16 + 577, 1)
    assert audit_words(bench.source, words(0), words(POOL_BYTES), words(0), OTHER, stream).wrong_bytes == 0
