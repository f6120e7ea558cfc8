"""Where the blocks of the swaps of a visit lie: the rows of every set, on either side."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvbench.cells.axes import Direction, Reuse
from kvbench.cells.cell import Cell
from kvbench.cells.locality import misfit, region_bytes, sets_of
from kvbench.cells.pattern import Pattern, Tensors
from kvbench.measure.layout import Layout, lay_out

BLOCK_BYTES = 4096
kinds = st.lists(st.builds(Tensors, st.integers(1, 6), st.integers(1, 30)), min_size=1, max_size=3)
seeds = st.integers(0, 2**63)
submissions = st.integers(1, 12)


def cells_of(patterns: st.SearchStrategy[tuple[Pattern, int]]) -> st.SearchStrategy[Cell]:
    """Cells that fit: dense, in a pool that just holds a set or so, and in a large one; fresh and the same."""

    def cell(shape: tuple[Pattern, int], sets: int, spare_bytes: int, reuse: Reuse) -> Cell:
        pattern, blocks = shape
        dense = Cell("any", Direction.H2D, blocks, BLOCK_BYTES, pattern=pattern, reuse=reuse)
        pool_bytes = dense.dense_bytes * sets + spare_bytes if sets else 0
        return Cell("any", Direction.H2D, blocks, BLOCK_BYTES, pattern=pattern, reuse=reuse, pool_bytes=pool_bytes)

    return st.builds(
        cell, patterns, st.sampled_from([0, 1, 2, 3, 200]), st.integers(0, 40 * BLOCK_BYTES), st.sampled_from(Reuse)
    )


def of_kind(name: str) -> st.SearchStrategy[tuple[Pattern, int]]:
    return st.integers(1, 200).map(lambda blocks: (Pattern(name), blocks))


runs = st.builds(lambda run, more: (Pattern("runs", run), run + more), st.integers(2, 40), st.integers(0, 150))
tensors = kinds.map(lambda of: (Pattern.of_tensors(*of), sum(kind.blocks for kind in of)))
every = of_kind("shuffled") | of_kind("contiguous") | of_kind("reversed") | runs | tensors


def laid_out(cell: Cell, count: int, seed: int) -> Sequence[Layout]:
    return lay_out(cell, count, np.random.default_rng(seed))


def steps(rows: NDArray[np.uint64]) -> list[int]:
    """Return how far each descriptor's row lies behind the one before it."""
    return [int(step) for step in np.diff(rows.astype(np.int64))]


@settings(max_examples=300)
@given(cell=cells_of(every), count=submissions, seed=seeds)
def test_sets_are_disjoint_inside_the_region_and_leave_its_ends_free(cell: Cell, count: int, seed: int) -> None:
    assert misfit(cell) is None
    layouts = laid_out(cell, count, seed)
    assert len(layouts) == sets_of(cell, count)
    last = region_bytes(cell, count) // BLOCK_BYTES - 1
    for name in ("source_rows", "destination_rows"):
        sets = [getattr(layout, name) for layout in layouts]
        assert all(rows.dtype == np.uint64 and len(rows) == cell.blocks for rows in sets)
        rows = np.concatenate(sets)
        assert len(np.unique(rows)) == len(rows)
        assert 0 < rows.min() <= rows.max() < last


@given(cell=cells_of(every), count=submissions, seed=seeds)
def test_a_seed_gives_the_same_sets_again(cell: Cell, count: int, seed: int) -> None:
    for one, other in zip(laid_out(cell, count, seed), laid_out(cell, count, seed), strict=True):
        assert np.array_equal(one.source_rows, other.source_rows)
        assert np.array_equal(one.destination_rows, other.destination_rows)


@pytest.mark.parametrize("pool_bytes", [0, 1 << 30], ids=["dense", "scattered"])
@pytest.mark.parametrize("text", ["shuffled", "runs-4", "tensors-4"])
def test_another_seed_and_the_other_side_give_other_places(text: str, pool_bytes: int) -> None:
    cell = Cell(
        "any",
        Direction.H2D,
        400,
        BLOCK_BYTES,
        pattern=Pattern.parse(text),
        reuse=Reuse.FRESH,
        pool_bytes=pool_bytes,
    )
    for first, second in zip(laid_out(cell, 3, 1), laid_out(cell, 3, 2), strict=True):
        assert not np.array_equal(first.source_rows, second.source_rows)
        assert not np.array_equal(first.destination_rows, second.destination_rows)
        assert not np.array_equal(first.source_rows, first.destination_rows)


@pytest.mark.parametrize("pattern", ["contiguous", "reversed"])
def test_sets_of_a_large_pool_lie_elsewhere_on_the_other_side(pattern: str) -> None:
    cell = Cell("any", Direction.H2D, 16, BLOCK_BYTES, pattern=Pattern(pattern), reuse=Reuse.FRESH, pool_bytes=1 << 30)
    layouts = laid_out(cell, 20, 3)
    assert [layout.source_rows.min() for layout in layouts] != [layout.destination_rows.min() for layout in layouts]


@given(cell=cells_of(of_kind("contiguous")), count=submissions, seed=seeds)
def test_contiguous_blocks_ascend_together(cell: Cell, count: int, seed: int) -> None:
    for layout in laid_out(cell, count, seed):
        assert steps(layout.source_rows) == steps(layout.destination_rows) == [1] * (cell.blocks - 1)


@given(cell=cells_of(of_kind("reversed")), count=submissions, seed=seeds)
def test_reversed_blocks_descend_in_the_source_alone(cell: Cell, count: int, seed: int) -> None:
    for layout in laid_out(cell, count, seed):
        assert steps(layout.source_rows) == [-1] * (cell.blocks - 1)
        assert steps(layout.destination_rows) == [1] * (cell.blocks - 1)


@given(cell=cells_of(runs), count=submissions, seed=seeds)
def test_the_blocks_of_a_run_are_neighbours_on_both_sides(cell: Cell, count: int, seed: int) -> None:
    for layout in laid_out(cell, count, seed):
        for rows in (layout.source_rows, layout.destination_rows):
            inside = [step for place, step in enumerate(steps(rows), start=1) if place % cell.pattern.run]
            assert set(inside) <= {1}


@pytest.mark.parametrize("pool_bytes", [0, 1 << 30], ids=["dense", "scattered"])
def test_runs_are_shuffled_and_shuffled_blocks_are_hardly_ever_neighbours(pool_bytes: int) -> None:
    def first(pattern: Pattern) -> Layout:
        return laid_out(Cell("any", Direction.H2D, 1000, BLOCK_BYTES, pattern=pattern, pool_bytes=pool_bytes), 1, 3)[0]

    between = [
        step for place, step in enumerate(steps(first(Pattern("runs", 10)).source_rows), start=1) if place % 10 == 0
    ]
    assert between.count(1) < 10
    assert steps(first(Pattern("shuffled")).source_rows).count(1) < 10


@given(cell=cells_of(tensors), count=submissions, seed=seeds)
def test_tensors_share_their_ids_and_each_is_a_region_of_its_own(cell: Cell, count: int, seed: int) -> None:
    layouts = laid_out(cell, count, seed)
    wanted = cell.pattern.tensors(cell.blocks)
    regions: dict[int, tuple[int, int]] = {}  # first row of a tensor -> its rows in all sets, lowest and highest
    for layout in layouts:
        assert [(len(part.starts), len(part.source_ids)) for part in layout.tensors] == [
            (kind.count, kind.ids) for kind in wanted
        ]
        sources, destinations = [], []
        for part in layout.tensors:
            for start in part.starts.tolist():
                for rows, ids in ((sources, part.source_ids), (destinations, part.destination_ids)):
                    own = [start + row for row in ids.tolist()]
                    assert len(set(own)) == len(own)
                    low, high = regions.get(start, (own[0], own[0]))
                    regions[start] = min(low, *own), max(high, *own)
                    rows += own
        assert layout.source_rows.tolist() == sources
        assert layout.destination_rows.tolist() == destinations
    starts = sorted(regions)
    assert len(starts) == sum(kind.count for kind in wanted)
    for start, end in zip(starts, [*starts[1:], region_bytes(cell, count) // BLOCK_BYTES], strict=True):
        low, high = regions[start]
        assert start <= low <= high < end


def test_other_patterns_have_no_tensors() -> None:
    assert all(not layout.tensors for layout in laid_out(Cell("any", Direction.H2D, 16, 48), 1, 1))


@pytest.mark.parametrize("text", ["shuffled", "runs-16", "contiguous", "reversed", "tensors-8"])
def test_blocks_of_a_large_pool_are_spread_over_all_of_it(text: str) -> None:
    cell = Cell(
        "any",
        Direction.H2D,
        256,
        BLOCK_BYTES,
        pattern=Pattern.parse(text),
        reuse=Reuse.FRESH,
        pool_bytes=1 << 32,
    )
    layouts = laid_out(cell, 120, 5)
    assert len(layouts) == 120
    for name in ("source_rows", "destination_rows"):
        rows = np.concatenate([getattr(layout, name) for layout in layouts])
        share = np.bincount(rows.astype(np.int64) * 8 // (cell.pool_bytes // BLOCK_BYTES), minlength=8) / len(rows)
        assert (share > 0.04).all()
        assert (share < 0.25).all()


def test_ids_are_scattered_and_differ_between_the_sides() -> None:
    (layout,) = laid_out(Cell("any", Direction.H2D, 400, BLOCK_BYTES, pattern=Pattern.parse("tensors-4")), 1, 1)
    source, destination = layout.tensors[0].source_ids, layout.tensors[0].destination_ids
    assert not np.array_equal(source, destination)
    for ids in (source, destination):
        assert np.count_nonzero(np.diff(ids.astype(np.int64)) == 1) < 10
