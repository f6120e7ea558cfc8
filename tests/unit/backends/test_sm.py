"""Which shape of the copy kernel a swap gets."""

from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest

from kvbench.backends import sm
from kvbench.backends.base import SwapRequest
from kvbench.backends.sm import Sm, shape_for
from kvbench.cells.axes import Direction, ListPlace
from kvbench.cells.cell import Cell

# Shared memory of a thread block on sm_90, the most that any GPU has.
chosen = partial(shape_for, shared_bytes=227 * 1024)


def asked(direction: Direction = Direction.H2D, pool_bytes: int = 0, blocks: int = 1024) -> Cell:
    return Cell("sm", direction, blocks, 4096, pool_bytes=pool_bytes)


@pytest.mark.parametrize("compute", [80, 90, 120])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("largest_bytes", [16, 4096, 16384])
def test_words_copy_few_small_blocks(largest_bytes: int, direction: Direction, compute: int) -> None:
    few = asked(direction=direction, pool_bytes=16 << 30, blocks=256)
    assert chosen(few, largest_bytes, 16, compute).method == "words"
    assert chosen(few, largest_bytes, 8, compute).method == "lanes"
    assert chosen(few, 2 * largest_bytes + (1 << 20), 16, compute).method != "words"
    assert chosen(replace(few, blocks=257), largest_bytes, 16, compute).method != "words"


@pytest.mark.parametrize("largest_bytes", [1, 656, 1024, 1025, 2048, 4096, 1 << 20])
@pytest.mark.parametrize("odd_bits", [1, 2, 4, 8])
def test_lanes_copy_blocks_that_bulk_copies_cannot(largest_bytes: int, odd_bits: int) -> None:
    assert chosen(asked(), largest_bytes, 4096 | odd_bits, 90).method == "lanes"
    assert chosen(asked(), largest_bytes, 4096, 80).method == "lanes"
    assert chosen(asked(), largest_bytes, 4096, 90).method == "bulk"


@pytest.mark.parametrize("largest_bytes", [576, 1024, 4096, 16384])
def test_lanes_copy_scattered_blocks_from_the_gpu(largest_bytes: int) -> None:
    """Bulk stores have fewer misses of the address translation in flight; loads and dense blocks have none to spare."""
    scattered = 16 << 30
    assert chosen(asked(direction=Direction.D2H, pool_bytes=scattered), largest_bytes, 16, 90).method == "lanes"
    assert chosen(asked(direction=Direction.D2H), largest_bytes, 16, 90).method == "bulk"
    assert chosen(asked(pool_bytes=scattered), largest_bytes, 16, 90).method == "bulk"


# What a block of threads may have: on sm_90 and sm_100, sm_80, sm_86 and sm_89 and sm_120.
@pytest.mark.parametrize("shared_kib", [227, 163, 99])
@pytest.mark.parametrize("largest_bytes", [512, 1024, 2048, 4096, 1 << 20])
def test_the_rule_s_kernel_fits_the_device(shared_kib: int, largest_bytes: int) -> None:
    shape = shape_for(asked(), largest_bytes, 16, 120, shared_kib * 1024)
    assert shape.method == "bulk"
    assert shape.shared_bytes <= shared_kib * 1024
    whole = chosen(asked(), largest_bytes, 16, 120)
    assert (shape.depth, shape.piece_bytes) == (whole.depth, whole.piece_bytes)


@pytest.mark.parametrize(
    ("row_bytes", "source", "destination", "word_bytes"),
    [(656, 0, 0, 16), (656, 8, 0, 8), (656, 0, 4, 4), (1160, 0, 0, 8), (577, 0, 0, 1)],
)
def test_a_gather_moves_the_largest_words_that_rows_and_both_pools_allow(
    row_bytes: int, source: int, destination: int, word_bytes: int
) -> None:
    rows = np.arange(0, 8, 2, dtype=np.uint64) * np.uint64(row_bytes) + np.uint64(1 << 20)
    sides = {"kernel_sources": rows + np.uint64(source), "kernel_destinations": rows + np.uint64(destination)}
    cell = replace(asked(), block_bytes=row_bytes, list_place=ListPlace.GPU, sms=7)
    made = {"GatherKernel": mock.Mock(), "GatherSwap": mock.Mock(), "cached_cubin": mock.Mock()}
    one, other, backend = mock.Mock(), mock.Mock(), Sm()
    with mock.patch.multiple(sm, **made):
        prepared = [backend.create(SwapRequest(device, cell, mock.Mock(**sides))) for device in (one, one, other)][-1]
    assert [call.args[0] for call in made["GatherKernel"].call_args_list] == [one.driver, other.driver]
    assert prepared.stage is made["GatherSwap"].return_value.stage
    assert made["GatherKernel"].call_args.args[1:] == (made["cached_cubin"].return_value, row_bytes)
    assert made["GatherSwap"].call_args.args == (made["GatherKernel"].return_value, *sides.values(), 7)
    defines = (f"-DKVBENCH_ROW_BYTES={row_bytes}", f"-DKVBENCH_WORD_BYTES={word_bytes}")
    assert made["cached_cubin"].call_args.args == ("gather", other.arch, defines)
