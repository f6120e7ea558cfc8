"""The layout of a swap: which row of the source pool is copied to which row of the destination pool. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvbench.cells.blocks import sets_of
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import SHUFFLED, Pattern, Tensors, pool_rows

Rows = NDArray[np.uint64]


@dataclass(frozen=True)
class Layout:
    """The rows of one swap on each side, in descriptor order: of tensors by kind, then by tensor, then by id."""

    source_rows: Rows
    destination_rows: Rows


def lay_out(cell: Cell, submissions: int, rng: np.random.Generator, arms: int = 1) -> Sequence[Layout]:
    """Choose the sets of blocks for a visit of `cell`; there are `sets_of(cell, submissions, arms)` sets.

    With a pool size, rows are chosen from the whole pool; otherwise the sets follow each other, each as dense as
    possible. No row is in two sets, the first and the last row of the region are in none, and the places on the two
    sides are independent.
    """
    count = sets_of(cell, submissions, arms)
    if cell.pool_bytes:
        return _scattered(cell, cell.pool_bytes // cell.block_bytes, count, rng)
    rows = cell.dense_bytes // cell.block_bytes
    if cell.sides[0].terms:  # a tensor is one region with room for all sets
        return _scattered(cell, rows * count, count, rng)
    alone = (_scattered(cell, rows, 1, rng)[0] for _ in range(count))
    offsets = np.arange(count, dtype=np.uint64) * np.uint64(rows)
    return [Layout(own.source_rows + by, own.destination_rows + by) for own, by in zip(alone, offsets, strict=True)]


def _scattered(cell: Cell, rows: int, count: int, rng: np.random.Generator) -> list[Layout]:
    """Distribute `count` sets over `rows` rows; the places on the two sides are independent."""
    placer = _Placer(rng, count)
    if cell.sides[0].terms:
        return _tensors(cell, rows, placer)
    sources, destinations = (placer.ordered(side, cell.blocks, rows) for side in cell.sides)
    return [Layout(source, destination) for source, destination in zip(sources, destinations, strict=True)]


@dataclass(frozen=True)
class _Placer:
    """Places `count` sets of blocks."""

    rng: np.random.Generator
    count: int

    def ordered(self, order: Pattern, blocks: int, rows: int) -> Rows:
        """Return the rows of `blocks` blocks for each set, without row 0 and the last; shape (count, blocks)."""
        run = {"shuffled": 1, "runs": order.run}.get(order.kind, blocks)
        set_rows = _runs(blocks, run, rows, self.count, self.rng)
        return set_rows[:, ::-1].copy() if order.kind == "descending" else set_rows

    def of_tensors(self, side: Pattern, kind: Tensors, first: int, rows: int) -> tuple[Rows, Rows]:
        """The beginnings of the tensors of a kind, with `rows` rows each from row `first` on, and their ids by set."""
        order = side.order or SHUFFLED
        if not side.page:
            starts = np.arange(kind.count, dtype=np.uint64) * np.uint64(rows) + np.uint64(first)
            return starts, self.ordered(order, kind.ids, rows)
        of_region, page_rows = kind.count // side.regions, side.page * side.ranks
        inside = np.arange(of_region, dtype=np.uint64) * np.uint64(page_rows)
        regions = np.arange(side.regions, dtype=np.uint64) * np.uint64(of_region * rows)
        pages = self.ordered(order, kind.ids // side.page, rows // page_rows) * np.uint64(of_region * page_rows)
        # the fragments of one rank, with those of other ranks around them
        ids = np.add.outer(pages, np.arange(side.ranks // 2, page_rows, side.ranks, dtype=np.uint64))
        return np.add.outer(regions, inside).reshape(-1) + np.uint64(first), ids.reshape(self.count, kind.ids)


def _runs(blocks: int, run: int, rows: int, count: int, rng: np.random.Generator) -> Rows:
    """Return `count` sets of `blocks` rows, in runs of `run` adjacent rows; shape (count, blocks).

    Row 0 and the last row stay free. A shorter last run comes after all whole runs, at the end of its set.
    """
    whole, rest = divmod(blocks, run)
    slots = (rows - 2 - count * rest) // run
    starts = _distinct(count * whole, slots, rng).reshape(count, whole) * np.uint64(run)
    taken = (starts[:, :, None] + np.arange(run, dtype=np.uint64)).reshape(count, whole * run)
    short = np.arange(count * rest, dtype=np.uint64).reshape(count, rest) + np.uint64(slots * run)
    return np.concatenate([taken, short], axis=1) + np.uint64(1)


def _tensors(cell: Cell, rows: int, placer: _Placer) -> list[Layout]:
    """Divide the region among the kinds of tensors as an engine allocates them."""
    kinds = cell.sides[0].tensors(cell.blocks)
    wanted = [pool_rows(placer.count * kind.ids) for kind in kinds]
    dense = sum(kind.count * tensor_rows for kind, tensor_rows in zip(kinds, wanted, strict=True))
    sides: tuple[list[Rows], list[Rows]] = ([], [])  # of each kind, by set
    first = 0
    for kind, tensor_rows in zip(kinds, wanted, strict=True):
        region = rows * tensor_rows // dense
        for kinds_of_it, side in zip(sides, cell.sides, strict=True):
            starts, ids = placer.of_tensors(side, kind, first, region)
            kinds_of_it.append((starts[:, None] + ids[:, None, :]).reshape(placer.count, -1))
        first += kind.count * region
    sources, destinations = (np.concatenate(rows_of_kinds, axis=1) for rows_of_kinds in sides)
    return [Layout(source, destination) for source, destination in zip(sources, destinations, strict=True)]


def stacked(layouts: Sequence[Layout]) -> Layout:
    """Return the rows of all sets together, as arrays of shape (sets, rows)."""
    sides = ("source_rows", "destination_rows")
    return Layout(*(np.stack([getattr(layout, side) for layout in layouts]) for side in sides))


def _distinct(wanted: int, below: int, rng: np.random.Generator) -> Rows:
    """Return `wanted` different numbers below `below`, in random order; raises ValueError if `below` is too small.

    If `below` is much larger, each number comes from its own interval, which is much faster than drawing again.
    """
    if wanted > below:
        raise ValueError(f"cannot choose {wanted} different rows out of {below}")
    if 4 * wanted > below:
        return rng.permutation(below)[:wanted].astype(np.uint64)
    stretch = below // max(1, wanted)
    rows = np.arange(wanted, dtype=np.uint64) * np.uint64(stretch) + rng.integers(0, stretch, wanted, dtype=np.uint64)
    return rng.permutation(rows)
