"""Rules against a run: what holds, what is broken, and what cannot be said because cells are missing or failed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kvbench.analysis.curves import crossovers, find_cliff, winners
from kvbench.analysis.intervals import Quartiles
from kvbench.cells.cell import AXES, Cell
from kvbench.errors import ExitCode
from kvbench.gate.outcomes import QUANTITIES, Outcome, outcomes
from kvbench.gate.rows import curve_command
from kvbench.gate.rules import CEILING, Bound, Cells, CrossoverBetween, NoCliff, Rule
from kvbench.gate.shape import MIN_SIZES, curves_of, of_the_swap
from kvbench.results import Run
from kvbench.units import format_size


class RuleVerdict(StrEnum):
    """What is known of a rule; from bad to good."""

    FAILED = "FAILED"
    BROKEN = "BROKEN"
    HOLDS = "HOLDS"


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One rule: its verdict, why (the worst of its cells), and the command that measures them; "" without cells."""

    rule: str
    verdict: RuleVerdict
    reason: str
    command: str


@dataclass(frozen=True, slots=True)
class RulesReport:
    """All rules against one run, worst first."""

    run: str
    results: Sequence[RuleResult]
    warnings: Sequence[str]

    @property
    def verdict(self) -> RuleVerdict:
        return min((result.verdict for result in self.results), key=_WORST_FIRST.index)

    @property
    def exit_code(self) -> ExitCode:
        """5 with missing or failed cells, else 1 with a broken rule, else 0."""
        return _EXIT_CODES[self.verdict]

    def count(self, verdict: RuleVerdict) -> int:
        return sum(result.verdict is verdict for result in self.results)


_WORST_FIRST: Final = list(RuleVerdict)
_EXIT_CODES: Final = {
    RuleVerdict.FAILED: ExitCode.FAILED_CELLS,
    RuleVerdict.BROKEN: ExitCode.REGRESSION,
    RuleVerdict.HOLDS: ExitCode.DONE,
}
Found = Mapping[Cell, Outcome]


class _UnknownError(Exception):
    """A rule that cannot be judged; the message says for want of what."""


@dataclass(frozen=True, slots=True)
class _Case:
    """One of the things that a rule speaks of: `slack` is how far it is from breaking, below 0 where it is broken."""

    slack: float
    words: str
    cells: Sequence[Cell]


def check_rules(run: Run, rules: Sequence[Rule]) -> RulesReport:
    """Judge every rule, at least one, by the medians of `run`."""
    found = outcomes(run)
    results = [_check(rule, found) for rule in rules]
    unfinished = [f"the run is {run.info.status}, not complete"] if run.info.status != "complete" else []
    return RulesReport(
        run=run.path.name,
        results=sorted(results, key=lambda result: _WORST_FIRST.index(result.verdict)),
        warnings=[*run.warnings, *unfinished],
    )


def _check(rule: Rule, found: Found) -> RuleResult:
    try:
        match rule:
            case Bound():
                cases = _bound_cases(rule, found)
            case NoCliff():
                cases = _cliff_cases(rule, found)
            case CrossoverBetween():
                cases = _crossover_cases(rule, found)
    except _UnknownError as why:
        return RuleResult(str(rule), RuleVerdict.FAILED, str(why), "")
    worst = min(cases, key=lambda case: case.slack)
    broken = sum(case.slack < 0 for case in cases)
    more = f" (broken in {broken} of {len(cases)})" if broken and len(cases) > 1 else ""
    verdict = RuleVerdict.BROKEN if broken else RuleVerdict.HOLDS
    return RuleResult(str(rule), verdict, worst.words + more, curve_command(worst.cells))


def _measured(cells: Cells, found: Found) -> list[Outcome]:
    """Return the outcomes of `cells`, skipped ones left out; raises _UnknownError without any, or when one failed."""
    chosen = [outcome for cell, outcome in found.items() if cells.hold(cell)]
    ran = [outcome for outcome in chosen if outcome.status != "skipped"]
    if not ran:
        why = f": {chosen[0].reason}" if chosen else ""
        raise _UnknownError(f"no cell of {cells} was {'measured; all are skipped' if chosen else 'asked for'}{why}")
    for outcome in ran:
        if not outcome.ok:
            raise _UnknownError(f"{outcome.cell.label} failed: {outcome.reason}")
    return ran


def _bound_cases(rule: Bound, found: Found) -> list[_Case]:
    column = QUANTITIES[rule.quantity]
    cases = []
    for outcome in _measured(rule.cells, found):
        value = outcome.figure(column)
        for label, other, cells in _partners(rule, outcome, column, found):
            limit = rule.factor * other
            if not (math.isfinite(value) and math.isfinite(limit) and limit > 0):
                raise _UnknownError(f"{outcome.cell.label} has no {rule.quantity} to compare with {label}")
            share = value / limit
            words = f"{outcome.cell.label}: {rule.quantity} {value:.4g} {_relation(rule, value, other, label)}"
            cases.append(_Case(share - 1 if rule.sign == ">=" else 1 - share, words, [outcome.cell, *cells]))
    return cases


def _relation(rule: Bound, value: float, other: float, label: str) -> str:
    if rule.against is None:
        return f"against {rule.factor:g}"
    return f"is {value / other:.3g} of {label} ({other:.4g}); the rule says {rule.factor:g}"


def _partners(rule: Bound, outcome: Outcome, column: str, found: Found) -> list[tuple[str, float, list[Cell]]]:
    if rule.against is None:
        return [("the number", 1.0, [])]
    if isinstance(rule.against, str):
        return [(f"the {CEILING}", outcome.figure("ceiling_gbps"), [])]
    against = rule.against
    free = [axis for axis in AXES.values() if axis.name != "backend" and axis.name not in against.conditions.axes]

    def like(other: Cell) -> bool:
        values = ((getattr(outcome.cell, axis.field), getattr(other, axis.field)) for axis in free)
        return all(ours == theirs or (ours is None or theirs is None) for ours, theirs in values)

    alike = {cell: partner for cell, partner in found.items() if against.hold(cell) and like(cell)}
    if not alike:
        raise _UnknownError(f"{outcome.cell.label} has no partner among {against}")
    return [(partner.cell.label, partner.figure(column), [partner.cell]) for partner in _measured(against, alike)]


def _cliff_cases(rule: NoCliff, found: Found) -> list[_Case]:
    cases = []
    for curve in _curves(_measured(rule.cells, found)):
        columns = [[outcome.figure(name) for outcome in curve] for name in ("gbps", "gbps_q1", "gbps_q3")]
        cliff = find_cliff([outcome.cell.block_bytes for outcome in curve], *columns)
        cells = [outcome.cell for outcome in curve]
        if cliff is None:
            cases.append(_Case(math.inf, f"{_curve_name(cells)}: no cliff", cells))
            continue
        where = f"between {format_size(cliff.below_bytes)} and {format_size(cliff.above_bytes)}"
        cases.append(_Case(rule.height - cliff.height, f"{_curve_name(cells)}: {cliff.height:.2f}x {where}", cells))
    if not cases:
        raise _UnknownError(f"a cliff takes at least {MIN_SIZES} block sizes of {rule.cells}")
    return cases


def _crossover_cases(rule: CrossoverBetween, found: Found) -> list[_Case]:
    ones, others = (_curves(_measured(Cells(backend, rule.conditions), found)) for backend in (rule.one, rule.other))
    cases = []
    for one in ones:
        for other in others:
            if of_the_swap(one[0].cell) != of_the_swap(other[0].cell):
                continue
            fastest = winners({rule.one: _times(one), rule.other: _times(other)})
            if len(fastest) < MIN_SIZES:
                continue
            cells = [outcome.cell for outcome in (*one, *other)]
            changes = crossovers(fastest)
            decided = {name for name in fastest.values() if name}
            none = f"none, {decided.pop()} is faster" if decided else "undecided at every size"
            spans = [(change.below_bytes, change.above_bytes) for change in changes]
            where = ", ".join(f"between {format_size(low)} and {format_size(high)}" for low, high in spans) or none
            inside = bool(spans) and all(rule.low_bytes <= low and high <= rule.high_bytes for low, high in spans)
            cases.append(_Case(1.0 if inside else -1.0, f"{_curve_name(cells)}: {where}", cells))
    if not cases:
        raise _UnknownError(f"{rule.one} and {rule.other} have no {MIN_SIZES} block sizes of the same swap in common")
    return cases


def _curves(measured: Iterable[Outcome]) -> list[list[Outcome]]:
    """Return the outcomes that differ in block size alone, at least two of them, in its order."""
    by_cell = {outcome.cell: outcome for outcome in measured}
    return [[by_cell[cell] for cell in curve] for curve in curves_of(by_cell)]


def _times(curve: Sequence[Outcome]) -> dict[int, Quartiles]:
    return {
        outcome.cell.block_bytes: Quartiles(*(outcome.figure(f"swap_us_{part}") for part in ("q1", "median", "q3")))
        for outcome in curve
    }


def _curve_name(cells: Sequence[Cell]) -> str:
    backends = "/".join(dict.fromkeys(cell.backend for cell in cells))
    cell = cells[0]
    return f"{backends} {cell.direction} N={cell.blocks} {cell.stream_state}"
