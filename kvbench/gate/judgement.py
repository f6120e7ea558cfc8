"""What the gate found: one tree of plain values, which every output is made from."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec

from kvbench.analysis.margins import CONTROL, GATE
from kvbench.cells.cell import AXES, Cell, command_of
from kvbench.errors import ExitCode

Kind = Literal["cell", "neighbour", "cliff height", "cliff position", "crossover", "rule"]


class GateVerdict(StrEnum):
    """What is known of a row, of a rule (BROKEN, HOLDS) or of everything together: the first that is there.

    FASTER, SLOWER, SAME and UNDECIDED are those of `kvbench.analysis.compare`.
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
        return _BY_BADNESS.index(self)

    @property
    def exit_code(self) -> ExitCode:
        return _EXIT_CODES.get(self, ExitCode.DONE)


VERDICTS: Final[Mapping[GateVerdict, str]] = {
    GateVerdict.FAILED: "a cell failed, was not verified or is missing on one side, or a rule has no cells to judge",
    GateVerdict.CONTAMINATED: "the controls moved, which no build changes: nothing is judged",
    GateVerdict.SLOWER: "the whole interval lies above the margin, at two looks in a row or at the last",
    GateVerdict.BROKEN: "a rule about one run does not hold",
    GateVerdict.UNDECIDED: "the interval crosses the margin, and the plan or the time has ended",
    GateVerdict.SAME: "the whole interval lies within the margin",
    GateVerdict.HOLDS: "a rule about one run holds",
    GateVerdict.FASTER: "the whole interval lies below the margin, at two looks in a row or at the last",
}
_BY_BADNESS: Final = list(GateVerdict)
_EXIT_CODES: Final[Mapping[GateVerdict, ExitCode]] = {
    GateVerdict.FAILED: ExitCode.FAILED_CELLS,
    GateVerdict.CONTAMINATED: ExitCode.INCONCLUSIVE,
    GateVerdict.SLOWER: ExitCode.REGRESSION,
    GateVerdict.BROKEN: ExitCode.REGRESSION,
    GateVerdict.UNDECIDED: ExitCode.INCONCLUSIVE,
}


def worst(verdicts: Iterable[GateVerdict]) -> GateVerdict:
    """Return the worst of some verdicts; what nobody measured has FAILED."""
    return min(verdicts, key=lambda verdict: verdict.badness, default=GateVerdict.FAILED)


class Margins(msgspec.Struct, frozen=True, kw_only=True):
    """What is too little to count. A field is an option of `kvbench gate compare`."""

    margin: Annotated[
        float, msgspec.Meta(ge=0, le=10, description=f"a smaller change is none, a fraction (default: {GATE.fraction})")
    ] = GATE.fraction
    absolute_us: Annotated[
        float, msgspec.Meta(ge=0, le=1e9, description="a change of fewer microseconds is none (default: 2)")
    ] = 2.0
    control_margin: Annotated[
        float,
        msgspec.Meta(
            ge=0,
            le=10,
            description=f"where large plain copies move more, nothing is judged (default: {CONTROL.fraction})",
        ),
    ] = CONTROL.fraction


@dataclass(frozen=True, slots=True)
class Row:
    """One thing judged: a cell, its neighbour's slowdown, a cliff's height or position, a crossover, a rule about one
    run.

    `base` and `cand` are medians over the rounds in `unit` (us, x or bytes; NaN where there is none). `effect` with its
    interval [`low`, `high`] is the ratio of candidate to base, `margin` the fraction that it may differ by. `cells` are
    those of the base that have to be measured to know more, unless it is `settled`. `reason` is "" where the figures
    say all.
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

    @property
    def command(self) -> str:
        """The command that measures the cells, "" without any."""
        return curve_command(self.cells) if self.cells else ""


def curve_command(cells: Sequence[Cell]) -> str:
    """Return the command that measures these cells, which are all combinations of their values on each axis."""
    strings = [cell.spelled_out() for cell in cells]
    values = {name: dict.fromkeys(value for cell in strings if (value := cell.get(name)) is not None) for name in AXES}
    return command_of({name: ",".join(own) or None for name, own in values.items()})


@dataclass(frozen=True, slots=True)
class ControlEffect:
    """What no build changes, such as large plain copies one way: how much longer the candidate's took (a ratio)."""

    name: str
    effect: float
    low: float
    high: float
    pairs: int
    steady: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome of a comparison; `rows` lie worst first.

    `faults` are failures of whole runs, `geometric_mean` is the suite's, of the ratios of all judged cells (shown, not
    gated), `slot_bias` what running second in a pair cost (a ratio; 1 where that is not known). `disturbed` is how many
    pairs each cause spoiled: they are kept and count for nothing.
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
        """Return the command's exit code; UNDECIDED and CONTAMINATED may be told to pass."""
        code = self.verdict.exit_code
        return ExitCode.DONE if code is ExitCode.INCONCLUSIVE and inconclusive_passes else code

    def missing(self, pairs: int) -> dict[Cell, int]:
        """Return how many pairs each of the base's cells lacks until every row that is not settled has so many."""
        missing: dict[Cell, int] = {}
        for row in self.rows:
            if not row.settled and row.pairs < pairs:
                missing |= {cell: max(missing.get(cell, 0), pairs - row.pairs) for cell in row.cells}
        return missing

    def count(self, verdict: GateVerdict) -> int:
        return sum(row.verdict is verdict for row in self.rows)
