"""What a run knows of each of its cells: whether it was measured, by which visits, what they took, and what they cost.

A slowdown of a neighbour is one of the whole time: the mean of the iterations beside swaps over that without. Where
swaps come in bursts, or hold the device up now and then, most iterations are as fast as ever, and their median shows
nothing.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, Literal, TypeVar

import numpy as np

from kvbench.analysis.compare import Floats, MedianInTurn, interval_over_starts, median_interval, medians_in_turn
from kvbench.analysis.margins import MIN_ITERATIONS, MIN_P90, MIN_P99
from kvbench.cells.axes import Neighbour, Role
from kvbench.cells.blocks import TRACE
from kvbench.cells.cell import AXES, Cell, axes_of
from kvbench.cells.units import gigabytes_per_second
from kvbench.results.columns import NO_FIGURE, TIMES
from kvbench.results.schema import Beside, CellRecord, EffectivePath, Failure, Record, Samples, Skip, Visit

OfCell = TypeVar("OfCell", bound=CellRecord)
Status = Literal["ok", "no figure", "failed", "skipped"]

# Why a cell has failed whose copies were never compared.
NOT_VERIFIED: Final = "no bytes were verified"
# Separates the texts of several visits; the most frequent path comes first.
BETWEEN: Final = "; "
# Percentiles of the iterations of all visits together, and how many of these each needs.
_PERCENTILES: Final = {50: 1, 90: MIN_P90, 99: MIN_P99}
_SORTED_BY: Final = tuple(
    AXES[name] for role in (Role.SERIES, Role.SHAPE, Role.SIDE, Role.QUEUE, Role.BESIDE) for name in axes_of(role)
)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A cell of a run, without the samples of its visits.

    `attempts` has the attempt that counts of every round, of `made` visits. `path` names their paths, the most frequent
    first, and `costs` has what each cost a neighbour. `medians` has the median of every visit in microseconds, for
    each of `TIMES`: time -> round -> median; it is empty for a failed or skipped cell.
    """

    cell: Cell
    status: Status
    reason: str = ""
    attempts: Mapping[int, int] = field(default_factory=dict)
    path: str | None = None
    verified_bytes: int = 0
    costs: Mapping[int, "Cost"] = field(default_factory=dict)
    failures: Sequence[Failure] = ()
    made: int = 0
    medians: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def us(self, time: str = "swap_us") -> float:
        """Return the median of the visits' medians of a time in microseconds, NaN without one."""
        return float(median(known)) if (known := self.medians.get(time, {}).values()) else math.nan

    def times(self, time: str = "swap_us") -> Mapping[int, float]:
        """Return round -> median of a time, as `kvbench.analysis.compare` takes them; empty where it is mostly 0."""
        return {number: us for number, us in self.medians.get(time, {}).items() if us > 0} if self.us(time) > 0 else {}

    @property
    def interval_us(self) -> tuple[float, float]:
        """The 95% interval of the time of the swap, from the visits; NaN where they are too few."""
        return known_interval([*self.medians.get("swap_us", {}).values()])

    @property
    def has_rate(self) -> bool:
        """Whether there are GB/s: by events only, and not of swaps that differ in size or of an empty launch."""
        whole = self.cell.sequence != TRACE and self.path != EffectivePath.NOTHING
        return whole and self.cell.swap_clock == "event_us"

    @property
    def gbps(self) -> float:
        """GB/s at the median of the time of the swap, NaN without one."""
        return gigabytes_per_second(self.cell.swap_bytes, us) if self.has_rate and (us := self.us()) > 0 else math.nan


def outcomes_of(made: Iterable[Visit], counting: Sequence[Visit], others: Iterable[Record]) -> dict[Cell, Outcome]:
    """Return the outcome of every cell of a run, sorted by its axes; of its visits `made`, `counting` count."""
    in_turn, numbers = _medians_in_turn(counting), Counter(visit.cell for visit in made)
    of_cells = by_cell([*counting, *(record for record in others if isinstance(record, Failure | Skip))])
    return {cell: _outcome(cell, of_cells[cell], numbers[cell], in_turn) for cell in sorted(of_cells, key=_axis_values)}


def by_cell(records: Iterable[OfCell]) -> dict[Cell, list[OfCell]]:
    of_cells: dict[Cell, list[OfCell]] = {}
    for record in records:
        of_cells.setdefault(record.cell, []).append(record)
    return of_cells


def _medians_in_turn(visits: Iterable[Visit]) -> dict[int, MedianInTurn]:
    """Return the medians of the visits that were made in turn, by the ids of these objects."""
    together: dict[tuple[object, ...], list[Visit]] = {}
    for visit in visits:
        if visit.group and visit.swap_times_us:
            together.setdefault((visit.group, visit.round, visit.span_ns, len(visit.samples)), []).append(visit)
    medians: dict[int, MedianInTurn] = {}
    for arms in together.values():
        medians |= zip(map(id, arms), medians_in_turn([arm.swap_us for arm in arms]), strict=True)
    return medians


def _outcome(cell: Cell, records: Sequence[CellRecord], made: int, in_turn: Mapping[int, MedianInTurn]) -> Outcome:
    visits = [record for record in records if isinstance(record, Visit)]
    failures = [record for record in records if isinstance(record, Failure)]
    known: dict[str, Any] = {
        "attempts": {visit.round: visit.attempt for visit in visits},
        "path": joined(path for path, _ in Counter(visit.path for visit in visits).most_common()),
        "verified_bytes": sum(visit.verified_bytes for visit in visits),
        "costs": costs_of(visit for visit in visits if visit.beside is not None),
        "made": made,
    }
    if failures:
        reasons = (f"{failure.kind}: {failure.message}" for failure in failures)
        return Outcome(cell, "failed", joined(reasons) or "", failures=failures, **known)
    if not any(len(visit.samples) for visit in visits):
        skips = [record.reason for record in records if isinstance(record, Skip)]
        # Only a journal not written by kvbench has visits without samples.
        status: Status = "skipped" if skips else "failed"
        return Outcome(cell, status, joined(skips) or "no reason recorded", **known)
    medians: dict[str, dict[int, float]] = {time: {} for time in TIMES}
    for visit in visits:
        for time, of_time in medians.items():
            if values := visit.swap_times_us if time == "swap_us" else getattr(visit.samples, time):
                of_time[visit.round] = (time == "swap_us" and in_turn.get(id(visit))) or median(values)
    # A queue measures the submission, whose time every sample has.
    figure = bool(cell.queued or medians["swap_us"])
    return Outcome(cell, "ok" if figure else "no figure", "" if figure else NO_FIGURE, medians=medians, **known)


def _axis_values(cell: Cell) -> list[tuple[bool, Any]]:
    """Return a key that sorts cells by their axes, a value before its absence."""
    values = (getattr(cell, axis.field) if axis.number else cell.text(axis.name) for axis in _SORTED_BY)
    return [(value is None, value) for value in values]


def known_interval(medians: Sequence[float]) -> tuple[float, float]:
    """Return the interval of the median of some visits, NaN where they are too few for one."""
    low, high = median_interval(medians) if len(medians) else (-math.inf, math.inf)
    return (low, high) if math.isfinite(low) else (math.nan, math.nan)


def joined(texts: Iterable[str]) -> str | None:
    return BETWEEN.join(dict.fromkeys(texts)) or None


@dataclass(frozen=True, slots=True)
class Cost:
    """What swaps cost their neighbour and their thread in one visit, for each GB (10^9 bytes) that they move.

    `slowdown` is the ratio of the mean of the neighbour's iterations beside the swaps to that without them,
    `slowdown_median` that of the medians, and `gbps` is of the swaps beside it. `lost_ms_per_gb`, (1 - 1 / slowdown) /
    gbps in ms, is the neighbour's time that each GB takes: 0 or less where it is not slowed. `thread_ms_per_gb` is the
    calling thread's. `process` is the worker start that made the visit, None if not recorded, and `iterations` counts
    the neighbour's whole iterations beside the swaps.
    """

    slowdown: float
    slowdown_median: float
    gbps: float
    lost_ms_per_gb: float
    thread_ms_per_gb: float
    process: int | None
    iterations: int


def costs_of(visits: Iterable[Visit]) -> dict[int, Cost]:
    """Return the cost of every visit, by round; none if a visit has none, or all have too few iterations together."""
    costs = {visit.round: cost_of(visit) for visit in visits}
    known = {number: cost for number, cost in costs.items() if cost is not None}
    enough = sum(cost.iterations for cost in known.values()) >= MIN_ITERATIONS
    return known if enough and len(known) == len(costs) else {}


def cost_of(visit: Visit) -> Cost | None:
    """Return the cost of a visit, None where a turn had no whole iteration, no swap, or no time, and for a decode step
    without the small copies of an engine, which earlier versions ran.
    """
    cell, beside = visit.cell, visit.beside
    if beside is None or not (beside.neighbour_alone_us and beside.neighbour_beside_us and beside.swaps_beside_gbps):
        return None
    if cell.neighbour == Neighbour.DECODE and not cell.layers and not beside.readback_us:
        return None
    alone, slowed = np.asarray(beside.neighbour_alone_us), np.asarray(beside.neighbour_beside_us)
    gbps = float(np.median(beside.swaps_beside_gbps))
    with np.errstate(all="ignore"):  # an untrusted run may hold any time
        slowdown, by_median = float(slowed.mean() / alone.mean()), float(np.median(slowed) / np.median(alone))
    if not all(0 < figure < math.inf for figure in (slowdown, by_median, gbps)):
        return None
    lost_ms = (1 - 1 / slowdown) * 1e3 / gbps
    thread_ms = float(np.median(visit.samples.caller_us)) * 1e6 / cell.swap_bytes if len(visit.samples) else math.nan
    if not math.isfinite(lost_ms + thread_ms):
        return None
    return Cost(slowdown, by_median, gbps, lost_ms, thread_ms, visit.process, len(slowed))


def hidden_share(beside: Beside | None) -> float | None:
    """Return the share of the swaps' time that a step hides whose layers wait for them; None without such a time."""
    if beside is None or not (beside.neighbour_alone_us and beside.neighbour_beside_us and beside.swaps_alone_us):
        return None
    alone_us, both_us, swaps_us = (
        median(times) for times in (beside.neighbour_alone_us, beside.neighbour_beside_us, beside.swaps_alone_us)
    )
    share = 1 - (both_us - alone_us) / swaps_us if swaps_us > 0 else math.nan
    return share if math.isfinite(share) else None


def neighbour_figures(visits: Sequence[Visit]) -> dict[str, float]:
    """Return the figures of a cell's neighbour, by column of the summary; none if no visit has them."""
    costs = costs_of(visits)
    turns = [visit.beside for visit in visits if visit.beside is not None and visit.round in costs]
    if not turns:
        return {}
    figures: dict[str, float] = {}
    for which in ("alone_us", "beside_us"):
        times = [getattr(turn, f"neighbour_{which}") for turn in turns]
        every, suffix = np.concatenate(times), which.removeprefix("beside_")
        figures |= {f"neighbour_{which}": float(np.median([np.mean(of_visit) for of_visit in times]))}
        figures |= _percentiles("neighbour", suffix, every)
        if which == "beside_us":
            figures["neighbour_worst_us"], figures["iterations"] = float(every.max()), len(every)
    figures |= _percentiles("readback", "alone_us", np.concatenate([turn.readback_alone_us for turn in turns]))
    figures |= _percentiles("readback", "us", np.concatenate([turn.readback_us for turn in turns]))
    gbps = [cost.gbps for cost in costs.values()]

    def over_starts(figure: str, scale: Callable[[float], float] = float) -> tuple[float, float, float]:
        values = [scale(getattr(cost, figure)) for cost in costs.values()]
        return interval_over_starts(values, [cost.process for cost in costs.values()])

    return {
        **figures,
        **_with_ends("neighbour_slowdown", *map(math.exp, over_starts("slowdown", math.log))),
        "neighbour_slowdown_median": math.exp(over_starts("slowdown_median", math.log)[0]),
        "neighbour_slowdown_p90": figures["neighbour_p90_us"] / figures["neighbour_p90_alone_us"],
        "neighbour_slowdown_p99": figures["neighbour_p99_us"] / figures["neighbour_p99_alone_us"],
        **_with_ends("lost_ms_per_gb", *over_starts("lost_ms_per_gb")),
        **_with_ends("thread_ms_per_gb", *over_starts("thread_ms_per_gb")),
        "swaps_alone_gbps": _median_of(turns, "swaps_alone_gbps"),
        **_with_ends("swaps_beside_gbps", float(np.median(gbps)), *median_interval(gbps)),
        "one_block_alone_us": _median_of(turns, "one_block_alone_us"),
        "one_block_beside_us": _median_of(turns, "one_block_beside_us"),
        "swap_start_delay_us": _delay_us(turns, "one_block"),
        "swap_delay_us": _delay_us(turns, "swaps"),
    }


def layer_figures(cell: Cell, visits: Sequence[Visit]) -> dict[str, float]:
    """Return the figures of a cell's layers, by column of the summary; none if it has none."""
    if not cell.layers:
        return {}
    samples = [visit.samples for visit in visits]
    times = {name: _median_of(samples, name) for name in ("first_layer_us", "slowest_gap_us")}
    shares = [share for visit in visits if (share := hidden_share(visit.beside)) is not None]
    interval = median_interval(np.array(shares)) if shares else (math.nan, math.nan)
    return times | _with_ends("hidden_share", median_or_nan(shares), *interval)


def median_or_nan(values: Iterable[float]) -> float:
    numbers = list(values)
    return float(np.median(numbers)) if numbers else math.nan


def _delay_us(turns: Sequence[Beside], name: str) -> float:
    """Return the median of the visits' differences beside the neighbour; nan without any."""
    times = [(getattr(turn, f"{name}_beside_us"), getattr(turn, f"{name}_alone_us")) for turn in turns]
    return median_or_nan(np.median(beside) - np.median(alone) for beside, alone in times if alone)


def _median_of(turns: Sequence[Beside | Samples], name: str) -> float:
    return median_or_nan(np.median(values) for turn in turns if (values := getattr(turn, name)))


def _percentiles(name: str, suffix: str, times_us: Floats) -> dict[str, float]:
    """Return the percentiles of times, NaN where they are too few, as columns of the summary."""
    return {
        f"{name}_p{percent}_{suffix}": float(np.quantile(times_us, percent / 100))
        if len(times_us) >= least
        else math.nan
        for percent, least in _PERCENTILES.items()
    }


def _with_ends(name: str, value: float, low: float, high: float) -> dict[str, float]:
    low, high = (low, high) if math.isfinite(low) and math.isfinite(high) else (math.nan, math.nan)
    return {name: value, f"{name}_low": low, f"{name}_high": high}
