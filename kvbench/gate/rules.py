"""Rules about one run, in a file of TOML tables: which hold, which are broken, undecided, or without cells.

A figure and its limit are compared visit by visit: a rule holds or is broken where the whole 95% interval says so.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from kvbench.analysis.compare import MIN_PAIRS, Visits, median_interval, paired_interval
from kvbench.analysis.curves import MIN_HEIGHT, find_cliff
from kvbench.cells.cell import AXES, Cell
from kvbench.cells.filter import Filter, parse_filters
from kvbench.cells.units import format_size
from kvbench.gate.judgement import GateVerdict, Row, worst
from kvbench.ground.errors import ExitCode, MismatchError, UsageError, brief
from kvbench.ground.files import read_toml, shipped_folder
from kvbench.ground.text import NAME_PATTERN, check_keys, convert, hint, located
from kvbench.results import Run
from kvbench.results.columns import TIMES
from kvbench.results.outcomes import NOT_VERIFIED, Outcome, grouped

_SHARE: Final = "ceiling_share"
# Of cells beside a step: its quantities, and the fields of a visit's cost. Those in ms for each GB can be 0 or less, so
# that they are compared by differences, others by ratios.
_COSTS: Final = {
    "lost_ms_per_gb": "lost_ms_per_gb",
    "thread_ms_per_gb": "thread_ms_per_gb",
    "neighbour_slowdown": "slowdown",
    "swaps_beside_gbps": "gbps",
}
_DIFFER: Final = ("lost_ms_per_gb", "thread_ms_per_gb")
_RATES: Final = ("gbps", "swaps_beside_gbps")
QUANTITIES: Final = ("gbps", _SHARE, *TIMES, *_COSTS)
MIN_SIZES: Final = 2
CEILING: Final = "ceiling"
_MAX_RULES: Final = 1000
_FACTOR: Final = re.compile(r"\d{1,9}(?:\.\d{1,9})?")
KEYS: Final = {
    "cells": "the cells of the rule, in the grammar of `--filter`",
    "at_least": "lower bound on each of these cells: a number, or a factor followed by `ceiling` or by a filter",
    "at_most": "upper bound on each of these cells, written in the same way",
    "quantity": "the quantity that the bound is on, as the median of the cell (default: gbps)",
    "no_cliff_above": f"no curve of these cells has a higher cliff; a jump below {MIN_HEIGHT} is not a cliff",
}
LARGEST: Final = 1e9
_DEFAULT_QUANTITY: Final = "gbps"
_A_FILTER: Final = msgspec.Meta(extra={"meaning": 'a filter such as "backend=sm,direction=h2d"'})
_A_LIMIT: Final = msgspec.Meta(
    extra={"meaning": 'a number, "0.8 ceiling", or a factor and a filter such as "2 backend=batched"'}
)
_A_QUANTITY: Final = msgspec.Meta(
    pattern=f"^({'|'.join(QUANTITIES)})\\Z", extra={"meaning": f"one of {', '.join(QUANTITIES)}"}
)
_A_CONFIG: Final = msgspec.Meta(
    pattern=f"^{NAME_PATTERN}\\Z", extra={"meaning": 'the name of a config, such as "cliff"'}
)


@dataclass(frozen=True, slots=True)
class JudgedCell:
    """The outcome of a cell, with the median GB/s of the ceiling in its direction, NaN without one."""

    outcome: Outcome
    ceiling_gbps: float

    @property
    def cell(self) -> Cell:
        return self.outcome.cell

    @property
    def no_figure_reason(self) -> str:
        """Why the cell has no figure that can be judged, or ""."""
        status, reason = self.outcome.status, self.outcome.reason
        if status == "ok":
            return "" if self.outcome.verified_bytes else f"failed: {NOT_VERIFIED}"
        return f"{'has no figure' if status == 'no figure' else status}: {reason}"

    def figure(self, quantity: str) -> float:
        if quantity in _COSTS:
            visits = self.visits(quantity)
            return median(visits.values()) if visits else math.nan
        if quantity in TIMES:
            return self.outcome.us(quantity)
        return self.outcome.gbps / (self.ceiling_gbps if quantity == _SHARE else 1.0)

    def visits(self, quantity: str) -> Visits:
        if quantity in _COSTS:
            return {number: getattr(cost, _COSTS[quantity]) for number, cost in self.outcome.costs.items()}
        if quantity in TIMES:
            return self.outcome.times(quantity)
        scale = 1e3 * (self.ceiling_gbps if quantity == _SHARE else 1.0)
        return {number: self.cell.swap_bytes / us / scale for number, us in self.outcome.times().items()}


JudgedCells = Mapping[Cell, JudgedCell]


def measured_in(run: Run) -> dict[Cell, JudgedCell]:
    ceilings = run.ceilings_gbps
    outcomes = run.outcomes.items()
    return {cell: JudgedCell(outcome, ceilings.get(cell.direction, math.nan)) for cell, outcome in outcomes}


# Its name, its figure, and its outcome unless it is a number.
Partner = tuple[str, float, JudgedCell | None]


class UnknownError(Exception):
    """A rule that cannot be judged; the message says what is missing."""


class Selection:
    def __init__(self, filters: Sequence[Filter]) -> None:
        self.filters = filters

    def __str__(self) -> str:
        return ",".join(map(str, self.filters))

    def selected(self, by_cell: JudgedCells) -> JudgedCells:
        holding = (cell for cell in by_cell if all(condition.holds(cell) for condition in self.filters))
        return {cell: by_cell[cell] for cell in holding}

    def measured(self, by_cell: JudgedCells) -> JudgedCells:
        """These cells, in order, without skipped ones; raises UnknownError if none is left or one failed."""
        chosen = self.selected(by_cell)
        ran = {cell: judged for cell, judged in chosen.items() if judged.outcome.status != "skipped"}
        if not ran:
            missing = "measured; all are skipped" if chosen else "requested"
            why = next((f": {judged.outcome.reason}" for judged in chosen.values()), "")
            raise UnknownError(f"no cell of {self} was {missing}{why}")
        for judged in ran.values():
            if judged.no_figure_reason:
                raise UnknownError(f"{judged.cell.label} {judged.no_figure_reason}")
        return ran

    def curves(self, by_cell: JudgedCells) -> list[list[JudgedCell]]:
        """The curves: cells that differ only in block size, `MIN_SIZES` or more, by size; raises as above."""
        groups = grouped(self.measured(by_cell).values(), lambda judged: replace(judged.cell, block_bytes=1))
        ordered = [sorted(group, key=lambda judged: judged.cell.block_bytes) for group in groups.values()]
        return [curve for curve in ordered if len(curve) >= MIN_SIZES]


class Limit:
    """The limit of a quantity: `factor` times that of `partner`, or just `factor` if `partner` is None.

    `partner` is `CEILING` (of the cell's direction), or a selection: its cells with the same values on every axis that
    the selection does not set.
    """

    def __init__(self, factor: float, partner: Selection | str | None = None) -> None:
        self.factor = factor
        self.partner = partner

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.factor:.9g}", str(self.partner or ""))))

    def partners(self, judged: JudgedCell, quantity: str, by_cell: JudgedCells) -> list[Partner]:
        """The partners of a cell; raises UnknownError if it has none."""
        if self.partner is None:
            return [("the number", 1.0, None)]
        if isinstance(self.partner, str):
            return [(f"the {CEILING}", judged.ceiling_gbps, None)]
        named = {condition.axis for condition in self.partner.filters}
        free = [axis.field for axis in AXES.values() if axis.name not in named]

        def is_alike(candidate: Cell) -> bool:
            values = ((getattr(judged.cell, field), getattr(candidate, field)) for field in free)
            # An axis that a backend does not have tells nothing apart.
            return all(value == other or value is None or other is None for value, other in values)

        partners = {cell: partner for cell, partner in self.partner.selected(by_cell).items() if is_alike(cell)}
        if not partners:
            raise UnknownError(f"{judged.cell.label} has no partner among {self.partner}")
        ran = self.partner.measured(partners)
        return [(cell.label, partner.figure(quantity), partner) for cell, partner in ran.items()]


# A case of a rule: its distance from breaking the rule (below 0: broken, NaN: undecided), the same as text, its cells.
# (One rule can have many cases.)
Case = tuple[float, str, Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class RulesReport:
    """The results of all rules for one run, worst first, one row each; `config` is that of the runs, or None."""

    run: str
    config: str | None
    rows: Sequence[Row]
    warnings: Sequence[str]

    @property
    def verdict(self) -> GateVerdict:
        return worst(row.verdict for row in self.rows)

    @property
    def exit_code(self) -> ExitCode:
        return self.verdict.exit_code


def _verdict(slack: float) -> GateVerdict:
    if math.isnan(slack):
        return GateVerdict.UNDECIDED
    return GateVerdict.FAIL if slack < 0 else GateVerdict.PASS


class Bound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`quantity` of each of `cells` must be at least, or at most, the limit."""

    cells: Annotated[Selection, _A_FILTER]
    at_least: Annotated[Limit, _A_LIMIT] | None = None
    at_most: Annotated[Limit, _A_LIMIT] | None = None
    quantity: Annotated[str, _A_QUANTITY] = _DEFAULT_QUANTITY

    def __post_init__(self) -> None:
        if self.limit.partner == CEILING and self.quantity not in _RATES:
            raise ValueError(
                f"quantity: {self.quantity} cannot be compared with the ceiling, which is GB/s; leave quantity out"
            )

    def __str__(self) -> str:
        return f"{self.cells}: {self.quantity} {'at most' if self.at_least is None else 'at least'} {self.limit}"

    @property
    def limit(self) -> Limit:
        limit = self.at_most if self.at_least is None else self.at_least
        assert limit is not None  # `read_rule` selects Bound by this key
        return limit

    def cases(self, by_cell: JudgedCells) -> list[Case]:
        factor = self.limit.factor
        cases: list[Case] = []
        for cell, judged in self.cells.measured(by_cell).items():
            value, visits = judged.figure(self.quantity), judged.visits(self.quantity)
            for label, reference, partner in self.limit.partners(judged, self.quantity, by_cell):
                limit = factor * reference
                if not (math.isfinite(value) and math.isfinite(limit) and (limit > 0 or self.quantity in _DIFFER)):
                    raise UnknownError(f"{cell.label} has no {self.quantity} to compare with {label}")
                text = f"against {factor:g}"
                if self.limit.partner is not None and self.quantity in _DIFFER:
                    text = f"against {limit:.3g}, {factor:g} of {label}"
                elif self.limit.partner is not None:
                    text = f"is {value / reference:.3g} of {label} ({reference:.4g}); the rule says {factor:g}"
                others = dict.fromkeys(visits, reference) if partner is None else partner.visits(self.quantity)
                common = sorted(visits.keys() & others.keys())
                slack, why = self._slack([(visits[number], factor * others[number]) for number in common])
                cells = [cell] if partner is None else [cell, partner.cell]
                cases.append((slack, f"{cell.label}: {self.quantity} {value:.4g} {text}{why}", cells))
        return cases

    def _slack(self, visits: Sequence[tuple[float, float]]) -> tuple[float, str]:
        """The slack, from the value and the limit of every visit, and why it is undecided, or ""."""
        sign = 1 if self.at_least is not None else -1
        if self.quantity in _DIFFER:
            return _slack_of([sign * (value - limit) for value, limit in visits])
        return _slack_of([sign * math.log(value / limit) for value, limit in visits])


def _slack_of(kept_by: Sequence[float]) -> tuple[float, str]:
    """The slack of what every visit keeps by this much, below 0 if it breaks it, and why it is undecided."""
    if len(kept_by) < MIN_PAIRS:
        return math.nan, f"; {_too_few(len(kept_by))}"
    _, low, high = paired_interval(np.array(kept_by))
    if low < 0 <= high:
        return math.nan, "; its 95% interval reaches across the limit"
    return low if low >= 0 else high, ""


def _too_few(visits: int) -> str:
    return f"{visits} visits; a verdict requires {MIN_PAIRS}: measure with --rounds {MIN_PAIRS}"


class NoCliff(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """No curve of `cells` must have a cliff higher than `no_cliff_above`."""

    cells: Annotated[Selection, _A_FILTER]
    no_cliff_above: Annotated[float, msgspec.Meta(ge=MIN_HEIGHT, le=LARGEST)]

    def __str__(self) -> str:
        return f"{self.cells}: no cliff above {self.no_cliff_above:g}"

    def cases(self, by_cell: JudgedCells) -> list[Case]:
        cases: list[Case] = []
        for curve in self.cells.curves(by_cell):
            cell, cells = curve[0].cell, [judged.cell for judged in curve]
            slack, text = self._judge([judged.visits("gbps") for judged in curve], cells)
            name = f"{cell.backend} {cell.direction} N={cell.blocks} {cell.stream_state}"
            cases.append((slack, f"{name}: {text}", cells))
        if not cases:
            raise UnknownError(f"a cliff requires at least {MIN_SIZES} block sizes of {self.cells}")
        return cases

    def _judge(self, visits: Sequence[Visits], cells: Sequence[Cell]) -> tuple[float, str]:
        """The slack and the text for a curve; `visits` are the GB/s of its cells."""
        if (fewest := min(map(len, visits))) < MIN_PAIRS:
            return math.nan, _too_few(fewest)
        rates = [[*by_round.values()] for by_round in visits]
        low, high = zip(*map(median_interval, rates), strict=True)
        sizes = [cell.block_bytes for cell in cells]
        cliff = find_cliff(sizes, [*map(median, rates)], low, high)
        if cliff is None:
            return math.inf, "no cliff"
        below, above = (visits[sizes.index(size)] for size in (cliff.below_bytes, cliff.above_bytes))
        first, second = (below, above) if cliff.rises else (above, below)
        common = first.keys() & second.keys()
        slack, why = _slack_of([math.log(self.no_cliff_above * first[number] / second[number]) for number in common])
        between = f"between {format_size(cliff.below_bytes)} and {format_size(cliff.above_bytes)}"
        return slack, f"{cliff.height:.2f}x {between}{why}"


# A statement about the cells of one run: `str` gives it, and `cases` what it says of the run, at least one case, or
# raises UnknownError if there is nothing to judge.
GateRule = Bound | NoCliff


def _check(rule: GateRule, by_cell: JudgedCells) -> Row:
    try:
        cases = rule.cases(by_cell)
    except UnknownError as why:
        return Row("rule", str(rule), GateVerdict.FAILED, [], reason=str(why))
    verdicts = [_verdict(slack) for slack, _, _ in cases]
    verdict = worst(verdicts)
    decisive = [case for case in cases if _verdict(case[0]) is verdict]
    _, text, cells = min(decisive, key=lambda case: case[0])
    broken = verdicts.count(GateVerdict.FAIL)
    more = f" (broken in {broken} of {len(cases)})" if broken and len(cases) > 1 else ""
    return Row("rule", str(rule), verdict, cells, reason=text + more)


@dataclass(frozen=True, slots=True)
class RuleSet:
    """One or more rules, and the name of the config whose runs they are for, or None for any config."""

    rules: Sequence[GateRule]
    config: str | None = None


def check_rules(run: Run, rules: RuleSet) -> RulesReport:
    """Judge every rule by the visits of `run`; raises MismatchError for rules of another config."""
    config = run.info.spec.get("name", "")
    if rules.config not in (None, config):
        raise MismatchError(
            f"the rules are for runs of the config {rules.config}; {brief(str(run.path))} is of "
            f"{brief(str(config)) or 'no config'}; measure that config, or use other rules with --rules"
        )
    by_cell = measured_in(run)
    rows = sorted((_check(rule, by_cell) for rule in rules.rules), key=lambda row: row.verdict.badness)
    warnings = [*run.warnings]
    if run.info.status != "complete":
        warnings.append(f"the run is {run.info.status}, not complete")
    return RulesReport(run.path.name, rules.config, rows, warnings)


_KINDS: Final[dict[str, type[GateRule]]] = {"at_least": Bound, "at_most": Bound, "no_cliff_above": NoCliff}


class _RulesFile(msgspec.Struct, forbid_unknown_fields=True):
    rule: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    config: Annotated[str, _A_CONFIG] | None = None


def shipped_rules() -> Path:
    return shipped_folder() / "rules" / "gate.toml"


def load_rules(path: Path) -> RuleSet:
    """Read a file of rules; raises UsageError, which names the file, the rule's number, the key and what is right."""
    with located(f"--rules {path}"):
        if not path.exists():
            raise UsageError("file not found; a file of rules is TOML, for example configs/rules/gate.toml")
        file: _RulesFile = convert(read_toml(path), _RulesFile)
        if len(file.rule) > _MAX_RULES:
            raise UsageError(f"rule: {len(file.rule)} rules; the maximum is {_MAX_RULES}")
        rules = []
        for number, table in enumerate(file.rule, start=1):
            with located(f"rule {number}"):
                rules.append(read_rule(table))
    return RuleSet(rules, file.config)


def read_rule(table: Mapping[str, object]) -> GateRule:
    """Read one `[[rule]]`; raises UsageError, which names the key, the value and what would be right."""
    check_keys(table, list(KEYS))
    kinds = [key for key in _KINDS if key in table]
    if len(kinds) != 1:
        raise UsageError(f"a rule needs exactly one of {', '.join(_KINDS)}; it has {' and '.join(kinds) or 'none'}")
    rule: GateRule = convert(table, _KINDS[kinds[0]], read=_read)
    return rule


def _read(kind: Any, value: object) -> Any:
    try:
        return _limit(value) if kind is Limit else Selection(parse_filters(_text(value)))
    except UsageError as error:
        raise ValueError(str(error)) from None


def _limit(value: object) -> Limit:
    """Read a number, or a factor followed by `ceiling` or a filter; raises UsageError and ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LARGEST:
        return Limit(float(value))
    factor, *rest = _text(value).split(maxsplit=1)
    if not _FACTOR.fullmatch(factor) or float(factor) == 0:
        raise ValueError("Expected a factor")
    partner = rest[0].strip() if rest else None
    if partner is not None and partner != CEILING and not re.search("[<>=]", partner):
        raise ValueError(f"{brief(partner)}: {hint(partner, [CEILING], 'write ceiling, or a filter')}")
    return Limit(float(factor), partner if partner in (None, CEILING) else Selection(parse_filters(_text(partner))))


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("Expected a text")  # begins like msgspec's errors, which `convert` completes
    return value
