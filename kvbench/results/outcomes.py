"""What a run knows of each of its cells: whether it was measured, by which visits, what they took, and what they cost.

A slowdown of a neighbour is one of the whole time: the mean of the iterations beside swaps over that without. Where
swaps come in bursts, or hold the device up now and then, most iterations are as fast as ever, and their median shows
nothing.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import median
from typing import Any, Final, Literal, NamedTuple, TypeVar

import numpy as np

from kvbench.analysis.compare import (
    MedianInTurn,
    grouped_outliers,
    grouped_quartiles,
    interval_over_starts,
    known_interval,
    medians_in_turn,
    middle_of,
)
from kvbench.analysis.margins import MIN_ITERATIONS
from kvbench.cells.axes import Neighbour, Role, StreamState
from kvbench.cells.blocks import TRACE
from kvbench.cells.cell import AXES, Cell, axes_of
from kvbench.cells.facts import method_label
from kvbench.cells.units import gigabytes_per_second
from kvbench.results.columns import NO_FIGURE, TIMES
from kvbench.results.schema import Beside, CellRecord, EffectivePath, Failure, Opposite, Record, Skip, Visit

OfCell = TypeVar("OfCell", bound=CellRecord)
Item = TypeVar("Item")
Key = TypeVar("Key")
Status = Literal["ok", "no figure", "failed", "skipped"]

# Why a cell has failed whose copies were never compared.
NOT_VERIFIED: Final = "no bytes were verified"
# Separates the texts of several visits; the most frequent path comes first.
BETWEEN: Final = "; "
# Beside `TIMES`: what a swap has whose layers arrive one by one, and one in a chain: the mean time of the chain's.
LAYER_TIMES: Final = ("first_layer_us", "slowest_gap_us")
CHAIN_TIME: Final = "chain_us"
_SORTED_BY: Final = tuple(
    AXES[name] for role in (Role.SERIES, Role.SHAPE, Role.SIDE, Role.QUEUE, Role.BESIDE) for name in axes_of(role)
)


class Spread(NamedTuple):
    """How the times of the swap spread, over the samples of all visits: two quartiles, and the number of outliers.

    `within_visits` is the distance of the quartiles of one visit as a share of its median: the median of the visits.
    """

    q1_us: float = math.nan
    q3_us: float = math.nan
    outliers: int = 0
    within_visits: float = math.nan


NO_SAMPLES: Final = Spread()


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A cell of a run, without the samples of its visits; its backend may be of a `plug_in`.

    `attempts` has the attempt that counts of every round, of `visits_made`; `rounds` counts those with a time of the
    swap, and `disturbed` has the rounds that something disturbed. `path` names their paths, the most frequent first.
    `beside` has the turns of a swap and its neighbour of every round, and `costs` what they cost the neighbour;
    `opposite` has the turns of swaps of both directions.
    `medians` has the median of every visit in microseconds, for each of `TIMES` and, where there are some,
    `LAYER_TIMES` and `CHAIN_TIME`: time -> round -> median. It is empty for a failed or skipped cell, and so is what
    describes samples: their number, their `spread`, and the shares of them that met the stream state (`state_held`) and
    the queue (`depth_held`) that were asked for.
    """

    cell: Cell
    status: Status
    reason: str = ""
    plug_in: bool = False
    attempts: Mapping[int, int] = field(default_factory=dict)
    path: str | None = None
    verified_bytes: int = 0
    costs: Mapping[int, "Cost"] = field(default_factory=dict)
    beside: Mapping[int, Beside] = field(default_factory=dict)
    opposite: Sequence[Opposite] = ()
    failures: Sequence[Failure] = ()
    warnings: Sequence[str] = ()
    visits_made: int = 0
    rounds: int = 0
    disturbed: Collection[int] = ()
    samples: int = 0
    spread: Spread = NO_SAMPLES
    state_held: float = math.nan
    depth_held: float = math.nan
    medians: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def us(self, time: str = "swap_us") -> float:
        """The median of the visits' medians of a time in microseconds, NaN without one."""
        medians = self.medians.get(time, {}).values()
        return float(median(medians)) if medians else math.nan

    def times(self, time: str = "swap_us") -> Mapping[int, float]:
        """Round -> median of a time, as `kvbench.analysis.compare` takes them; empty where it is mostly 0."""
        return {number: us for number, us in self.medians.get(time, {}).items() if us > 0} if self.us(time) > 0 else {}

    @property
    def backend_name(self) -> str:
        """The name of its backend, which says of a plug-in that it is one."""
        return method_label(self.cell.backend, plug_in=self.plug_in)

    @property
    def command(self) -> str:
        """The command that measures the cell alone."""
        return next((failure.command for failure in self.failures), self.cell.command())

    def interval(self, time: str = "swap_us") -> tuple[float, float]:
        """The 95% interval of a time in microseconds, from the visits; NaN where they are too few."""
        return known_interval([*self.medians.get(time, {}).values()])

    @property
    def iterations(self) -> int:
        """The whole iterations of a neighbour beside the swaps that `costs` rest on."""
        return sum(cost.iterations for cost in self.costs.values())

    @property
    def has_rate(self) -> bool:
        """Whether there are GB/s: by events only, and not of swaps that differ in size or of an empty launch."""
        whole = self.cell.sequence != TRACE and self.path != EffectivePath.NOTHING
        return whole and self.cell.swap_clock == "event_us"

    @property
    def gbps(self) -> float:
        """GB/s at the median of the time of the swap, NaN without one."""
        return self._gbps_at(self.us())

    @property
    def interval_gbps(self) -> tuple[float, float]:
        """The 95% interval of the GB/s; NaN where the visits are too few for one."""
        low_us, high_us = self.interval()
        return self._gbps_at(high_us), self._gbps_at(low_us)

    @property
    def quartiles_gbps(self) -> tuple[float, float]:
        """The GB/s at the quartiles of the samples of all visits, the lower first."""
        return self._gbps_at(self.spread.q3_us), self._gbps_at(self.spread.q1_us)

    def _gbps_at(self, us: float) -> float:
        return gigabytes_per_second(self.cell.swap_bytes, us) if self.has_rate and us > 0 else math.nan


def outcomes_of(
    visits_made: Iterable[Visit], counting: Sequence[Visit], others: Iterable[Record], plug_ins: Collection[str] = ()
) -> dict[Cell, Outcome]:
    """The outcome of every cell of a run, sorted by its axes; of the `visits_made`, `counting` count.

    `plug_ins` are the names of the backends of other packages.
    """
    in_turn, spreads = _medians_in_turn(counting), _spreads(counting)
    numbers = Counter(visit.cell for visit in visits_made)
    records_by_cell = by_cell([*counting, *(record for record in others if isinstance(record, Failure | Skip))])
    outcomes = {}
    for cell in sorted(records_by_cell, key=_axis_values):
        spread = spreads.get(cell, NO_SAMPLES)
        outcome = _outcome(cell, records_by_cell[cell], numbers[cell], in_turn, spread)
        outcomes[cell] = replace(outcome, plug_in=cell.backend in plug_ins)
    return outcomes


def is_measured(outcome: Outcome) -> bool:
    """Whether the cell has figures."""
    return outcome.status == "ok"


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items by their keys, in the order of the first of each."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def by_cell(records: Iterable[OfCell]) -> dict[Cell, list[OfCell]]:
    return grouped(records, lambda record: record.cell)


def _medians_in_turn(visits: Iterable[Visit]) -> dict[int, MedianInTurn]:
    """The medians of the visits that were made in turn, by the ids of these objects."""
    timed = (visit for visit in visits if visit.group and visit.swap_times_us)
    medians: dict[int, MedianInTurn] = {}
    for arms in grouped(timed, lambda visit: (visit.group, visit.round, visit.span_ns, len(visit.samples))).values():
        medians |= zip(map(id, arms), medians_in_turn([arm.swap_us for arm in arms]), strict=True)
    return medians


def _spreads(visits: Iterable[Visit]) -> dict[Cell, Spread]:
    """The spread of each cell's samples: of all cells at once, which takes a tenth of the time of one by one."""
    visits_by_cell = by_cell(visits)
    in_order = [*chain.from_iterable(visits_by_cell.values())]
    times_us = np.fromiter(chain.from_iterable(visit.swap_us for visit in in_order), dtype=np.float64)
    per_visit = np.array([len(visit.samples) for visit in in_order], dtype=np.int64)
    counts = [sum(len(visit.samples) for visit in of_cell) for of_cell in visits_by_cell.values()]
    per_cell = np.array(counts, dtype=np.int64)
    low, _, high = grouped_quartiles(times_us, per_cell)
    owner = np.repeat(np.arange(len(per_cell)), per_cell)
    outliers = np.bincount(owner, weights=grouped_outliers(times_us, per_visit), minlength=len(per_cell))
    first, middle, third = grouped_quartiles(times_us, per_visit)
    with np.errstate(all="ignore"):  # an untrusted run may hold any time
        shares = (third - first) / middle
    last_visits = np.cumsum([*map(len, visits_by_cell.values())])[:-1]
    within = map(middle_of, np.split(shares, last_visits))
    figures = zip(low.tolist(), high.tolist(), map(int, outliers), within, strict=False)  # of no cells, one is empty
    return {cell: Spread(*figures_of_cell) for cell, figures_of_cell in zip(visits_by_cell, figures, strict=True)}


def _outcome(
    cell: Cell, records: Sequence[CellRecord], visits_made: int, in_turn: Mapping[int, MedianInTurn], spread: Spread
) -> Outcome:
    visits = [record for record in records if isinstance(record, Visit)]
    failures = [record for record in records if isinstance(record, Failure)]
    paths = Counter(visit.path for visit in visits).most_common()
    outcome = Outcome(
        cell,
        "failed",
        attempts={visit.round: visit.attempt for visit in visits},
        path=distinct_texts(path for path, _ in paths),
        verified_bytes=sum(visit.verified_bytes for visit in visits),
        costs=costs_of(visit for visit in visits if visit.beside is not None),
        beside={visit.round: visit.beside for visit in visits if visit.beside is not None},
        opposite=tuple(visit.opposite for visit in visits if visit.opposite is not None),
        warnings=list(dict.fromkeys(chain.from_iterable(visit.warnings for visit in visits))),
        visits_made=visits_made,
        # A queue measures the submission.
        rounds=len(visits) if cell.queued else sum(bool(visit.swap_times_us) for visit in visits),
        disturbed=[visit.round for visit in visits if visit.disturbed],
    )
    if failures:
        reasons = (f"{failure.kind}: {failure.message}" for failure in failures)
        return replace(outcome, reason=distinct_texts(reasons) or "", failures=failures)
    if not any(len(visit.samples) for visit in visits):
        skips = [record.reason for record in records if isinstance(record, Skip)]
        # Only a journal not written by kvbench has visits without samples.
        status: Status = "skipped" if skips else "failed"
        return replace(outcome, status=status, reason=distinct_texts(skips) or "no reason recorded")
    medians = _medians(cell, visits, in_turn)
    # A queue measures the submission, whose time every sample has.
    has_figure = bool(cell.queued or medians["swap_us"])
    return replace(
        outcome,
        status="ok" if has_figure else "no figure",
        reason="" if has_figure else NO_FIGURE,
        samples=sum(len(visit.samples) for visit in visits),
        spread=spread,
        state_held=_state_held(cell, visits),
        depth_held=share_of_flags(visit.samples.depth_held for visit in visits),
        medians=medians,
    )


def _medians(cell: Cell, visits: Iterable[Visit], in_turn: Mapping[int, MedianInTurn]) -> dict[str, dict[int, float]]:
    """Time -> round -> median of a visit; a round in which no sample has that time is left out."""
    chains = (CHAIN_TIME,) if cell.stream_state is StreamState.SUSTAINED else ()
    times = (*TIMES, *(LAYER_TIMES if cell.layers else ()), *chains)
    medians: dict[str, dict[int, float]] = {time: {} for time in times}
    for visit in visits:
        for time, by_round in medians.items():
            is_swap = time == "swap_us"
            values = visit.swap_times_us if is_swap else getattr(visit.samples, time)
            if values:
                # The median of a visit in turn holds its ratios to the other arms: `compare` takes these.
                by_round[visit.round] = (is_swap and in_turn.get(id(visit))) or median(values)
    return medians


def _state_held(cell: Cell, visits: Iterable[Visit]) -> float:
    pending = share_of_flags(visit.samples.pending_before for visit in visits)
    match cell.stream_state.quantity:
        case "execution":
            return pending
        case "latency":
            return 1 - pending
    return math.nan


def share_of_flags(flags_of_visits: Iterable[Sequence[int] | None]) -> float:
    """The share of samples with a flag, NaN without samples that have one."""
    flags = [*chain.from_iterable(filter(None, flags_of_visits))]
    return sum(flags) / len(flags) if flags else math.nan


def _axis_values(cell: Cell) -> list[tuple[bool, Any]]:
    """A key that sorts cells by their axes, a value before its absence."""
    values = (getattr(cell, axis.field) if axis.number else cell.text(axis.name) for axis in _SORTED_BY)
    return [(value is None, value) for value in values]


def distinct_texts(texts: Iterable[str]) -> str | None:
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
    """The cost of every visit, by round; none if a visit has none, or all have too few iterations together."""
    costs = {visit.round: cost_of(visit) for visit in visits}
    complete = {number: cost for number, cost in costs.items() if cost is not None}
    is_enough = sum(cost.iterations for cost in complete.values()) >= MIN_ITERATIONS
    return complete if is_enough and len(complete) == len(costs) else {}


def cost_of(visit: Visit) -> Cost | None:
    """The cost of a visit, None where a turn had no whole iteration, no swap, or no time, and for a decode step
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


def opposite_rate(opposite: Iterable[Opposite], column: str) -> tuple[float, float, float]:
    """The median of the visits' medians of a rate of swaps of both directions, with its interval; NaN without."""
    medians = [median(rates) for rates in (getattr(visit, column) for visit in opposite) if rates]
    return (float(median(medians)), *known_interval(medians)) if medians else (math.nan, math.nan, math.nan)


def over_starts(costs: Collection[Cost], value: Callable[[Cost], float]) -> tuple[float, float, float]:
    """The centre of a figure of the visits and its interval over all starts of a worker; NaN for no interval."""
    centre, low, high = interval_over_starts([value(cost) for cost in costs], [cost.process for cost in costs])
    return (centre, low, high) if math.isfinite(low) and math.isfinite(high) else (centre, math.nan, math.nan)


def slowdown_of(costs: Collection[Cost]) -> tuple[float, float, float]:
    """The slowdown of a neighbour by the mean of its iterations, and its interval."""
    centre, low, high = over_starts(costs, lambda cost: math.log(cost.slowdown))
    return math.exp(centre), math.exp(low), math.exp(high)


def cost_figures(costs: Collection[Cost]) -> dict[str, float]:
    """What the swaps of a cell cost their neighbour and their thread, by column of the summary."""
    if not costs:
        return {}
    gbps = [cost.gbps for cost in costs]
    intervals = {
        "neighbour_slowdown": slowdown_of(costs),
        "lost_ms_per_gb": over_starts(costs, lambda cost: cost.lost_ms_per_gb),
        "thread_ms_per_gb": over_starts(costs, lambda cost: cost.thread_ms_per_gb),
        "swaps_beside_gbps": (median(gbps), *known_interval(gbps)),
    }
    figures: dict[str, float] = {}
    for name, (centre, low, high) in intervals.items():
        figures |= {name: centre, f"{name}_low": low, f"{name}_high": high}
    by_median, *_ = over_starts(costs, lambda cost: math.log(cost.slowdown_median))
    iterations = sum(cost.iterations for cost in costs)
    return figures | {"neighbour_slowdown_median": math.exp(by_median), "iterations": iterations}
