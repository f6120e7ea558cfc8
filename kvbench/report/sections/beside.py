"""Beside a step: what swaps cost the work that runs beside them, and their thread, against the GB/s that they move."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, compress
from statistics import fmean, median, mode
from typing import Final, NamedTuple

import numpy as np

from kvbench.analysis.compare import Comparison, Verdict, Visits, compare_visits, known_interval, verdict_of
from kvbench.analysis.curves import pareto_edge
from kvbench.analysis.margins import IN_TURN, MIN_P90, MIN_P99
from kvbench.cells.axes import NO_PACE, Neighbour, Role
from kvbench.cells.blocks import is_whole
from kvbench.cells.cell import AXES, Cell, axes_of
from kvbench.cells.facts import BATCHED
from kvbench.cells.units import KIB, two_digits
from kvbench.ground.text import range_text
from kvbench.report import model
from kvbench.report.model import (
    Chart,
    Code,
    DataTable,
    LinePlot,
    Part,
    PartOrReason,
    PlotAxis,
    PlotLine,
    PlotPanel,
    Span,
    Text,
)
from kvbench.report.numbers import ABSENT, bytes_size, count, figure, is_wide, noun, with_interval
from kvbench.report.tables import (
    Band,
    axis_text,
    chart_of,
    comma_separated,
    format_cell,
    line_of,
    measured_table,
    method_of,
    sign_of,
    swap_text,
)
from kvbench.report.view import DIRECTIONS, View
from kvbench.results import Beside
from kvbench.results.outcomes import Cost, Outcome, grouped, is_measured, over_starts, slowdown_of

# GB/s at which the methods of swapping are compared.
RATES: Final = (10, 20, 40)
_DRAWN: Final = "GB/s: whole time, host clock. Takes: mean over alone"
_CLOCK: Final = f"{_DRAWN}; p90: by percentiles. Lost, thread [95%]: ms a GB"
_READBACK: Final = "Readback: us until a step's tokens arrive, p90"
_DETAILS: Final = f"{_CLOCK}. Alone → beside: us by CUDA events, of a swap by the host clock"
_WORK: Final = {"decode": "A decode step", "prefill": "A prefill layer", "idle": "A GPU thread that only waits"}
# The steps of the first table and of the picture.
STEPS: Final = (Neighbour.DECODE, Neighbour.PREFILL)
# The block size of the first table and of the picture, where it was measured.
_USUAL_BYTES: Final = 16 * KIB
# Percentile -> how many times it needs.
_LEAST_TIMES: Final = {50: 1, 90: MIN_P90, 99: MIN_P99}
# What tells methods of swapping apart, beside the backend and its SM count.
_METHOD_AXES: Final = [
    name for name in axes_of(Role.SIDE, Role.BESIDE) if name not in ("sms", "neighbour", "pace", "memory", "pool")
]


Place = tuple[Cell, str]  # a cell, and its device where several swap at once


class StepSide(NamedTuple):
    """What the swaps of a table share: the step beside them, their direction, and how many devices swap at once."""

    step: Neighbour
    direction: str
    devices: int

    @property
    def title(self) -> str:
        at_once = f"{self.devices} devices at once" if self.devices > 1 else ""
        return comma_separated(f"{self.step}, {self.direction}", at_once)


@dataclass(frozen=True)
class Slowed:
    """A method of swapping beside a step, with its settings but for the SM count and the pace, and what it costs.

    `run` measured it. `longest` is the same cell in the run of the machine that measured it for the most iterations,
    which has its tail: that of `longest_run`.
    """

    outcome: Outcome
    settings: str
    run: View
    longest: Outcome
    longest_run: View

    @property
    def cell(self) -> Cell:
        return self.outcome.cell

    @property
    def step(self) -> Neighbour:
        return self.cell.neighbour

    @property
    def side(self) -> StepSide:
        return StepSide(self.step, self.cell.direction.value, self.cell.devices)

    def runs(self, step: Neighbour, direction: str) -> bool:
        return (self.step, self.cell.direction.value) == (step, direction)

    @property
    def name(self) -> str:
        return comma_separated(self.outcome.backend_name, self.settings)

    @property
    def sms(self) -> str:
        return "" if self.cell.sms is None else count(self.cell.sms)

    @property
    def pace(self) -> str:
        return pace_of(self.cell)

    @property
    def label(self) -> str:
        """The method with its SM count and its pace."""
        return comma_separated(method_of(self.outcome), self.pace and f"pace {self.pace}", self.settings)

    @property
    def order(self) -> tuple[object, ...]:
        kernel = self.cell.sms is not None
        return (kernel, self.name, self.cell.block_bytes, bool(self.pace), self.cell.sms or 0, self.pace)

    @property
    def costs(self) -> list[Cost]:
        return [*self.outcome.costs.values()]

    @property
    def _turns(self) -> list[Beside]:
        return [self.outcome.beside[number] for number in self.outcome.costs]

    @cached_property
    def slowdown(self) -> Comparison:
        return slowdown_by(self.costs)

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.slowdown.high)

    @cached_property
    def lost_ms(self) -> tuple[float, float, float]:
        return over_starts(self.costs, lambda cost: cost.lost_ms_per_gb)

    @cached_property
    def thread_ms(self) -> tuple[float, float, float]:
        return over_starts(self.costs, lambda cost: cost.thread_ms_per_gb)

    @property
    def gbps(self) -> float:
        """GB/s of the swaps beside the step."""
        return median(cost.gbps for cost in self.costs)

    @property
    def gbps_text(self) -> str:
        return _median_text([cost.gbps for cost in self.costs])

    @property
    def alone_gbps_text(self) -> str:
        return _median_text([median(turns.swaps_alone_gbps) for turns in self._turns if turns.swaps_alone_gbps])

    @property
    def alone_us(self) -> float:
        """The mean time of the step's iterations without swaps, median of the visits."""
        return median(fmean(turns.neighbour_alone_us) for turns in self._turns)

    def percentile_us(self, times_of: Callable[[Beside], Sequence[float]], percent: int) -> float:
        """A percentile of times of all visits, NaN where they are too few for it.

        The tail alone is of the longest run: other figures stay those of one run, so that a line can be compared.
        """
        turns = self.longest.beside.values() if percent == max(_LEAST_TIMES) else self._turns
        times_us = [*chain.from_iterable(map(times_of, turns))]
        return float(np.quantile(times_us, percent / 100)) if len(times_us) >= _LEAST_TIMES[percent] else math.nan

    def iteration_us(self, percent: int) -> tuple[float, float]:
        """A percentile of the step's iterations alone and beside the swaps."""
        alone_us = self.percentile_us(lambda turns: turns.neighbour_alone_us, percent)
        return alone_us, self.percentile_us(lambda turns: turns.neighbour_beside_us, percent)

    @property
    def slowdown_p90(self) -> float:
        alone_us, beside_us = self.iteration_us(90)
        return beside_us / alone_us

    @property
    def worst_us(self) -> float:
        return max(max(turns.neighbour_beside_us) for turns in self._turns)

    @property
    def readback_us(self) -> float:
        """The 90th percentile of the readback beside the swaps."""
        return self.percentile_us(lambda turns: turns.readback_us, 90)

    @property
    def swap_us(self) -> tuple[float, float]:
        """The time of a swap alone and beside the step."""
        alone = [median(turns.swaps_alone_us) for turns in self._turns if turns.swaps_alone_us]
        beside = [median(turns.swaps_beside_us) for turns in self._turns if turns.swaps_beside_us]
        return (median(alone) if alone else math.nan), (median(beside) if beside else math.nan)


def pace_of(cell: Cell) -> str:
    """The pace of a kernel as text, "" of one without."""
    return "" if cell.pace == NO_PACE else cell.text("pace") or ""


def make(view: View) -> PartOrReason:
    """The section of the machine's run with most such cells, and with the engines' that other runs measured."""
    tried_by = {run.label: _tried(run) for run in view.of_machine}
    runs = [run for run in view.of_machine if any(outcome.costs for outcome in tried_by[run.label])]
    if not runs:
        return "it needs swaps that were measured beside a step"
    main = max(runs, key=lambda run: (run.run.info.spec.get("name") == "beside", len(tried_by[run.label])))
    tried = [(run, outcome) for run in runs for outcome in tried_by[run.label]]
    by_place = grouped(tried, lambda entry: _place(*entry))
    longest = {place: max(entries, key=lambda entry: entry[1].iterations) for place, entries in by_place.items()}
    of_main = [(main, outcome) for outcome in tried_by[main.label]]
    places_of_main = {_place(*entry) for entry in of_main}
    others = [entries[-1] for place, entries in by_place.items() if place not in places_of_main]
    return partial(_part, main, _methods([*of_main, *others], longest))


def _tried(view: View) -> list[Outcome]:
    return [
        outcome
        for outcome in view.outcomes
        if outcome.status != "skipped" and outcome.cell.neighbour != Neighbour.NONE and is_whole(outcome.cell)
    ]


def _place(view: View, outcome: Outcome) -> Place:
    """A cell and, where several devices swap at once, the one whose swaps and step these are."""
    return outcome.cell, str(view.run.info.device.get("name")) if outcome.cell.devices > 1 else ""


def _methods(tried: Sequence[tuple[View, Outcome]], longest: Mapping[Place, tuple[View, Outcome]]) -> list[Slowed]:
    """Name the methods: a backend with its values on the axes where it differs from most cells of its direction.

    An axis that not every backend has tells only cells of one backend apart.
    """
    outcomes = [outcome for _, outcome in tried]
    usual = {}
    for name in _METHOD_AXES:
        for group, members in grouped(outcomes, partial(_compared_group, name)).items():
            usual[name, group] = mode(outcome.cell.text(name) for outcome in members)
    methods = []
    for run, outcome in tried:
        cell, device = _place(run, outcome)
        differing = [name for name in _METHOD_AXES if cell.text(name) != usual[name, _compared_group(name, outcome)]]
        settings = comma_separated(*(axis_text(cell, name) for name in differing), device)
        longest_run, longest_outcome = longest[cell, device]
        methods.append(Slowed(outcome, settings, run, longest_outcome, longest_run))
    return methods


def _compared_group(name: str, outcome: Outcome) -> tuple[object, ...]:
    """What cells share that are compared on an axis."""
    cell = outcome.cell
    return cell.direction, cell.devices, cell.backend if AXES[name].depends_on_backend else ""


def _part(view: View, tried: Sequence[Slowed]) -> Part:
    measured = [method for method in tried if method.outcome.costs]
    # What the first page and the picture hold against each other: of one device, where that was measured.
    fewest = min(method.cell.devices for method in measured)
    methods = [method for method in measured if method.cell.devices == fewest]
    steps = [step for step in STEPS if any(method.step == step for method in methods)]
    first_page = _of_usual_size([method for method in methods if method.step in steps] or methods)
    tables = [_table(view, first_page, steps)] if steps else []
    by_side = grouped(tried, lambda method: method.side)
    for side, on_side in sorted(by_side.items(), key=_side_order):
        main = view if any(method.run is view for method in on_side) else on_side[0].run
        tables.append(_details(main, side.title, on_side))
    charts = [_chart(view, methods, steps)] if steps else []
    return Part([*_findings(methods, steps)], charts, tables)


def _side_order(side_and_methods: tuple[StepSide, list[Slowed]]) -> tuple[int, str, int]:
    """One device first, and of these decode and h2d."""
    side, _ = side_and_methods
    return side.devices, str(side.step), DIRECTIONS.index(side.direction)


def _of_usual_size(methods: Sequence[Slowed]) -> list[Slowed]:
    """The methods for blocks of the usual size, or of that of most."""
    sizes = [method.cell.block_bytes for method in methods]
    size = _USUAL_BYTES if _USUAL_BYTES in sizes else mode(sizes)
    return [method for method in methods if method.cell.block_bytes == size]


def _findings(methods: Sequence[Slowed], steps: Sequence[Neighbour]) -> Iterable[str]:
    for step in steps:
        by_rate: dict[str, list[str]] = {}
        for direction in DIRECTIONS:
            side = [method for method in methods if method.runs(step, direction) and method.has_interval]
            if side:
                rate, text = _least_cost(direction, side)
                by_rate.setdefault(rate, []).append(text)
        for rate, texts in by_rate.items():
            yield f"{_WORK[step.kind]} beside swaps{rate} takes {', '.join(texts)}."


def _table(view: View, methods: Sequence[Slowed], steps: Sequence[Neighbour]) -> DataTable:
    """A line for each method of swapping in a direction, with what it costs each step."""
    paced = any(method.pace for method in methods)
    header = ["Dir", "Method", "SMs", *(["Pace"] if paced else [])]
    for step in steps:
        header += [f"{step}: GB/s", "takes", "p90", "lost", "thread"]
        header += ["readback"] if step == Neighbour.DECODE else []
    order = sorted(methods, key=lambda method: (DIRECTIONS.index(method.cell.direction), method.order))
    body: list[list[Text]] = []
    lines = grouped(order, lambda method: (method.cell.direction, method.name, method.sms, method.pace))
    for methods_of_line in lines.values():
        first = methods_of_line[0]
        by_step = {method.step: method for method in methods_of_line}
        line: list[Text] = [first.cell.direction.value, first.name, first.sms, *([first.pace] if paced else [])]
        body.append([*line, *chain.from_iterable(_costs(by_step.get(step), step) for step in steps)])
    title = f"Beside a step: swaps of {bytes_size(order[0].cell.block_bytes)} blocks, and what a GB costs"
    clock = (_CLOCK, _READBACK) if Neighbour.DECODE in steps else _CLOCK
    notes = _other_runs(view, methods)
    return measured_table(view, [method.outcome for method in methods], clock, title, header, body, notes, left=2)


def _other_runs(view: View, methods: Iterable[Slowed], *, has_tail: bool = False) -> list[Text]:
    """The runs but that of the table which measured some of its lines, or the tail of some, and of which."""
    parts_by_run: dict[str, dict[str, None]] = {}
    commands: dict[str, tuple[Span, ...]] = {}
    for method in methods:
        parts = [(method.run, method.outcome.backend_name)]
        if has_tail and method.longest_run is not method.run:
            parts.append((method.longest_run, f"p{max(_LEAST_TIMES)}"))
        for run, part in parts:
            if (run.command, run.commit) != (view.command, view.commit):  # the other devices of a sweep have both
                parts_by_run.setdefault(run.label, {})[part] = None
                commands[run.label] = (Code(run.command), run.commit)
    return [(f"{', '.join(parts)}: ", *commands[label]) for label, parts in parts_by_run.items()]


def _costs(slowed: Slowed | None, step: Neighbour) -> list[str]:
    readback = step == Neighbour.DECODE
    if slowed is None:
        return [""] * (5 + readback)
    texts = [slowed.gbps_text, takes_text(slowed.slowdown), _ratio(slowed.slowdown_p90)]
    texts += [_interval(slowed.lost_ms), _interval(slowed.thread_ms)]
    return [*texts, figure(slowed.readback_us)] if readback else texts


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}x" if math.isfinite(ratio) else ""


def _median_text(rates: Sequence[float]) -> str:
    """The median of the visits, with its interval where that is wide."""
    return with_interval(median(rates), *known_interval(rates)) if rates else ABSENT


def slowdown_by(costs: Collection[Cost]) -> Comparison:
    """How the time of a step beside swaps differs from that of a step alone, by the means of its iterations."""
    ratio, low, high = slowdown_of(costs)
    verdict = Verdict.UNDECIDED
    if 0 < low <= high < math.inf:
        verdict = verdict_of(math.log(low), math.log(high), math.log1p(IN_TURN.fraction))
    return Comparison(ratio, low, high, verdict)


def takes_text(slowdown: Comparison) -> str:
    """How many times as long a step takes, with its interval where that is wide or leaves open whether it is longer."""
    ratio, low, high = slowdown.ratio, slowdown.low, slowdown.high
    is_open = slowdown.verdict is Verdict.UNDECIDED and math.isfinite(high)
    interval = f" ({low:.2f} to {high:.2f})" if is_open or is_wide(ratio, low, high) else ""
    return f"{sign_of(slowdown)}{_ratio(ratio)}{interval}"


def _interval(band: Band) -> str:
    """A cost in ms/GB, with its interval where that is wide."""
    middle, low, high = band
    interval = f" [{_milliseconds(low)}, {_milliseconds(high)}]" if is_wide(abs(middle), low, high) else ""
    return f"{_milliseconds(middle)}{interval}"


def _milliseconds(value: float) -> str:
    """ms/GB as text: nothing finer than a hundredth repeats."""
    if abs(value) < 9.95:
        return f"{round(value, 2) + 0.0:.2f}"  # adding 0 makes of -0.0, which would read as a gain, 0.0
    return f"{value:.1f}" if abs(value) < 99.5 else figure(value)


def _details(view: View, title: str, tried: Sequence[Slowed]) -> DataTable:
    methods = [method for method in tried if method.outcome.costs]
    reads_back = any(math.isfinite(method.readback_us) for method in methods)
    beside_us = {percent: [method.iteration_us(percent)[1] for method in methods] for percent in _LEAST_TIMES}
    percents = [percent for percent, times_us in beside_us.items() if any(map(math.isfinite, times_us))]
    names = ("median" if percent == 50 else f"p{percent}" for percent in percents)
    header = ["Swaps", "Blocks", "GB/s alone", "GB/s", "takes", *(f"{name}, us" for name in names), "worst, us"]
    header += ["lost", "thread", *(["readback"] if reads_back else []), "swap, us"]
    edge = _edge(methods)
    body: list[list[Text]] = []
    for method in sorted(tried, key=lambda method: method.order):
        outcome, size = method.outcome, swap_text(method.cell)
        if not is_measured(outcome) or not outcome.costs:
            why = format_cell(outcome, lambda _: "too few iterations")
            body.append([method.label, size, why, *[""] * (len(header) - 3)])
            continue
        line: list[Text] = [model.Strong(method.label) if outcome in edge else method.label, size]
        line += [method.alone_gbps_text, method.gbps_text, takes_text(method.slowdown)]
        line += [*(_change_text(method.iteration_us(percent)) for percent in percents), figure(method.worst_us)]
        line += [_interval(method.lost_ms), _interval(method.thread_ms)]
        body.append([*line, *([figure(method.readback_us)] if reads_back else []), _change_text(method.swap_us)])
    alone_us = [method.alone_us for method in methods]
    title = f"{title}: {range_text(alone_us, figure)} us per iteration without swaps" if alone_us else title
    outcomes = [method.outcome for method in tried]
    outcomes = [*filter(is_measured, outcomes)] or outcomes
    bold = "no other of its block size moves as much and slows the step less"
    notes = _other_runs(view, tried, has_tail=max(_LEAST_TIMES) in percents)
    return measured_table(view, outcomes, _DETAILS, title, header, body, notes, left=2, bold=bold)


def _change_text(times_us: tuple[float, float]) -> str:
    """A time alone and beside the other: "12.1 → 14.9"."""
    return " → ".join(map(figure, times_us))


def _edge(methods: Sequence[Slowed]) -> set[Outcome]:
    """The cells that no other of their block size beats both in GB/s and in what they lose."""
    edge: set[Outcome] = set()
    for same_size in grouped(methods, lambda method: method.cell.block_bytes).values():
        judged = [method for method in same_size if method.has_interval]
        is_on_edge = pareto_edge([method.gbps for method in judged], [method.slowdown.ratio for method in judged])
        edge |= {method.outcome for method in compress(judged, is_on_edge)}
    return edge


def _least_cost(direction: str, points: Sequence[Slowed]) -> tuple[str, str]:
    """The highest of `RATES` that was reached, and what it costs at least.

    Methods are held against the best at one rate: a slow one costs a step little because it moves little.
    """
    reached = max((rate for rate in RATES if any(point.gbps >= rate for point in points)), default=0)
    fast = [point for point in points if point.gbps >= reached]
    best = min(fast, key=lambda point: (point.slowdown.ratio, -point.gbps))
    others = [_slowdowns(point) for point in fast if point is not best]
    compared = [compare_visits(_slowdowns(best), other, IN_TURN) for other in others]
    unclear = sum(comparison.verdict is not Verdict.SLOWER for comparison in compared)
    rivals = f", or {noun(unclear, 'other')}" if unclear else ""
    size = "" if best.cell.block_bytes == _USUAL_BYTES else f", {swap_text(best.cell)}"
    swaps = f"{direction}: {best.label}{size}{rivals}"
    rate = f" at {reached} GB/s or more" if reached else ""
    return rate, f"{_longer(best.slowdown)} ({swaps})"


def _slowdowns(point: Slowed) -> Visits:
    return {number: cost.slowdown for number, cost in point.outcome.costs.items()}


def _longer(slowdown: Comparison) -> str:
    """Say how much longer a step takes, "20% longer" or "2.4x as long", where the visits tell that it does."""
    ratio = slowdown.ratio
    if slowdown.verdict is Verdict.UNDECIDED:
        return f"{slowdown.low:.2f}x to {slowdown.high:.2f}x, undecided"
    if slowdown.verdict is not Verdict.SLOWER:
        return f"at most {IN_TURN.fraction:.0%} longer"
    return f"{two_digits(ratio)}x as long" if ratio >= 1.95 else f"{two_digits((ratio - 1) * 100)}% longer"


def _chart(view: View, methods: Sequence[Slowed], steps: Sequence[Neighbour]) -> Chart:
    """How long a step takes against the GB/s beside it, a panel for each step and direction."""
    usual = {method.outcome for method in _of_usual_size(methods)}
    panels = []
    for step in steps:
        for direction in DIRECTIONS:
            side = [method for method in methods if method.runs(step, direction)]
            lines = _lines([method for method in side if method.outcome in usual or method.cell.backend == BATCHED])
            ceiling = view.run.ceilings_gbps.get(direction)
            panels += [PlotPanel(f"{direction} beside {step}", lines, x_ceiling=ceiling)] if lines else []
    plot = LinePlot(
        PlotAxis("GB/s of the swaps"), PlotAxis("a step takes", zero=False, ratios=True), panels, in_a_row=2
    )
    return chart_of(view, "beside", "Beside a step: its time against GB/s of the swaps", f"{_DRAWN}. Band: 95%", plot)


def _lines(side: Sequence[Slowed]) -> list[PlotLine]:
    """A line for each method: by its SM count, its pace, or its block size."""
    lines, variants = [], Counter[str]()
    ordered = sorted(side, key=lambda point: point.order)
    # A kernel with the SM count that an engine ships has no place between its counts: it is a point of its own.
    by_line = grouped(ordered, lambda point: (point.name, bool(point.pace), bool(point.sms)))
    for (name, paced, _), line in by_line.items():
        backend = line[0].cell.backend
        notes, by = [point.pace for point in line], "by pace"
        if not paced and len({point.cell.block_bytes for point in line}) > 1:
            notes, by = [bytes_size(point.cell.block_bytes) for point in line], "by block size"
        elif not paced:
            notes, by = [noun(point.cell.sms or 0, "SM") for point in line], "by SM count"
        label, notes = (f"{name} {by}", notes) if len(line) > 1 else (line[0].label, [])
        x = [point.gbps for point in line]
        bands = [(point.slowdown.ratio, point.slowdown.low, point.slowdown.high) for point in line]
        lines.append(line_of(label, backend, x, bands, variants[backend], notes=notes))
        variants[backend] += 1
    return lines
