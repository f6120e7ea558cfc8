"""The comparison of runs: what differs in identity, and the times of the cells that both measured."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final

from kvbench.analysis.compare import MIN_PAIRS, Comparison, Verdict, by_chance, compare_apart
from kvbench.analysis.margins import ABSOLUTE_US, BETWEEN_RUNS, INLINE, between_runs
from kvbench.cells.axes import Role
from kvbench.cells.cell import Cell, axes_of
from kvbench.cells.units import two_digits
from kvbench.ground.text import range_text, short
from kvbench.report.model import Code, DataTable, Part, PartOrReason, Span, Text
from kvbench.report.numbers import TIMES, bytes_size, count, figure, noun
from kvbench.report.tables import INCLUDES, axis_text, clock_of, host_mark, main_path
from kvbench.report.view import SIDE_AXES, View
from kvbench.results import Scalar
from kvbench.results.between_runs import kind_of, spread_between
from kvbench.results.outcomes import Outcome
from kvbench.results.schema import EffectivePath, differing

_BESIDE: Final = axes_of(Role.BESIDE)
_MOST_ROWS: Final = 40  # worst first; summary.csv of each run has the others
_MARGIN: Final = (
    f"{BETWEEN_RUNS.fraction:.0%} ({INLINE.fraction:.0%} where the CPU copies in both), at least {ABSOLUTE_US:g} us"
)
_VERDICT: Final = (
    f"Slower, faster: the whole 95% interval of the ratio, from the medians of the visits and the spread between runs "
    f"of one build, lies beyond the margin, {_MARGIN}. Same: the whole interval lies within. Undecided: neither, or "
    f"fewer than {MIN_PAIRS} visits in a run. kvbench gate, which measures two builds in turn, detects smaller "
    "differences"
)
Pair = tuple[View, View]  # the earlier run, and the one that is held against it


@dataclass(frozen=True, slots=True)
class CellPair:
    """A cell that both runs measured, and how its times differ."""

    base: Outcome
    other: Outcome
    compared: Comparison

    @property
    def cell(self) -> Cell:
        return self.base.cell

    @property
    def change(self) -> float:
        return self.compared.ratio - 1


def make(view: View) -> PartOrReason:
    if not view.earlier or view.earlier[0].title != view.title:
        return ""
    runs = (view.earlier[0], view)
    pairs = _pairs(*runs)
    return partial(_part, runs, pairs) if pairs else ""


def _part(runs: Pair, pairs: Sequence[CellPair]) -> Part:
    base, view = runs
    origin = _origin(runs, pairs)
    findings = [_finding(f"{view.label} against {base.label}, {noun(len(pairs), 'cell')} in common", pairs)]
    return Part(findings, tables=[*_differences(runs, origin), _cell_table(runs, pairs, origin)])


def _pairs(base: View, other: View) -> list[CellPair]:
    """The cells that both measured, SLOWER ones first, largest changes for the worse first."""
    others = {outcome.cell: outcome for outcome in other.measured if outcome.times()}
    pairs = [
        CellPair(outcome, others[outcome.cell], _compare(base.title, outcome, others[outcome.cell]))
        for outcome in base.measured
        if outcome.times() and outcome.cell in others
    ]
    # By the verdict before the change: a large change that is undecided is no finding.
    return sorted(pairs, key=lambda pair: (pair.compared.verdict is not Verdict.SLOWER, -pair.change))


def _compare(card: str, base: Outcome, other: Outcome) -> Comparison:
    before, after = ([*outcome.times().values()] for outcome in (base, other))
    inline = all(main_path(outcome) == EffectivePath.CPU_INLINE for outcome in (base, other))
    spread = spread_between(card, kind_of(base.cell.backend, base.cell.blocks * base.cell.block_bytes))
    return compare_apart(before, after, between_runs(median(before), inline=inline), spread.fraction)


def _identity(view: View) -> dict[str, Scalar]:
    """A run's identity, and what else may differ: the version of kvbench, the day, the ceilings."""
    info = view.run.info
    measured = {outcome.cell.direction.value for outcome in view.measured}
    ceilings = {direction: rate for direction, rate in view.run.ceilings_gbps.items() if direction in measured}
    rates = {f"ceiling {direction} GB/s": round(rate, 1) for direction, rate in ceilings.items()}
    return {**info.identity, "kvbench": info.kvbench, "device": view.title, "date": view.date, **rates}


def _finding(subject: str, pairs: Sequence[CellPair]) -> Text:
    changes = {verdict: [pair.change for pair in pairs if pair.compared.verdict is verdict] for verdict in Verdict}
    parts = []
    for verdict in (Verdict.SLOWER, Verdict.FASTER):
        most = max(map(abs, changes[verdict]), default=0.0)
        by = f" (by up to {two_digits(100 * most)}%)" if changes[verdict] else ""
        parts.append(f"{count(len(changes[verdict]))} {verdict.lower()}{by}")
    same, undecided = (count(len(changes[verdict])) for verdict in (Verdict.SAME, Verdict.UNDECIDED))
    wrong = noun(by_chance(len(pairs)), "difference")
    chance = f"; of independent visits chance alone would show up to {wrong}" if len(pairs) > 1 else ""
    return f"{subject}: {', '.join([*parts, f'{same} the same', f'{undecided} undecided'])}{chance}."


def _differences(runs: Pair, origin: tuple[Span, ...]) -> list[DataTable]:
    """A table of what differs in the identities, none where nothing does."""
    rows = [tuple(map(short, fields)) for fields in differing(*map(_identity, runs))]
    header = ("Field", *(view.label for view in runs))
    caption = ("Everything else in the identity is the same. ", *origin)
    return [DataTable("Differences of identity", header, rows, caption=caption, left=3)] if rows else []


def _cell_table(runs: Pair, pairs: Sequence[CellPair], origin: tuple[Span, ...]) -> DataTable:
    worst = pairs[:_MOST_ROWS]
    varying = [axis for axis in SIDE_AXES if len({pair.cell.text(axis) for pair in worst}) > 1]
    rows = [_row(pair, varying) for pair in worst]
    more = f" (the {_MOST_ROWS} slowest of {count(len(pairs))})" if len(pairs) > len(worst) else ""
    labels = (f"{view.label} us" for view in runs)
    header = ("Backend", "Dir", "Stream", "Blocks", "Block size", "Other axes", *labels, "Ratio (95%)", "Verdict")
    states = INCLUDES["swap_us"]
    caption = (clock_of(runs[1], f"Medians of swap_us. {states}. "), *origin)
    notes = [_VERDICT] if differing(*map(_identity, runs)) else [_VERDICT, "The identities of both runs are the same"]
    return DataTable(f"Cell by cell, worst first{more}", header, rows, notes, caption, left=6, compared=len(pairs))


def _row(pair: CellPair, varying: Iterable[str]) -> list[str]:
    cell = pair.cell
    sides = [f"{axis} {cell.text(axis)}" for axis in varying if cell.text(axis) is not None]
    beside = filter(None, (axis_text(cell, axis) for axis in _BESIDE))
    times = [figure(outcome.us()) for outcome in (pair.base, pair.other)]
    shape = (cell.direction.value, cell.stream_state.value, count(cell.blocks), bytes_size(cell.block_bytes))
    return [pair.base.backend_name, *shape, ", ".join([*sides, *beside]), *times, *_judged(pair.compared)]


def _judged(compared: Comparison) -> tuple[str, str]:
    interval = f" ({compared.low:.3f} to {compared.high:.3f})" if math.isfinite(compared.high) else ""
    return f"{TIMES}{compared.ratio:.3f}{interval}", compared.verdict.lower()


def _origin(runs: Pair, pairs: Sequence[CellPair]) -> tuple[Span, ...]:
    sides = ([pair.base for pair in pairs], [pair.other for pair in pairs])
    origin: list[Span] = []
    for view, outcomes, end in zip(runs, sides, ("; ", "."), strict=True):
        samples = range_text([outcome.samples for outcome in outcomes], str)
        source = f"{view.heading}, {samples} samples a cell: "
        origin += [f"{view.label}: ", *host_mark(view), source, Code(view.command), view.commit, end]
    return tuple(origin)
