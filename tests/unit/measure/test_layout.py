"""Where the blocks of the swaps of a visit lie: the rows of every set, on either side."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvbench.cells.axes import Direction, Reuse
from kvbench.cells.blocks import misfit, region_bytes, sets_of
from kvbench.cells.cell import Cell
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
pages = st.builds(
    lambda count, page, regions, ids: (Pattern.of_pages(count * regions, page, regions), count * regions * page * ids),
    st.integers(1, 6), st.integers(1, 4), st.sampled_from([1, 2]), st.integers(1, 20),
)  # fmt: skip
fragments = st.builds(
    lambda page, ranks, count, ids: (Pattern.of_fragments(page, ranks, count), page * count * ids),
    st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(1, 20),
)  # fmt: skip
tensors = kinds.map(lambda of: (Pattern.of_tensors(*of), sum(kind.blocks for kind in of)))
ordered_ids = st.builds(
    lambda shape, order: (replace(shape[0], order=Pattern.parse(order)), shape[1]),
    tensors | pages,
    st.sampled_from(["contiguous", "descending"]),
)
every = (
    of_kind("shuffled") | of_kind("contiguous") | of_kind("reversed") | of_kind("descending")
    | runs | tensors | pages | fragments | ordered_ids
)  # fmt: skip


def laid_out(cell: Cell, count: int, seed: int) -> Sequence[Layout]:
    return lay_out(cell, count, np.random.default_rng(seed))


def fresh(text: str, blocks: int, pool_bytes: int) -> Cell:
    cell = Cell("any", Direction.H2D, blocks, BLOCK_BYTES, pattern=Pattern.parse(text), reuse=Reuse.FRESH)
    return replace(cell, pool_bytes=pool_bytes)


def steps(rows: NDArray[np.uint64]) -> list[int]:
    """Return how far each descriptor's row lies behind the one before it."""
    return [int(step) for step in np.diff(rows.astype(np.int64))]


@settings(max_examples=150)
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


@pytest.mark.parametrize("pool_bytes", [0, 1 << 30], ids=["dense", "scattered"])
@pytest.mark.parametrize("text", ["shuffled", "runs-4", "tensors-4"])
def test_another_seed_and_the_other_side_give_other_places(text: str, pool_bytes: int) -> None:
    cell = fresh(text, 400, pool_bytes)
    for first, second in zip(laid_out(cell, 3, 1), laid_out(cell, 3, 2), strict=True):
        assert not np.array_equal(first.source_rows, second.source_rows)
        assert not np.array_equal(first.destination_rows, second.destination_rows)
        assert not np.array_equal(first.source_rows, first.destination_rows)


@given(cell=cells_of(runs), count=submissions, seed=seeds)
def test_the_blocks_of_a_run_are_neighbours_on_both_sides(cell: Cell, count: int, seed: int) -> None:
    for layout in laid_out(cell, count, seed):
        for rows in (layout.source_rows, layout.destination_rows):
            inside = [step for index, step in enumerate(steps(rows), start=1) if index % cell.pattern.run]
            assert set(inside) <= {1}


@pytest.mark.parametrize("pool_bytes", [0, 1 << 30], ids=["dense", "scattered"])
def test_runs_are_shuffled_and_shuffled_blocks_are_hardly_ever_neighbours(pool_bytes: int) -> None:
    def first(pattern: Pattern) -> Layout:
        return laid_out(Cell("any", Direction.H2D, 1000, BLOCK_BYTES, pattern=pattern, pool_bytes=pool_bytes), 1, 3)[0]

    between = [
        step for index, step in enumerate(steps(first(Pattern("runs", 10)).source_rows), start=1) if index % 10 == 0
    ]
    assert between.count(1) < 10
    assert steps(first(Pattern("shuffled")).source_rows).count(1) < 10


@given(cell=cells_of(tensors), count=submissions, seed=seeds)
def test_tensors_share_their_ids_and_each_is_a_region_of_its_own(cell: Cell, count: int, seed: int) -> None:
    layouts = laid_out(cell, count, seed)
    spans: dict[int, list[int]] = {}  # number of a tensor -> its rows on one side in all sets
    for layout in layouts:
        ends = np.cumsum([kind.blocks for kind in cell.pattern.tensors(cell.blocks)])[:-1]
        for side in (layout.source_rows, layout.destination_rows):
            number = 0
            for kind, rows in zip(cell.pattern.tensors(cell.blocks), np.split(side, ends), strict=True):
                for tensor in rows.reshape(kind.count, kind.ids):
                    assert len(set(tensor.tolist())) == kind.ids
                    assert len(set((tensor - rows[: kind.ids]).tolist())) == 1  # the same ids from where it begins
                    spans.setdefault(number, []).extend(tensor.tolist())
                    number += 1
    bounds = [(min(rows), max(rows)) for rows in spans.values()]
    assert all(high < low for (_, high), (low, _) in pairwise(bounds))
    assert bounds[-1][1] < region_bytes(cell, count) // BLOCK_BYTES


@pytest.mark.parametrize("text", ["shuffled", "runs-16", "contiguous", "reversed", "tensors-8"])
def test_blocks_of_a_large_pool_are_spread_over_all_of_it(text: str) -> None:
    cell = fresh(text, 256, 1 << 32)
    layouts = laid_out(cell, 120, 5)
    assert len(layouts) == 120
    for name in ("source_rows", "destination_rows"):
        rows = np.concatenate([getattr(layout, name) for layout in layouts])
        share = np.bincount(rows.astype(np.int64) * 8 // (cell.pool_bytes // BLOCK_BYTES), minlength=8) / len(rows)
        assert (share > 0.04).all()
        assert (share < 0.25).all()


def one_layout(pattern: str, blocks: int, seed: int = 1, **sides: str) -> Layout:
    """Return the only set of a swap out of a large pool; its source is the host."""
    axes = {name: Pattern.parse(text) for name, text in sides.items()}
    cell = Cell("any", Direction.H2D, blocks, BLOCK_BYTES, pattern=Pattern.parse(pattern), pool_bytes=1 << 32, **axes)
    assert misfit(cell) is None
    return laid_out(cell, 1, seed)[0]


def test_a_page_holds_the_blocks_of_all_tensors_side_by_side() -> None:
    layout = one_layout("tensors-8", 8 * 32, host_pattern="page-first-8")
    page = layout.source_rows.reshape(8, 32)  # by tensor, by id
    assert all(steps(page[:, column]) == [1] * 7 for column in range(32))
    device = layout.destination_rows.reshape(8, 32)
    assert len({int(step) for step in np.diff(device[:, 0])}) == 1
    assert np.count_nonzero(np.abs(np.diff(device[0].astype(np.int64))) == 1) < 4


def test_a_page_of_a_chunk_holds_its_ids_tensor_by_tensor() -> None:
    layout = one_layout("tensors-6", 6 * 32, host_pattern="page-first-6x4")
    chunks = layout.source_rows.reshape(6, 8, 4).transpose(1, 0, 2).reshape(8, -1)
    assert all(steps(chunk) == [1] * 23 for chunk in chunks)


@pytest.mark.parametrize("direction", Direction)
def test_fragments_of_one_rank_lie_a_row_of_all_ranks_apart_on_the_host_and_side_by_side_on_the_device(
    direction: Direction,
) -> None:
    """As vLLM's canonical pages: fragment k of tensor t is `(t * 4 + k) * 8 + rank` fragments into a page."""
    pattern = Pattern.parse("fragments-4x8x3")
    cell = Cell("any", direction, 3 * 4 * 20, BLOCK_BYTES, pattern=pattern, pool_bytes=1 << 30)
    (layout,) = laid_out(cell, 1, 1)
    sides = (layout.source_rows, layout.destination_rows)
    host, device = sides if direction is Direction.H2D else sides[::-1]
    pages = host.reshape(3, 20, 4).transpose(1, 0, 2).reshape(20, 12)  # by block, then by tensor and fragment
    assert all(steps(page) == [8] * 11 for page in pages)
    # no page begins inside another: between two first fragments lie whole pages
    assert set((pages[:, 0] - pages[:, 0].min()) % np.uint64(3 * 4 * 8)) == {0}
    assert all(steps(block) == [1] * 3 for block in device.reshape(-1, 4))
    assert len({int(step) for step in np.diff(device.reshape(3, -1)[:, 0])}) == 1
