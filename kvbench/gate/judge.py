"""The judge of a comparison: from the visits of two sides, measured in turn, to a Judgement.

The checks, in order: every cell ran and verified on both sides (else FAILED); large plain copies, which no build
changes, did not move (else CONTAMINATED); only then the times, by `kvbench.analysis.compare`. A slow machine is
therefore never a regression, and a broken copy never a timing.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kvbench.analysis.compare import Floats, middle_of, paired_interval
from kvbench.analysis.margins import ABSOLUTE_US, CONTROL, CONTROL_CPU, GATE, INLINE, UPPER_HALF
from kvbench.gate.judgement import PLAN, ControlEffect, Estimate, GateVerdict, Judgement, Kind, Row, look_at, worst
from kvbench.gate.pairs import BASE, CPU, Pairs, VisitValues
from kvbench.results.columns import NO_FIGURE


@dataclass(frozen=True, slots=True)
class _Judged:
    """What a kind of rows judges: a field of the visits, its unit, and whether its margin is that of the cell."""

    field: str
    unit: str
    cell_margin: bool


# A slowdown is of iterations alone and beside swaps in one visit, so that what the machine does between the visits of
# the two sides is in neither: its margin is the relative one alone.
_JUDGED: Final[Mapping[Kind, _Judged]] = {
    "cell": _Judged("fast_us", "us", cell_margin=True),
    "caller_us": _Judged("caller_us", "us", cell_margin=True),
    "neighbour": _Judged("slowdown", "x", cell_margin=False),
}
# From log ratios by round and a margin, which is one too.
_Look = Callable[[Floats, float], Estimate]


@np.errstate(all="ignore")  # an untrusted side can report any time
def judge(pairs: Pairs, margin: float = GATE.fraction, earlier: Judgement | None = None) -> Judgement:
    """Judge paired visits; a change below the fraction `margin` is none, and rows settled `earlier` stay the same."""
    controls = [_control(name, logs, pairs.order, margin) for name, logs in pairs.controls.items()]
    unsure = max((math.log1p(control.unsure) for control in controls), default=0.0)
    logs, bias = without_slot_bias(_logs(pairs.visits["fast_us"]), pairs.order)
    before = [row for row in (earlier.rows if earlier else ()) if row.verdict is not GateVerdict.FAILED]
    settled = {(row.kind, row.name): row for row in before if row.settled}
    moved = not all(control.steady for control in controls)
    rows = []
    for row in _rows(pairs, logs, margin, lambda logs, allowed: look_at(logs, pairs.processes, allowed, unsure)):
        if row.verdict is not GateVerdict.FAILED:
            row = settled.get((row.kind, row.name), row)
            row = replace(row, verdict=GateVerdict.CONTAMINATED) if moved else row
        rows.append(row)
    return Judgement(
        verdict=worst(row.verdict for row in rows),
        rows=sorted(rows, key=_badness),
        controls=controls,
        rounds=len(pairs.order),
        slot_bias=_ratio(bias),
        disturbed=pairs.disturbed,
        margin=margin,
    )


def _control(name: str, logs: Floats, order: Floats, margin: float) -> ControlEffect:
    logs, _ = without_slot_bias(logs[None], order)
    values = logs[np.isfinite(logs)]
    if not values.size:
        return ControlEffect(name, Estimate(), steady=True)
    centre, low, high = paired_interval(values)
    # A wider margin of the cells widens that of the large copies.
    copies = CONTROL.fraction * max(1.0, margin / GATE.fraction)
    allowed = math.log1p(CONTROL_CPU.fraction if name == CPU else copies)
    steady = low <= allowed and high >= -allowed
    unsure = _ratio(max(0.0, high - allowed, -allowed - low)) - 1 if steady else 0.0
    effect = Estimate(_ratio(centre), _ratio(low), _ratio(high), pairs=values.size)
    return ControlEffect(name, effect, steady, unsure)


def _rows(pairs: Pairs, logs: Floats, margin: float, look: _Look) -> Iterator[Row]:
    """Yield a row for every cell, for the time of its caller, and for its neighbour; `logs` are those of the cells."""
    enough = len(pairs.order) >= PLAN[0].pairs
    for index, cell in enumerate(pairs.cells):
        visits = pairs.visits[:, index]
        other = pairs.names.get(cell, cell)
        name = cell.label if cell.backend == other.backend else f"{cell.label} -> {other.backend}"
        row = Row("cell", name, GateVerdict.UNDECIDED, [cell], cand_cell=other)
        if cell in pairs.failed:
            gone = Estimate(settled=True)
            yield replace(row, verdict=GateVerdict.FAILED, effect=gone, reason=pairs.failed[cell])
        elif cell in pairs.unmeasured:
            yield replace(row, reason="not measured within the time limit")
        elif sides := pairs.no_figure.get(cell):
            # What the base has not either is no loss; a later visit may have a figure.
            lacks = Estimate(settled=enough, not_slower=BASE in sides)
            yield replace(row, effect=lacks, reason=f"no figure of {' and '.join(sides)}: {NO_FIGURE}")
        else:
            allowed = _cell_margin(visits["fast_us"][0], margin, inline=cell in pairs.inline)
            path = pairs.paths.get(cell, "copied by the CPU" if cell in pairs.inline else "")
            yield from _rows_of(replace(row, reason=path), visits, logs[index], allowed, math.log1p(margin), look)


def _rows_of(
    of_cell: Row, visits: VisitValues, logs: Floats, margin: float, relative: float, look: _Look
) -> Iterator[Row]:
    """Yield the rows of a cell with figures, whose visits have the shape (2, rounds); margins are log ratios."""
    for kind, judged in _JUDGED.items():
        values = visits[judged.field]
        allowed = margin if judged.cell_margin else relative
        base, cand = middle_of(values[0]), middle_of(values[1])
        row = replace(of_cell, kind=kind, unit=judged.unit, base=base, cand=cand, margin=_ratio(allowed) - 1)
        if kind == "cell":
            upper = look(_logs(visits["upper_us"]), allowed + math.log1p(UPPER_HALF.fraction))
            yield _decided(replace(row, effect=look(logs, allowed), upper=upper))
        elif np.isfinite(values).any():
            yield _decided(replace(row, effect=look(_logs(values), allowed), reason=""))


def _decided(row: Row) -> Row:
    """Return the row with the verdict of its estimates, and its reason before the one that it has."""
    reason = row.decisive.reason
    if row.decisive is row.upper:
        reason = f"upper half: {reason or 'slower beyond its margin'}"
    return replace(row, verdict=GateVerdict(row.decisive.verdict), reason="; ".join(filter(None, (reason, row.reason))))


def _cell_margin(base_us: Floats, margin: float, *, inline: bool) -> float:
    """Return the margin of a cell as a log ratio, from the times of the base.

    It is the largest of the relative margin, the margin of copies by the CPU if the CPU copies the cell on both sides,
    and a microsecond divided by the base's median.
    """
    usual = max(margin, INLINE.fraction if inline else 0.0)
    absolute = ABSOLUTE_US / middle_of(base_us)
    return math.log1p(usual if math.isnan(absolute) else max(usual, absolute))


def without_slot_bias(log_ratios: Floats, order: Floats) -> tuple[Floats, float]:
    """Return log ratios of shape (items, rounds) without the cost of running second in a pair, and that cost.

    The cost is a log ratio: half the difference between the two orders (see `Pairs.order`), as the median of all items;
    0 if it is unknown. Alternating orders cancel it in the centre, but it would widen every interval. One value for all
    items avoids fitting the noise of single items. The correction requires two rounds of each order.
    """
    second, first = log_ratios[:, order > 0], log_ratios[:, order < 0]
    both = (np.isfinite(second).sum(axis=1) >= 2) & (np.isfinite(first).sum(axis=1) >= 2)
    if not both.any():
        return log_ratios, 0.0
    bias = float(np.median(np.nanmedian(second[both], axis=1) - np.nanmedian(first[both], axis=1)) / 2)
    return log_ratios - bias * order, bias


def _logs(sides: Floats) -> Floats:
    return np.asarray(np.log(sides[1]) - np.log(sides[0]))


def _ratio(log_ratio: float) -> float:
    return float(np.exp(log_ratio))


def _badness(row: Row) -> tuple[int, float]:
    ratio = row.decisive.ratio
    return row.verdict.badness, 0.0 if math.isnan(ratio) else -abs(np.log(ratio))
