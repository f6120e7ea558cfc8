"""Pools on a GPU whose bytes are known from their place: the kernels write and find what the host does."""

import numpy as np
import pytest
from numpy.typing import NDArray

from kvbench.cells.axes import Direction
from kvbench.engine.device import DIRECTIONS, Buffer, Device, MemoryKind, Stream, TimedRegion, audit_words, write_words

pytestmark = pytest.mark.gpu

POOL_BYTES = 64 << 20
SEED, OTHER_SEED = 21, 22


def uint64_array(*numbers: int) -> NDArray[np.uint64]:
    return np.array(numbers, dtype=np.uint64)


WHOLE = uint64_array(0), uint64_array(POOL_BYTES), uint64_array(0)


def any_ranges(count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]:
    """Return offsets, sizes and source offsets of `count` ranges of any alignment that do not overlap."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 9000, count).astype(np.uint64)
    gaps = rng.integers(1, 200, count).astype(np.uint64)
    offsets = np.cumsum(gaps + sizes) - sizes
    return offsets, sizes, rng.integers(0, POOL_BYTES, count).astype(np.uint64)


def test_kernels_write_what_the_host_writes_and_find_what_it_finds(gpu: Device) -> None:
    stream = Stream(gpu.driver)
    pool, host = (Buffer(gpu.driver, kind, POOL_BYTES) for kind in (MemoryKind.device, MemoryKind.allocated))
    offsets, sizes, sources = any_ranges(4000)
    for buffer in (pool, host):
        write_words(buffer, *WHOLE, SEED, stream.handle)
        write_words(buffer, offsets, sizes, sources, OTHER_SEED, stream.handle)
    assert audit_words(pool, offsets, sizes, sources, OTHER_SEED, stream.handle).wrong_bytes == 0
    wrong = [audit_words(buffer, *WHOLE, SEED, stream.handle) for buffer in (pool, host)]
    assert wrong[0].wrong_bytes == wrong[1].wrong_bytes > 0
    assert wrong[0].first_wrong_offset == wrong[1].first_wrong_offset
    expected = host.array().copy()
    gpu.driver.transfer(host.address, pool.address, POOL_BYTES, DIRECTIONS[Direction.D2H], stream.handle)
    stream.synchronize()
    assert np.array_equal(host.array(), expected)


def test_a_wrong_byte_on_the_gpu_is_named(gpu: Device) -> None:
    stream = Stream(gpu.driver)
    pool = Buffer(gpu.driver, MemoryKind.device, POOL_BYTES)
    offsets, sizes, sources = any_ranges(4000)
    sources[1234] = 7
    write_words(pool, offsets, sizes, sources, SEED, stream.handle)
    host = Buffer(gpu.driver, MemoryKind.allocated, POOL_BYTES)
    write_words(host, *WHOLE, SEED, stream.handle)
    at = int(offsets[1234]) + int(sizes[1234]) - 1
    wrong = int(host.array()[7 + int(sizes[1234]) - 1]) ^ 1
    gpu.driver.fill(pool.address + at, wrong, 1, stream.handle)
    audit = audit_words(pool, offsets, sizes, sources, SEED, stream.handle)
    assert (audit.wrong_bytes, audit.first_wrong_offset, audit.first_wrong_range) == (1, at, 1234)
    assert audit.checked_bytes == int(sizes.sum())


def test_a_delay_is_no_shorter_than_asked_for(gpu: Device) -> None:
    stream = Stream(gpu.driver)
    region = TimedRegion(gpu.driver, stream.handle, 200_000)
    for delay_us in (50, 300, 2000):
        assert region.measure_delay_us(delay_us * 1000) >= delay_us
