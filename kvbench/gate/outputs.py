"""What the gate says of its outcome: a sheet, and its outputs on a terminal or log, in Markdown, on GitHub, in JSON.

Each escapes for itself.
"""

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from kvbench.gate.judgement import ControlEffect, Estimate, GateVerdict, Judgement, Kind, Row
from kvbench.gate.rules import RulesReport
from kvbench.ground.errors import UsageError
from kvbench.ground.files import or_usage_error, write_whole
from kvbench.ground.text import counted, folded
from kvbench.report.markdown import bullets, code, escape, table

# From this ratio on, a factor is easier to read than a percentage.
_MANY_TIMES: Final = 3.0
# Where the machine may have moved by as much as this, beyond the margin of its control, no change can be found.
_TOO_UNSURE: Final = 1.0
# The verdicts that speak against the candidate.
_AGAINST: Final = (GateVerdict.FAILED, GateVerdict.SLOWER, GateVerdict.FAIL, GateVerdict.UNCONFIRMED)


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
    def listed(self) -> list[Row]:
        """The rows for a terminal: what changed, failed or is broken, and every undecided rule."""
        # A comparison ends with a line about its undecided cells; a rule is undecided by itself.
        verdicts = (*_AGAINST, GateVerdict.FASTER)
        rule_verdicts = (*verdicts, GateVerdict.UNDECIDED)
        return [row for row in self.rows if row.verdict in (rule_verdicts if row.kind == "rule" else verdicts)]


def sheet_of_judgement(judgement: Judgement, seconds: float = 0.0, command: str = "") -> Sheet:
    """The sheet of a comparison that took `seconds` and that `command` repeats."""
    worst = judgement.rows[0] if judgement.rows else None
    lead = [f"worst: {worst.verdict} {name_of_row(worst)}: {message(worst)}"] if worst else []
    counts = _counts_text(row.verdict for row in judgement.rows)
    cells = set(chain.from_iterable(row.cells for row in judgement.rows))
    lead.append(f"cells: {len(cells)} on both sides; rows: {counts or 'none'}")
    lead.append(f"time: {seconds / 60:.1f} minutes, {judgement.rounds} rounds")
    return Sheet(
        title="kvbench gate compare",
        verdict=judgement.verdict,
        lead=[*lead, *filter(None, [command and f"to repeat: {command}"])],
        rows=judgement.rows,
        details=_details(judgement),
        warnings=judgement.warnings,
    )


def sheet_of_rules(report: RulesReport) -> Sheet:
    config = f" for the config {report.config}" if report.config else ""
    return Sheet(
        title=f"kvbench gate rules {report.run}",
        verdict=report.verdict,
        lead=[f"{len(report.rows)} rules{config}: {_counts_text(row.verdict for row in report.rows)}"],
        rows=report.rows,
        details=[],
        warnings=report.warnings,
    )


def name_of_row(row: Row) -> str:
    return row.name if row.kind in ("cell", "rule") else f"{row.kind}: {row.name}"


def message(row: Row) -> str:
    """The row in one sentence, without its name.

    "base 80.0 us, cand 83.2 us; by pairs +1.1% (95%: -3.8 to +6.0%), margin 3%". The effect is that of the pairs, so it
    can differ from the ratio of the medians.
    """
    parts = []
    if row.kind != "rule" and row.verdict is not GateVerdict.FAILED and math.isfinite(row.margin):
        effect = _effect_text(row.effect)
        by_pairs = ", ".join(filter(None, [effect and f"by pairs {effect}", f"margin {100 * row.margin:.3g}%"]))
        upper = _effect_text(row.upper) if row.upper is not None else ""
        parts = [_sides_text(row), by_pairs, upper and f"upper half {upper}"]
    undecided = row.verdict is GateVerdict.UNDECIDED and row.pairs
    passes = "not slower" if undecided and row.passes else ""
    return "; ".join(filter(None, (*parts, passes, row.reason)))


def _details(judgement: Judgement) -> list[str]:
    lines = [
        f"control {control.name}: {_effect_text(control.effect)}, {_steadiness_text(control)}"
        for control in judgement.controls
    ]
    if judgement.disturbed:
        causes = ", ".join(f"{cause}: {count}" for cause, count in judgement.disturbed.items())
        lines.append(f"disturbed pairs are recorded but not counted ({causes})")
    if judgement.slot_bias != 1:
        how = "slower" if judgement.slot_bias > 1 else "faster"
        lines.append(
            f"the second visit of a pair was {abs(judgement.slot_bias - 1):.1%} {how}; both sides are corrected"
        )
    return lines


def _steadiness_text(control: ControlEffect) -> str:
    if not control.steady:
        return "outside its margin: the machine moved"
    if control.unsure >= _TOO_UNSURE:
        return "unsure: too few or too uneven to find a change"
    unsure = f"{control.unsure:.1%}"
    return "steady" if unsure == "0.0%" else f"unsure: a change must exceed its margin by {unsure}"


def _counts_text(verdicts: Iterable[str]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in Counter(verdicts).items())


def _effect_text(estimate: Estimate) -> str:
    """A ratio and its interval: "+1.1% (95%: -3.8 to +6.0%)", without what is unknown."""
    ratio, low, high = map(_percent_text, (estimate.ratio, estimate.low, estimate.high))
    interval = ""
    if estimate.low > 0 and math.isfinite(estimate.high):
        interval = f"(95%: {low.removesuffix('%') if high.endswith('%') else low} to {high})"
    return " ".join(filter(None, (ratio, interval)))


def _percent_text(ratio: float) -> str:
    """A ratio of 1.05 as "+5.0%", of 40 as "40.0x"; "" if unknown."""
    if not math.isfinite(ratio):
        return ""
    return f"{ratio - 1:+.1%}" if ratio < _MANY_TIMES else f"{ratio:.1f}x"


def _sides_text(row: Row) -> str:
    """The medians of both sides: "base 80.0 us, cand 83.2 us", "base 1.20x, cand 1.26x", or "" if unknown."""
    if not (math.isfinite(row.base) and math.isfinite(row.cand)):
        return ""
    form = "{:.2f}x" if row.unit == "x" else "{:.1f} us"
    return f"base {form.format(row.base)}, cand {form.format(row.cand)}"


SUMMARY_VARIABLE: Final = "GITHUB_STEP_SUMMARY"
# https://docs.github.com/actions: a comment has at most 65 536 characters, a step summary 1 MiB.
COMMENT_BYTES: Final = 65_536
# Room for the heading of the table, what folds it, the line about hidden rows, and the separators.
_FRAME_BYTES: Final = 1024
_MOST_NOTES: Final = 20
_HEADER: Final = ("verdict", "what", "finding", "command")
_COLOURS: Final[Mapping[str, str]] = {
    GateVerdict.FAILED: "bold red",
    GateVerdict.SLOWER: "red",
    GateVerdict.FAIL: "red",
    GateVerdict.UNCONFIRMED: "bold yellow",
    GateVerdict.UNDECIDED: "yellow",
    GateVerdict.FASTER: "green",
}


class Effect(msgspec.Struct, frozen=True):
    """The ratio of the candidate's value to the base's, and the ends of its 95% interval; unknown values are null."""

    ratio: float | None
    low: float | None
    high: float | None


class RowData(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a comparison: medians of both sides in `unit`, the margin as a fraction, and the effect.

    `effect` is of the lower tenths of visits, `upper` of their upper halves. `pairs` is the number of pairs behind the
    verdict, `command` measures the cells of the row, `cells` are their ids on the base's side. Unknown values are null.
    """

    kind: Kind
    name: str
    verdict: GateVerdict
    unit: str
    base: float | None
    cand: float | None
    margin: float | None
    effect: Effect
    upper: Effect | None
    pairs: int
    settled: bool
    passes: bool
    reason: str
    command: str
    cell_ids: list[str] = msgspec.field(name="cells")


class ControlData(msgspec.Struct, frozen=True, kw_only=True):
    """A control, which no build changes. Unless it is `steady`, its interval lies outside its margin; `unsure` is how
    far the interval of a steady one reaches beyond it, null with too few pairs for an interval.
    """

    name: str
    effect: Effect
    pairs: int
    steady: bool
    unsure: float | None


class ComparisonData(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="comparison"):
    """The outcome of `kvbench gate compare`, with its rows sorted worst first."""

    schema: int = 1
    verdict: GateVerdict
    exit_code: int
    rounds: int
    slot_bias: float | None
    disturbed: dict[str, int]
    margin: float
    controls: list[ControlData]
    rows: list[RowData]
    warnings: list[str]


class RuleData(msgspec.Struct, frozen=True, kw_only=True):
    """A rule, its verdict, the reason, and the command that measures its cells."""

    name: str = msgspec.field(name="rule")
    verdict: GateVerdict
    reason: str
    command: str


class RulesData(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="rules"):
    """The outcome of `kvbench gate rules`, with its rules sorted worst first."""

    schema: int = 1
    verdict: GateVerdict
    exit_code: int
    run: str
    config: str | None
    rows: list[RuleData] = msgspec.field(name="rules")
    warnings: list[str]


GateData = ComparisonData | RulesData


@dataclass(frozen=True, slots=True)
class Destinations:
    """The requested outputs: JSON on stdout, a folder for the files, a step summary for GitHub.

    Raises UsageError if GitHub's summary cannot be written, before anything is measured or judged.
    """

    as_json: bool = False
    folder: Path | None = None
    github: bool = False

    def __post_init__(self) -> None:
        if self.github and not os.environ.get(SUMMARY_VARIABLE):
            raise UsageError(f"--github: {SUMMARY_VARIABLE} is not set; use --github only in GitHub Actions")

    def deliver(self, sheet: Sheet, data: GateData) -> None:
        """Write the outcome to all requested outputs; raises UsageError for a file that cannot be written."""
        json_text = as_json(data)
        if self.folder is not None:
            with or_usage_error(f"--out {self.folder} cannot be written"):
                self.folder.mkdir(parents=True, exist_ok=True)
                write_whole(self.folder / "gate.json", json_text.encode())
                write_whole(self.folder / "gate.md", page(sheet).encode())
        if self.github:
            summary, failed = Path(os.environ[SUMMARY_VARIABLE]), f"--github: {SUMMARY_VARIABLE} cannot be written"
            with or_usage_error(failed), summary.open("a", encoding="utf-8") as file:
                file.write(page(sheet))
        if self.as_json:
            sys.stdout.write(json_text)
        else:
            _show(sheet)


def _show(sheet: Sheet) -> None:
    console = Console()

    def show(text: str, verdict: str = "") -> None:
        for line in folded(text, terminal=console.is_terminal).splitlines():
            console.print(Text(line, _COLOURS.get(verdict, "")), soft_wrap=True)

    show(f"{sheet.title}: {sheet.verdict}", sheet.verdict)
    for text in (*sheet.lead, *(f"warning: {text}" for text in sheet.warnings)):
        show(text)
    for row in sheet.listed:
        show(f"{row.verdict}  {name_of_row(row)}", row.verdict)
        for text in filter(None, (message(row), row.command)):
            show(f"  {text}")
    for text in sheet.details:
        show(text)


def page(sheet: Sheet) -> str:
    """Markdown that fits into a comment on GitHub: the verdict and its lead, and all else folded.

    The worst rows are kept, the others counted.
    """
    parts = [
        f"## {escape(sheet.title)}: {escape(sheet.verdict)}",
        bullets(map(escape, sheet.lead)),
        bullets(f"warning: {escape(text)}" for text in sheet.warnings[:_MOST_NOTES]),
    ]
    left = COMMENT_BYTES - sum(map(_size, (*parts, bullets(sheet.details)))) - _FRAME_BYTES
    fitting: list[list[str]] = []
    for row in sheet.rows:
        command = code(row.command) if row.command else ""
        cells = [escape(row.verdict), escape(name_of_row(row)), escape(message(row)), command]
        left -= _size(f"| {' | '.join(cells)} |")
        if left < 0:
            break
        fitting.append(cells)
    hidden = len(sheet.rows) - len(fitting)
    folded_parts = [
        table(_HEADER, fitting, left=len(_HEADER)) if fitting else "",
        bullets(map(escape, sheet.details)),
        f"{counted(hidden, 'row')} more than fit here; gate.json has all." if hidden else "",
    ]
    inside = "\n\n".join(filter(None, folded_parts))
    parts.append(f"<details><summary>{counted(len(sheet.rows), 'row')}</summary>\n\n{inside}\n\n</details>")
    return "\n\n".join(filter(None, parts)) + "\n"


def _size(text: str) -> int:
    return len(text.encode()) + 2


def data_of(outcome: Judgement | RulesReport) -> GateData:
    kind: type[GateData] = ComparisonData if isinstance(outcome, Judgement) else RulesData
    return msgspec.convert(outcome, kind, from_attributes=True)


def as_json(data: GateData) -> str:
    """ASCII text, which is also safe on a terminal; a number that is not finite becomes null."""
    return json.dumps(json.loads(msgspec.json.encode(data)), indent=2) + "\n"
