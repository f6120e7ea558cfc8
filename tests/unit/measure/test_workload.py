"""Where blocks lie in the pools, and that comparing afterwards finds any byte that is wrong."""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvbench.cells.axes import Direction, Memory
from kvbench.cells.cell import Cell
from kvbench.cells.facts import pool_rows
from kvbench.cells.pattern import Pattern
from kvbench.engine.device import DIRECTIONS, Device, Stream, open_device, per_block
from kvbench.engine.faults import FaultPlan
from kvbench.engine.memory import SwapMemory
from kvbench.measure.workload import POISON, Layout, Pools, VerificationError, lay_out

PATTERNS = [Pattern("shuffled"), Pattern("contiguous"), Pattern("reversed"), Pattern("runs", 2), Pattern("runs", 16)]
patterns = st.sampled_from(PATTERNS) | st.builds(Pattern, st.just("runs"), st.integers(2, 50))
counts = st.integers(1, 400)
seeds = st.integers(0, 2**63)


def layout_of(pattern: Pattern, blocks: int, seed: int) -> Layout:
    return lay_out(pattern, blocks, np.random.default_rng(seed))


def steps(rows: NDArray[np.uint64]) -> list[int]:
    """Return how far each descriptor's row lies behind the one before it."""
    return [int(step) for step in np.diff(rows.astype(np.int64))]


# Layouts


@given(pattern=patterns, blocks=counts, seed=seeds)
def test_every_block_has_a_row_of_its_own_inside_the_pool(pattern: Pattern, blocks: int, seed: int) -> None:
    layout = layout_of(pattern, blocks, seed)
    for rows in (layout.source_rows, layout.destination_rows):
        assert rows.dtype == np.uint64
        assert len(set(rows.tolist())) == blocks == len(rows)
        assert rows.max() < layout.pool_rows
    assert layout.pool_rows == pool_rows(blocks) >= blocks + 2


@given(pattern=patterns, blocks=counts, seed=seeds)
def test_a_seed_gives_the_same_layout_again(pattern: Pattern, blocks: int, seed: int) -> None:
    first, second = (layout_of(pattern, blocks, seed) for _ in range(2))
    assert np.array_equal(first.source_rows, second.source_rows)
    assert np.array_equal(first.destination_rows, second.destination_rows)


@pytest.mark.parametrize("pattern", [Pattern("shuffled"), Pattern("runs", 4)], ids=str)
def test_another_seed_and_the_other_side_give_another_layout(pattern: Pattern) -> None:
    first, second = layout_of(pattern, 400, 1), layout_of(pattern, 400, 2)
    assert not np.array_equal(first.source_rows, second.source_rows)
    assert not np.array_equal(first.destination_rows, second.destination_rows)
    assert not np.array_equal(first.source_rows, first.destination_rows)


@given(pattern=patterns.filter(lambda pattern: pattern.kind != "shuffled"), blocks=counts, seed=seeds)
def test_blocks_that_lie_together_have_spare_rows_on_both_sides(pattern: Pattern, blocks: int, seed: int) -> None:
    layout = layout_of(pattern, blocks, seed)
    for rows in (layout.source_rows, layout.destination_rows):
        assert rows.min() > 0
        assert rows.max() < layout.pool_rows - 1


@given(blocks=counts, seed=seeds)
def test_contiguous_blocks_ascend_together(blocks: int, seed: int) -> None:
    layout = layout_of(Pattern("contiguous"), blocks, seed)
    assert steps(layout.source_rows) == steps(layout.destination_rows) == [1] * (blocks - 1)


@given(blocks=counts, seed=seeds)
def test_reversed_blocks_descend_in_the_source_alone(blocks: int, seed: int) -> None:
    layout = layout_of(Pattern("reversed"), blocks, seed)
    assert steps(layout.source_rows) == [-1] * (blocks - 1)
    assert steps(layout.destination_rows) == [1] * (blocks - 1)


@given(blocks=counts, run=st.integers(2, 50), seed=seeds)
def test_the_blocks_of_a_run_are_neighbours_on_both_sides(blocks: int, run: int, seed: int) -> None:
    layout = layout_of(Pattern("runs", run), blocks, seed)
    for rows in (layout.source_rows, layout.destination_rows):
        inside = [step for place, step in enumerate(steps(rows), start=1) if place % run]
        assert set(inside) <= {1}


def test_runs_are_shuffled_and_shuffled_blocks_are_hardly_ever_neighbours() -> None:
    runs = layout_of(Pattern("runs", 10), 1000, 3)
    between = [step for place, step in enumerate(steps(runs.source_rows), start=1) if place % 10 == 0]
    assert between.count(1) < 10
    assert steps(layout_of(Pattern("shuffled"), 1000, 3).source_rows).count(1) < 10


# Pools


@dataclass
class Bench:
    """Pools on the cpu device, whose addresses are plain memory."""

    device: Device
    stream: Stream
    pools: Pools

    def swap(self, cell: Cell, layout: Layout, leave_out: int | None = None) -> None:
        """Copy every block of the cell, or all but one."""
        memory = self.pools.addresses(cell, layout)
        keep = np.arange(cell.blocks) != (-1 if leave_out is None else leave_out)
        lists = (memory.sources[keep], memory.destinations[keep], memory.sizes[keep])
        per_block(self.device.driver, *lists, DIRECTIONS[cell.direction]).submit(self.stream.handle)
        self.stream.synchronize()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    device = open_device("cpu", FaultPlan())
    stream = Stream(device.driver)
    yield Bench(device, stream, Pools(device, stream, 1 << 20))
    stream.synchronize()


def pool_start(memory: SwapMemory, layout: Layout, block_bytes: int) -> int:
    return int(memory.destinations[0]) - int(layout.destination_rows[0]) * block_bytes


def flip(address: int, bits: int) -> None:
    ctypes.c_uint8.from_address(address).value ^= bits


cells = st.builds(
    Cell,
    backend=st.just("any"),
    direction=st.sampled_from(Direction),
    blocks=st.integers(1, 40),
    block_bytes=st.integers(1, 300),
    pattern=st.sampled_from(PATTERNS),
    memory=st.sampled_from([Memory.ALLOCATED, Memory.REGISTERED, None]),
)


@settings(max_examples=100, deadline=None)
@given(cell=cells, seed=seeds, data=st.data())
def test_one_wrong_byte_anywhere_is_found(bench: Bench, cell: Cell, seed: int, data: st.DataObject) -> None:
    layout = layout_of(cell.pattern, cell.blocks, seed)
    size = cell.pool_bytes
    bench.pools.fill(cell, layout, seed)
    bench.swap(cell, layout)
    assert bench.pools.verify(cell, layout) == size

    offset = data.draw(st.integers(0, size - 1))
    flip(
        pool_start(bench.pools.addresses(cell, layout), layout, cell.block_bytes) + offset,
        data.draw(st.integers(1, 255)),
    )
    with pytest.raises(VerificationError) as caught:
        bench.pools.verify(cell, layout)
    row = offset // cell.block_bytes
    owners = np.flatnonzero(layout.destination_rows == row)
    where = f"in the block of descriptor {owners[0]}" if len(owners) else "outside of every copied block"
    assert str(caught.value) == f"1 of {size} bytes are wrong, the first at offset {offset}, {where}"


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_a_block_that_was_not_copied_is_found(bench: Bench, direction: Direction, pattern: Pattern) -> None:
    cell = Cell("any", direction, 32, 100, pattern=pattern)
    layout = layout_of(pattern, 32, 9)
    bench.pools.fill(cell, layout, 9)
    bench.swap(cell, layout, leave_out=17)
    with pytest.raises(VerificationError, match="in the block of descriptor 17"):
        bench.pools.verify(cell, layout)


@pytest.mark.parametrize("direction", Direction)
def test_a_swap_the_wrong_way_is_found(bench: Bench, direction: Direction) -> None:
    """It leaves both sides equal: what was put in the source counts, not what stands there now."""
    cell = Cell("any", direction, 16, 100)
    layout = layout_of(cell.pattern, 16, 1)
    bench.pools.fill(cell, layout, 1)
    there = bench.pools.addresses(cell, layout)
    swap = per_block(bench.device.driver, there.destinations, there.sources, there.sizes, DIRECTIONS[direction])
    swap.submit(bench.stream.handle)
    bench.stream.synchronize()
    with pytest.raises(VerificationError, match="bytes are wrong"):
        bench.pools.verify(cell, layout)


@pytest.mark.parametrize("direction", Direction)
def test_a_swap_of_yesterday_does_not_pass_for_one_of_today(bench: Bench, direction: Direction) -> None:
    """Every visit has fresh bytes in the source and poison in the destination."""
    cell = Cell("any", direction, 16, 100)
    layout = layout_of(cell.pattern, 16, 1)
    bench.pools.fill(cell, layout, 1)
    bench.swap(cell, layout)
    bench.pools.fill(cell, layout, 2)
    memory = bench.pools.addresses(cell, layout)
    first = ctypes.string_at(int(memory.destinations[0]), 100)
    assert first == bytes([POISON]) * 100
    with pytest.raises(VerificationError, match=r"in the block of descriptor|outside"):
        bench.pools.verify(cell, layout)


def test_bytes_of_the_source_are_random(bench: Bench) -> None:
    cell = Cell("any", Direction.H2D, 16, 4096)
    layout = layout_of(cell.pattern, 16, 1)
    bench.pools.fill(cell, layout, 1)
    size = cell.pool_bytes
    first = bench.pools.host_pool(cell.memory).array()[:size].copy()
    assert np.bincount(first, minlength=256).min() > size / 256 / 2
    bench.pools.fill(cell, layout, 2)
    second = bench.pools.host_pool(cell.memory).array()[:size]
    assert np.count_nonzero(first == second) < size / 100
