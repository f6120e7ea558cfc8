"""Neighbours: what swaps cost the work that runs beside them, against the GB/s that they move."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, product
from statistics import fmean, median
from typing import Final

import numpy as np

from kvbench.analysis.compare import Verdict, Visits, compare_visits, verdict_of
from kvbench.analysis.curves import pareto_edge
from kvbench.analysis.margins import IN_TURN, MIN_P90, MIN_P99
from kvbench.cells.axes import Neighbour, Role
from kvbench.cells.blocks import is_whole
from kvbench.cells.cell import Cell, axes_of
from kvbench.cells.units import two_digits
from kvbench.report.model import Chart, DataTable, LinePlot, Part, PartOrReason, PlotAxis, PlotPanel, Strong, Text
from kvbench.report.numbers import TIMES, bytes_size, count, figure, noun
from kvbench.report.tables import (
    SIGNS,
    axis_text,
    chart_text,
    comma_separated,
    format_cell,
    line_of,
    measured_table,
    method_of,
)
from kvbench.report.view import DIRECTIONS, View, grouped, is_measured
from kvbench.results import Beside
from kvbench.results.outcomes import Outcome, slowdown_of
from kvbench.text import ends

# GB/s at which the methods of swapping are compared.
RATES: Final = (10, 20, 40)
# Findings do not tell smaller slowdowns apart.
_LEAST: Final = 0.01
_CLOCK: Final = "GB/s: bytes over the whole time, host clock. Slower: mean time of an iteration beside swaps over alone"
_DETAILS: Final = f"{_CLOCK}. Median, p90 and p99: of the iterations, us alone → beside swaps"
_WORK: Final = {
    "prefill": "A prefill layer",
    "decode": "A decode step",
    "idle": "A GPU thread that only waits",
}
_COLUMNS: Final = (str(Neighbour.DECODE), str(Neighbour.PREFILL))
# Head of a column -> a percentile of the iterations of all visits, and how many of these it needs.
_TIMES: Final = {"Median, us": (50, 1), "p90, us": (90, MIN_P90), "p99, us": (99, MIN_P99)}
# What tells methods of swapping apart, beside the backend and its SM count.
_METHOD_AXES: Final = [name for name in axes_of(Role.SHAPE, Role.SIDE, Role.BESIDE) if name not in ("sms", "neighbour")]


@dataclass(frozen=True)
class Slowed:
    """A method of swapping beside a neighbour: its names, without and with its SM count, and what it costs."""

    outcome: Outcome
    method: str
    label: str

    @property
    def cell(self) -> Cell:
        return self.outcome.cell

    @property
    def order(self) -> tuple[str, int]:
        return self.method, self.cell.sms or 0

    @property
    def _turns(self) -> list[Beside]:
        return [self.outcome.beside[number] for number in self.outcome.costs]

    @cached_property
    def slowdown(self) -> tuple[float, float, float]:
        """The slowdown of the neighbour by the mean of its iterations, and its interval."""
        return slowdown_of(self.outcome.costs.values())

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.slowdown[2])

    @property
    def alone_us(self) -> float:
        """The mean time of the neighbour's iterations without swaps, median of the visits."""
        return median(fmean(turns.neighbour_alone_us) for turns in self._turns)

    @property
    def gbps(self) -> float:
        """GB/s of the swaps beside the neighbour."""
        return median(cost.gbps for cost in self.outcome.costs.values())

    @property
    def alone_gbps(self) -> float:
        rates = [median(turns.swaps_alone_gbps) for turns in self.outcome.beside.values() if turns.swaps_alone_gbps]
        return median(rates) if rates else math.nan

    def times_us(self, percent: int, least: int) -> tuple[float, float]:
        """A percentile of the neighbour's iterations alone and beside swaps, NaN with fewer iterations than `least`."""
        alone = chain.from_iterable(turns.neighbour_alone_us for turns in self._turns)
        beside = chain.from_iterable(turns.neighbour_beside_us for turns in self._turns)
        return _percentile([*alone], percent, least), _percentile([*beside], percent, least)

    def slowdown_at(self, head: str) -> float:
        """The slowdown by a percentile of the iterations."""
        alone_us, beside_us = self.times_us(*_TIMES[head])
        return beside_us / alone_us


def _percentile(times_us: Sequence[float], percent: int, least: int) -> float:
    return float(np.quantile(times_us, percent / 100)) if len(times_us) >= least else math.nan


def make(view: View) -> PartOrReason:
    tried = [
        outcome
        for outcome in view.outcomes
        if outcome.status != "skipped" and outcome.cell.neighbour != Neighbour.NONE and is_whole(outcome.cell)
    ]
    slowed = [outcome for outcome in tried if outcome.costs]
    if not slowed:
        return "it needs swaps that were measured beside a neighbour"
    return partial(_part, view, _methods(tried), _methods(slowed))


def _methods(outcomes: Sequence[Outcome]) -> list[Slowed]:
    """Name the methods beside each neighbour: a backend with the axes that vary among its cells there."""
    slowed = []
    by_neighbour = grouped(outcomes, lambda outcome: outcome.cell.neighbour)
    apart = {neighbour: _varying(of_neighbour) for neighbour, of_neighbour in by_neighbour.items()}
    for outcome in outcomes:
        cell = outcome.cell
        settings = [axis_text(cell, name) for name in apart[cell.neighbour]]
        method, label = (comma_separated(name, *settings) for name in (cell.backend, method_of(cell)))
        slowed.append(Slowed(outcome, method, label))
    return slowed


def _varying(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the axes on which cells of one backend and direction differ."""
    backends = grouped((outcome.cell for outcome in outcomes), lambda cell: (cell.backend, cell.direction))
    return [
        name
        for name in _METHOD_AXES
        if any(len({cell.text(name) for cell in cells}) > 1 for cells in backends.values())
    ]


def _part(view: View, tried: Sequence[Slowed], slowed: Sequence[Slowed]) -> Part:
    shown = _one_workload(slowed)
    tables, found = [_table(view, shown)], dict[str, list[str]]()
    names = dict.fromkeys(str(one.cell.neighbour) for one in tried)
    for name, direction in product(names, DIRECTIONS):
        of_work, points = (_beside(every, name, direction) for every in (tried, slowed))
        tables += [_details(view, f"{name}, {direction}", of_work, _edge(points))] if of_work else []
        decided = [point for point in points if point.has_interval]
        if decided and name in _COLUMNS:
            rate, text = _least_cost(direction, decided)
            found.setdefault(f"{_WORK[name]} beside swaps{rate} takes", []).append(text)
    drawn = next((name for name in _COLUMNS if any(str(point.cell.neighbour) == name for point in shown)), "")
    charts = [_chart(view, drawn, [point for point in shown if str(point.cell.neighbour) == drawn])] if drawn else []
    return Part([f"{work} {', '.join(texts)}." for work, texts in found.items()], charts, tables)


def _beside(slowed: Iterable[Slowed], neighbour: str, direction: str) -> list[Slowed]:
    return [one for one in slowed if (str(one.cell.neighbour), one.cell.direction) == (neighbour, direction)]


def _one_workload(points: Sequence[Slowed]) -> list[Slowed]:
    """Return the cells of the swaps that most were measured with: what moves other bytes cannot stand beside them."""
    by_workload = grouped(points, lambda point: _workload(point.cell))
    return max(by_workload.values(), key=len)


def _workload(cell: Cell) -> tuple[object, ...]:
    return cell.blocks, cell.block_bytes, cell.pattern, cell.host_pattern


def _table(view: View, points: Sequence[Slowed]) -> DataTable:
    """Return a line for each method of swapping in a direction, with what it costs each kind of work."""
    measured = {str(point.cell.neighbour) for point in points}
    names: list[str] = [name for name in _COLUMNS if name in measured] or sorted(measured)
    tails = {name: _tail([point for point in points if str(point.cell.neighbour) == name]) for name in names}
    order = sorted(points, key=lambda point: (DIRECTIONS.index(point.cell.direction), point.order))
    body: list[list[Text]] = []
    for (direction, label), of_method in grouped(order, lambda point: (point.cell.direction, point.label)).items():
        by_name = {str(point.cell.neighbour): point for point in of_method}
        gbps = ends([point.gbps for point in of_method], figure)
        slower = (text for name in names for text in _slower(by_name.get(name), tails[name]))
        body.append([direction.value, label, gbps, *slower])
    heads = (head for name in names for head in (f"{name} slower", f"{name} {tails[name].partition(',')[0]}"))
    header = ("Dir", "Method", "GB/s beside", *heads)
    cell = order[0].cell
    title = f"Slowdown of work beside swaps of {count(cell.blocks)} {TIMES} {bytes_size(cell.block_bytes)}"
    outcomes = [point.outcome for point in points]
    return measured_table(view, outcomes, _CLOCK, title, header, body, left=2)


def _tail(points: Sequence[Slowed]) -> str:
    """Return the highest percentile that most of these cells have the iterations for."""
    known = sum(math.isfinite(point.slowdown_at("p99, us")) for point in points)
    return "p99, us" if known > 0.5 * len(points) else "p90, us"


def _slower(point: Slowed | None, tail: str) -> tuple[str, str]:
    if point is None:
        return "", ""
    by_tail = point.slowdown_at(tail)
    return _slowdown_text(point), f"{by_tail:.2f}x" if math.isfinite(by_tail) else ""


def _slowdown_text(point: Slowed) -> str:
    return f"{SIGNS.get(_verdict(point), '')}{point.slowdown[0]:.2f}x"


def _edge(points: Sequence[Slowed]) -> set[Outcome]:
    """Return the cells on the Pareto edge, of those with the visits of a verdict."""
    known = [point for point in points if point.has_interval]
    kept = pareto_edge([point.gbps for point in known], [point.slowdown[0] for point in known])
    return {point.outcome for point, is_kept in zip(known, kept, strict=True) if is_kept}


def _details(view: View, title: str, tried: Sequence[Slowed], edge: set[Outcome]) -> DataTable:
    points = [one for one in tried if one.outcome.costs]
    times = {
        head: needs
        for head, needs in _TIMES.items()
        if any(math.isfinite(point.times_us(*needs)[1]) for point in points)
    }
    header = ("Swaps", "GB/s alone", "GB/s beside", "Slower", *times)
    body: list[list[Text]] = []
    for one in sorted(tried, key=lambda one: one.order):
        outcome = one.outcome
        if not is_measured(outcome) or not outcome.costs:
            body.append([one.label, format_cell(outcome, lambda _: "no whole iteration"), *[""] * (len(header) - 2)])
            continue
        both = (" → ".join(map(figure, one.times_us(*needs))) for needs in times.values())
        name = Strong(one.label) if outcome in edge else one.label
        body.append([name, figure(one.alone_gbps), figure(one.gbps), _slowdown_text(one), *both])
    alone_us = [point.alone_us for point in points]
    title = f"{title}: {ends(alone_us, figure)} us per iteration without swaps" if alone_us else title
    measured = [one.outcome for one in tried if is_measured(one.outcome)]
    outcomes = measured or [one.outcome for one in tried]
    bold = "no other moves as much with less slowdown"
    return measured_table(view, outcomes, _DETAILS, title, header, body, bold=bold)


def _verdict(point: Slowed) -> Verdict:
    """Whether the visits settle on which side of the margin the slowdown lies."""
    _, low, high = point.slowdown
    margin = math.log1p(IN_TURN.fraction)
    return verdict_of(math.log(low), math.log(high), margin) if 0 < low <= high < math.inf else Verdict.UNDECIDED


def _least_cost(direction: str, points: Sequence[Slowed]) -> tuple[str, str]:
    """Return the highest of `RATES` that was reached, and what it costs at least."""
    reached = max((rate for rate in RATES if any(point.gbps >= rate for point in points)), default=0)
    fast = [point for point in points if point.gbps >= reached]
    best = min(fast, key=lambda point: (point.slowdown[0], -point.gbps))
    others = [_slowdowns(point) for point in fast if point is not best]
    compared = [compare_visits(_slowdowns(best), other, IN_TURN) for other in others]
    unclear = sum(one.verdict is not Verdict.SLOWER for one in compared)
    rivals = f"; no clear difference from {noun(unclear, 'other')}" if unclear else ""
    slowdown = best.slowdown[0]
    at_least = "at least " if slowdown >= 1 + _LEAST else ""
    swaps = f"{direction}: {best.label} at {two_digits(best.gbps)} GB/s{rivals}"
    rate = f" at {reached} GB/s or more" if reached else ""
    return rate, f"{at_least}{_longer(slowdown)} ({swaps})"


def _slowdowns(point: Slowed) -> Visits:
    return {number: cost.slowdown for number, cost in point.outcome.costs.items()}


def _longer(slowdown: float) -> str:
    """Return a slowdown as text, "20% longer" or "2.4x as long"; nothing finer than what repeats."""
    if slowdown < 1 + _LEAST:
        return f"less than {_LEAST:.0%} longer"
    return f"{two_digits(slowdown)}x as long" if slowdown >= 1.95 else f"{two_digits((slowdown - 1) * 100)}% longer"


def _chart(view: View, name: str, points: Sequence[Slowed]) -> Chart:
    """Return the slowdown of one kind of work against the GB/s of one workload, a line for each backend."""
    panels = []
    for direction in DIRECTIONS:
        side = [point for point in points if point.cell.direction == direction]
        lines = []
        ordered = sorted(side, key=lambda point: (point.cell.backend, point.cell.sms or math.inf, point.gbps))
        for backend, line in grouped(ordered, lambda point: point.cell.backend).items():
            notes = [noun(point.cell.sms, "SM") if point.cell.sms else "" for point in line]
            label = backend if len(line) > 1 else method_of(line[0].cell)
            x, bands = [point.gbps for point in line], [point.slowdown for point in line]
            lines.append(line_of(label, backend, x, bands, notes=notes if len(line) > 1 else ()))
        panels += [PlotPanel(direction, lines)] if lines else []
    plot = LinePlot(PlotAxis("GB/s of the swaps"), PlotAxis(f"slowdown of {name}", zero=False), panels)
    text = chart_text(view, f"Interference: slowdown of {name} against GB/s of the swaps", f"{_CLOCK}. Band: 95%")
    return Chart(f"beside-{view.label}", text, plot)
