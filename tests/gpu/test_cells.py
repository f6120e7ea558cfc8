"""Cells as a sweep measures them, over the axes that no other test on a GPU takes: their bytes are right."""

from dataclasses import replace
from typing import Any

import pytest

from kvbench.backends.sm import KernelShape, Sm
from kvbench.cells.axes import Direction, ListPlace, Memory, Order, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.measure.bench import Bench
from kvbench.measure.samples import set_up
from kvbench.run.protocol import MeasureCells
from kvbench.sweep.spec import Sampling
from tests.visits import load_backends, measure, visited

pytestmark = pytest.mark.gpu

POOL_BYTES = 64 << 20
SAMPLING = Sampling(warmups=1, min_samples=2, max_samples=2, busy_delay_us=300)
PATTERNS = ["contiguous", "reversed", "runs-2", "runs-7", "tensors-8", "tensors-3x200+2x100", "fragments-16x8"]
PAGES = ["page-first-8", "page-first-4+4", "page-first-8x4", "page-first-8/runs-4"]  # of the host
SHAPES = [
    KernelShape(method, *numbers)
    for method, shapes in {
        "bulk": [(8, 6, 4096), (1, 3, 128), (32, 6, 1024), (16, 12, 656), (2, 8, 8192)],
        "lanes": [(16, 8, 4096), (1, 1, 128), (32, 2, 1024), (4, 32, 65536)],
        "words": [(32, 4, 2048), (1, 1, 128), (16, 8, 656)],
    }.items()
    for numbers in shapes
]
PACES_GBPS = [2.0, 25.0, 1000.0]  # at the first every piece waits, at the last none


def verified_bytes(bench: Bench, cell: Cell) -> int:
    """Measure `cell`, which raises where a byte is wrong, and return how many were compared."""
    return measure(bench, load_backends()[cell.backend], cell, SAMPLING, seed=3, fault=None).verified_bytes


@pytest.mark.parametrize("state", [StreamState.IDLE, StreamState.BUSY])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(
    "axes",
    [
        *({"order": order} for order in Order),
        *({"overlap": True}, {"descriptors_per_call": 1}, {"descriptors_per_call": 333}),
        *({"memory": memory} for memory in (Memory.REGISTERED, Memory.SHARED, "slots-16KiBx3")),
    ],
    ids=str,
)
def test_the_batched_copy_is_correct_with_every_option(
    bench: Bench, axes: dict[str, Any], direction: Direction, state: StreamState
) -> None:
    usual = Cell("batched", direction, 800, 4096, state, order=Order.STREAM, descriptors_per_call=0, overlap=False)
    assert verified_bytes(bench, replace(usual, **axes)) > 2 * 800 * 4096


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("backend", ["per_block", "merged", "sm", "triton", "auto"])
def test_swaps_in_slots_that_are_registered_one_by_one_are_correct(
    bench: Bench, backend: str, direction: Direction
) -> None:
    assert verified_bytes(bench, Cell(backend, direction, 800, 4096, memory="slots-16KiBx3")) > 2 * 800 * 4096


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(
    ("pattern", "host"),
    [*((pattern, "pattern") for pattern in PATTERNS), *(("tensors-8", pages) for pages in PAGES)],
)
@pytest.mark.parametrize("backend", ["per_block", "batched", "merged", "primed", "sm", "triton"])
def test_swaps_of_every_pattern_are_correct(
    bench: Bench, backend: str, pattern: str, host: str, direction: Direction
) -> None:
    sides = {"pattern": Pattern.parse(pattern), "host_pattern": Pattern.of_side(host)}
    sms = 3 if backend in ("sm", "triton") else None
    assert verified_bytes(bench, Cell(backend, direction, 800, 9216, sms=sms, **sides)) > 0


@pytest.mark.parametrize("pattern", ["shuffled", "tensors-8"])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("sizes", ["alternate-9", "last-2"])
@pytest.mark.parametrize("backend", ["per_block", "batched", "merged", "primed", "sm", "triton"])
def test_blocks_of_two_sizes_arrive(bench: Bench, backend: str, sizes: str, direction: Direction, pattern: str) -> None:
    cell = Cell(backend, direction, 800, 4752, pattern=Pattern.parse(pattern), sizes=sizes)
    assert verified_bytes(bench, cell) >= 2 * cell.swap_bytes


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("block_bytes", [16, 656, 9232])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_of_the_sm_kernel_is_correct(
    bench: Bench, shape: KernelShape, block_bytes: int, direction: Direction
) -> None:
    for blocks, pattern in ((8, "shuffled"), (1200, "tensors-8")):
        cell = Cell("sm", direction, blocks, block_bytes, sms=2, pattern=Pattern.parse(pattern))
        assert measure(bench, Sm(shape), cell, SAMPLING, seed=3, fault=None).verified_bytes > 0


@pytest.mark.parametrize("sms", [1, 2, 3, 4, 6, 8, 64, 132])
@pytest.mark.parametrize("direction", Direction)
def test_thread_blocks_side_by_side_and_apart_copy_the_same(bench: Bench, direction: Direction, sms: int) -> None:
    for blocks in (1, 2, 3, 4, 5, 300):
        assert verified_bytes(bench, Cell("sm", direction, blocks, 9232, sms=sms)) > 0


@pytest.mark.parametrize("sizes", ["equal", "alternate-9", "last-2"])
@pytest.mark.parametrize("sms", [1, 3, 4])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("pace_gbps", PACES_GBPS)
def test_a_copy_held_at_a_rate_is_correct(
    bench: Bench, pace_gbps: float, direction: Direction, sms: int, sizes: str
) -> None:
    for blocks, block_bytes in ((3, 16384), (700, 656), (700, 4099), (300, 20480), (4, 1 << 20)):
        cell = Cell("sm", direction, blocks, block_bytes, sms=sms, sizes=sizes, pace=f"{pace_gbps:g}GB/s")
        visit = measure(bench, load_backends()["sm"], cell, SAMPLING, seed=3, fault=None)
        assert (visit.verified_bytes > 0, visit.pace_gbps) == (True, pace_gbps)


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("queued", [1, 50])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("backend", ["per_block", "batched"])
def test_queued_swaps_are_correct(bench: Bench, backend: str, direction: Direction, queued: int, streams: int) -> None:
    cell = Cell(backend, direction, 20, 4096, StreamState.BUSY, queued=queued, streams=streams)
    assert verified_bytes(bench, cell) > 0


@pytest.mark.parametrize("row_bytes", [13, 100, 576, 656, 1152, 16384])
@pytest.mark.parametrize("state", [StreamState.IDLE, StreamState.BUSY])
@pytest.mark.parametrize("backend", ["sm", "triton"])
def test_rows_gathered_by_ids_on_the_gpu_are_correct(
    bench: Bench, backend: str, row_bytes: int, state: StreamState
) -> None:
    cell = Cell(backend, Direction.H2D, 700, row_bytes, list_place=ListPlace.GPU, sms=4, stream_state=state)
    assert verified_bytes(bench, cell) > 2 * 700 * row_bytes


def test_a_gather_reads_nothing_that_torch_gives_to_others(bench: Bench) -> None:
    import torch

    cell = Cell("triton", Direction.H2D, 700, 656, list_place=ListPlace.GPU, sms=4)
    ready = set_up(bench, load_backends()["triton"], cell, SAMPLING, 3)
    others = [torch.full((size,), -1, dtype=torch.int32, device="cuda") for size in (1, 128, 1400) for _ in range(32)]
    request = MeasureCells(cells=[cell.as_strings()], round=0, seed=3, sampling=SAMPLING)
    assert visited(bench, ready, request).verified_bytes > len(others)
