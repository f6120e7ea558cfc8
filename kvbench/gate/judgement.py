"""What a comparison found: one tree of plain values, which every output is made from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from kvbench.analysis.intervals import DRIFT
from kvbench.cells.cell import Cell
from kvbench.errors import ExitCode

Kind = Literal["cell", "cliff height", "cliff position", "crossover"]


class RowVerdict(StrEnum):
    """What is known of one cell, or of one part of a curve's shape; from bad to good."""

    FAILED = "FAILED"
    REGRESSED = "REGRESSED"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_JUDGED = "NOT JUDGED"
    IMPROVED = "IMPROVED"
    UNCHANGED = "UNCHANGED"


class JudgementStatus(StrEnum):
    """How a comparison ended, worst first: the first that applies."""

    FAILED = "FAILED"
    CONTAMINATED = "CONTAMINATED"
    REGRESSED = "REGRESSED"
    INCONCLUSIVE = "INCONCLUSIVE"
    PASSED = "PASSED"


# Of every status, a rule's verdict too.
EXIT_CODES: Final[Mapping[str, ExitCode]] = {
    "FAILED": ExitCode.FAILED_CELLS,
    "CONTAMINATED": ExitCode.INCONCLUSIVE,
    "REGRESSED": ExitCode.REGRESSION,
    "BROKEN": ExitCode.REGRESSION,
    "INCONCLUSIVE": ExitCode.INCONCLUSIVE,
    "PASSED": ExitCode.DONE,
    "HOLDS": ExitCode.DONE,
}
_OPEN: Final = (RowVerdict.INCONCLUSIVE, RowVerdict.REGRESSED, RowVerdict.NOT_JUDGED)


@dataclass(frozen=True, slots=True)
class Margins:
    """What is too little to count: `relative` as a fraction, `absolute_us`, and how far a control may move.

    `drift` comes on top where one side was measured after the other in every round.
    """

    relative: float = 0.03
    absolute_us: float = 2.0
    control: float = 0.02
    drift: float = DRIFT


@dataclass(frozen=True, slots=True)
class Row:
    """One thing judged: a cell, or the height or position of a cliff, or a crossover.

    `base` and `cand` are medians over the rounds in `unit` (us, x or bytes; NaN where there is none). `effect` with its
    interval [`low`, `high`] is the ratio of candidate to base, `margin` the fraction that it may differ by. `cells` are
    those of the base that have to be measured to know more; `command` measures them. `reason` is "" where the figures
    say all.
    """

    kind: Kind
    name: str
    verdict: RowVerdict
    cells: Sequence[Cell]
    command: str
    unit: str = "us"
    base: float = math.nan
    cand: float = math.nan
    effect: float = math.nan
    low: float = math.nan
    high: float = math.nan
    margin: float = math.nan
    pairs: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ControlEffect:
    """Large plain copies one way: how much longer they took in the candidate's runs (ratio), with its interval."""

    direction: str
    effect: float
    low: float
    high: float
    pairs: int
    steady: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome of a comparison; `rows` lie worst first.

    `faults` are failures of whole runs, `geometric_mean` is the suite's, of the ratios of all judged cells (shown, not
    gated), `slot_bias` what running second in a round cost (a ratio; 1 where that is not known).
    """

    status: JudgementStatus
    rows: Sequence[Row]
    controls: Sequence[ControlEffect]
    faults: Sequence[str]
    warnings: Sequence[str]
    rounds: int
    geometric_mean: float
    slot_bias: float
    margins: Margins

    def exit_code(self, *, inconclusive_passes: bool = False) -> ExitCode:
        """Return the command's exit code; INCONCLUSIVE and CONTAMINATED may be told to pass."""
        code = EXIT_CODES[self.status]
        return ExitCode.DONE if code is ExitCode.INCONCLUSIVE and inconclusive_passes else code

    def to_measure_again(self) -> list[Cell]:
        """Return the base's cells of every INCONCLUSIVE or REGRESSED row, each once; all where nothing was judged.

        A regression has to be confirmed before it fails a suite: of many cells without one, some look like one in the
        first rounds when the noise has heavy tails, and no longer do after as many again. And another guest on the link
        in two rounds of eight contaminates a comparison, while in sixteen it does not move their median.
        """
        return list(dict.fromkeys(cell for row in self.rows if row.verdict in _OPEN for cell in row.cells))

    def count(self, verdict: RowVerdict) -> int:
        return sum(row.verdict is verdict for row in self.rows)
