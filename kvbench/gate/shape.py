"""The shape of the curves, round by round: how high a cliff is and where, and where the faster backend changes.

A curve is the cells that differ in block size alone. What there is to compare is decided on the curves' medians over
the rounds, by `kvbench.analysis.curves`; every round then gives one value of either side, and these are paired as times
are.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kvbench.analysis.curves import Cliff, Crossover, crossovers, find_cliff, winners
from kvbench.analysis.intervals import Floats, Quartiles, quartiles
from kvbench.cells.cell import AXES, Cell, command_of
from kvbench.gate.pairs import PairedValues, Pairs

MIN_SIZES: Final = 2
# Two curves with these in common are the same swaps, by two backends with axes of their own.
_OF_THE_SWAP: Final = tuple(
    axis.field
    for axis in AXES.values()
    if axis.name not in ("backend", "block_size") and (axis.name == "memory" or not axis.optional)
)


def features(pairs: Pairs, margins: Floats, relative_margin: float) -> list[PairedValues]:
    """Return what can be compared about the shape; `margins` are the cells' own, log ratios in the order of the cells.

    Positions of cliffs may differ by `relative_margin`, a log ratio; a crossover by the distance between the sizes that
    it was found between, since a grid says no more; a cliff's height by the margins of its two cells together.
    """
    places = {cell: place for place, cell in enumerate(pairs.cells)}
    curves = curves_of(cell for cell in pairs.cells if cell not in pairs.failed)
    found: list[PairedValues] = []
    for curve in curves:
        own = [places[cell] for cell in curve]
        found += _cliff_features(curve, pairs.base_us[own], pairs.cand_us[own], margins[own], relative_margin)
    for one, other in itertools.combinations(curves, 2):
        common = {cell.block_bytes for cell in one} & {cell.block_bytes for cell in other}
        two_backends = one[0].backend != other[0].backend
        if len(common) >= MIN_SIZES and two_backends and of_the_swap(one[0]) == of_the_swap(other[0]):
            both = [[cell for cell in curve if cell.block_bytes in common] for curve in (one, other)]
            at = [[places[cell] for cell in curve] for curve in both]
            found += _crossover_features(both, pairs.base_us[at], pairs.cand_us[at], relative_margin)
    return found


def curves_of(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Return the cells that differ in block size alone, at least `MIN_SIZES` of them, in its order."""
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(replace(cell, block_bytes=1), []).append(cell)
    ordered = [sorted(group, key=lambda cell: cell.block_bytes) for group in groups.values()]
    return [curve for curve in ordered if len(curve) >= MIN_SIZES]


def _curve_name(cells: Sequence[Cell]) -> str:
    """Return the label of a curve's cells without the block size."""
    return cells[0].label.replace(f" x {AXES['block_size'].show(cells[0].block_bytes)}", "", 1)


def _cliff_features(
    cells: Sequence[Cell], base_us: Floats, cand_us: Floats, margins: Floats, relative_margin: float
) -> Iterator[PairedValues]:
    """Yield the height and the position of a curve's cliff; the times are of shape (sizes, rounds)."""
    sizes, name = [cell.block_bytes for cell in cells], _curve_name(cells)
    swap_bytes = np.array([cell.swap_bytes for cell in cells], dtype=np.float64)[:, None]
    base, cand = (np.asarray(swap_bytes / times_us / 1e3) for times_us in (base_us, cand_us))
    in_base, in_cand = _usual_cliff(sizes, base), _usual_cliff(sizes, cand)
    some = in_base or in_cand
    if some is None:
        return
    edges = {edge for cliff in (in_base, in_cand) if cliff for edge in (cliff.below_bytes, cliff.above_bytes)}
    places = [sizes.index(edge) for edge in sorted(edges)]
    at = [cells[place] for place in places]
    before, after = _jump(sizes, base, in_base or some), _jump(sizes, cand, in_cand or some)
    yield PairedValues("cliff height", name, at, "x", before, after, float(sum(sorted(margins[places])[-2:])))
    before, after = _positions(sizes, base), _positions(sizes, cand)
    whole = np.isfinite(np.concatenate([base, cand])).all(axis=0)
    # A cliff that some rounds do not show has no position to speak of; its height says what became of it.
    if np.isfinite(before[whole]).all() and np.isfinite(after[whole]).all():
        worse = 1 if some.rises else -1  # the slow side of the cliff grows
        yield PairedValues("cliff position", name, cells, "bytes", before, after, relative_margin, worse)


def _usual_cliff(sizes: Sequence[int], gbps: Floats) -> Cliff | None:
    """Return the cliff of the medians over those rounds that measured every size, with the rounds' quartiles."""
    whole = gbps[:, np.isfinite(gbps).all(axis=0)]
    if whole.shape[1] == 0:
        return None
    low, median, high = np.quantile(whole, (0.25, 0.5, 0.75), axis=1)
    return find_cliff(sizes, median.tolist(), low.tolist(), high.tolist())


def _jump(sizes: Sequence[int], gbps: Floats, cliff: Cliff) -> Floats:
    below, above = gbps[sizes.index(cliff.below_bytes)], gbps[sizes.index(cliff.above_bytes)]
    return np.asarray(above / below if cliff.rises else below / above)


def _positions(sizes: Sequence[int], gbps: Floats) -> Floats:
    """Return every round's position in bytes, halfway between the sizes on the log scale; NaN without a cliff."""

    def position(rates: Sequence[float]) -> float:
        cliff = find_cliff(sizes, rates, rates, rates) if np.isfinite(rates).all() else None
        return math.sqrt(cliff.below_bytes * cliff.above_bytes) if cliff else math.nan

    return np.array([position(rates) for rates in gbps.T.tolist()])


def _crossover_features(
    curves: Sequence[Sequence[Cell]], base_us: Floats, cand_us: Floats, relative_margin: float
) -> Iterator[PairedValues]:
    """Yield where the faster of two curves of the same sizes changes; the times are of shape (2, sizes, rounds)."""
    one, other = curves
    sizes = [cell.block_bytes for cell in one]
    changes = _usual_changes(sizes, base_us, relative_margin) or _usual_changes(sizes, cand_us, relative_margin)
    for change in changes:
        base, cand = (_crossings(sizes, np.log(times_us[0] / times_us[1]), change) for times_us in (base_us, cand_us))
        near = [size in (change.below_bytes, change.above_bytes) for size in sizes]
        slower = np.log(cand_us[:, near] / base_us[:, near])
        # Neither way is worse in itself: it moves up when one backend gets slower or the other faster.
        worse = 1 if _middle(np.log(cand / base)) * _middle(slower) >= 0 else -1
        name = f"{one[0].backend} / {_curve_name(other)}"
        margin = math.log(change.above_bytes / change.below_bytes)
        yield PairedValues("crossover", name, [*one, *other], "bytes", base, cand, margin, worse)


def _usual_changes(sizes: Sequence[int], times_us: Floats, relative_margin: float) -> Sequence[Crossover]:
    """Return where the winner changes by the medians over the rounds.

    One wins where the rounds' quartiles are further apart than the margin: two backends that are as fast as each other
    have no crossover, and noise makes none.
    """
    wider = math.exp(relative_margin / 2)
    arms: dict[str, dict[int, Quartiles]] = {"one": {}, "other": {}}
    for arm, rows in zip(arms.values(), times_us, strict=True):
        for size, row in zip(sizes, rows, strict=True):
            if np.isfinite(row).any():
                known = quartiles(row[np.isfinite(row)])
                arm[size] = Quartiles(known.low / wider, known.median, known.high * wider)
    return crossovers(winners(arms))


def _crossings(sizes: Sequence[int], log_ratios: Floats, near: Crossover) -> Floats:
    """Return for every round where the log ratio of two times changes its sign, in bytes, by interpolation.

    Of several the one nearest to `near`. Where it never changes, the crossover lies beyond the sizes: the end on whose
    side it left counts. NaN for a round that did not measure every size.
    """
    positions = np.log(np.array(sizes, dtype=np.float64))
    middle = (math.log(near.below_bytes) + math.log(near.above_bytes)) / 2
    rises = near.before == "one"  # the ratio of one to other is below 0 before, above 0 after

    def crossing(values: Floats) -> float:
        if not np.isfinite(values).all():
            return math.nan
        signed = values if rises else -values
        found = [
            positions[place] - before * (positions[place + 1] - positions[place]) / (after - before)
            for place, (before, after) in enumerate(itertools.pairwise(signed))
            if before <= 0 < after
        ]
        if found:
            return math.exp(min(found, key=lambda at: abs(at - middle)))
        return float(sizes[-1] if signed[-1] <= 0 else sizes[0])

    return np.array([crossing(values) for values in log_ratios.T])


def _middle(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else 0.0


def curve_command(cells: Sequence[Cell]) -> str:
    """Return the command that measures these cells, which are all combinations of their values on each axis."""
    strings = [cell.spelled_out() for cell in cells]
    values = {name: dict.fromkeys(value for cell in strings if (value := cell.get(name)) is not None) for name in AXES}
    return command_of({name: ",".join(own) or None for name, own in values.items()})


def of_the_swap(cell: Cell) -> tuple[object, ...]:
    """Return what two cells have in common that are the same swap by two backends, block size aside."""
    return tuple(getattr(cell, field) for field in _OF_THE_SWAP)
