"""The judge of a comparison: runs in pairs go in, a Judgement comes out.

The order of what is asked: are these runs of one kind of machine (else MismatchError); did every cell run and verify on
both sides (else FAILED); did large plain copies, which no build changes, stay where they were (else CONTAMINATED); only
then what the times say. So a slow machine is never a regression, and a broken copy never a timing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kvbench.analysis.intervals import MIN_PAIRS, Floats
from kvbench.gate.controls import ControlTimes, control_times, judge_controls
from kvbench.gate.judgement import Judgement, Margins, Row, Status
from kvbench.gate.pairs import Pairs, check_identity, pair, slots
from kvbench.gate.rows import cell_margins, cell_rows, shape_rows
from kvbench.gate.shape import features
from kvbench.gate.verdict import Verdict, effects, ratio_of, without_slot_bias
from kvbench.results import Run

DEFAULT_MARGINS: Final = Margins()
_WORST_FIRST: Final = list(Verdict)


def judge(
    base: Sequence[Run],
    cand: Sequence[Run],
    *,
    floors: Mapping[str, float] | None = None,
    margins: Margins = DEFAULT_MARGINS,
    forced: bool = False,
    notes: Sequence[str] = (),
) -> Judgement:
    """Compare `cand[r]` with `base[r]` over the rounds r.

    `floors` are A/A floors by id of the base's cell, as fractions: how far the cell moves when nothing changed.
    `forced` compares runs of different machines and says so; `notes` are added to the warnings. Raises UsageError for
    lists that do not pair, MismatchError for runs of different machines.
    """
    pairs = pair(base, cand)
    warnings = [*notes, *check_identity(base, cand, forced=forced)]
    return assess(pairs, control_times(base, cand), slots(base, cand), floors or {}, margins, warnings)


def assess(
    pairs: Pairs,
    controls: ControlTimes,
    order: Floats,
    floors: Mapping[str, float],
    margins: Margins,
    warnings: Sequence[str] = (),
) -> Judgement:
    """Judge paired times; `order` has an entry a round, as `slots` returns it."""
    judged = judge_controls(controls, order, margins)
    steady = all(control.steady for control in judged)
    unslotted = without_slot_bias(np.log(pairs.cand_us) - np.log(pairs.base_us), order)
    drift = math.log1p(margins.drift) if _one_sided(order) else 0.0
    floor = np.array([floors.get(cell.id, 0.0) for cell in pairs.cells])
    allowed = cell_margins(pairs.base_us, floor, margins) + drift
    rows = cell_rows(pairs, effects(unslotted.log_ratios), allowed)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # a stranger's run may hold any time
        rows += shape_rows(features(pairs, allowed, math.log1p(margins.relative) + drift))
    if not steady:
        rows = [row if row.verdict is Verdict.FAILED else replace(row, verdict=Verdict.NOT_JUDGED) for row in rows]
    ratios = [math.log(row.effect) for row in rows if row.kind == "cell" and 0 < row.effect < math.inf]
    return Judgement(
        status=_status(rows, pairs.faults, steady=steady),
        rows=sorted(rows, key=_badness),
        controls=judged,
        faults=pairs.faults,
        warnings=[*warnings, *controls.warnings, *_about_order(order, margins)],
        rounds=len(order),
        geometric_mean=ratio_of(float(np.mean(ratios))) if ratios else math.nan,
        slot_bias=ratio_of(unslotted.bias),
        margins=margins,
    )


def _status(rows: Sequence[Row], faults: Sequence[str], *, steady: bool) -> Status:
    verdicts = {row.verdict for row in rows}
    if faults or not rows or Verdict.FAILED in verdicts:
        return Status.FAILED
    if not steady:
        return Status.CONTAMINATED
    if Verdict.REGRESSED in verdicts:
        return Status.REGRESSED
    return Status.INCONCLUSIVE if Verdict.INCONCLUSIVE in verdicts else Status.PASSED


def _one_sided(order: Floats) -> bool:
    return len(order) >= MIN_PAIRS and abs(order.sum()) == len(order)


def _about_order(order: Floats, margins: Margins) -> list[str]:
    if not _one_sided(order):
        return []
    late = "candidate" if order[0] > 0 else "base"
    return [
        f"not interleaved: the {late} ran last in every round, and what running second costs falls on it alone; "
        f"margins are wider by {margins.drift:.0%}, for what the machine may have drifted"
    ]


def _badness(row: Row) -> tuple[int, float]:
    distance = abs(math.log(row.effect)) if row.effect > 0 else 0.0
    return _WORST_FIRST.index(row.verdict), -distance
