"""The page that every output of the gate is made from: a status, rows worst first, and what else has to be said.

Nothing here is escaped; every output escapes for itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from kvbench.gate.judgement import Judgement, Row, Status
from kvbench.gate.rule_check import RulesReport, RuleVerdict
from kvbench.gate.verdict import Verdict
from kvbench.report.numbers import figure
from kvbench.units import format_size


class Level(Enum):
    """How a row counts: broken (an error), bad (it fails the gate), open (cannot tell), good news.

    `QUIET` rows are as they should be; `VOID` ones were not judged, which is no pass. Neither is shown first.
    """

    ERROR = auto()
    BAD = auto()
    OPEN = auto()
    GOOD = auto()
    QUIET = auto()
    VOID = auto()


_IN_THE_BACK: Final = frozenset({Level.QUIET, Level.VOID})


@dataclass(frozen=True, slots=True)
class Line:
    """One row: `figures` go below the sheet's headings, `command` is what to run to look into it ("" for none)."""

    verdict: str
    level: Level
    kind: str
    name: str
    figures: Sequence[str]
    reason: str
    command: str

    @property
    def message(self) -> str:
        """The row in one sentence, without its name."""
        return "; ".join(filter(None, (", ".join(filter(None, self.figures)), self.reason)))


@dataclass(frozen=True, slots=True)
class Sheet:
    """All that a reader sees; `faults` fail the gate without belonging to a row."""

    title: str
    status: str
    level: Level
    headings: Sequence[str]
    lines: Sequence[Line]
    summary: Sequence[str]
    faults: Sequence[str]
    warnings: Sequence[str]

    @property
    def loud(self) -> list[Line]:
        """The rows that somebody has to see."""
        return [line for line in self.lines if line.level not in _IN_THE_BACK]

    @property
    def quiet(self) -> list[Line]:
        return [line for line in self.lines if line.level in _IN_THE_BACK]


# From here on percents are hard to read.
_MANY_TIMES: Final = 3.0
_LEVELS: Final = {
    Verdict.FAILED: Level.ERROR,
    Verdict.REGRESSED: Level.BAD,
    Verdict.INCONCLUSIVE: Level.OPEN,
    Verdict.NOT_JUDGED: Level.VOID,
    Verdict.IMPROVED: Level.GOOD,
    Verdict.UNCHANGED: Level.QUIET,
}
_RULE_LEVELS: Final = {
    RuleVerdict.FAILED: Level.ERROR,
    RuleVerdict.BROKEN: Level.BAD,
    RuleVerdict.HOLDS: Level.QUIET,
}
_STATUS_LEVELS: Final = {
    Status.FAILED: Level.ERROR,
    Status.CONTAMINATED: Level.OPEN,
    Status.REGRESSED: Level.BAD,
    Status.INCONCLUSIVE: Level.OPEN,
    Status.PASSED: Level.GOOD,
}


def sheet_of_judgement(judgement: Judgement) -> Sheet:
    """Return the page of a comparison."""
    return Sheet(
        title="kvbench gate compare",
        status=judgement.status,
        level=_STATUS_LEVELS[judgement.status],
        headings=("base", "candidate", "effect", "95% interval", "margin"),
        lines=[_line(row) for row in judgement.rows],
        summary=_summary(judgement),
        faults=judgement.faults,
        warnings=judgement.warnings,
    )


def sheet_of_rules(report: RulesReport) -> Sheet:
    """Return the page of rules against a run."""
    counts = ", ".join(f"{report.count(verdict)} {verdict}" for verdict in RuleVerdict if report.count(verdict))
    return Sheet(
        title=f"kvbench gate rules {report.run}",
        status=report.verdict,
        level=Level.GOOD if report.verdict is RuleVerdict.HOLDS else _RULE_LEVELS[report.verdict],
        headings=(),
        lines=[
            Line(result.verdict, _RULE_LEVELS[result.verdict], "rule", result.rule, (), result.reason, result.command)
            for result in report.results
        ],
        summary=[f"{len(report.results)} rules: {counts}"],
        faults=[],
        warnings=report.warnings,
    )


def _line(row: Row) -> Line:
    figures: Sequence[str] = ()
    if row.verdict is not Verdict.FAILED:
        figures = (
            quantity(row.base, row.unit),
            quantity(row.cand, row.unit),
            percent(row.effect),
            _interval(row.low, row.high),
            f"{row.margin:.1%}",
        )
    name = row.name if row.kind == "cell" else f"{row.kind}: {row.name}"
    return Line(row.verdict, _LEVELS[row.verdict], row.kind, name, figures, row.reason, row.command)


def _interval(low: float, high: float) -> str:
    """Return an interval of ratios in per cent, "" where there is none."""
    return f"[{percent(low)}, {percent(high)}]" if math.isfinite(low) and math.isfinite(high) else ""


def _summary(judgement: Judgement) -> list[str]:
    counts = ", ".join(f"{judgement.count(verdict)} {verdict}" for verdict in Verdict if judgement.count(verdict))
    lines = [f"{judgement.rounds} rounds, {len(judgement.rows)} rows: {counts or 'none'}"]
    for control in judgement.controls:
        moved = " ".join(filter(None, (percent(control.effect), _interval(control.low, control.high))))
        how = "steady" if control.steady else f"not within {judgement.margins.control:.1%}: the machine moved"
        lines.append(f"control {control.direction}: {moved}, {how}")
    if math.isfinite(judgement.geometric_mean):
        lines.append(f"geometric mean of all cells: {percent(judgement.geometric_mean)} (shown, not gated)")
    if judgement.slot_bias != 1:
        lines.append(f"running second in a round cost {percent(judgement.slot_bias)}; taken off both sides")
    return lines


def percent(ratio: float) -> str:
    """Return 1.05 as "+5.0%", 40 as "40x"; "" where it is not known."""
    if not math.isfinite(ratio):
        return ""
    return f"{ratio - 1:+.1%}" if ratio < _MANY_TIMES else f"{figure(ratio)}x"


def quantity(value: float, unit: str) -> str:
    """Return a median with its unit: "12.3 us", "4.08x", "26545B"; "" where it is not known."""
    if not math.isfinite(value):
        return ""
    if unit == "bytes":
        return format_size(round(value))
    return f"{figure(value)}x" if unit == "x" else f"{figure(value)} {unit}"
