"""The layout of a swap: which row of the source pool is copied to which row of the destination pool. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvbench.cells.cell import Cell
from kvbench.cells.facts import pool_rows
from kvbench.cells.locality import sets_of
from kvbench.cells.pattern import Pattern, Tensors

Rows = NDArray[np.uint64]


@dataclass(frozen=True)
class TensorRows:
    """Tensors of one kind: the row at which each begins, the same on both sides, and the ids (rows of a tensor)."""

    starts: Rows
    source_ids: Rows
    destination_ids: Rows


@dataclass(frozen=True)
class Layout:
    """The rows of one swap on each side, in descriptor order.

    For the pattern `tensors-…`, `tensors` is the same in compact form: by kind, then by tensor, then by id.
    """

    source_rows: Rows
    destination_rows: Rows
    tensors: tuple[TensorRows, ...] = ()


def lay_out(cell: Cell, submissions: int, rng: np.random.Generator) -> Sequence[Layout]:
    """Choose the sets of blocks for a visit of `cell`; there are `sets_of(cell, submissions)` sets.

    With a pool size, rows are chosen from the whole pool; otherwise the sets follow each other, each as dense as
    possible. No row is in two sets, the first and the last row of the region are in none, and the places on the two
    sides are independent.
    """
    count = sets_of(cell, submissions)
    if cell.pool_bytes:
        return _scattered(cell.pattern, cell.blocks, cell.pool_bytes // cell.block_bytes, count, rng)
    rows = cell.dense_bytes // cell.block_bytes
    if cell.pattern.kind == "tensors":  # a tensor is one region with room for all sets
        return _scattered(cell.pattern, cell.blocks, rows * count, count, rng)
    alone = (_scattered(cell.pattern, cell.blocks, rows, 1, rng)[0] for _ in range(count))
    offsets = np.arange(count, dtype=np.uint64) * np.uint64(rows)
    return [Layout(one.source_rows + by, one.destination_rows + by) for one, by in zip(alone, offsets, strict=True)]


def _scattered(pattern: Pattern, blocks: int, rows: int, count: int, rng: np.random.Generator) -> list[Layout]:
    """Distribute `count` sets over `rows` rows.

    shuffled: random rows on both sides. contiguous: ascending on both sides, each set at a random place. reversed: the
    source descends. runs-R: runs of R adjacent rows at random places. tensors-…: the region is divided among the
    tensors as an engine allocates them, and all of them use the same random ids.
    """
    if pattern.kind == "tensors":
        return _tensors(pattern.tensors(blocks), rows, count, rng)
    run = {"shuffled": 1, "runs": pattern.run}.get(pattern.kind, blocks)
    sources, destinations = (_runs(blocks, run, rows, count, rng) for _ in range(2))
    if pattern.kind == "reversed":
        sources = sources[:, ::-1].copy()
    return [Layout(source, destination) for source, destination in zip(sources, destinations, strict=True)]


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


def _tensors(kinds: Sequence[Tensors], rows: int, count: int, rng: np.random.Generator) -> list[Layout]:
    wanted = [pool_rows(count * kind.ids) for kind in kinds]
    dense = sum(kind.count * own for kind, own in zip(kinds, wanted, strict=True))
    parts: list[list[TensorRows]] = [[] for _ in range(count)]
    end = 0
    for kind, own in zip(kinds, wanted, strict=True):
        region = rows * own // dense
        starts = np.arange(kind.count, dtype=np.uint64) * np.uint64(region) + np.uint64(end)
        sides = [_distinct(count * kind.ids, region - 2, rng).reshape(count, kind.ids) + np.uint64(1) for _ in range(2)]
        for place in range(count):
            parts[place].append(TensorRows(starts, sides[0][place], sides[1][place]))
        end += kind.count * region
    return [_of_tensors(tuple(own_parts)) for own_parts in parts]


def _of_tensors(tensors: tuple[TensorRows, ...]) -> Layout:
    def rows(name: str) -> Rows:
        return np.concatenate([np.add.outer(part.starts, getattr(part, name)).reshape(-1) for part in tensors])

    return Layout(rows("source_ids"), rows("destination_ids"), tensors)


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
