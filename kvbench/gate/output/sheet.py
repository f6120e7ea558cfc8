"""The page that every output of the gate is made from: a status, rows worst first, and what else has to be said.

Nothing here is escaped; every output escapes for itself.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kvbench.gate.judgement import Judgement, Row, RowVerdict
from kvbench.gate.rule_check import RulesReport
from kvbench.units import format_size


class Level(Enum):
    """How a row counts: broken (an error), bad (it fails the gate), open (cannot tell), good news.

    `QUIET` rows are as they should be; `VOID` ones were not judged, which is no pass. Neither is shown first. Each has
    its colour on a terminal, its element in JUnit XML and its annotation on GitHub, "" for none.
    """

    ERROR = ("bold red", "error", "error")
    BAD = ("red", "failure", "error")
    OPEN = ("yellow", "skipped", "warning")
    GOOD = ("green", "", "")
    QUIET = ("", "", "")
    VOID = ("", "skipped", "")

    def __init__(self, colour: str, element: str, annotation: str) -> None:
        self.colour = colour
        self.element = element
        self.annotation = annotation


# Of rows, and of the sheet's own status.
_LEVELS: Final = {
    "FAILED": Level.ERROR,
    "REGRESSED": Level.BAD,
    "BROKEN": Level.BAD,
    "CONTAMINATED": Level.OPEN,
    "INCONCLUSIVE": Level.OPEN,
    "NOT JUDGED": Level.VOID,
    "IMPROVED": Level.GOOD,
    "PASSED": Level.GOOD,
    "UNCHANGED": Level.QUIET,
    "HOLDS": Level.QUIET,
}
# From here on percents are hard to read.
_MANY_TIMES: Final = 3.0


@dataclass(frozen=True, slots=True)
class SheetRow:
    """One row: `figures` go below the sheet's headings, `command` is what to run to look into it ("" for none)."""

    verdict: str
    kind: str
    name: str
    figures: Sequence[str] = ()
    reason: str = ""
    command: str = ""

    @property
    def level(self) -> Level:
        return _LEVELS[self.verdict]

    @property
    def message(self) -> str:
        """The row in one sentence, without its name."""
        return "; ".join(filter(None, (", ".join(filter(None, self.figures)), self.reason)))


@dataclass(frozen=True, slots=True)
class Sheet:
    """All that a reader sees; `faults` fail the gate without belonging to a row."""

    title: str
    status: str
    rows: Sequence[SheetRow]
    summary: Sequence[str]
    warnings: Sequence[str]
    headings: Sequence[str] = ()
    faults: Sequence[str] = ()

    @property
    def level(self) -> Level:
        return _LEVELS[self.status]

    @property
    def loud(self) -> list[SheetRow]:
        """The rows that somebody has to see."""
        return [row for row in self.rows if row.level.colour]

    @property
    def quiet(self) -> list[SheetRow]:
        return [row for row in self.rows if not row.level.colour]


def sheet_of_judgement(judgement: Judgement) -> Sheet:
    return Sheet(
        title="kvbench gate compare",
        status=judgement.status,
        headings=("base", "candidate", "effect", "95% interval", "margin"),
        rows=[_row(row) for row in judgement.rows],
        summary=_summary(judgement),
        faults=judgement.faults,
        warnings=judgement.warnings,
    )


def sheet_of_rules(report: RulesReport) -> Sheet:
    meant = f" for the config {report.config}" if report.config else ""
    return Sheet(
        title=f"kvbench gate rules {report.run}",
        status=report.verdict,
        rows=[SheetRow(each.verdict, "rule", each.rule, (), each.reason, each.command) for each in report.results],
        summary=[f"{len(report.results)} rules{meant}: {_counts(result.verdict for result in report.results)}"],
        warnings=report.warnings,
    )


def _row(row: Row) -> SheetRow:
    figures: Sequence[str] = ()
    if row.verdict is not RowVerdict.FAILED:
        sides = _quantity(row.base, row.unit), _quantity(row.cand, row.unit)
        figures = (*sides, _percent(row.effect), _interval(row.low, row.high), f"{row.margin:.1%}")
    name = row.name if row.kind == "cell" else f"{row.kind}: {row.name}"
    return SheetRow(row.verdict, row.kind, name, figures, row.reason, row.command)


def _summary(judgement: Judgement) -> list[str]:
    counts = _counts(row.verdict for row in judgement.rows)
    lines = [f"{judgement.rounds} rounds, {len(judgement.rows)} rows: {counts or 'none'}"]
    for control in judgement.controls:
        moved = " ".join(filter(None, (_percent(control.effect), _interval(control.low, control.high))))
        how = "steady" if control.steady else f"not within {judgement.margins.control:.1%}: the machine moved"
        lines.append(f"control {control.direction}: {moved}, {how}")
    if math.isfinite(judgement.geometric_mean):
        lines.append(f"geometric mean of all cells: {_percent(judgement.geometric_mean)} (shown, not gated)")
    if judgement.slot_bias != 1:
        lines.append(f"running second in a round cost {_percent(judgement.slot_bias)}; taken off both sides")
    return lines


def _counts(verdicts: Iterable[str]) -> str:
    """Return "2 REGRESSED, 5 UNCHANGED", in the order in which they come first."""
    return ", ".join(f"{count} {verdict}" for verdict, count in Counter(verdicts).items())


def _interval(low: float, high: float) -> str:
    """Return an interval of ratios in per cent, "" where there is none."""
    return f"[{_percent(low)}, {_percent(high)}]" if math.isfinite(low) and math.isfinite(high) else ""


def _percent(ratio: float) -> str:
    """Return 1.05 as "+5.0%", 40 as "40.0x"; "" where it is not known."""
    if not math.isfinite(ratio):
        return ""
    return f"{ratio - 1:+.1%}" if ratio < _MANY_TIMES else f"{ratio:.1f}x"


def _quantity(value: float, unit: str) -> str:
    """Return a median with its unit: "12.3 us", "4.08x", "26545B"; "" where it is not known."""
    if not math.isfinite(value):
        return ""
    if unit == "bytes":
        return format_size(round(value))
    return f"{value:.2f}x" if unit == "x" else f"{value:.1f} us"
