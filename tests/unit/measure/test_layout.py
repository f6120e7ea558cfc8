"""Where the blocks of the swaps of a visit lie: the rows of every set, on either side."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.cells.axes import Direction, Reuse
from kvbench.cells.blocks import misfit, region_bytes, sets_of
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern, Tensors
from kvbench.measure import layout as module
from kvbench.measure.layout import Layout, _distinct, lay_out

BLOCK_BYTES = 4096
kinds = st.lists(st.builds(Tensors, st.integers(1, 6), st.integers(1, 30)), min_size=1, max_size=3)
seeds = st.integers(0, 2**63)
submissions = st.integers(1, 12)

# Pattern, that of the host, blocks, rows of the pool, and the rows of two sets on the host and on the GPU.
PLACED = [
    ("shuffled", "", 3, 20, "13 14 15 | 16 17 18", "13 14 15 | 16 17 18"),
    ("runs-3", "", 7, 40, *["25 26 27 28 29 30 37 | 31 32 33 34 35 36 38"] * 2),
    ("tensors-2/descending", "", 6, 40, *["15 14 13 35 34 33 | 18 17 16 38 37 36"] * 2),
    ("tensors-2x3+1x2", "", 8, 60, *["14 15 16 35 36 37 53 54 | 17 18 19 38 39 40 55 56"] * 2),
    ("tensors-2", "page-first-2", 6, 60,
     "46 48 50 47 49 51 | 52 54 56 53 55 57", "23 24 25 53 54 55 | 26 27 28 56 57 58"),
    ("tensors-2", "page-first-2x2", 8, 80,
     "60 61 64 65 62 63 66 67 | 68 69 72 73 70 71 74 75", "31 32 33 34 71 72 73 74 | 35 36 37 38 75 76 77 78"),
    ("fragments-2x3x2", "", 8, 200, "133 136 145 148 139 142 151 154 | 157 160 169 172 163 166 175 178",
     "91 92 93 94 191 192 193 194 | 95 96 97 98 195 196 197 198"),
]  # fmt: skip


def cell_of(shape: tuple[Pattern, int], sets: int, spare_bytes: int, reuse: Reuse) -> Cell:
    """Return a cell that fits: dense, in a pool that just holds a set or so, or in a large one."""
    dense = Cell("any", Direction.H2D, shape[1], BLOCK_BYTES, pattern=shape[0], reuse=reuse)
    return replace(dense, pool_bytes=dense.dense_bytes * sets + spare_bytes if sets else 0)


plain = st.builds(
    lambda name, blocks: (Pattern(name), blocks),
    st.sampled_from(["shuffled", "contiguous", "reversed", "descending"]), st.integers(1, 200),
)  # fmt: skip
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
cells = st.builds(
    cell_of, plain | runs | tensors | pages | fragments | ordered_ids, st.sampled_from([0, 1, 2, 3, 200]),
    st.integers(0, 40 * BLOCK_BYTES), st.sampled_from(Reuse),
)  # fmt: skip


def laid_out(cell: Cell, count: int, seed: int) -> Sequence[Layout]:
    return lay_out(cell, count, np.random.default_rng(seed))


def fresh(text: str, blocks: int, pool_bytes: int) -> Cell:
    cell = Cell("any", Direction.H2D, blocks, BLOCK_BYTES, pattern=Pattern.parse(text), reuse=Reuse.FRESH)
    return replace(cell, pool_bytes=pool_bytes)


@settings(max_examples=150)
@given(cell=cells, count=submissions, seed=seeds)
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


@settings(max_examples=150)
@given(cell=cells, seed=seeds, direction=st.sampled_from(Direction))
def test_blocks_lie_together_on_the_host_as_the_cell_says(cell: Cell, seed: int, direction: Direction) -> None:
    cell = replace(cell, direction=direction, sizes="equal")
    for layout in laid_out(cell, 3, seed):
        rows = np.sort(layout.source_rows if direction is Direction.H2D else layout.destination_rows)
        runs = 1 + np.count_nonzero(np.diff(rows) != 1)
        assert cell.swap_bytes // runs >= cell.host_run_bytes


@pytest.mark.parametrize("pool_bytes", [0, 1 << 30], ids=["dense", "scattered"])
@pytest.mark.parametrize("text", ["shuffled", "runs-4", "tensors-4"])
def test_another_seed_and_the_other_side_give_other_places(text: str, pool_bytes: int) -> None:
    cell = fresh(text, 400, pool_bytes)
    for first, second in zip(laid_out(cell, 3, 1), laid_out(cell, 3, 2), strict=True):
        assert not np.array_equal(first.source_rows, second.source_rows)
        assert not np.array_equal(first.destination_rows, second.destination_rows)
        assert not np.array_equal(first.source_rows, first.destination_rows)


@pytest.mark.parametrize(
    ("wanted", "below"), [(0, 0), (0, 5), (1, 1), (5, 5), (4, 5), (1, 3), (1, 4), (1, 5), (3, 12), (3, 14), (7, 100)]
)
def test_different_numbers_come_from_everywhere_in_any_order(wanted: int, below: int) -> None:
    rng = np.random.default_rng(7)
    drawn = [_distinct(wanted, below, rng) for _ in range(2000)]
    assert all(one.dtype == np.uint64 and len(set(one.tolist())) == wanted for one in drawn)
    every = range(below if 4 * wanted > below else below // max(1, wanted) * wanted)
    for at in range(wanted):
        assert {int(one[at]) for one in drawn} == {*every}
    with pytest.raises(ValueError, match=f"cannot choose {below + 1} different rows out of {below}"):
        _distinct(below + 1, below, rng)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("text", "host", "blocks", "rows", "on_host", "on_gpu"), PLACED)
def test_the_last_numbers_place_blocks_up_to_the_last_row_but_one(
    monkeypatch: pytest.MonkeyPatch, direction: Direction, text: str, host: str, blocks: int, rows: int, on_host: str,
    on_gpu: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "_distinct", lambda wanted, below, _: np.arange(below - wanted, below, dtype=np.uint64))
    cell = replace(fresh(text, blocks, rows * BLOCK_BYTES), direction=direction)
    layouts = laid_out(replace(cell, host_pattern=Pattern.parse(host)) if host else cell, 2, 1)
    on_source, on_destination = (on_host, on_gpu)[:: -1 if direction is Direction.D2H else 1]
    for name, wanted in (("source_rows", on_source), ("destination_rows", on_destination)):
        assert " | ".join(" ".join(map(str, getattr(one, name))) for one in layouts) == wanted
