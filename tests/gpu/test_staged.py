"""Swaps through a buffer on a GPU: bytes, order between swaps that share the buffer, and the time of the kernels."""

import numpy as np
import pytest

from kvbench.backends.base import PythonSwap, SwapRequest
from kvbench.backends.staged import Staged
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.cells.units import KIB, MIB
from kvbench.engine.device import (
    Buffer,
    Device,
    MemoryKind,
    Stream,
    Swap,
    SwapMemory,
    audit_words,
    write_words,
)
from kvbench.measure.bench import Bench
from kvbench.results.schema import EffectivePath
from kvbench.sweep.spec import Sampling
from tests.visits import bench_of, measure

pytestmark = pytest.mark.gpu

SAMPLING = Sampling(warmups=2, min_samples=4, max_samples=4, busy_delay_us=3000)
# Llama-3-70B on 8 ranks: K and V of 80 layers, 256 B a token.
LAYOUTS = ["tensors-160", "page-first-80+80", "page-first-160", "page-first-160x4", "page-first-160/turning-4"]


@pytest.fixture(scope="module")
def bench(gpu: Device) -> Bench:
    return bench_of(512 * MIB, SAMPLING.busy_delay_us, gpu)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("state", StreamState)
@pytest.mark.parametrize("host", LAYOUTS)
@pytest.mark.parametrize("block_bytes", [2 * KIB, 4 * KIB, 8 * KIB, 9000])
def test_pages_of_a_model_arrive(
    bench: Bench, direction: Direction, state: StreamState, host: str, block_bytes: int
) -> None:
    sides = {"pattern": Pattern.parse("tensors-160"), "host_pattern": Pattern.parse(host)}
    cell = Cell("staged", direction, 160 * 32, block_bytes, state, sms=16, pool_bytes=512 * MIB, **sides)
    seen = measure(bench, Staged(), cell, SAMPLING, seed=3, fault=None)
    assert seen.verified_bytes > 2 * cell.swap_bytes
    assert seen.path == EffectivePath.STAGED
    assert seen.staging_bytes is not None
    assert 2 * MIB <= seen.staging_bytes <= 16 * MIB
    assert seen.sm_us is not None
    assert 0 < seen.sm_us < 16 * 1e6 * cell.swap_bytes / 10e9  # the kernels copy faster than 10 GB/s


def test_blocks_go_to_the_host_and_back_through_swaps_in_flight(gpu: Device) -> None:
    """d2h and h2d on one stream, and the same ring on two streams, without a wait in between."""
    blocks, block_bytes, rounds = 6000, 4 * KIB, 20
    size_bytes = blocks * block_bytes
    first, second = (Buffer(gpu.driver, MemoryKind.device, size_bytes) for _ in range(2))
    host = Buffer(gpu.driver, MemoryKind.allocated, size_bytes)
    streams = [Stream(gpu.driver), Stream(gpu.driver)]
    whole, zero = np.array([size_bytes], np.uint64), np.zeros(1, np.uint64)
    rows = np.random.default_rng(7).permutation(blocks).astype(np.uint64) * np.uint64(block_bytes)
    ascending = np.arange(blocks, dtype=np.uint64) * np.uint64(block_bytes)
    sizes = np.full(blocks, np.uint64(block_bytes))

    def swap(direction: Direction, device: Buffer) -> Swap | PythonSwap:
        ends = rows + np.uint64(device.address), ascending + np.uint64(host.address)
        source, destination = ends if direction is Direction.D2H else ends[::-1]
        memory = SwapMemory(source, destination, source, destination, sizes)
        return Staged().create(SwapRequest(gpu, Cell("staged", direction, blocks, block_bytes, sms=16), memory)).swap

    out, back = swap(Direction.D2H, first), swap(Direction.H2D, second)
    for number in range(rounds):
        write_words(first, zero, whole, zero, number + 1, streams[0].handle)
        stream = streams[number % 2]
        for one in (out, back):
            one.submit(stream.handle)
        other = streams[1 - number % 2]
        out.submit(other.handle)
        for each in streams:
            each.synchronize()
        assert audit_words(second, zero, whole, zero, number + 1, stream.handle).wrong_bytes == 0
