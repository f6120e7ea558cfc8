"""Rules against a run: what holds, what is broken, and what cannot be said because cells are missing or failed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kvbench.analysis.curves import crossovers, find_cliff, winners
from kvbench.analysis.intervals import Quartiles
from kvbench.cells.cell import AXES, Cell
from kvbench.errors import ExitCode
from kvbench.gate.pairs import QUANTITIES, CellOutcome, Outcomes, outcomes
from kvbench.gate.rules import CEILING, Bound, CrossoverBetween, NoCliff, Rule, RuleSet, Selection
from kvbench.gate.shape import MIN_SIZES, curve_command, curves_of, of_the_swap
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
    """All rules against one run, worst first; `config` is the one they are for, None for any."""

    run: str
    config: str | None
    results: Sequence[RuleResult]
    warnings: Sequence[str]

    @property
    def verdict(self) -> RuleVerdict:
        return min((result.verdict for result in self.results), key=_WORST_FIRST.index)

    @property
    def exit_code(self) -> ExitCode:
        """5 with missing or failed cells, else 1 with a broken rule, else 0."""
        return _EXIT_CODES[self.verdict]


_WORST_FIRST: Final = list(RuleVerdict)
_EXIT_CODES: Final = {
    RuleVerdict.FAILED: ExitCode.FAILED_CELLS,
    RuleVerdict.BROKEN: ExitCode.REGRESSION,
    RuleVerdict.HOLDS: ExitCode.DONE,
}


class _UnknownError(Exception):
    """A rule that cannot be judged; the message says for want of what."""


@dataclass(frozen=True, slots=True)
class _Case:
    """One of the things that a rule speaks of: `slack` is how far it is from breaking, below 0 where it is broken."""

    slack: float
    words: str
    cells: Sequence[Cell]


def check_rules(run: Run, rules: RuleSet) -> RulesReport:
    """Judge every rule by the medians of `run`."""
    found = outcomes(run)
    results = [_check(rule, found) for rule in rules.rules]
    warnings = [*run.warnings]
    if run.info.status != "complete":
        warnings.append(f"the run is {run.info.status}, not complete")
    config = run.info.spec.get("name", "")
    if rules.config not in (None, config):
        warnings.append(f"the rules are for runs of the config {rules.config}; this run is of {config or 'no config'}")
    return RulesReport(
        run=run.path.name,
        config=rules.config,
        results=sorted(results, key=lambda result: _WORST_FIRST.index(result.verdict)),
        warnings=warnings,
    )


def _check(rule: Rule, found: Outcomes) -> RuleResult:
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


def _measured(cells: Selection, found: Outcomes) -> list[CellOutcome]:
    """Return the outcomes of `cells`, skipped ones left out; raises _UnknownError without any, or when one failed."""
    chosen = [outcome for cell, outcome in found.items() if cells.hold(cell)]
    ran = [outcome for outcome in chosen if outcome.status != "skipped"]
    if not ran:
        why = f": {chosen[0].reason}" if chosen else ""
        raise _UnknownError(f"no cell of {cells} was {'measured; all are skipped' if chosen else 'asked for'}{why}")
    for outcome in ran:
        if outcome.status != "ok":
            raise _UnknownError(f"{outcome.cell.label} failed: {outcome.reason}")
    return ran


def _bound_cases(rule: Bound, found: Outcomes) -> list[_Case]:
    column, factor = QUANTITIES[rule.quantity], rule.limit.factor
    cases = []
    for outcome in _measured(rule.cells, found):
        name, value = outcome.cell.label, outcome.figure(column)
        for label, other, cells in _partners(rule, outcome, column, found):
            limit = factor * other
            if not (math.isfinite(value) and math.isfinite(limit) and limit > 0):
                raise _UnknownError(f"{name} has no {rule.quantity} to compare with {label}")
            words = f"against {factor:g}"
            if rule.limit.partner is not None:
                words = f"is {value / other:.3g} of {label} ({other:.4g}); the rule says {factor:g}"
            slack = 1 - value / limit if rule.at_least is None else value / limit - 1
            cases.append(_Case(slack, f"{name}: {rule.quantity} {value:.4g} {words}", [outcome.cell, *cells]))
    return cases


def _partners(
    rule: Bound, outcome: CellOutcome, column: str, found: Outcomes
) -> list[tuple[str, float, Sequence[Cell]]]:
    """Return what a cell is held against: its name, its quantity, and its cells."""
    partner = rule.limit.partner
    if partner is None:
        return [("the number", 1.0, [])]
    if isinstance(partner, str):
        return [(f"the {CEILING}", outcome.figure("ceiling_gbps"), [])]
    free = [axis.field for axis in AXES.values() if axis.name not in partner.axes]

    def like(other: Cell) -> bool:
        values = ((getattr(outcome.cell, field), getattr(other, field)) for field in free)
        return all(ours == theirs or ours is None or theirs is None for ours, theirs in values)

    alike = {cell: each for cell, each in found.items() if partner.hold(cell) and like(cell)}
    if not alike:
        raise _UnknownError(f"{outcome.cell.label} has no partner among {partner}")
    return [(each.cell.label, each.figure(column), [each.cell]) for each in _measured(partner, alike)]


def _cliff_cases(rule: NoCliff, found: Outcomes) -> list[_Case]:
    cases = []
    for curve in _curves(rule.cells, found):
        columns = [[outcome.figure(name) for outcome in curve] for name in ("gbps", "gbps_q1", "gbps_q3")]
        cells = [outcome.cell for outcome in curve]
        cliff = find_cliff([cell.block_bytes for cell in cells], *columns)
        if cliff is None:
            cases.append(_Case(math.inf, f"{_curve_name(cells)}: no cliff", cells))
            continue
        where = f"between {format_size(cliff.below_bytes)} and {format_size(cliff.above_bytes)}"
        words = f"{_curve_name(cells)}: {cliff.height:.2f}x {where}"
        cases.append(_Case(rule.no_cliff_above - cliff.height, words, cells))
    if not cases:
        raise _UnknownError(f"a cliff takes at least {MIN_SIZES} block sizes of {rule.cells}")
    return cases


def _crossover_cases(rule: CrossoverBetween, found: Outcomes) -> list[_Case]:
    ones, others = (_curves(rule.cells.of_backend(backend), found) for backend in rule.crossover)
    same_swap = [
        (one, other) for one in ones for other in others if of_the_swap(one[0].cell) == of_the_swap(other[0].cell)
    ]
    cases = []
    for one, other in same_swap:
        fastest = winners({one[0].cell.backend: _times(one), other[0].cell.backend: _times(other)})
        if len(fastest) < MIN_SIZES:
            continue
        cells = [outcome.cell for outcome in (*one, *other)]
        decided = {name for name in fastest.values() if name}
        spans = [(change.below_bytes, change.above_bytes) for change in crossovers(fastest)]
        where = ", ".join(f"between {format_size(low)} and {format_size(high)}" for low, high in spans)
        none = f"none, {decided.pop()} is faster" if decided else "undecided at every size"
        low_bytes, high_bytes = rule.span_bytes
        inside = bool(spans) and all(low_bytes <= low and high <= high_bytes for low, high in spans)
        cases.append(_Case(1.0 if inside else -1.0, f"{_curve_name(cells)}: {where or none}", cells))
    if not cases:
        names = " and ".join(rule.crossover)
        raise _UnknownError(f"{names} have no {MIN_SIZES} block sizes of the same swap in common")
    return cases


def _curves(cells: Selection, found: Outcomes) -> list[list[CellOutcome]]:
    """Return the outcomes that differ in block size alone, at least two of them, in its order."""
    measured = {outcome.cell: outcome for outcome in _measured(cells, found)}
    return [[measured[cell] for cell in curve] for curve in curves_of(measured)]


def _times(curve: Sequence[CellOutcome]) -> dict[int, Quartiles]:
    return {
        outcome.cell.block_bytes: Quartiles(*(outcome.figure(f"swap_us_{part}") for part in ("q1", "median", "q3")))
        for outcome in curve
    }


def _curve_name(cells: Sequence[Cell]) -> str:
    backends = "/".join(dict.fromkeys(cell.backend for cell in cells))
    cell = cells[0]
    return f"{backends} {cell.direction} N={cell.blocks} {cell.stream_state}"
