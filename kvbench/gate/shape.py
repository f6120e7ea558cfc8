"""Judged items besides times: submissions, slowdowns of neighbours, and the shape of curves (cliffs, crossovers).

A curve is a set of cells that differ only in block size. `kvbench.analysis` finds the features over all rounds; every
round then gives one value per side, and these values are paired like times.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from kvbench.analysis.compare import Visits, winners
from kvbench.analysis.curves import Cliff, Crossover, crossovers, find_cliff
from kvbench.analysis.intervals import Floats
from kvbench.analysis.margins import IN_TURN
from kvbench.cells.cell import AXES, Cell
from kvbench.gate.judgement import Kind
from kvbench.gate.pairs import Pairs

MIN_SIZES: Final = 2
# Two curves that agree on these axes are the same swaps by two backends.
_OF_THE_SWAP: Final = tuple(
    axis.field
    for axis in AXES.values()
    if axis.name not in ("backend", "block_size") and (axis.name == "memory" or not axis.optional)
)


@dataclass(frozen=True, slots=True)
class PairedValues:
    """One item to judge: paired values of both sides, one per round, NaN if a round has none.

    `margin` is the allowed difference as a log ratio. `worse` is 1 if a larger value is worse, -1 if a smaller one is.
    """

    kind: Kind
    name: str
    cells: Sequence[Cell]
    unit: Literal["us", "x", "bytes"]
    base: Floats
    cand: Floats
    margin: float
    worse: int = 1


@dataclass(frozen=True, slots=True)
class _Curve:
    """Cells that differ only in block size, with the times of both sides, of shape (sizes, rounds)."""

    cells: Sequence[Cell]
    base_us: Floats
    cand_us: Floats

    @property
    def sizes(self) -> list[int]:
        return [cell.block_bytes for cell in self.cells]

    @property
    def name(self) -> str:
        """The label of its cells without the block size."""
        return self.cells[0].label.replace(f" x {AXES['block_size'].show(self.cells[0].block_bytes)}", "", 1)

    def rates(self) -> tuple[Floats, Floats]:
        """Return the GB/s of both sides."""
        swap_bytes = np.array([cell.swap_bytes for cell in self.cells], dtype=np.float64)[:, None]
        return swap_bytes / self.base_us / 1e3, swap_bytes / self.cand_us / 1e3

    def common(self, sizes: set[int]) -> "_Curve":
        kept = [place for place, size in enumerate(self.sizes) if size in sizes]
        return _Curve([self.cells[place] for place in kept], self.base_us[kept], self.cand_us[kept])


def features(pairs: Pairs, margins: Floats, relative_margin: float) -> list[PairedValues]:
    """Return the comparable features; `margins` are those of the cells, as log ratios in the order of the cells.

    The margin of a cliff's position is `relative_margin`, a log ratio; that of a crossover the distance between the two
    sizes around it, the resolution of the grid; that of a cliff's height the sum of the margins of its two cells.
    """
    places = {cell: place for place, cell in enumerate(pairs.cells)}
    curves = []
    for cells in curves_of(cell for cell in pairs.cells if cell not in pairs.failed):
        own = [places[cell] for cell in cells]
        curves.append(_Curve(cells, pairs.base_us[own], pairs.cand_us[own]))
    found: list[PairedValues] = []
    for curve in curves:
        allowed = dict(zip(curve.sizes, margins[[places[cell] for cell in curve.cells]], strict=True))
        found += _cliff_features(curve, allowed, relative_margin)
    for one, other in itertools.combinations(curves, 2):
        common = set(one.sizes) & set(other.sizes)
        if len(common) >= MIN_SIZES and _rivals(one.cells[0], other.cells[0]):
            found += _crossover_features(one.common(common), other.common(common))
    return found


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


def _rivals(one: Cell, other: Cell) -> bool:
    return one.backend != other.backend and of_the_swap(one) == of_the_swap(other)


def _cliff_features(curve: _Curve, margins: dict[int, float], relative_margin: float) -> Iterator[PairedValues]:
    """Yield the height and the position of a curve's cliff."""
    base, cand = curve.rates()
    in_base, in_cand = _usual_cliff(curve.sizes, base), _usual_cliff(curve.sizes, cand)
    some = in_base or in_cand
    if some is None:
        return
    edges = {edge for cliff in (in_base, in_cand) if cliff for edge in (cliff.below_bytes, cliff.above_bytes)}
    cells = [cell for cell in curve.cells if cell.block_bytes in edges]
    heights = _jump(curve.sizes, base, in_base or some), _jump(curve.sizes, cand, in_cand or some)
    margin = sum(sorted(margins[edge] for edge in edges)[-2:])
    yield PairedValues("cliff height", curve.name, cells, "x", *heights, margin)
    before, after = _positions(curve.sizes, base), _positions(curve.sizes, cand)
    whole = np.isfinite(np.concatenate([base, cand])).all(axis=0)
    # Without a cliff in every round there is no position to compare; its height shows the change.
    if np.isfinite(before[whole]).all() and np.isfinite(after[whole]).all():
        worse = 1 if some.rises else -1  # the slow side of the cliff becomes larger
        yield PairedValues("cliff position", curve.name, curve.cells, "bytes", before, after, relative_margin, worse)


def _usual_cliff(sizes: Sequence[int], gbps: Floats) -> Cliff | None:
    """Return the cliff of the medians over the rounds that measured every size, with the quartiles of the rounds."""
    whole = gbps[:, np.isfinite(gbps).all(axis=0)]
    if whole.shape[1] == 0:
        return None
    low, median, high = np.quantile(whole, (0.25, 0.5, 0.75), axis=1)
    return find_cliff(sizes, median.tolist(), low.tolist(), high.tolist())


def _jump(sizes: Sequence[int], gbps: Floats, cliff: Cliff) -> Floats:
    below, above = gbps[sizes.index(cliff.below_bytes)], gbps[sizes.index(cliff.above_bytes)]
    return np.asarray(above / below if cliff.rises else below / above)


def _positions(sizes: Sequence[int], gbps: Floats) -> Floats:
    """Return the position in every round, in bytes, halfway between the sizes on a log scale; NaN without a cliff."""

    def position(rates: Sequence[float]) -> float:
        cliff = find_cliff(sizes, rates, rates, rates) if np.isfinite(rates).all() else None
        return math.sqrt(cliff.below_bytes * cliff.above_bytes) if cliff else math.nan

    return np.array([position(rates) for rates in gbps.T.tolist()])


def _crossover_features(one: _Curve, other: _Curve) -> Iterator[PairedValues]:
    """Yield the positions at which the faster of two curves with the same sizes changes."""
    names = one.cells[0].backend, other.cells[0].backend
    changes = _changes(names, one.sizes, one.base_us, other.base_us) or _changes(
        names, one.sizes, one.cand_us, other.cand_us
    )
    for place, change in enumerate(changes):
        rises = change.before == names[0]  # the ratio of one to other is below 1 before, above it after
        base = _crossings(one.sizes, np.log(one.base_us / other.base_us), change, rises=rises)
        cand = _crossings(one.sizes, np.log(one.cand_us / other.cand_us), change, rises=rises)
        near = [size in (change.below_bytes, change.above_bytes) for size in one.sizes]
        slower = [np.log(curve.cand_us[near] / curve.base_us[near]) for curve in (one, other)]
        # Neither direction is worse: the position rises if one backend gets slower or the other faster.
        worse = 1 if np.nanmedian(np.log(cand / base)) * np.nanmedian(slower) >= 0 else -1
        margin = math.log(change.above_bytes / change.below_bytes)
        # Rows of one name would share a verdict.
        name = f"{one.name} / {other.name}" + (f" ({place + 1})" if place else "")
        yield PairedValues("crossover", name, [*one.cells, *other.cells], "bytes", base, cand, margin, worse)


def _changes(names: tuple[str, str], sizes: Sequence[int], one_us: Floats, other_us: Floats) -> Sequence[Crossover]:
    """Return the changes of the winner over the rounds that measured both; a tie has no winner."""
    whole = np.isfinite(one_us).all(axis=0) & np.isfinite(other_us).all(axis=0)
    arms: dict[str, dict[int, Visits]] = {
        name: {size: dict(enumerate(row[whole].tolist())) for size, row in zip(sizes, rows, strict=True)}
        for name, rows in zip(names, (one_us, other_us), strict=True)
    }
    return crossovers(winners(arms, IN_TURN)) if whole.any() else ()


def _crossings(sizes: Sequence[int], log_ratios: Floats, near: Crossover, *, rises: bool) -> Floats:
    """Return, for every round, the size in bytes at which the log ratio of two times changes sign, by interpolation.

    Of several sizes, return the one nearest to `near`. If the sign never changes, the crossover is beyond the measured
    sizes, and the end on that side is returned. NaN for a round that did not measure every size.
    """
    positions = np.log(np.array(sizes, dtype=np.float64))
    middle = math.log(near.below_bytes * near.above_bytes) / 2

    def crossing(signed: Floats) -> float:
        if not np.isfinite(signed).all():
            return math.nan
        found = [
            positions[place] - before * (positions[place + 1] - positions[place]) / (after - before)
            for place, (before, after) in enumerate(itertools.pairwise(signed))
            if before <= 0 < after
        ]
        if found:
            return math.exp(min(found, key=lambda at: abs(at - middle)))
        return float(sizes[-1] if signed[-1] <= 0 else sizes[0])

    return np.array([crossing(values if rises else -values) for values in log_ratios.T])
