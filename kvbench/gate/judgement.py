"""The result of the gate: one tree of plain values, the source of every output."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec

from kvbench.analysis.margins import CONTROL, GATE
from kvbench.cells.cell import AXES, Cell, command_of
from kvbench.errors import ExitCode

Kind = Literal["cell", "submission", "neighbour", "rule"]


class GateVerdict(StrEnum):
    """The verdict on a row, on a rule (BROKEN, HOLDS) or on everything: the first one that applies.

    FASTER, SLOWER, SAME and UNDECIDED are the verdicts of `kvbench.analysis.compare`.
    """

    FAILED = "FAILED"
    CONTAMINATED = "CONTAMINATED"
    SLOWER = "SLOWER"
    BROKEN = "BROKEN"
    UNDECIDED = "UNDECIDED"
    SAME = "SAME"
    HOLDS = "HOLDS"
    FASTER = "FASTER"

    @property
    def badness(self) -> int:
        """Smaller is worse."""
        return list(GateVerdict).index(self)

    @property
    def exit_code(self) -> ExitCode:
        return _EXIT_CODES.get(self, ExitCode.DONE)


VERDICTS: Final[Mapping[GateVerdict, str]] = {
    GateVerdict.FAILED: "a cell failed, was not verified, has no figure or is missing on one side, or a rule has no "
    "cells to judge",
    GateVerdict.CONTAMINATED: "a control, which no build changes, moved: its whole interval lies outside its margin",
    GateVerdict.SLOWER: "the whole interval lies above the margin, at two looks in a row or at the last; where visits "
    "were made in turn, several processes of each side confirm it",
    GateVerdict.BROKEN: "a rule about one run does not hold",
    GateVerdict.UNDECIDED: "the interval crosses the margin, or nothing confirmed what it says, and the plan or the "
    "time has ended; such a row passes if its interval excludes a slowdown beyond the margin, or if it is about a "
    "submission",
    GateVerdict.SAME: "the whole interval lies within the margin",
    GateVerdict.HOLDS: "a rule about one run holds",
    GateVerdict.FASTER: "the whole interval lies below the margin, at two looks in a row or at the last, and is "
    "confirmed like SLOWER",
}
_EXIT_CODES: Final[Mapping[GateVerdict, ExitCode]] = {
    GateVerdict.FAILED: ExitCode.FAILED_CELLS,
    GateVerdict.CONTAMINATED: ExitCode.INCONCLUSIVE,
    GateVerdict.SLOWER: ExitCode.REGRESSION,
    GateVerdict.BROKEN: ExitCode.REGRESSION,
    GateVerdict.UNDECIDED: ExitCode.INCONCLUSIVE,
}


def worst(verdicts: Iterable[GateVerdict]) -> GateVerdict:
    """Return the worst of some verdicts; without any, FAILED."""
    return min(verdicts, key=lambda verdict: verdict.badness, default=GateVerdict.FAILED)


class Margins(msgspec.Struct, frozen=True, kw_only=True):
    """The margins below which a change does not count. Each field is an option of `kvbench gate compare`."""

    margin: Annotated[
        float, msgspec.Meta(ge=0, le=10, description=f"ignore changes below this fraction (default: {GATE.fraction})")
    ] = GATE.fraction
    absolute_us: Annotated[
        float, msgspec.Meta(ge=0, le=1e9, description="ignore changes below this many microseconds (default: 1)")
    ] = 1.0
    control_margin: Annotated[
        float,
        msgspec.Meta(
            ge=0,
            le=10,
            description=f"judge nothing if control copies move more than this fraction (default: {CONTROL.fraction})",
        ),
    ] = CONTROL.fraction


@dataclass(frozen=True, slots=True)
class Row:
    """One judged item: a cell, its submission, the slowdown of its neighbour, or a rule about one run.

    `base` and `cand` are medians over the rounds in `unit` (us or x; NaN if there is none). `effect`, with its
    interval [`low`, `high`], is the ratio of candidate to base, and `margin` the allowed difference as a fraction.
    `cells` are the cells of the base to measure for more certainty, unless the row is `settled`: all combinations of
    their values on each axis. `not_slower` is true if the interval excludes a slowdown beyond the margin, `unconfirmed`
    if several processes of each side did not confirm that the row is SLOWER or FASTER, so that it is UNDECIDED.
    `reason` is "" if the figures need no explanation.
    """

    kind: Kind
    name: str
    verdict: GateVerdict
    cells: Sequence[Cell]
    unit: str = "us"
    base: float = math.nan
    cand: float = math.nan
    effect: float = math.nan
    low: float = math.nan
    high: float = math.nan
    margin: float = math.nan
    pairs: int = 0
    reason: str = ""
    settled: bool = True
    not_slower: bool = False
    unconfirmed: bool = False

    @property
    def gates(self) -> GateVerdict:
        """The verdict as far as it affects the whole.

        An undecided row passes if it is not slower, and if it is a submission: what the CPU does scatters more than
        copies do, and a gate that other work on the host stops is switched off.
        """
        passes = self.not_slower or self.kind == "submission"
        return GateVerdict.SAME if self.verdict is GateVerdict.UNDECIDED and passes else self.verdict

    @property
    def command(self) -> str:
        """The command that measures the cells, or "" without cells."""
        if not self.cells:
            return ""
        texts = [cell.spelled_out() for cell in self.cells]
        values = {name: dict.fromkeys(value for own in texts if (value := own.get(name)) is not None) for name in AXES}
        return command_of({name: ",".join(own) or None for name, own in values.items()})


@dataclass(frozen=True, slots=True)
class ControlEffect:
    """The change of a control, which no build affects: the ratio of the candidate's time to the base's.

    It is `steady` unless its interval lies outside its margin. `unsure` is how far the interval of a steady control
    reaches beyond the margin, as a fraction; infinite with too few pairs for an interval.
    """

    name: str
    effect: float
    low: float
    high: float
    pairs: int
    steady: bool
    unsure: float = 0.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome of a comparison; `rows` are sorted worst first.

    `faults` are failures of whole runs. `geometric_mean` is that of the ratios of all judged cells (shown, not gated).
    `slot_bias` is the cost of running second in a pair (a ratio; 1 if unknown). `disturbed` is the number of pairs that
    each cause spoiled; they are kept but do not count.
    """

    verdict: GateVerdict
    rows: Sequence[Row]
    controls: Sequence[ControlEffect]
    faults: Sequence[str]
    warnings: Sequence[str]
    rounds: int
    geometric_mean: float
    slot_bias: float
    disturbed: Mapping[str, int] = field(default_factory=dict)
    margins: Margins = field(default_factory=Margins)

    def exit_code(self, *, inconclusive_passes: bool = False) -> ExitCode:
        """Return the exit code of the command; `inconclusive_passes` lets UNDECIDED and CONTAMINATED pass."""
        code = self.verdict.exit_code
        return ExitCode.DONE if code is ExitCode.INCONCLUSIVE and inconclusive_passes else code

    def missing(self, pairs: int) -> dict[Cell, int]:
        """Return, for each of the base's cells, the pairs missing until every unsettled row has `pairs` pairs."""
        missing: dict[Cell, int] = {}
        for row in self.rows:
            if not row.settled and row.pairs < pairs:
                missing |= {cell: max(missing.get(cell, 0), pairs - row.pairs) for cell in row.cells}
        return missing
