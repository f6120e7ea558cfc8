"""The judge of a comparison: from the visits of two sides, measured in turn, to one tree of plain values.

The checks, in order: every cell ran and verified on both sides (else FAILED); large plain copies, which no build
changes, did not move (else CONTAMINATED); only then the times, by `kvbench.analysis.compare`, at looks that are planned
before any is measured. A slow machine is therefore never a regression, and a broken copy never a timing.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Literal

import numpy as np

from kvbench.analysis.compare import MIN_PAIRS, Floats, Verdict, middle_of, paired_interval, verdict_of
from kvbench.analysis.margins import ABSOLUTE_US, CONTROL, CONTROL_CPU, FEW_PAIRS, GATE, INLINE, UPPER_HALF
from kvbench.cells.cell import AXES, Cell, command_of
from kvbench.gate.pairs import BASE, CPU, Pairs, VisitValues, first_few, without_slot_bias
from kvbench.ground.errors import ExitCode
from kvbench.ground.text import counted
from kvbench.results.columns import NO_FIGURE


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the first `pairs` pairs; its interval misses the true value with probability `alpha`."""

    pairs: int
    alpha: float


# Together the looks have an error probability of 5%, like one look at 95%: docs/design/gate.md has the rates.
PLAN: Final = (Look(12, 0.01), Look(24, 0.01), Look(40, 0.015), Look(60, 0.015))


@dataclass(frozen=True, slots=True)
class Estimate:
    """The ratio of the candidate's time to the base's with its interval, and a verdict.

    It is `settled` if more pairs cannot change the verdict, and `not_slower` if the interval excludes a slowdown beyond
    the margin. `unconfirmed` is a verdict, SLOWER or FASTER, that several processes of each side did not confirm, so
    that it is UNDECIDED. `above` says that all that was measured lies above the margin: the interval, or, by far, the
    pairs that are too few for one. Without pairs the ratio is NaN; with too few the interval is (0, inf).
    """

    ratio: float = math.nan
    low: float = 0.0
    high: float = math.inf
    verdict: Verdict = Verdict.UNDECIDED
    settled: bool = False
    pairs: int = 0
    not_slower: bool = False
    unconfirmed: Verdict | None = None
    above: bool = False

    @property
    def reason(self) -> str:
        if self.low == 0 and math.isinf(self.high):
            pairs = "1 pair is" if self.pairs == 1 else f"{self.pairs} pairs are"
            return f"{pairs} too few for an interval" + (", but far above the margin" if self.above else "")
        if self.unconfirmed:
            return f"{self.unconfirmed}, but not in several processes of each side"
        if self.above and self.verdict is Verdict.UNDECIDED:
            return "above the margin, but not by more than the controls may have moved"
        return ""


def look_at(logs: Floats, processes: Floats, margin: float, unsure: float = 0.0) -> Estimate:
    """The estimate of the first look that settles the verdict, or of the last look that has enough pairs.

    SAME settles at once. SLOWER and FASTER require two consecutive looks, or the last one, because heavy tails rarely
    cause a false verdict twice. If there are fewer pairs than the next look needs, they are used for a last look.
    A NaN among `logs` is no pair; `margin` is a log ratio. By `unsure`, a log ratio too, a machine may have moved
    without being noticed: SLOWER and FASTER must exceed the margin by as much. `processes` has a number for each of
    `logs` that increases with new processes of both sides: two processes of one build can differ in all their visits,
    so SLOWER and FASTER require several, and that the centre of the pairs of each lies beyond the margin (of each six
    pairs, where processes made fewer).
    """
    paired = np.isfinite(logs)
    logs, processes = logs[paired], processes[paired]
    earlier = None
    for look in PLAN:
        first = logs[: look.pairs]
        if not first.size:
            break
        centre, low, high = paired_interval(first, 1 - look.alpha)
        verdict = verdict_of(low, high, margin)
        if verdict not in (Verdict.SAME, verdict_of(low, high, margin + unsure)):
            verdict = Verdict.UNDECIDED
        short, last = first.size < look.pairs, look is PLAN[-1]
        confirmed = _confirmed(verdict, first, margin, processes)
        repeated = verdict in (Verdict.SAME, earlier) or (last and verdict is not Verdict.UNDECIDED)
        settles = repeated and confirmed
        if settles or short or last:
            final, unconfirmed = (verdict, None) if confirmed else (Verdict.UNDECIDED, verdict)
            settled, not_slower = settles and not short, bool(high <= margin)
            above = _far_above(first, margin) if math.isinf(high) else bool(low > margin)
            ratio, low, high = np.exp([centre, low, high]).tolist()
            return Estimate(ratio, low, high, final, settled, first.size, not_slower, unconfirmed, above)
        earlier = None if verdict is Verdict.UNDECIDED else verdict
    return Estimate()


def _far_above(logs: Floats, margin: float) -> bool:
    """Whether pairs that are too few for an interval all lie above the margin, the fewer the further.

    One pair of equal builds often does so by chance. That all of a few do, and together by `FEW_PAIRS`, is no chance.
    """
    return bool(logs.size * (logs.min() - margin) > math.log(FEW_PAIRS))


def _confirmed(verdict: Verdict, logs: Floats, margin: float, processes: Floats) -> bool:
    """Whether several processes confirm a verdict about some pairs, if it needs to be confirmed."""
    if verdict in (Verdict.SAME, Verdict.UNDECIDED):
        return True
    numbers = processes[: logs.size]
    groups = [logs[:0]]
    for process in np.unique(numbers):
        # Where a plug-in has a worker of its own, every round has new processes: those in a row are judged together.
        before = groups.pop() if groups[-1].size < MIN_PAIRS else logs[:0]
        groups.append(np.append(before, logs[numbers == process]))
    centres = [paired_interval(group)[0] for group in groups]
    return len(centres) > 1 and all(verdict_of(centre, centre, margin) is verdict for centre in centres)


Kind = Literal["cell", "caller_us", "neighbour", "rule"]


class GateVerdict(StrEnum):
    """The verdict on a row, on a rule (FAIL, PASS) or on everything: the first one that applies.

    FASTER, SLOWER, SAME and UNDECIDED are the verdicts of `kvbench.analysis.compare`; UNCONFIRMED is what is undecided
    although all that was measured lies above the margin.
    """

    FAILED = "FAILED"
    CONTAMINATED = "CONTAMINATED"
    SLOWER = "SLOWER"
    FAIL = "FAIL"
    UNCONFIRMED = "UNCONFIRMED"
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


_EXIT_CODES: Final[Mapping[GateVerdict, ExitCode]] = {
    GateVerdict.FAILED: ExitCode.FAILED_CELLS,
    GateVerdict.CONTAMINATED: ExitCode.INCONCLUSIVE,
    GateVerdict.SLOWER: ExitCode.REGRESSION,
    GateVerdict.FAIL: ExitCode.REGRESSION,
    GateVerdict.UNCONFIRMED: ExitCode.INCONCLUSIVE,
    GateVerdict.UNDECIDED: ExitCode.INCONCLUSIVE,
}


def worst(verdicts: Iterable[GateVerdict]) -> GateVerdict:
    """The worst of some verdicts; without any, FAILED: nothing ran."""
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
        upper = self.upper
        if upper is None or self.effect.verdict is Verdict.SLOWER:
            return self.effect
        # One burst of other work lifts few upper halves far above: they need an interval.
        above = upper.above and math.isfinite(upper.high) and not self.effect.above
        return upper if above or upper.verdict is Verdict.SLOWER else self.effect

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
        if not self.cells:
            return ""
        cells = [*self.cells, *filter(None, [self.cand_cell])]
        values = {name: dict.fromkeys(filter(None, (cell.text(name) for cell in cells))) for name in AXES}
        return command_of({name: ",".join(texts) or None for name, texts in values.items()})


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
        """Lines about what keeps the verdict from saying more, if anything does."""
        if self.verdict is GateVerdict.CONTAMINATED:
            moved = ", ".join(control.name for control in self.controls if not control.steady)
            return [f"nothing is judged: the machine moved during the comparison (controls: {moved})"]
        lines = []
        for verdict, what in (
            (GateVerdict.UNCONFIRMED, "slower, but not confirmed"),
            (GateVerdict.UNDECIDED, "not settled"),
        ):
            rows = [row for row in self.rows if row.verdict is verdict and not row.passes]
            names = list(dict.fromkeys(row.name for row in rows))
            lines += [f"{what}: {counted(len(names), 'cell')}: {first_few(names)}"] if names else []
        return lines

    @property
    def may_pass(self) -> bool:
        """Whether `--inconclusive=pass` lets it pass: UNDECIDED and CONTAMINATED, which say nothing against it."""
        return self.verdict in (GateVerdict.UNDECIDED, GateVerdict.CONTAMINATED)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the command, unless it lets UNDECIDED and CONTAMINATED pass."""
        code = self.verdict.exit_code
        return ExitCode.DONE if code is ExitCode.INCONCLUSIVE and all(row.passes for row in self.rows) else code

    def missing(self, pairs: int) -> dict[Cell, int]:
        """The pairs that each of the base's cells lacks until every unsettled row has `pairs` pairs."""
        missing: dict[Cell, int] = {}
        for row in self.rows:
            if not row.settled and row.pairs < pairs:
                more = pairs - row.pairs
                missing |= {cell: max(missing.get(cell, 0), more) for cell in row.cells}
        return missing


# The field of the visits that a kind of rows judges.
_JUDGED: Final[Mapping[Kind, str]] = {"cell": "fast_us", "caller_us": "caller_us", "neighbour": "slowdown"}
# From log ratios by round, and a margin that is a log ratio too.
_Estimator = Callable[[Floats, float], Estimate]


@np.errstate(all="ignore")  # an untrusted side can report any time
def judge(pairs: Pairs, margin: float = GATE.fraction, earlier: Judgement | None = None) -> Judgement:
    """Judge paired visits; a change below the fraction `margin` is none, and rows settled `earlier` stay the same."""
    controls = [_control(name, logs, pairs.order, margin) for name, logs in pairs.controls.items()]
    # By the control that may have moved the most: the cells may have moved as much.
    unsure = max((math.log1p(control.unsure) for control in controls), default=0.0)
    logs, bias = without_slot_bias(_logs(pairs.visits["fast_us"]), pairs.order)
    before = [row for row in (earlier.rows if earlier else ()) if row.verdict is not GateVerdict.FAILED]
    settled = {(row.kind, row.name): row for row in before if row.settled}
    moved = not all(control.steady for control in controls)
    rows = []
    for row in _rows(pairs, logs, margin, lambda logs, allowed: look_at(logs, pairs.processes, allowed, unsure)):
        if row.verdict is not GateVerdict.FAILED:  # a machine that moved breaks no copy
            row = settled.get((row.kind, row.name), row)
            row = replace(row, verdict=GateVerdict.CONTAMINATED) if moved else row
        rows.append(row)
    return Judgement(
        verdict=worst(row.verdict for row in rows),
        rows=sorted(rows, key=_badness),
        controls=controls,
        rounds=len(pairs.order),
        slot_bias=_ratio(bias),
        disturbed=pairs.disturbed,
        margin=margin,
    )


def _control(name: str, logs: Floats, order: Floats, margin: float) -> ControlEffect:
    logs, _ = without_slot_bias(logs[None], order)
    values = logs[np.isfinite(logs)]
    if not values.size:
        return ControlEffect(name, Estimate(), steady=True)
    centre, low, high = paired_interval(values)
    # A wider margin of the cells widens that of the large copies.
    copies = CONTROL.fraction * max(1.0, margin / GATE.fraction)
    allowed = math.log1p(CONTROL_CPU.fraction if name == CPU else copies)
    steady = low <= allowed and high >= -allowed
    unsure = _ratio(max(0.0, high - allowed, -allowed - low)) - 1 if steady else 0.0
    effect = Estimate(_ratio(centre), _ratio(low), _ratio(high), pairs=values.size)
    return ControlEffect(name, effect, steady, unsure)


def _rows(pairs: Pairs, logs: Floats, margin: float, look: _Estimator) -> Iterator[Row]:
    """Yield a row for every cell, for the time of its caller, and for its neighbour; `logs` are those of the cells."""
    first_look_over = len(pairs.order) >= PLAN[0].pairs
    for index, cell in enumerate(pairs.cells):
        visits = pairs.visits[:, index]
        partner = pairs.names.get(cell, cell)
        name = cell.label if cell.backend == partner.backend else f"{cell.label} -> {partner.backend}"
        row = Row("cell", name, GateVerdict.UNDECIDED, [cell], cand_cell=partner)
        if cell in pairs.failed:
            final = Estimate(settled=True)  # more pairs cannot mend it
            yield replace(row, verdict=GateVerdict.FAILED, effect=final, reason=pairs.failed[cell])
        elif cell in pairs.unmeasured:
            yield replace(row, reason="not measured within the time limit")
        elif sides := pairs.no_figure.get(cell):
            # What the base has not either is no loss; a later visit may have a figure.
            nothing = Estimate(settled=first_look_over, not_slower=BASE in sides)
            yield replace(row, effect=nothing, reason=f"no figure of {' and '.join(sides)}: {NO_FIGURE}")
        else:
            allowed = _cell_margin(visits["fast_us"][0], margin, inline=cell in pairs.inline)
            path = pairs.paths.get(cell, "copied by the CPU" if cell in pairs.inline else "")
            yield from _rows_of(replace(row, reason=path), visits, logs[index], allowed, math.log1p(margin), look)


def _rows_of(
    cell_row: Row, visits: VisitValues, logs: Floats, margin: float, relative: float, look: _Estimator
) -> Iterator[Row]:
    """Yield the rows of a cell with figures, whose visits have the shape (2, rounds); margins are log ratios."""
    for kind, field_of_kind in _JUDGED.items():
        values = visits[field_of_kind]
        # A slowdown is of iterations alone and beside swaps in one visit, so that what the machine does between the
        # visits of the two sides is in neither: its margin is the relative one alone.
        unit, allowed = ("x", relative) if kind == "neighbour" else ("us", margin)
        base, cand = middle_of(values[0]), middle_of(values[1])
        row = replace(cell_row, kind=kind, unit=unit, base=base, cand=cand, margin=_ratio(allowed) - 1)
        if kind == "cell":
            upper = look(_logs(visits["upper_us"]), allowed + math.log1p(UPPER_HALF.fraction))
            yield _decided(replace(row, effect=look(logs, allowed), upper=upper))
        elif np.isfinite(values).any():
            yield _decided(replace(row, effect=look(_logs(values), allowed), reason=""))


def _decided(row: Row) -> Row:
    """The row with the verdict of its estimates; their reason stands before the one that it has."""
    reason = row.decisive.reason
    if row.decisive is row.upper:
        reason = f"upper half: {reason or 'slower beyond its margin'}"
    undecided = row.decisive.verdict is Verdict.UNDECIDED
    verdict = GateVerdict.UNCONFIRMED if undecided and row.decisive.above else GateVerdict(row.decisive.verdict)
    return replace(row, verdict=verdict, reason="; ".join(filter(None, (reason, row.reason))))


def _cell_margin(base_us: Floats, margin: float, *, inline: bool) -> float:
    """The margin of a cell as a log ratio, from the times of the base.

    It is the largest of the relative margin, the margin of copies by the CPU if the CPU copies the cell on both sides,
    and a microsecond divided by the base's median.
    """
    relative = max(margin, INLINE.fraction if inline else 0.0)
    absolute = ABSOLUTE_US / middle_of(base_us)
    return math.log1p(relative if math.isnan(absolute) else max(relative, absolute))


def _logs(sides: Floats) -> Floats:
    return np.asarray(np.log(sides[1]) - np.log(sides[0]))


def _ratio(log_ratio: float) -> float:
    return float(np.exp(log_ratio))


def _badness(row: Row) -> tuple[int, float]:
    ratio = row.decisive.ratio
    return row.verdict.badness, 0.0 if math.isnan(ratio) else -abs(np.log(ratio))
