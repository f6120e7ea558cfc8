"""What is judged beside the times of cells, and the curves that cells make.

A curve is a set of cells that differ only in block size.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from kvbench.analysis.intervals import Floats
from kvbench.cells.cell import AXES, Cell
from kvbench.gate.judgement import Kind
from kvbench.gate.pairs import Pairs

MIN_SIZES: Final = 2
# Two cells that agree on these axes are the same swap by two backends, except for the block size.
_OF_THE_SWAP: Final = tuple(
    axis.field
    for axis in AXES.values()
    if axis.name not in ("backend", "block_size") and (axis.name == "memory" or not axis.optional)
)


@dataclass(frozen=True, slots=True)
class PairedValues:
    """One item to judge: paired values of both sides, one per round, NaN if a round has none.

    `margin` is the allowed difference as a log ratio. A larger value is worse.
    """

    kind: Kind
    name: str
    cells: Sequence[Cell]
    unit: Literal["us", "x"]
    base: Floats
    cand: Floats
    margin: float


def neighbours(pairs: Pairs, relative_margin: float) -> list[PairedValues]:
    """Return the slowdowns of the cells' neighbours, which may differ by `relative_margin`, a log ratio.

    A slowdown is of iterations alone and beside swaps in one visit, so that what the machine does between the visits of
    the two sides is in neither.
    """
    return _of_cells("neighbour", "x", pairs, pairs.slowdowns, np.full(len(pairs.cells), relative_margin))


def submissions(pairs: Pairs, margins: Floats) -> list[PairedValues]:
    """Return the times of the submissions of cells that mostly submit; `margins` are those of the cells."""
    return _of_cells("submission", "us", pairs, pairs.submissions_us, margins)


def _of_cells(
    kind: Kind, unit: Literal["us", "x"], pairs: Pairs, values: Floats | None, margins: Floats
) -> list[PairedValues]:
    """Return an item for every cell that has `values`, of shape (2, cells, rounds)."""
    if values is None:
        return []
    return [
        PairedValues(kind, cell.label, [cell], unit, base, cand, margin)
        for cell, base, cand, margin in zip(pairs.cells, *values, margins, strict=True)
        if np.isfinite(base).any() or np.isfinite(cand).any()
    ]


def curves_of(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Return the curves: cells that differ only in block size, at least `MIN_SIZES` each, sorted by size."""
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(replace(cell, block_bytes=1), []).append(cell)
    ordered = [sorted(group, key=lambda cell: cell.block_bytes) for group in groups.values()]
    return [curve for curve in ordered if len(curve) >= MIN_SIZES]


def of_the_swap(cell: Cell) -> tuple[object, ...]:
    """Return a key that is equal for cells of the same swap by two backends, except for the block size."""
    return tuple(getattr(cell, field) for field in _OF_THE_SWAP)
