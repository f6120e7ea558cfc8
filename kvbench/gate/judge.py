"""The judge of a comparison: from the runs of two sides to a Judgement.

The checks, in order: the runs are of one kind of machine (else MismatchError); every cell ran and verified on both
sides (else FAILED); large plain copies, which no build changes, did not move (else CONTAMINATED); only then the times,
by `kvbench.analysis.compare`. A slow machine is therefore never a regression, and a broken copy never a timing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kvbench.analysis.compare import MIN_PAIRS, paired_interval
from kvbench.analysis.intervals import Floats, middle_of
from kvbench.analysis.margins import BETWEEN_RUNS, CONTROL_CPU, INLINE
from kvbench.gate.disturbance import CPU
from kvbench.gate.floors import FloorFile, check_floors
from kvbench.gate.judgement import ControlEffect, GateVerdict, Judgement, Margins, Row, worst
from kvbench.gate.looks import ONCE, PLAN, Look, look_at
from kvbench.gate.pairs import Pairs, pair
from kvbench.gate.partners import check_identity
from kvbench.gate.shape import PairedValues, neighbours, submissions
from kvbench.results import Run


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
        late = _always_late(pairs.order)
        drift = math.log1p(BETWEEN_RUNS.fraction) if late else 0.0
        unsure = max((math.log1p(control.unsure) for control in controls), default=0.0)
        logs, bias = without_slot_bias(np.log(pairs.cand_us) - np.log(pairs.base_us), pairs.order)
        before = [row for row in (earlier.rows if earlier else ()) if row.verdict is not GateVerdict.FAILED]
        settled = {(row.kind, row.name): row for row in before if row.settled}
        moved = not all(control.steady for control in controls)
        rows = []
        for row in self._rows(pairs, logs, drift, unsure):
            if row.verdict is not GateVerdict.FAILED:
                row = settled.get((row.kind, row.name), row)
                row = replace(row, verdict=GateVerdict.CONTAMINATED, settled=False) if moved else row
            rows.append(row)
        known = [math.log(row.effect) for row in rows if row.kind == "cell" and 0 < row.effect < math.inf]
        return Judgement(
            verdict=worst([*(row.gates for row in rows), *(GateVerdict.FAILED for _ in pairs.faults)]),
            rows=sorted(rows, key=_badness),
            controls=controls,
            faults=pairs.faults,
            warnings=[*warnings, *late],
            rounds=len(pairs.order),
            geometric_mean=_ratio(float(np.mean(known))) if known else math.nan,
            slot_bias=_ratio(bias),
            disturbed=pairs.disturbed,
            margins=self.margins,
        )

    def _control(self, name: str, logs: Floats, order: Floats) -> ControlEffect:
        """Return how far a control moved."""
        logs, _ = without_slot_bias(logs[None], order)
        values = logs[np.isfinite(logs)]
        if not values.size:
            return ControlEffect(name, math.nan, math.nan, math.nan, 0, steady=True)
        centre, low, high = paired_interval(values)
        margin = math.log1p(CONTROL_CPU.fraction if name == CPU else self.margins.control_margin)
        steady = low <= margin and high >= -margin
        unsure = _ratio(max(0.0, high - margin, -margin - low)) - 1 if steady else 0.0
        return ControlEffect(name, _ratio(centre), _ratio(low), _ratio(high), values.size, steady, unsure)

    def _rows(self, pairs: Pairs, logs: Floats, drift: float, unsure: float) -> list[Row]:
        """Return a row for every cell, its submission and its neighbour."""
        allowed = self._cell_margins(pairs) + drift
        looks = self.looks or (PLAN if pairs.in_turn else ONCE)
        rows = []
        for place, cell in enumerate(pairs.cells):
            values = PairedValues(
                "cell", cell.label, [cell], "us", pairs.base_us[place], pairs.cand_us[place], allowed[place]
            )
            row = _row(values, logs[place], looks, unsure, pairs.processes)
            if cell in pairs.failed:
                settled, reason = cell not in pairs.lacking, pairs.failed[cell]
                row = Row("cell", cell.label, GateVerdict.FAILED, [cell], reason=reason, settled=settled)
            elif path := pairs.paths.get(cell, "copied by the CPU" if cell in pairs.inline else ""):
                row = replace(row, reason="; ".join(filter(None, (row.reason, path))))
            rows.append(row)
        relative = math.log1p(self.margins.margin)
        others = [*submissions(pairs, allowed), *neighbours(pairs, relative)]
        return rows + [
            _row(values, np.log(values.cand / values.base), looks, unsure, pairs.processes) for values in others
        ]

    def _cell_margins(self, pairs: Pairs) -> Floats:
        """Return the margin of every cell as a log ratio.

        It is the largest of the relative margin, the margin of copies by the CPU if the CPU copies the cell on both
        sides, the cell's A/A floor (a fraction), and the absolute margin divided by the base's median.
        """
        floors = self.floors.floors if self.floors is not None else {}
        inline = np.where([cell in pairs.inline for cell in pairs.cells], INLINE.fraction, 0.0)
        own = np.maximum(inline, [floors.get(cell.id, 0.0) for cell in pairs.cells])
        absolute = [self.margins.absolute_us / middle_of(times_us) for times_us in pairs.base_us]
        return np.asarray(np.log1p(np.fmax(np.maximum(self.margins.margin, own), absolute)))


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


def _row(values: PairedValues, logs: Floats, looks: Sequence[Look], unsure: float, processes: Floats | None) -> Row:
    known = np.isfinite(logs)
    made_by = None if processes is None else processes[known]
    found = look_at(logs[known], values.margin, looks, unsure, made_by)
    return Row(
        values.kind,
        values.name,
        GateVerdict(found.verdict),
        values.cells,
        unit=values.unit,
        base=middle_of(values.base),
        cand=middle_of(values.cand),
        effect=_ratio(found.centre),
        low=_ratio(found.low),
        high=_ratio(found.high),
        margin=_ratio(values.margin) - 1,
        pairs=found.pairs,
        reason=found.reason,
        settled=found.settled,
        not_slower=found.not_slower,
        unconfirmed=found.unconfirmed is not None,
    )


def _always_late(order: Floats) -> list[str]:
    """Return a warning if one side ran second in every round of a sufficient number."""
    if len(order) < MIN_PAIRS or abs(order.sum()) != len(order):
        return []
    late = "candidate" if order[0] > 0 else "base"
    return [
        f"not interleaved: the {late} ran last in every round, so only this side has the cost of running second; "
        f"margins are wider by {BETWEEN_RUNS.fraction:.0%}, because {BETWEEN_RUNS.reason}"
    ]


def _ratio(log_ratio: float) -> float:
    return float(np.exp(log_ratio))


def _badness(row: Row) -> tuple[int, float]:
    return row.verdict.badness, -abs(math.log(row.effect)) if row.effect > 0 else 0.0
