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


# What a block of threads may have on sm_90 and sm_100, on sm_80, and on sm_86, sm_89 and sm_120.
@pytest.mark.parametrize("shared_kib", [227, 163, 99])
@pytest.mark.parametrize("compute", [80, 89, 90, 120])
@pytest.mark.parametrize("direction", Direction)
def test_a_kernel_follows_its_rule_and_fits_the_device(direction: Direction, compute: int, shared_kib: int) -> None:
    sizes = [kib * 1024 + by for kib in (1, 2, 8, 16, 32) for by in (0, 1)]
    lists = product((0, 1 << 30), (256, 257), sizes, (0, 1, 8, 15), (None, 2, 3, 8))
    for pool_bytes, blocks, largest, odd, sms in lists:
        cell = Cell("sm", direction, blocks, 512, pool_bytes=pool_bytes, sms=sms)
        shape = shape_for(cell, largest, 4096 | odd, compute, shared_kib << 10)
        wanted, bulk = ("lanes", 16, 8, 4096), not odd and compute >= 90
        by_lanes = largest <= (8 << 10 if bulk and (sms or 2) > 2 else 32 << 10)
        if not odd and blocks == 256 and largest <= 16 << 10:
            wanted = ("words", 32, 4, 2048)
        elif direction is Direction.D2H and pool_bytes and by_lanes:
            wanted = ("lanes", 16, 8, 4096) if 2 << 10 < largest <= 8 << 10 else ("lanes", 32, 4, 4096)
        elif bulk:
            piece = 1024 if largest <= 1024 else 2048 if largest <= 2048 else 4096
            most = (shared_kib << 10) // (6 * (piece + 128 + 8))  # a line and a barrier more for each piece
            wanted = ("bulk", min((32 << 10) // piece, most), 6, piece)
        assert (shape.method, shape.warps, shape.depth, shape.piece_bytes) == wanted, (pool_bytes, blocks, largest, odd)


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
    shape = {"warps": 16, "depth": 8, "piece_bytes": 4096}  # not aligned
    defines = tuple(f"-DKVBENCH_{name.upper()}={value}" for name, value in ({"method": "lanes"} | shape).items())
    loaded = mock.call(mock.ANY, ("sm_copy", "sm_90", defines), method=SmMethod.lanes, **shape)
    assert made["SmKernel"].mock_calls == [loaded] * 3
    assert [call.args[0] for call in made["SmKernel"].call_args_list] == [one.driver, other.driver, one.driver]
    swaps, kernel = made["sm_copy"], made["SmKernel"].return_value
    assert [call.kwargs for call in swaps.call_args_list] == [
        {"sms": sms, "inline_up_to": 4096, "pace_gbps": 0.0} for sms in (7, 2, 7, 7)
    ]
    assert {call.args[:1] + call.args[4:] for call in swaps.call_args_list} == {(kernel, DIRECTIONS[direction])}
    assert all(map(np.array_equal, swaps.call_args.args[1:4], lists))
    assert (prepared.swap, prepared.mechanism) == (swaps.return_value, Mechanism.SM_KERNEL)


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
