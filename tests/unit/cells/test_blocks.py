"""Which memory the swaps of a cell take, and the axes that say so: pool, reuse and pause."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cells.axes import Direction, Neighbour, Reuse, StreamState
from kvbench.cells.blocks import MOST_DESCRIPTORS, layer_blocks, misfit, region_bytes, sets_of, unfit
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from tests.strategies import GIB

MIB = 1 << 20
HOT = Cell("any", Direction.H2D, 256, 16_384)
FRESH = replace(HOT, reuse=Reuse.FRESH)
small = st.builds(
    Cell, st.just("any"), st.just(Direction.H2D), st.integers(1, 2000), st.integers(1, 1 << 22),
    reuse=st.sampled_from(Reuse), pool_bytes=st.just(0) | st.integers(1 << 12, 1 << 34),
).filter(lambda cell: misfit(cell) is None)  # fmt: skip


def test_fresh_blocks_repeat_only_after_they_left_all_caches_and_the_same_are_one_set() -> None:
    assert sets_of(HOT, 1000) == sets_of(replace(HOT, pool_bytes=GIB), 1000) == 1
    assert sets_of(FRESH, 20) == 20
    many = sets_of(FRESH, 100_000)
    assert many < 1000
    assert (many - 1) * FRESH.swap_bytes >= 512 * MIB


def test_each_arm_of_a_visit_has_blocks_that_no_cache_holds() -> None:
    sets = sets_of(FRESH, 100_000, arms=4)
    assert (sets // 4 - 1) * FRESH.swap_bytes >= 512 * MIB


def test_three_large_swaps_in_a_row_have_blocks_of_their_own_in_a_pool() -> None:
    """None of the few samples of a visit overwrites another's."""
    large = replace(FRESH, block_bytes=4 * MIB, pool_bytes=16 * GIB)
    assert large.swap_bytes > 512 * MIB, "larger than the caches"
    assert sets_of(large, 3) == 3


@pytest.mark.parametrize("by_time", [{"devices": 2}, {"neighbour": Neighbour.IDLE}])
def test_any_number_of_timed_swaps_has_fresh_blocks(by_time: dict[str, Any]) -> None:
    cell = replace(FRESH, **by_time)
    assert (sets_of(cell, 20) - 1) * cell.swap_bytes >= 512 * MIB
    assert region_bytes(cell, 20) >= sets_of(cell, 20) * cell.dense_bytes
    assert sets_of(replace(cell, pool_bytes=7 * cell.dense_bytes), 20) == 7
    assert sets_of(replace(cell, reuse=Reuse.SAME), 20) == 1
    small = replace(cell, blocks=16, block_bytes=4096)  # as fresh as large ones
    assert (sets_of(small, 20) - 1) * small.swap_bytes >= 512 * MIB


@pytest.mark.parametrize("blocks", [1, 16, 1024, 1 << 20])
def test_tiny_blocks_are_not_laid_out_by_the_million(blocks: int) -> None:
    cell = replace(FRESH, neighbour=Neighbour.IDLE, blocks=blocks, block_bytes=1)
    assert sets_of(cell, 20) * blocks <= max(blocks, MOST_DESCRIPTORS)


@given(small, st.integers(1, 10_000))
def test_all_sets_fit_into_the_region(cell: Cell, submissions: int) -> None:
    count = sets_of(cell, submissions)
    assert 1 <= count <= submissions
    assert count * cell.dense_bytes <= region_bytes(cell, submissions)


def test_a_pool_that_is_too_small_is_refused() -> None:
    assert misfit(replace(HOT, pool_bytes=HOT.dense_bytes)) is None
    assert misfit(replace(HOT, pool_bytes=4 * MIB)) == "256 blocks of 16KiB do not fit into a pool of 4MiB"


# The layers of a swap


CELL = Cell("batched", Direction.H2D, 64, 4096, sequence="layers-4")


def of(pattern: str, blocks: int, sequence: str = "layers-4") -> Cell:
    return replace(CELL, pattern=Pattern.parse(pattern), blocks=blocks, sequence=sequence)


@pytest.mark.parametrize(
    ("cell", "blocks"),
    [
        (CELL, [16] * 4),
        (of("tensors-8", 64), [16] * 4),
        (of("tensors-4x10+4x3", 52), [20, 20, 6, 6]),  # two layers with all tokens, two with a window
        (of("page-first-4", 64), [16] * 4),
        (of("shuffled", 63, "at-once-4"), [63]),
    ],
)
def test_the_blocks_of_a_swap_are_divided_into_layers_by_tensors(cell: Cell, blocks: list[int]) -> None:
    assert unfit(cell) is None
    assert layer_blocks(cell) == blocks
    assert sum(blocks) == cell.blocks


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (of("shuffled", 63), "sequence=layers-4 needs a multiple of 4 blocks, not 63"),
        (of("tensors-6", 66), "the tensors of tensors-6 cannot be divided into 4 layers"),
        (of("tensors-2", 64), "the tensors of tensors-2 cannot be divided into 4 layers"),
        (of("tensors-5x4+3x10", 50), "the tensors of tensors-5x4+3x10 cannot be divided into 4 layers"),
        (replace(of("tensors-8", 64), direction=Direction.D2H, host_pattern=Pattern.parse("page-first-4+4")),
         "needs K and V of a layer one after the other, not page-first-4+4"),
        (replace(CELL, stream_state=StreamState.SUSTAINED), "needs a stream state in which one swap is timed"),
        (replace(CELL, queued=3, stream_state=StreamState.BUSY), "needs a stream state in which one swap is timed"),
        (replace(CELL, neighbour=Neighbour.PREFILL), "needs a neighbour whose layers wait: idle or decode"),
        (replace(CELL, neighbour=Neighbour.IDLE, direction=Direction.D2H), "wait for loads (direction=h2d)"),
        (replace(CELL, neighbour=Neighbour.IDLE, devices=2), "beside a neighbour needs one device"),
    ],
)  # fmt: skip
def test_impossible_layers_are_refused_with_the_reason(cell: Cell, reason: str) -> None:
    assert reason in (unfit(cell) or "")
