"""The sheet that every output of the gate is made from: a verdict, rows sorted worst first, and notes.

Nothing here is escaped; every output does its own escaping.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kvbench.errors import ExitCode
from kvbench.gate.judgement import ControlEffect, GateVerdict, Judgement, Row
from kvbench.gate.looks import Estimate
from kvbench.gate.rules import RulesReport

# From this ratio on, a factor is easier to read than a percentage.
_MANY_TIMES: Final = 3.0


@dataclass(frozen=True, slots=True)
class Sheet:
    """The content for the reader."""

    title: str
    verdict: GateVerdict
    rows: Sequence[Row]
    summary: Sequence[str]
    warnings: Sequence[str]

    @property
    def loud(self) -> list[Row]:
        return [row for row in self.rows if is_loud(row)]

    @property
    def quiet(self) -> list[Row]:
        return [row for row in self.rows if not is_loud(row)]

    @property
    def listed(self) -> list[Row]:
        """The rows for a terminal: what changed, failed or is broken, and every undecided rule."""
        return [
            row
            for row in self.rows
            if row.verdict is GateVerdict.FASTER
            or (is_loud(row) and (row.verdict is not GateVerdict.UNDECIDED or row.kind == "rule"))
        ]

    @property
    def counts(self) -> list[str]:
        """A line for each verdict whose rows are not listed, and for the undecided ones how many may be slower."""
        listed = {id(row) for row in self.listed}
        rest = [row for row in self.rows if id(row) not in listed]
        lines = [f"{count} {verdict}" for verdict, count in Counter(row.verdict for row in rest).items()]
        unclear = [row for row in rest if is_loud(row)]
        more = f", {len(unclear)} of which may be slower, such as {name_of_row(unclear[0])}" if unclear else ""
        return [line + more * line.endswith(GateVerdict.UNDECIDED) for line in lines]


def is_loud(row: Row) -> bool:
    """Whether the row needs attention; a CONTAMINATED row does not, because no row is the cause."""
    return row.verdict is not GateVerdict.CONTAMINATED and not row.passes


def sheet_of_judgement(judgement: Judgement, repeat: str = "") -> Sheet:
    return Sheet(
        title="kvbench gate compare",
        verdict=judgement.verdict,
        rows=judgement.rows,
        summary=[*_first(judgement, repeat), *_summary(judgement)],
        warnings=judgement.warnings,
    )


def sheet_of_rules(report: RulesReport) -> Sheet:
    meant = f" for the config {report.config}" if report.config else ""
    return Sheet(
        title=f"kvbench gate rules {report.run}",
        verdict=report.verdict,
        rows=report.rows,
        summary=[f"{len(report.rows)} rules{meant}: {_counts(row.verdict for row in report.rows)}"],
        warnings=report.warnings,
    )


def name_of_row(row: Row) -> str:
    return row.name if row.kind in ("cell", "rule") else f"{row.kind}: {row.name}"


def message(row: Row) -> str:
    """Return the row in one sentence, without its name.

    "80.0 -> 83.2 us, +1.1% (95%: -3.8 to +6.0%), margin 3%". The effect is that of the pairs, so it can differ from
    the ratio of the medians.
    """
    parts = []
    if row.kind != "rule" and row.verdict is not GateVerdict.FAILED and math.isfinite(row.margin):
        effects = [_sides(row), _effect(row.effect), f"margin {100 * row.margin:.3g}%"]
        upper = _effect(row.upper) if row.upper is not None else ""
        parts = [", ".join(filter(None, effects)), upper and f"upper half {upper}"]
    undecided = row.verdict is GateVerdict.UNDECIDED and row.pairs
    passes = "not slower" if undecided and row.passes else ""
    return "; ".join(filter(None, (*parts, passes, row.reason)))


def _first(judgement: Judgement, repeat: str) -> list[str]:
    """Return the first lines: the worst row, what moved on the machine, and how to repeat the comparison."""
    loud = [row for row in judgement.rows if is_loud(row)]
    lines = [f"worst: {row.verdict} {name_of_row(row)}: {message(row)}" for row in loud[:1]]
    lines.append(f"machine: {_machine(judgement.controls)}")
    return [*lines, f"to repeat: {repeat}"] if repeat else lines


def _machine(controls: Sequence[ControlEffect]) -> str:
    if moved := [control.name for control in controls if not control.steady]:
        return f"{', '.join(moved)} moved"
    unsure = [control.name for control in controls if _is_unsure(control)]
    return f"{', '.join(unsure)} unsure" if unsure else "steady"


def _summary(judgement: Judgement) -> list[str]:
    counts = _counts(row.verdict for row in judgement.rows)
    lines = [
        f"{judgement.rounds} rounds, {len(judgement.rows)} rows: {counts or 'none'}",
        *(f"control {one.name}: {_effect(one.effect)}, {_steadiness(one)}" for one in judgement.controls),
    ]
    if judgement.verdict is GateVerdict.UNDECIDED and judgement.exit_code is ExitCode.DONE:
        lines.append("exit code 0: no undecided row that can be compared is slower by more than its margin")
    if math.isfinite(judgement.geometric_mean):
        lines.append(f"geometric mean of all cells: {_percent(judgement.geometric_mean)} (shown, not gated)")
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
    if math.isinf(control.unsure):
        return "unsure: too few pairs for an interval"
    if _is_unsure(control):
        return f"unsure: a change must exceed its margin by {control.unsure:.1%}"
    return "steady"


def _is_unsure(control: ControlEffect) -> bool:
    """Return whether a control is unsure by as much as its line can show."""
    return f"{control.unsure:.1%}" != "0.0%"


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
    """Return the medians of both sides with their unit: "80.0 -> 83.2 us", "1.20x -> 1.26x", or "" if unknown."""
    if not (math.isfinite(row.base) and math.isfinite(row.cand)):
        return ""
    return f"{row.base:.2f}x -> {row.cand:.2f}x" if row.unit == "x" else f"{row.base:.1f} -> {row.cand:.1f} us"
