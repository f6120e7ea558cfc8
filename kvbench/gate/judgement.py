"""The result of the gate: one tree of plain values, the source of every output."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

from kvbench.analysis.compare import Verdict
from kvbench.analysis.margins import GATE
from kvbench.cells.cell import AXES, Cell, command_of
from kvbench.errors import ExitCode
from kvbench.gate.looks import Estimate
from kvbench.gate.pairs import few
from kvbench.text import counted

Kind = Literal["cell", "caller_us", "neighbour", "rule"]


class GateVerdict(StrEnum):
    """The verdict on a row, on a rule (FAIL, PASS) or on everything: the first one that applies.

    FASTER, SLOWER, SAME and UNDECIDED are the verdicts of `kvbench.analysis.compare`.
    """

    FAILED = "FAILED"
    CONTAMINATED = "CONTAMINATED"
    SLOWER = "SLOWER"
    FAIL = "FAIL"
    UNDECIDED = "UNDECIDED"
    SAME = "SAME"
    PASS = "PASS"  # noqa: S105  # no password
    FASTER = "FASTER"

    @property
    def badness(self) -> int:
        """Smaller is worse."""
        return list(GateVerdict).index(self)

    @property
    def exit_code(self) -> ExitCode:
        return _EXIT_CODES.get(self, ExitCode.DONE)


VERDICTS: Final[Mapping[GateVerdict, str]] = {
    GateVerdict.FAILED: "a cell failed, was not verified or is missing on one side, or a rule has no cells to judge",
    GateVerdict.CONTAMINATED: "a control, which no build changes, moved: its whole interval lies outside its margin",
    GateVerdict.SLOWER: "the whole interval of the lower tenths or of the upper halves lies above its margin, at two "
    "looks in a row or at the last, and several processes of each side confirm it",
    GateVerdict.FAIL: "a rule about one run is broken",
    GateVerdict.UNDECIDED: "the interval crosses the margin, or nothing confirmed what it says, and the plan or the "
    "time has ended, or a cell was not reached or has no figure, or a rule has too few visits",
    GateVerdict.SAME: "the whole interval lies within the margin, and that of the upper halves not above its own",
    GateVerdict.PASS: "a rule about one run holds",
    GateVerdict.FASTER: "the whole interval lies below the margin, at two looks in a row or at the last, and is "
    "confirmed like SLOWER",
}
_EXIT_CODES: Final[Mapping[GateVerdict, ExitCode]] = {
    GateVerdict.FAILED: ExitCode.FAILED_CELLS,
    GateVerdict.CONTAMINATED: ExitCode.INCONCLUSIVE,
    GateVerdict.SLOWER: ExitCode.REGRESSION,
    GateVerdict.FAIL: ExitCode.REGRESSION,
    GateVerdict.UNDECIDED: ExitCode.INCONCLUSIVE,
}


def worst(verdicts: Iterable[GateVerdict]) -> GateVerdict:
    """Return the worst of some verdicts; without any, FAILED."""
    return min(verdicts, key=lambda verdict: verdict.badness, default=GateVerdict.FAILED)


@dataclass(frozen=True, slots=True)
class Row:
    """One judged item: a cell, the time of its caller, the slowdown of its neighbour, or a rule about one run.

    `base` and `cand` are medians over the rounds in `unit` (us or x; NaN if there is none), and `margin` the allowed
    difference as a fraction. `effect` is about the lower tenths of visits, `upper` about their upper halves; it can
    only make a row SLOWER, or keep it from SAME. `cells` are the cells of the base to measure for more certainty,
    unless the row is `settled`: all combinations of their values on each axis. `reason` is "" if the figures need no
    explanation. `cand_cell` is the cell on the candidate's side.
    """

    kind: Kind
    name: str
    verdict: GateVerdict
    cells: Sequence[Cell]
    effect: Estimate = field(default_factory=Estimate)
    upper: Estimate | None = None
    unit: str = "us"
    base: float = math.nan
    cand: float = math.nan
    margin: float = math.nan
    reason: str = ""
    cand_cell: Cell | None = None

    @property
    def decisive(self) -> Estimate:
        """The upper half where it alone lies above its margin, confirmed or not."""
        upper = self.upper or self.effect
        slower = Verdict.SLOWER in (upper.verdict, upper.unconfirmed)
        return upper if slower and self.effect.verdict is not Verdict.SLOWER else self.effect

    @property
    def pairs(self) -> int:
        return self.decisive.pairs

    @property
    def settled(self) -> bool:
        return self.decisive.settled and self.verdict is not GateVerdict.CONTAMINATED

    @property
    def passes(self) -> bool:
        """Whether the row lets the gate pass; an undecided one does if it excludes a slowdown beyond the margin."""
        undecided = self.verdict is GateVerdict.UNDECIDED
        return self.decisive.not_slower if undecided else self.verdict.exit_code is ExitCode.DONE

    @property
    def cell_ids(self) -> list[str]:
        return [cell.id for cell in self.cells]

    @property
    def command(self) -> str:
        """The command that measures the cells of both sides, or "" without cells."""
        if not self.cells:
            return ""
        texts = [cell.spelled_out() for cell in (*self.cells, *filter(None, [self.cand_cell]))]
        values = {name: dict.fromkeys(text for each in texts if (text := each.get(name)) is not None) for name in AXES}
        return command_of({name: ",".join(each) or None for name, each in values.items()})


@dataclass(frozen=True, slots=True)
class ControlEffect:
    """The change of a control, which no build affects.

    It is `steady` unless its interval lies outside its margin. `unsure` is how far the interval of a steady control
    reaches beyond the margin, as a fraction; infinite with too few pairs for an interval.
    """

    name: str
    effect: Estimate
    steady: bool
    unsure: float = 0.0

    @property
    def pairs(self) -> int:
        return self.effect.pairs


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome of a comparison; `rows` are sorted worst first.

    `slot_bias` is the cost of running second in a pair (a ratio; 1 if unknown). `disturbed` is the number of pairs that
    each cause spoiled; they are kept but do not count.
    """

    verdict: GateVerdict
    rows: Sequence[Row]
    controls: Sequence[ControlEffect]
    rounds: int
    slot_bias: float
    disturbed: Mapping[str, int] = field(default_factory=dict)
    margin: float = GATE.fraction
    warnings: Sequence[str] = ()

    @property
    def unsettled(self) -> list[str]:
        """A line about what keeps the verdict from saying more, if anything does."""
        if self.verdict is GateVerdict.CONTAMINATED:
            moved = ", ".join(control.name for control in self.controls if not control.steady)
            return [f"nothing is judged: the machine moved during the comparison (controls: {moved})"]
        undecided = [row for row in self.rows if row.verdict is GateVerdict.UNDECIDED and not row.passes]
        names = list(dict.fromkeys(row.name for row in undecided))
        return [f"not settled: {counted(len(names), 'cell')}: {few(names)}"] if names else []

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the command, unless it lets UNDECIDED and CONTAMINATED pass."""
        code = self.verdict.exit_code
        passes = all(row.passes for row in self.rows)
        return ExitCode.DONE if code is ExitCode.INCONCLUSIVE and passes else code

    def missing(self, pairs: int) -> dict[Cell, int]:
        """Return, for each of the base's cells, the pairs missing until every unsettled row has `pairs` pairs."""
        missing: dict[Cell, int] = {}
        for row in self.rows:
            if not row.settled and row.pairs < pairs:
                more = pairs - row.pairs
                missing |= {cell: max(missing.get(cell, 0), more) for cell in row.cells}
        return missing
