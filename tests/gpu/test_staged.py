"""Swaps through pages on a GPU: right bytes for all sizes and orders of lists, also where they cannot be staged."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kvbench.backends.auto import copier_for
from kvbench.cells.axes import Direction, Memory, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.engine.device import Device, EngineError
from kvbench.measure.bench import Bench
from kvbench.sweep.spec import Sampling
from tests.gpu.test_copy import Lists, arrive_side_by_side
from tests.swaps import MixedSwap, aligned_swap, always, mixed_swap
from tests.visits import load_backends, measure

pytestmark = pytest.mark.gpu

POOL_BYTES = 64 << 20
SAMPLING = Sampling(warmups=1, min_samples=2, max_samples=2, busy_delay_us=300)
SIZES = {
    "equal": [16_384] * 2000,
    "no alignment": [4097] * 3000,
    "mixed": [1, 7, 16, 100, 4096, 5000, 40_000, 65_537] * 300,
    "aligned, mixed": [16, 48, 656, 4096, 9232, 65_536] * 300,
    "as large as a page": [1 << 22, 1 << 21, 1 << 22, (1 << 22) - 1, 5],
}
RUN = 100


def paged_swap(direction: Direction, sizes: list[int], seed: int) -> MixedSwap:
    """Lay `sizes` out in runs of RUN blocks on the host and with gaps on the device, in a shuffled order."""
    aligned, rng = all(size % 16 == 0 for size in sizes), np.random.default_rng(seed)
    apart = aligned_swap(sizes, 16, seed) if aligned else mixed_swap(sizes, seed)
    runs = rng.permutation(-(-len(sizes) // RUN))
    places = np.concatenate([np.arange(run * RUN, min((run + 1) * RUN, len(sizes))) for run in runs])
    ends = np.cumsum(np.array(sizes)[places] + np.where(places % RUN == RUN - 1, 33, 0))
    together = np.empty(len(sizes), np.uint64)
    together[places] = np.concatenate([[0], ends[:-1]])
    order = rng.permutation(len(sizes))
    device, host = apart.destination_offsets[np.argsort(apart.source_offsets)][order], together[order]
    source, destination = (host, device) if direction is Direction.H2D else (device, host)
    span = max(apart.span_bytes, int(ends[-1]))
    return MixedSwap(source, destination, np.array(sizes, np.uint64)[order], span)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("sms", [1, 3, 4, 16])
@pytest.mark.parametrize(
    ("blocks", "block_bytes", "axes"),
    [
        (1024, 16_384, {"host_pattern": "runs-256"}),
        (1000, 16_384, {"host_pattern": "contiguous", "stream_state": StreamState.BUSY}),
        (777, 9232, {"host_pattern": "runs-100", "memory": Memory.REGISTERED}),
        (3000, 4097, {"host_pattern": "descending"}),
        (3000, 656, {"host_pattern": "runs-1000", "memory": Memory.SHARED}),
        (24, 1 << 20, {"host_pattern": "runs-3", "stream_state": StreamState.SUSTAINED}),
        (800, 9216, {"pattern": "tensors-8", "host_pattern": "page-first-8x4", "sizes": "last-2"}),
        (1, 1 << 20, {}),
    ],
    ids=str,
)
def test_cells_of_every_layout_are_correct(
    bench: Bench, blocks: int, block_bytes: int, axes: dict[str, Any], sms: int, direction: Direction
) -> None:
    patterns = {name: Pattern.parse(axes[name]) for name in ("pattern", "host_pattern") if name in axes}
    cell = replace(Cell("staged", direction, blocks, block_bytes, sms=sms), **axes | patterns)
    visit = measure(bench, load_backends()["staged"], cell, SAMPLING, seed=3, fault=None)
    assert visit.verified_bytes >= 2 * cell.swap_bytes
    assert visit.path == "SM kernel and copy engine"


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_a_copier_stages_lists_in_pages(gpu: Device, sizes: list[int], direction: Direction, is_busy: bool) -> None:
    copier = copier_for(gpu, [always("staged")]).engine
    lists = Lists(direction, paged_swap(direction, sizes, seed=2))
    lists.copied_though_the_arrays_change(copier, gpu, is_busy=is_busy, any_order=False)
    assert copier.not_staged() == 0


@pytest.mark.parametrize("direction", Direction)
def test_a_list_that_is_not_in_pages_goes_another_way_and_is_counted(gpu: Device, direction: Direction) -> None:
    copier, stream = copier_for(gpu, [always("staged")]).engine, torch.cuda.Stream()
    lists = Lists(direction, mixed_swap([4096] * 700, seed=5))
    copier.copy(*lists.tensors(), stream)
    stream.synchronize()
    assert lists.arrived()
    assert copier.not_staged() == 1


def test_staged_swaps_of_two_streams_and_both_directions_arrive(gpu: Device) -> None:
    copier = copier_for(gpu, [always("staged sms=2")]).engine
    every = [Lists(way, paged_swap(way, SIZES["equal"], seed)) for seed, way in enumerate([*Direction, Direction.H2D])]
    assert arrive_side_by_side(copier, every)
    assert copier.not_staged() == 0


def test_a_stream_that_is_captured_is_refused(gpu: Device) -> None:
    copier, stream = copier_for(gpu, [always("staged")]).engine, torch.cuda.Stream()
    lists = Lists(Direction.D2H, paged_swap(Direction.D2H, SIZES["equal"], seed=1))
    tensors, captured = lists.tensors(), torch.zeros(1, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
        captured.add_(1)  # a graph without a node is warned of
        with pytest.raises(EngineError, match="captured"):
            copier.copy(*tensors, stream)
    copier.copy(*tensors, stream)
    stream.synchronize()
    assert lists.arrived()
