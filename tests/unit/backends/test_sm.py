"""Which shape of the copy kernel a swap gets."""

from dataclasses import replace
from itertools import product
from unittest import mock

import numpy as np
import pytest

from kvbench.backends import sm
from kvbench.backends.base import Mechanism, SwapRequest
from kvbench.backends.sm import Sm, shape_for
from kvbench.cells.axes import Direction, ListPlace
from kvbench.cells.cell import Cell
from kvbench.engine.device import DIRECTIONS, SmMethod

KIB, GIB = 1024, 1 << 30


# What a block of threads may have on sm_90 and sm_100, on sm_80, and on sm_86, sm_89 and sm_120.
@pytest.mark.parametrize("shared_kib", [227, 163, 99])
@pytest.mark.parametrize("compute", [80, 89, 90, 120])
@pytest.mark.parametrize("direction", Direction)
def test_a_kernel_can_copy_its_list_and_fits_the_device(direction: Direction, compute: int, shared_kib: int) -> None:
    for pool_bytes, blocks, largest, odd, sms in product((0, GIB), (1, 257), (1, 4 * KIB, GIB), (0, 8), (None, 1, 8)):
        cell = Cell("sm", direction, blocks, 512, pool_bytes=pool_bytes, sms=sms)
        shape = shape_for(cell, largest, 4096 | odd, compute, shared_kib * KIB)
        assert shape.method != "bulk" or compute >= 90, "a bulk copy is an instruction of sm_90"
        assert shape.method == "lanes" or not odd, "only lanes take addresses that are not aligned"
        each_piece = shape.piece_bytes + 128 + 8  # and a line and a barrier
        assert shape.method != "bulk" or shape.warps * shape.depth * each_piece <= shared_kib * KIB


@pytest.mark.parametrize(
    ("direction", "blocks", "size", "sms", "method", "warps"),
    [
        (Direction.H2D, 256, 16 * KIB, 4, "words", 32),  # few small blocks: many requests at once
        (Direction.D2H, 256, 16 * KIB, 4, "words", 32),
        (Direction.H2D, 256, 32 * KIB, 4, "bulk", 8),
        (Direction.H2D, 257, 1 * KIB, 4, "bulk", 32),
        (Direction.H2D, 257, 2 * KIB, 4, "bulk", 16),
        (Direction.H2D, 257, 4 * KIB, 4, "bulk", 8),
        (Direction.D2H, 257, 2 * KIB, 4, "lanes", 32),  # scattered stores
        (Direction.D2H, 257, 8 * KIB, 4, "lanes", 16),
        (Direction.D2H, 257, 32 * KIB, 2, "lanes", 32),
        (Direction.D2H, 257, 32 * KIB, 3, "bulk", 8),
    ],
)
def test_a_kernel_is_the_fastest_that_was_measured(
    direction: Direction, blocks: int, size: int, sms: int, method: str, warps: int
) -> None:
    """Of scattered blocks, on an H100 and an H200."""
    cell = Cell("sm", direction, blocks, size, pool_bytes=16 * GIB, sms=sms)
    shape = shape_for(cell, size, size, 90, 227 * KIB)
    assert (shape.method, shape.warps) == (method, warps)


@pytest.mark.parametrize("sms", [2, 3, 8])
def test_without_bulk_copies_scattered_stores_have_many_loads_in_flight_on_any_number_of_sms(sms: int) -> None:
    cell = Cell("sm", Direction.D2H, 257, 32 * KIB, pool_bytes=16 * GIB, sms=sms)
    assert shape_for(cell, 32 * KIB, 32 * KIB, 80, 163 * KIB).warps == 32


@pytest.mark.parametrize(
    ("shared_kib", "method", "warps"), [(227, "bulk", 8), (60, "bulk", 2), (30, "bulk", 1), (8, "lanes", 16)]
)
def test_a_kernel_has_as_many_warps_as_the_shared_memory_holds(shared_kib: int, method: str, warps: int) -> None:
    """A warp of bulk copies needs 25 KiB; without room for one, lanes need none."""
    cell = Cell("sm", Direction.H2D, 1000, 64 * KIB, sms=2)
    shape = shape_for(cell, 64 * KIB, 64 * KIB, 90, shared_kib * KIB)
    assert (shape.method, shape.warps) == (method, warps)


@pytest.mark.parametrize("compute", [80, 90])
@pytest.mark.parametrize("direction", Direction)
def test_a_kernel_that_is_held_at_a_rate_moves_small_even_pieces(direction: Direction, compute: int) -> None:
    for pool_bytes, blocks, largest, odd in product((0, 1 << 30), (1, 4096), (512, 4096, 8193, 1 << 20), (0, 8)):
        cell = Cell("sm", direction, blocks, 512, pool_bytes=pool_bytes, sms=4, pace="85%")
        shape = shape_for(cell, largest, largest // 4096 * 4096 | odd, compute, 227 << 10)
        lanes = odd or compute < 90 or (direction is Direction.D2H and pool_bytes and largest <= 8192)
        assert (shape.paced, shape.method) == (True, "lanes" if lanes else "bulk")
        assert "-DKVBENCH_PACED=1" in shape.defines


@pytest.mark.parametrize("direction", Direction)
def test_a_swap_is_by_the_kernel_of_its_shape_that_is_loaded_once_for_a_device(direction: Direction) -> None:
    lists = [np.uint64([4096, 8192]), np.uint64([0, 16384]), np.uint64([2048, 1000])]
    info = mock.Mock(compute_major=9, compute_minor=0, shared_bytes=227 << 10)
    one, other = (mock.Mock(arch="sm_90", driver=mock.Mock(info=info)) for _ in range(2))
    memory = mock.Mock(kernel_sources=lists[0], kernel_destinations=lists[1], sizes=lists[2])
    cell, made = Cell("sm", direction, 1024, 2048, sms=7), {name: mock.Mock() for name in ("SmKernel", "sm_copy")}
    with mock.patch.multiple(sm, **made, cached_cubin=lambda *asked: asked):
        backend = Sm()
        for device, of in ((one, cell), (one, replace(cell, sms=None)), (other, cell), (one, cell)):
            prepared = backend.create(SwapRequest(device, of, memory))
    loads = made["SmKernel"].call_args_list
    assert [call.args[0] for call in loads] == [one.driver, other.driver, one.driver]
    assert {call.kwargs["method"] for call in loads} == {SmMethod.lanes}, "the list is not aligned"
    for _, arch, defines in (call.args[1] for call in loads):
        assert (arch, "-DKVBENCH_METHOD=lanes" in defines) == ("sm_90", True)
    launches = made["sm_copy"].call_args_list
    assert [call.kwargs["sms"] for call in launches] == [7, 2, 7, 7]
    kernel, *copied, way = launches[-1].args
    assert all(map(np.array_equal, copied, lists))
    assert (kernel, way) == (made["SmKernel"].return_value, DIRECTIONS[direction])
    assert (prepared.swap, prepared.mechanism) == (made["sm_copy"].return_value, Mechanism.SM_KERNEL)


@pytest.mark.parametrize(
    ("row_bytes", "source", "destination", "word_bytes"),
    [(656, 0, 0, 16), (656, 8, 0, 8), (656, 0, 4, 4), (1160, 0, 0, 8), (577, 0, 0, 1)],
)
def test_a_gather_moves_the_largest_words_that_rows_and_both_pools_allow(
    row_bytes: int, source: int, destination: int, word_bytes: int
) -> None:
    rows = np.arange(0, 8, 2, dtype=np.uint64) * np.uint64(row_bytes) + np.uint64(1 << 20)
    sides = {"kernel_sources": rows + np.uint64(source), "kernel_destinations": rows + np.uint64(destination)}
    cell = Cell("sm", Direction.H2D, 1024, row_bytes, list_place=ListPlace.GPU, sms=7)
    made = {"GatherKernel": mock.Mock(), "GatherSwap": mock.Mock(), "cached_cubin": mock.Mock()}
    one, other, backend = mock.Mock(), mock.Mock(), Sm()
    with mock.patch.multiple(sm, **made):
        asked = (one, cell), (one, cell), (other, replace(cell, block_bytes=64)), (other, replace(cell, sms=None))
        prepared = [backend.create(SwapRequest(device, of, mock.Mock(**sides))) for device, of in asked][-1]
    assert [call.args[0] for call in made["GatherKernel"].call_args_list] == [one.driver, other.driver, other.driver]
    assert prepared.stage is made["GatherSwap"].return_value.stage
    assert made["GatherKernel"].call_args.args[1:] == (made["cached_cubin"].return_value, row_bytes)
    lists = (made["GatherKernel"].return_value, *sides.values())
    assert [call.args for call in made["GatherSwap"].call_args_list] == [(*lists, sms) for sms in (7, 7, 7, 2)]
    defines = (f"-DKVBENCH_ROW_BYTES={row_bytes}", f"-DKVBENCH_WORD_BYTES={word_bytes}")
    assert made["cached_cubin"].call_args.args == ("gather", other.arch, defines)
