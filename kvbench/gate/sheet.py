"""The sheet that every output of the gate is made from: a verdict, rows sorted worst first, and notes.

Nothing here is escaped; every output does its own escaping.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvbench.cells.cell import Cell
from kvbench.gate.judgement import ControlEffect, Estimate, GateVerdict, Judgement, Row
from kvbench.gate.rules import RulesReport

# From this ratio on, a factor is easier to read than a percentage.
_MANY_TIMES: Final = 3.0
# Where the machine may have moved by as much as this, beyond the margin of its control, no change can be found.
_TOO_UNSURE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sheet:
    """The content for the reader: the verdict and `lead` come first, `details` last."""

    title: str
    verdict: GateVerdict
    lead: Sequence[str]
    rows: Sequence[Row]
    details: Sequence[str]
    warnings: Sequence[str]

    @property
    def loud(self) -> list[Row]:
        return [row for row in self.rows if is_loud(row)]

    @property
    def listed(self) -> list[Row]:
        """The rows for a terminal: what changed, failed or is broken, and every undecided rule."""
        return [
            row
            for row in self.rows
            if row.verdict is GateVerdict.FASTER
            or (is_loud(row) and (row.verdict is not GateVerdict.UNDECIDED or row.kind == "rule"))
        ]


def is_loud(row: Row) -> bool:
    """Whether the row needs attention; a CONTAMINATED row does not, because no row is the cause."""
    return row.verdict is not GateVerdict.CONTAMINATED and not row.passes


def sheet_of_judgement(judgement: Judgement, seconds: float = 0.0, command: str = "") -> Sheet:
    """Return the sheet of a comparison that took `seconds` and that `command` repeats."""
    worst = judgement.rows[0] if judgement.rows else None
    lead = [f"worst: {worst.verdict} {name_of_row(worst)}: {message(worst)}"] if worst else []
    counts = _counts(row.verdict for row in judgement.rows)
    lead.append(f"cells: {len({*cells_of(judgement.rows)})} on both sides; rows: {counts or 'none'}")
    lead.append(f"time: {seconds / 60:.1f} minutes, {judgement.rounds} rounds")
    return Sheet(
        title="kvbench gate compare",
        verdict=judgement.verdict,
        lead=[*lead, *filter(None, [command and f"to repeat: {command}"])],
        rows=judgement.rows,
        details=_details(judgement),
        warnings=judgement.warnings,
    )


def cells_of(rows: Iterable[Row]) -> Iterator[Cell]:
    return (cell for row in rows for cell in row.cells)


def sheet_of_rules(report: RulesReport) -> Sheet:
    meant = f" for the config {report.config}" if report.config else ""
    return Sheet(
        title=f"kvbench gate rules {report.run}",
        verdict=report.verdict,
        lead=[f"{len(report.rows)} rules{meant}: {_counts(row.verdict for row in report.rows)}"],
        rows=report.rows,
        details=[],
        warnings=report.warnings,
    )


def name_of_row(row: Row) -> str:
    return row.name if row.kind in ("cell", "rule") else f"{row.kind}: {row.name}"


def message(row: Row) -> str:
    """Return the row in one sentence, without its name.

    "base 80.0 us, cand 83.2 us; by pairs +1.1% (95%: -3.8 to +6.0%), margin 3%". The effect is that of the pairs, so it
    can differ from the ratio of the medians.
    """
    parts = []
    if row.kind != "rule" and row.verdict is not GateVerdict.FAILED and math.isfinite(row.margin):
        effect = _effect(row.effect)
        by_pairs = ", ".join(filter(None, [effect and f"by pairs {effect}", f"margin {100 * row.margin:.3g}%"]))
        upper = _effect(row.upper) if row.upper is not None else ""
        parts = [_sides(row), by_pairs, upper and f"upper half {upper}"]
    undecided = row.verdict is GateVerdict.UNDECIDED and row.pairs
    passes = "not slower" if undecided and row.passes else ""
    return "; ".join(filter(None, (*parts, passes, row.reason)))


def _details(judgement: Judgement) -> list[str]:
    lines = [f"control {one.name}: {_effect(one.effect)}, {_steadiness(one)}" for one in judgement.controls]
    if judgement.disturbed:
        causes = ", ".join(f"{cause}: {count}" for cause, count in judgement.disturbed.items())
        lines.append(f"disturbed pairs are recorded but not counted ({causes})")
    if judgement.slot_bias != 1:
        how = "slower" if judgement.slot_bias > 1 else "faster"
        lines.append(
            f"the second visit of a pair was {abs(judgement.slot_bias - 1):.1%} {how}; both sides are corrected"
        )
    return lines


def _steadiness(control: ControlEffect) -> str:
    if not control.steady:
        return "outside its margin: the machine moved"
    if control.unsure >= _TOO_UNSURE:
        return "unsure: too few or too uneven to find a change"
    unsure = f"{control.unsure:.1%}"
    return "steady" if unsure == "0.0%" else f"unsure: a change must exceed its margin by {unsure}"


def _counts(verdicts: Iterable[str]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in Counter(verdicts).items())


def _effect(estimate: Estimate) -> str:
    """Return a ratio and its interval: "+1.1% (95%: -3.8 to +6.0%)", without what is unknown."""
    ratio, low, high = map(_percent, (estimate.ratio, estimate.low, estimate.high))
    known = estimate.low > 0 and math.isfinite(estimate.high)
    interval = f"(95%: {low.removesuffix('%') if high.endswith('%') else low} to {high})" if known else ""
    return " ".join(filter(None, (ratio, interval)))


def _percent(ratio: float) -> str:
    """Return 1.05 as "+5.0%", 40 as "40.0x", or "" if unknown."""
    if not math.isfinite(ratio):
        return ""
    return f"{ratio - 1:+.1%}" if ratio < _MANY_TIMES else f"{ratio:.1f}x"


def _sides(row: Row) -> str:
    """Return the medians of both sides: "base 80.0 us, cand 83.2 us", "base 1.20x, cand 1.26x", or "" if unknown."""
    if not (math.isfinite(row.base) and math.isfinite(row.cand)):
        return ""
    form = "{:.2f}x" if row.unit == "x" else "{:.1f} us"
    return f"base {form.format(row.base)}, cand {form.format(row.cand)}"
