"""The judge of a comparison: from the runs of two sides to a Judgement.

The checks, in order: the runs are of one kind of machine (else MismatchError); every cell ran and verified on both
sides (else FAILED); large plain copies, which no build changes, did not move (else CONTAMINATED); only then the times,
by `kvbench.analysis.compare`. A slow machine is therefore never a regression, and a broken copy never a timing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from kvbench.analysis.compare import MIN_PAIRS, compare_apart, paired_interval
from kvbench.analysis.intervals import Floats, middle_of
from kvbench.analysis.margins import CONTROL_CPU, INLINE, UPPER_HALF, Margin, between_runs
from kvbench.cells.cell import Cell
from kvbench.gate.disturbance import CPU
from kvbench.gate.floors import FloorFile, check_floors
from kvbench.gate.judgement import ControlEffect, GateVerdict, Judgement, Kind, Margins, Row, worst
from kvbench.gate.looks import ONCE, PLAN, Estimate, Look, look_at
from kvbench.gate.pairs import Pairs, pair
from kvbench.gate.partners import check_identity
from kvbench.results import Run

_APART: Final = (
    "not made in turn: the medians of visits are compared as in kvbench report, with margins that allow for what else "
    "changed on the machine"
)
_UNITS: Final[Mapping[Kind, str]] = {"cell": "us", "caller_us": "us", "neighbour": "x"}


@dataclass(frozen=True, slots=True)
class Judge:
    """The settings of a comparison: margins, A/A floors of cells, and whether machines can differ (`forced`).

    `looks` are the planned looks at the pairs; the default is the plan for visits made in turn, else one look at all.
    """

    margins: Margins = field(default_factory=Margins)
    floors: FloorFile | None = None
    forced: bool = False
    looks: Sequence[Look] | None = None

    def judge(self, base: Sequence[Run], cand: Sequence[Run], earlier: Judgement | None = None) -> Judgement:
        """Compare the rounds of `cand` with those of `base`; rows settled in an `earlier` judgement stay the same.

        Raises UsageError for runs that cannot be paired, MismatchError for runs or floors of other machines or cells.
        """
        pairs = pair(base, cand)
        warnings = [*pairs.notes, *check_identity(base, cand, forced=self.forced)]
        if self.floors is not None:
            warnings += check_floors(self.floors, base[0], pairs.cells, forced=self.forced)
        return self.assess(pairs, earlier, warnings)

    @np.errstate(all="ignore")  # an untrusted run can hold any time
    def assess(self, pairs: Pairs, earlier: Judgement | None = None, warnings: Sequence[str] = ()) -> Judgement:
        """Judge paired times; see `judge`."""
        controls = [self._control(name, logs, pairs.order) for name, logs in pairs.controls.items()]
        apart = _made_apart(pairs)
        unsure = max((math.log1p(control.unsure) for control in controls), default=0.0)
        logs, bias = without_slot_bias(_logs(pairs.visits["fast_us"]), pairs.order)
        looks = self.looks or (PLAN if pairs.in_turn else ONCE)
        look = partial(look_at, looks=looks, unsure=unsure, processes=pairs.processes)
        before = [row for row in (earlier.rows if earlier else ()) if row.verdict is not GateVerdict.FAILED]
        settled = {(row.kind, row.name): row for row in before if row.settled}
        rows = [
            row if row.verdict is GateVerdict.FAILED else settled.get((row.kind, row.name), row)
            for row in self._rows(pairs, logs, look)
        ]
        if not all(control.steady for control in controls):
            rows = [
                row if row.verdict is GateVerdict.FAILED else replace(row, verdict=GateVerdict.CONTAMINATED)
                for row in rows
            ]
        known = [row.estimate.centre for row in rows if row.kind == "cell" and math.isfinite(row.estimate.centre)]
        return Judgement(
            verdict=worst([*(row.verdict for row in rows), *(GateVerdict.FAILED for _ in pairs.faults)]),
            rows=sorted(rows, key=_badness),
            controls=controls,
            faults=pairs.faults,
            warnings=[*warnings, *([_APART] if apart else [])],
            rounds=len(pairs.order),
            geometric_mean=_ratio(float(np.mean(known))) if known else math.nan,
            slot_bias=_ratio(bias),
            disturbed=pairs.disturbed,
            margins=self.margins,
            statistic="median" if apart else "lower tenth",
        )

    def _control(self, name: str, logs: Floats, order: Floats) -> ControlEffect:
        logs, _ = without_slot_bias(logs[None], order)
        values = logs[np.isfinite(logs)]
        if not values.size:
            return ControlEffect(name, math.nan, math.nan, math.nan, 0, steady=True)
        centre, low, high = paired_interval(values)
        margin = math.log1p(CONTROL_CPU.fraction if name == CPU else self.margins.control_margin)
        steady = low <= margin and high >= -margin
        unsure = _ratio(max(0.0, high - margin, -margin - low)) - 1 if steady else 0.0
        return ControlEffect(name, _ratio(centre), _ratio(low), _ratio(high), values.size, steady, unsure)

    def _rows(self, pairs: Pairs, logs: Floats, look: Callable[[Floats, float], Estimate]) -> list[Row]:
        """Return a row for every cell, for the time of its caller, and for its neighbour.

        A slowdown is of iterations alone and beside swaps in one visit, so that what the machine does between the
        visits of the two sides is in neither.
        """

        def estimate(values: Floats, margin: float) -> Estimate:
            return _estimate_apart(values, margin) if apart else look(_logs(values), margin)

        rows = []
        apart = _made_apart(pairs)
        relative = math.log1p(self.margins.margin)
        for index, (cell, margin) in enumerate(zip(pairs.cells, self._cell_margins(pairs, apart=apart), strict=True)):
            visits = pairs.visits[:, index]
            if cell in pairs.failed:
                failed = Estimate(settled=cell not in pairs.without_figure)
                rows.append(Row("cell", cell.label, GateVerdict.FAILED, [cell], failed, reason=pairs.failed[cell]))
                continue
            if apart:
                row = _row("cell", cell, visits["middle_us"], margin, estimate(visits["middle_us"], margin))
            else:
                upper = estimate(visits["upper_us"], margin + math.log1p(UPPER_HALF.fraction))
                row = _row("cell", cell, visits["fast_us"], margin, look(logs[index], margin), upper)
            path = pairs.paths.get(cell, "copied by the CPU" if cell in pairs.inline else "")
            rows.append(replace(row, reason="; ".join(filter(None, (row.reason, path)))))
            others: tuple[tuple[Kind, Floats, float], ...] = (
                ("caller_us", visits["caller_us"], margin),
                ("neighbour", visits["slowdown"], relative),
            )
            rows += [
                _row(kind, cell, values, allowed, estimate(values, allowed))
                for kind, values, allowed in others
                if np.isfinite(values).any()
            ]
        return rows

    def _cell_margins(self, pairs: Pairs, *, apart: bool) -> Floats:
        """Return the margin of every cell as a log ratio.

        It is the largest of the relative margin, the margin of copies by the CPU if the CPU copies the cell on both
        sides, the cell's A/A floor (a fraction), the absolute margin divided by the base's median, and for runs made
        `apart` the margin of two runs.
        """
        floors = self.floors.floors if self.floors is not None else {}
        margins = []
        for cell, times_us in zip(pairs.cells, pairs.visits["middle_us" if apart else "fast_us"][0], strict=True):
            base_us, inline = middle_of(times_us), cell in pairs.inline
            usual = between_runs(base_us, inline=inline).fraction if apart else INLINE.fraction if inline else 0.0
            known = (self.margins.margin, usual, floors.get(cell.id, 0.0), self.margins.absolute_us / base_us)
            margins.append(max(margin for margin in known if not math.isnan(margin)))
        return np.log1p(margins)


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


def _row(
    kind: Kind, cell: Cell, values: Floats, margin: float, estimate: Estimate, upper: Estimate | None = None
) -> Row:
    """Return the row of paired `values`, of shape (2, rounds); `margin` is a log ratio."""
    sides = middle_of(values[0]), middle_of(values[1])
    row = Row(kind, cell.label, GateVerdict.SAME, [cell], estimate, upper, _UNITS[kind], *sides, _ratio(margin) - 1)
    about = "upper half: " if row.decisive is upper else ""
    reason = about + (row.decisive.reason or "slower beyond its margin") if about else row.decisive.reason
    return replace(row, verdict=GateVerdict(row.decisive.verdict), reason=reason)


def _logs(sides: Floats) -> Floats:
    return np.asarray(np.log(sides[1]) - np.log(sides[0]))


def _made_apart(pairs: Pairs) -> bool:
    return not pairs.in_turn and abs(pairs.order.sum()) == len(pairs.order)


def _estimate_apart(values: Floats, margin: float) -> Estimate:
    """Return the estimate of `values` of two runs, of shape (2, rounds), as `kvbench report` compares them."""
    base, cand = (side[np.isfinite(side)] for side in values)
    if not (base.size and cand.size):
        return Estimate()
    comparison = compare_apart(base, cand, Margin(math.expm1(margin), ""))
    centre, low, high = np.log([comparison.ratio, comparison.low, comparison.high]).tolist()
    visits = min(base.size, cand.size)
    return Estimate(centre, low, high, comparison.verdict, visits >= MIN_PAIRS, visits, bool(high <= margin))


def _ratio(log_ratio: float) -> float:
    return float(np.exp(log_ratio))


def _badness(row: Row) -> tuple[int, float]:
    centre = row.decisive.centre
    return row.verdict.badness, 0.0 if math.isnan(centre) else -abs(centre)
