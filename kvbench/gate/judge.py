"""The judge of a comparison: runs in pairs go in, a Judgement comes out.

The order of what is asked: are these runs of one kind of machine (else MismatchError); did every cell run and verify on
both sides (else FAILED); did large plain copies, which no build changes, stay where they were (else CONTAMINATED); only
then what the times say. So a slow machine is never a regression, and a broken copy never a timing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kvbench.analysis.intervals import MIN_PAIRS, Floats
from kvbench.cells.axes import Direction
from kvbench.gate.effects import Effects, effects, ratio_of, row_medians, without_slot_bias
from kvbench.gate.floors import FloorFile, check_floors
from kvbench.gate.judgement import ControlEffect, Judgement, JudgementStatus, Margins, Row, RowVerdict
from kvbench.gate.pairs import PairedValues, Pairs, aligned, check_identity, pair, slots
from kvbench.gate.shape import curve_command, features
from kvbench.results import Run

DEFAULT_MARGINS: Final = Margins()
_WORST_FIRST: Final = list(RowVerdict)


@dataclass(frozen=True, slots=True)
class Judge:
    """What a comparison is judged by: margins, the cells' A/A floors, and whether machines may differ (`forced`)."""

    margins: Margins = DEFAULT_MARGINS
    floors: FloorFile | None = None
    forced: bool = False

    def judge(self, base: Sequence[Run], cand: Sequence[Run], notes: Sequence[str] = ()) -> Judgement:
        """Compare `cand[r]` with `base[r]` over the rounds r; `notes` are added to the warnings.

        Raises UsageError for lists that do not pair, MismatchError for runs or floors of different machines.
        """
        renamed, about = aligned(base, cand)
        pairs = pair(base, renamed)
        warnings = [*notes, *about, *check_identity(base, cand, forced=self.forced)]
        if self.floors is not None:
            warnings += check_floors(self.floors, base[0], forced=self.forced)
        controls, what_they_are = control_times(base, cand)
        return self.assess(pairs, controls, slots(base, cand), [*warnings, *what_they_are])

    def assess(
        self, pairs: Pairs, controls: Mapping[str, Floats], order: Floats, warnings: Sequence[str] = ()
    ) -> Judgement:
        """Judge paired times; `controls` are as `control_times` returns them, `order` as `slots` does."""
        found = self.control_effects(controls, order)
        steady = all(control.steady for control in found)
        one_sided = len(order) >= MIN_PAIRS and abs(order.sum()) == len(order)
        log_ratios, bias = without_slot_bias(np.log(pairs.cand_us) - np.log(pairs.base_us), order)
        rows = self._rows(pairs, log_ratios, math.log1p(self.margins.drift) if one_sided else 0.0)
        if not steady:
            rows = [
                row if row.verdict is RowVerdict.FAILED else replace(row, verdict=RowVerdict.NOT_JUDGED) for row in rows
            ]
        ratios = [math.log(row.effect) for row in rows if row.kind == "cell" and 0 < row.effect < math.inf]
        return Judgement(
            status=_status(rows, pairs.faults, steady=steady),
            rows=sorted(rows, key=_badness),
            controls=found,
            faults=pairs.faults,
            warnings=[*warnings, *([self._about_order(order)] if one_sided else [])],
            rounds=len(order),
            geometric_mean=ratio_of(float(np.mean(ratios))) if ratios else math.nan,
            slot_bias=ratio_of(bias),
            margins=self.margins,
        )

    def control_effects(self, log_ratios: Mapping[str, Floats], order: Floats) -> list[ControlEffect]:
        """Return how far each control moved; `order` is `slots` of the rounds.

        One is steady while its whole interval lies within the margin; with too few pairs for an interval, its median.
        """
        ratios = np.reshape(list(log_ratios.values()), (len(log_ratios), len(order)))
        found = effects(without_slot_bias(ratios, order)[0])
        margin = math.log1p(self.margins.control)
        controls = []
        for way, median, low, high, pairs in zip(
            log_ratios, found.median, found.low, found.high, found.pairs, strict=True
        ):
            few = pairs < MIN_PAIRS
            steady = not abs(median) > margin if few else verdict_of(low, high, margin) is RowVerdict.UNCHANGED
            controls.append(ControlEffect(way, ratio_of(median), ratio_of(low), ratio_of(high), int(pairs), steady))
        return controls

    def _rows(self, pairs: Pairs, log_ratios: Floats, drift: float) -> list[Row]:
        """Return a row for every cell, and for everything that there is to compare about the shape of their curves."""
        allowed = self._cell_margins(pairs) + drift
        judged = [
            PairedValues("cell", cell.label, [cell], "us", pairs.base_us[place], pairs.cand_us[place], allowed[place])
            for place, cell in enumerate(pairs.cells)
        ]
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # a stranger's run may hold any time
            shape = features(pairs, allowed, math.log1p(self.margins.relative) + drift)
            ratios = np.vstack([log_ratios, *(np.log(feature.cand / feature.base) for feature in shape)])
        found = effects(ratios)
        rows = [_row(values, found, place) for place, values in enumerate([*judged, *shape])]
        for place, cell in enumerate(pairs.cells):
            if cell in pairs.failed:
                failed = RowVerdict.FAILED
                rows[place] = Row("cell", cell.label, failed, [cell], cell.command(), reason=pairs.failed[cell])
            elif cell in pairs.paths:
                reasons = filter(None, (rows[place].reason, pairs.paths[cell]))
                rows[place] = replace(rows[place], reason="; ".join(reasons))
        return rows

    def _cell_margins(self, pairs: Pairs) -> Floats:
        """Return what every cell may differ by, as log ratios.

        The largest of the relative margin, the cell's own A/A floor (a fraction), and the absolute floor over the
        base's median: a difference below any of them is no difference.
        """
        floors = self.floors.floors if self.floors is not None else {}
        own = np.array([floors.get(cell.id, 0.0) for cell in pairs.cells])
        with np.errstate(invalid="ignore"):
            absolute = self.margins.absolute_us / row_medians(pairs.base_us)
        return np.asarray(np.log1p(np.fmax(np.maximum(self.margins.relative, own), absolute)))

    def _about_order(self, order: Floats) -> str:
        late = "candidate" if order[0] > 0 else "base"
        return (
            f"not interleaved: the {late} ran last in every round, and what running second costs falls on it alone; "
            f"margins are wider by {self.margins.drift:.0%}, for what the machine may have drifted"
        )


def control_times(base: Sequence[Run], cand: Sequence[Run]) -> tuple[dict[str, Floats], list[str]]:
    """Return direction -> paired log ratios of the controls' times, one a round, and warnings.

    Where a run has no controls, the ceilings stand in for them, and a warning says so.
    """
    sides = [[run.controls() for run in runs] for runs in (base, cand)]
    warnings = []
    if not all(set(rates) == set(Direction) for runs in sides for rates in runs):
        warnings = ["not every run has control copies: the engine's own large copies, the ceilings, stand in for them"]
        sides = [[run.ceilings() for run in runs] for runs in (base, cand)]
    ways = sorted({way for runs in sides for rates in runs for way in rates})
    if not ways:
        warnings = ["no run has control copies or ceilings: whether the machine was steady is not known"]
    ours, theirs = (
        {way: np.array([np.median(rates[way]) if rates.get(way) else np.nan for rates in runs]) for way in ways}
        for runs in sides
    )
    return {way: np.log(ours[way] / theirs[way]) for way in ways}, warnings


def verdict_of(low: float, high: float, margin: float) -> RowVerdict:
    """Return what an interval of log ratios, larger = worse, says against a margin, also a log ratio.

    It asks where the whole interval lies, so that noise ends in INCONCLUSIVE and not in a false alarm.
    """
    if low > margin:
        return RowVerdict.REGRESSED
    if high < -margin:
        return RowVerdict.IMPROVED
    return RowVerdict.UNCHANGED if -margin <= low and high <= margin else RowVerdict.INCONCLUSIVE


def _row(values: PairedValues, found: Effects, place: int) -> Row:
    low, high = found.low[place], found.high[place]
    worst, best = sorted((values.worse * low, values.worse * high))
    pairs = int(found.pairs[place])
    return Row(
        values.kind,
        values.name,
        verdict_of(worst, best, values.margin),
        values.cells,
        curve_command(values.cells),
        unit=values.unit,
        base=float(row_medians(values.base[None])[0]),
        cand=float(row_medians(values.cand[None])[0]),
        effect=ratio_of(found.median[place]),
        low=ratio_of(low),
        high=ratio_of(high),
        margin=math.expm1(values.margin),
        pairs=pairs,
        reason=f"{pairs} pairs; an interval takes {MIN_PAIRS}" if pairs < MIN_PAIRS else "",
    )


def _status(rows: Sequence[Row], faults: Sequence[str], *, steady: bool) -> JudgementStatus:
    verdicts = {row.verdict for row in rows}
    if faults or not rows or RowVerdict.FAILED in verdicts:
        return JudgementStatus.FAILED
    if not steady:
        return JudgementStatus.CONTAMINATED
    if RowVerdict.REGRESSED in verdicts:
        return JudgementStatus.REGRESSED
    return JudgementStatus.INCONCLUSIVE if RowVerdict.INCONCLUSIVE in verdicts else JudgementStatus.PASSED


def _badness(row: Row) -> tuple[int, float]:
    distance = abs(math.log(row.effect)) if row.effect > 0 else 0.0
    return _WORST_FIRST.index(row.verdict), -distance
