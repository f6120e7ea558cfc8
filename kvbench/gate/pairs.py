"""Pairs the visits of two sides that were measured in turn: what a visit contributes, and which pairs are spoiled."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from kvbench.analysis.compare import MAD_TO_SIGMA, OUTLIER_SIGMAS, Floats, interval_rank, middle_of
from kvbench.cells.cell import AXES, Cell
from kvbench.ground.errors import UsageError
from kvbench.results import Control, Failure, Run, Visit
from kvbench.results.outcomes import NOT_VERIFIED, by_cell, cost_of
from kvbench.results.schema import Disturbance, EffectivePath

BASE: Final = "base"
CAND: Final = "cand"
_MISSING: Final = "missing"
_MOST_LISTED: Final = 3
CPU: Final = "CPU"
# Between two sides with the same code, on a busy host, the lower tenths of visits differ by a third to a half of the
# difference of their medians (H200, driver 580.159.04, 114 cells).
FAST_SHARE: Final = 0.1
# The middle of the upper half. The median misses a build in which 7 of 15 swaps are slower; a mean follows each burst.
UPPER_SHARE: Final = 0.75
# The shares of a swap's time from which its caller is protected from a slow CPU, and judged itself.
CPU_BOUND: Final = 1 / 3
CALLER_BOUND: Final = 1 / 2
# A core that works for two guests is half as fast for each. Where the CPU took longer than this times its best, the
# host had stalled: of such visits of `sm`, which the CPU only starts, 60% were slower by 5% or more, and of visits on
# CPUs at half their speed 1 to 3% (H100 on a busy host, driver 580.159.04).
STALLED: Final = 3.0

# A busy host halves the speed of a CPU for milliseconds to seconds. On an H100 whose host was busy (driver 580.159.04),
# the two rules below spoiled a quarter of the pairs of CPU-bound cells; 40 pairs decide 93% of these cells, against 82%
# without them. On a quiet host it is an eighth, and 100% against 98%.
# A CPU was slow if a fixed piece of work took this much longer than at best, and the submission than it usually does.
SLOWED: Final = 0.15
# A CPU changed its speed in a visit whose submissions are less even than its partner's by this much: their fastest
# tenth then comes from another speed than the partner's.
CHANGED: Final = 0.1
# Large copies on a quiet link repeat more closely.
SLOW_LINK: Final = 0.02
# The SM clock of an unlimited GPU does not change.
SLOW_CLOCK: Final = 0.03
BUILD_CONFIDENCE: Final = 0.99

# One visit; what is unknown, zero or negative is NaN. `fast_us` and `upper_us` are times of the swap, `caller_us` is
# the time that it takes from its thread, `slowdown` that of a neighbour, `disturbed` the number of disturbances.
_FIELDS: Final = (
    "fast_us", "upper_us", "caller_us", "unevenness", "slowdown", "disturbed", "probe_us", "clock_mhz", "began_ns",
    "process",
)  # fmt: skip
VISIT: Final = np.dtype([(name, np.float64) for name in _FIELDS])
VisitValues = npt.NDArray[np.void]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Pairs:
    """The cells of both sides in a fixed order, under the base's names, and their paired visits.

    `visits` have the shape (2, cells, rounds), without values if a round did not measure a cell, if the pair was
    spoiled, or if the cell is in `failed`. Their `caller_us` is NaN for cells whose caller takes less than
    `CALLER_BOUND` of their time or copies.

    `order` is 1 for every round in which the candidate ran second, -1 if it ran first, 0 if unknown. `processes`
    counts, for every round, how often both sides had new worker processes before. `controls` maps a name to the log
    ratios of the candidate's time to the base's, by round, of controls that no build affects. `names` are those of the
    cells on the candidate's side where they are others. `unmeasured` cells were visited on no side. `failed` has a
    reason for every cell that failed or is missing on a side, `no_figure` the sides on which a cell ran but has none.
    `paths` are changes of the effective path ("copy engine -> CPU inline"), `inline` the cells that the CPU copies on
    both sides, `disturbed` the number of pairs that each cause spoiled.
    """

    cells: Sequence[Cell]
    visits: VisitValues
    order: Floats
    processes: Floats
    controls: Mapping[str, Floats]
    names: Mapping[Cell, Cell] = field(default_factory=dict)
    unmeasured: frozenset[Cell] = frozenset()
    failed: Mapping[Cell, str] = field(default_factory=dict)
    no_figure: Mapping[Cell, Sequence[str]] = field(default_factory=dict)
    paths: Mapping[Cell, str] = field(default_factory=dict)
    inline: frozenset[Cell] = frozenset()
    disturbed: Mapping[str, int] = field(default_factory=dict)


class _Side:
    def __init__(self, name: str, run: Run) -> None:
        self.name, self.outcomes, self.visits = name, run.outcomes, by_cell(run.visits)
        self.rounds = {record.round for record in run.records if isinstance(record, Visit | Failure)}
        self._copies: dict[str, dict[int, float]] = {}
        for record in run.records:
            if isinstance(record, Control) and record.event_us:
                byte_us = fast_us(record.event_us) / record.copy_bytes
                self._copies.setdefault(record.direction, {})[record.round] = byte_us

    def values(self, cells: Sequence[Cell], rounds: Sequence[int]) -> VisitValues:
        """The values of every visit, of shape (cells, rounds)."""
        index_of = {number: index for index, number in enumerate(rounds)}
        values = unknown(len(cells), len(rounds))
        for row, cell in zip(values, cells, strict=True):
            for visit in self.visits.get(cell, ()):
                row[index_of[visit.round]] = values_of(visit)
        return values

    def ran(self, cell: Cell) -> bool:
        return cell in self.outcomes and self.outcomes[cell].status != "skipped"

    def error(self, cell: Cell) -> str:
        """Why the cell has no timing on this side, or ""; an unverified cell has none."""
        outcome = self.outcomes.get(cell)
        if outcome is None:
            return f"{self.name}: {_MISSING}"
        if outcome.status in ("failed", "skipped"):
            return f"{self.name}: {outcome.status}: {outcome.reason}"
        return "" if outcome.verified_bytes else f"{self.name}: failed: {NOT_VERIFIED}"

    def has_figure(self, cell: Cell) -> bool:
        return any(visit.swap_times_us for visit in self.visits.get(cell, ()))

    def path(self, cell: Cell) -> str:
        counts = Counter(visit.path for visit in self.visits.get(cell, ()))
        return counts.most_common(1)[0][0] if counts else ""

    def copies_us(self, rounds: Sequence[int]) -> dict[str, Floats]:
        """Direction -> time of a byte of the large copies of every round, NaN if there are none."""
        return {
            # a time of zero has no ratio
            direction: np.array([by_round.get(number) or np.nan for number in rounds])
            for direction, by_round in self._copies.items()
        }


@np.errstate(all="ignore")  # an untrusted side can report any time
def pair(base: Run, cand: Run, names: Mapping[Cell, Cell]) -> Pairs:
    """Pair the visits of both sides; `names` are the cells of the base and their names on the candidate's side.

    Rounds can measure different cells, and time can end before some are measured.
    """
    base_side, cand_side = _Side(BASE, base), _Side(CAND, cand)
    cells = sorted(names, key=attrgetter("backend", "direction", "stream_state", "blocks", "block_bytes", "id"))
    rounds = sorted(base_side.rounds | cand_side.rounds)
    measured = np.stack([base_side.values(cells, rounds), cand_side.values([names[cell] for cell in cells], rounds)])
    ran = [cell for cell in cells if base_side.ran(cell) or cand_side.ran(names[cell])]
    failed, no_figure = dict[Cell, str](), dict[Cell, list[str]]()
    for cell in ran:
        errors = _errors(base_side.error(cell), cand_side.error(names[cell]))
        sides = [BASE] * (not base_side.has_figure(cell)) + [CAND] * (not cand_side.has_figure(names[cell]))
        if errors:
            failed[cell] = first_few(errors)
        elif sides:
            no_figure[cell] = sides
    paths = {cell: (base_side.path(cell), cand_side.path(names[cell])) for cell in cells}
    inline = frozenset(cell for cell, of_sides in paths.items() if {*of_sides} == {EffectivePath.CPU_INLINE})
    # From here on in the order of `cells`. Marks come from all that was measured, before any of it is left out.
    by_cpu, ok = _mask(cells, inline), ~_mask(cells, failed)
    shares = _caller_shares(measured)
    copies_us = _copies_of_sides(base_side, cand_side, rounds)
    marks = spoiled(measured, (shares >= CPU_BOUND) & ~by_cpu, copies_us)  # what the CPU copies has a margin for that
    return Pairs(
        cells,
        _counted(measured, ok, (shares >= CALLER_BOUND) & ~by_cpu, marks),
        order=_order(measured["began_ns"]),
        processes=_new_processes(measured["process"]),
        controls=_controls(measured["probe_us"], copies_us, marks),
        names=names,
        unmeasured=frozenset(cells) - frozenset(ran),
        failed=failed,
        no_figure=no_figure,
        paths={cell: f"path: {old} -> {new}" for cell, (old, new) in paths.items() if new and old != new},
        inline=inline,
        disturbed=_disturbed_pairs(measured, ok, marks),
    )


def _mask(cells: Sequence[Cell], chosen: Collection[Cell]) -> Mask:
    return np.array([cell in chosen for cell in cells], dtype=bool)


def _errors(base: str, cand: str) -> list[str]:
    """The errors of both sides; one side is not visited where the other failed, so that is no error then."""
    errors = [error for error in (base, cand) if error]
    return [error for error in errors if not error.endswith(f": {_MISSING}")] or errors


def _caller_shares(measured: VisitValues) -> Floats:
    """The caller's share of the time of each cell, 0 where that time does not hold it."""
    shares = np.swapaxes(measured["caller_us"] / measured["fast_us"], 0, 1)
    return np.nan_to_num([*map(middle_of, shares)])


def _copies_of_sides(base: _Side, cand: _Side, rounds: Sequence[int]) -> dict[str, Floats]:
    """Direction -> times of both sides' large copies, of shape (2, rounds)."""
    base_us, cand_us = base.copies_us(rounds), cand.copies_us(rounds)
    return {name: np.array([base_us[name], cand_us[name]]) for name in sorted(base_us.keys() & cand_us.keys())}


def _counted(measured: VisitValues, ok: Mask, caller: Mask, marks: Mapping[str, Mask]) -> VisitValues:
    """The visits that count: those of cells that are `ok`, in pairs that no mark spoils.

    `caller_us` is left for cells whose `caller` is judged.
    """
    visits = measured.copy()
    visits["caller_us"][:, ~caller] = np.nan
    visits[:, ~ok] = np.nan
    for mark in marks.values():
        visits[:, mark] = np.nan
    return visits


def _disturbed_pairs(measured: VisitValues, ok: Mask, marks: Mapping[str, Mask]) -> dict[str, int]:
    complete = np.isfinite(measured["fast_us"]).all(axis=0) & ok[:, None]
    counts = {cause: int((mark & complete).sum()) for cause, mark in marks.items()}
    return {cause: count for cause, count in counts.items() if count}


def _order(began_ns: Floats) -> Floats:
    """1 for every round in which the candidate began second, -1 if it began first, 0 if unknown."""
    base, cand = np.fmin.reduce(began_ns, axis=1)
    return np.asarray(np.nan_to_num(np.sign(cand - base)))


def _new_processes(numbers: Floats) -> Floats:
    """Count the changes of worker processes on both sides before each round.

    `numbers` are those of each side's process by cell and round, NaN if unknown.
    """
    # A run numbers its workers in the order of their starts: the fewer of the changes on both sides is how often both
    # had new ones.
    sides = np.fmin.reduce(numbers, axis=1)
    changes = sides - np.fmin.reduce(sides, axis=1, keepdims=True)
    return np.asarray(np.nan_to_num(np.fmin(*changes)))


def _controls(probes_us: Floats, copies_us: Mapping[str, Floats], marks: Mapping[str, Mask]) -> dict[str, Floats]:
    """Name -> log ratio of the candidate's time to the base's, by round; the CPU's is without spoiled pairs."""
    controls = {direction: np.log(sides[1]) - np.log(sides[0]) for direction, sides in copies_us.items()}
    logs = np.where(marks[CPU] | marks["disturbed visit"], np.nan, np.log(probes_us[1]) - np.log(probes_us[0]))
    if np.isfinite(logs).any():
        controls[CPU] = np.array([*map(middle_of, logs.T)])
    return controls


def partners(base: Iterable[Cell], cand: Iterable[Cell]) -> dict[Cell, Cell]:
    """Each cell of the base -> its partner; cells without a partner are omitted.

    A cell's partner is itself, unless each side has a single backend and the two differ: then two backends are
    compared, and a cell's partner is the cell with the same values on all other axes that both backends support.
    Raises UsageError if two cells of a side have the same partner.
    """
    base_cells, cand_cells = list(dict.fromkeys(base)), list(dict.fromkeys(cand))
    if not about_backends(base_cells, cand_cells):
        same = set(cand_cells)
        return {cell: cell for cell in base_cells if cell in same}
    common = {axis.field for axis in AXES.values()} - {"backend"}
    for cells in (base_cells, cand_cells):
        common &= {field for field in common if any(getattr(cell, field) is not None for cell in cells)}
    fields = sorted(common)
    partner_at = _by_values(cand_cells, fields)
    return {cell: partner_at[values] for values, cell in _by_values(base_cells, fields).items() if values in partner_at}


def about_backends(base: Sequence[Cell], cand: Sequence[Cell]) -> list[str]:
    """A note if each side has a single backend and the two differ."""
    names = {cell.backend for cell in base}, {cell.backend for cell in cand}
    if names[0] == names[1] or any(len(backends) != 1 for backends in names):
        return []
    first, second = base[0].backend, cand[0].backend
    return [f"comparing two backends, {first} (base) and {second} (candidate): cells are paired by the axes of both"]


def _by_values(cells: Sequence[Cell], fields: Sequence[str]) -> dict[tuple[object, ...], Cell]:
    keys = {cell: tuple(getattr(cell, name) for name in fields) for cell in cells}
    counts = Counter(keys.values())
    twice = [cell.label for cell, values in keys.items() if counts[values] > 1]
    if twice:
        raise UsageError(
            f"{twice[0]} and {twice[1]} differ only in an axis that the other backend does not support: keep one"
        )
    return {values: cell for cell, values in keys.items()}


def first_few(reasons: Sequence[str]) -> str:
    more = len(reasons) - _MOST_LISTED
    return "; ".join(reasons[:_MOST_LISTED]) + (f"; and {more} more" if more > 0 else "")


def unknown(*shape: int) -> VisitValues:
    return np.full(shape, math.nan, VISIT)


@np.errstate(all="ignore")  # an untrusted side can report any time
def values_of(visit: Visit) -> tuple[float, ...]:
    """The fields of `VISIT`; the times are NaN for a visit without a figure.

    Of a latency they are wall times: what an engine's thread waits for. Others are the times of the report.
    """
    state, samples = visit.cell.stream_state, visit.samples
    fast, upper, caller, uneven = (math.nan,) * 4
    if times_us := samples.wall_us if state.quantity == "latency" else visit.swap_times_us:
        fast, upper = map(float, np.quantile(times_us, (FAST_SHARE, UPPER_SHARE)))
        if not state.pending:  # there the time of the swap does not hold that of the caller
            caller = fast_us(samples.caller_us)
            uneven = float(np.median(samples.caller_us) / caller) if caller > 0 else math.nan
    cost = cost_of(visit)
    began_ns = visit.span_ns[0] if visit.span_ns else math.nan
    values = (
        *(fast, upper, caller, uneven, math.nan if cost is None else cost.slowdown),
        *(_disturbances(visit), visit.probe_us, visit.sm_clock_mhz, began_ns, visit.process),
    )
    return tuple(float(value) if value and value > 0 else math.nan for value in values)


def fast_us(times_us: Sequence[float] | Floats) -> float:
    """The lower tenth: disturbances of the machine only make copies slower."""
    return float(np.quantile(times_us, FAST_SHARE))


def _disturbances(visit: Visit) -> int:
    """The number of disturbances of a visit.

    A CPU that was slow is none, because the CPUs of both sides are compared; a host that stalled is one.
    """
    harmless = {Disturbance.SLOW_CPU} if (visit.slowdown or 0) <= STALLED else set()
    return len(set(visit.disturbed) - harmless)


def outlying(times_us: Floats, least: float) -> Mask:
    """A mask of the times that exceed the median by more than the fraction `least` and the usual scatter."""
    finite_us = times_us[np.isfinite(times_us)]
    if not finite_us.size:
        return np.zeros(times_us.shape, dtype=bool)
    middle = float(np.median(finite_us))
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(finite_us - middle)))
    return np.asarray(np.nan_to_num(times_us) > middle + max(least * middle, OUTLIER_SIGMAS * sigma))


def spoiled(visits: VisitValues, cpu_bound: Mask, copies_us: Mapping[str, Floats]) -> dict[str, Mask]:
    """Cause -> mask of the spoiled pairs, of shape (cells, rounds).

    `visits` have the shape (2, cells, rounds); the `cpu_bound` cells wait for the CPU. `copies_us`, of shape
    (2, rounds), are the times of both sides' large copies in one direction at the start of a round. What is slow for
    both sides spoils nothing. A link that is always slow for one side does not count here either: it appears as an
    unsteady control.
    """
    unsteady = np.zeros(visits.shape[2], dtype=bool)
    for sides in copies_us.values():
        unsteady |= _differing(sides)
    # Other traffic on the link can be over before the next visit: the pair must be affected too.
    affected = [_differing(sides) for sides in np.swapaxes(visits["fast_us"], 0, 1)]
    slow_link = np.reshape(affected, visits.shape[1:]) & unsteady
    limited = [outlying(1 / sides, SLOW_CLOCK).any(axis=0) for sides in np.swapaxes(visits["clock_mhz"], 0, 1)]
    return {
        "disturbed visit": _disturbed(visits),
        CPU: _by_cpu(visits) & cpu_bound[:, None],
        "link": slow_link,
        "clock": np.reshape(limited, visits.shape[1:]),
    }


def _disturbed(visits: VisitValues) -> Mask:
    """A mask of the pairs with a disturbed visit.

    A machine disturbs both sides alike. Where most of the pairs of which one visit was disturbed accuse the same side
    (a sign test), its build is the cause, and nothing is spoiled by it: swaps can be slower in the second half of each
    visit.
    """
    disturbed = visits["disturbed"] > 0
    for index in range(visits.shape[1]):
        alone = disturbed[:, index] & ~disturbed[::-1, index]
        counts = alone.sum(axis=1)
        rank = interval_rank(int(counts.sum()), BUILD_CONFIDENCE)
        if rank is not None and counts.min() <= rank:
            disturbed[counts.argmax(), index] = False
    return np.asarray(disturbed.any(axis=0))


def _by_cpu(visits: VisitValues) -> Mask:
    """A mask of the pairs in which only one of the CPUs was slow, or changed its speed."""
    probes_us = visits["probe_us"]
    slow = np.array([times_us > (1 + SLOWED) * _of_each(times_us, 1 / 4) for times_us in visits["caller_us"]])
    slow &= probes_us > (1 + SLOWED) * np.min(probes_us, initial=math.inf, where=probes_us > 0)
    logs = np.log(visits["unevenness"][1] / visits["unevenness"][0])
    # From what is usual of the cell: its submissions may be less even on one side in every round.
    changed = np.abs(logs - _of_each(logs, 1 / 2)) > math.log1p(CHANGED)
    return np.asarray((slow[0] != slow[1]) | changed)


def _differing(sides: Floats) -> Mask:
    """A mask of the rounds in which the sides' ratio is unusual, whether high or low."""
    ratios = sides[1] / sides[0]
    return outlying(ratios, SLOW_LINK) | outlying(1 / ratios, SLOW_LINK)


def _of_each(values: Floats, share: float) -> Floats:
    """The quantile of the finite values of each cell, of shape (cells, 1); 0 without any."""
    finite = (row[np.isfinite(row)] for row in values)
    return np.reshape([float(np.quantile(row, share)) if row.size else 0.0 for row in finite], (-1, 1))


def without_slot_bias(log_ratios: Floats, order: Floats) -> tuple[Floats, float]:
    """Log ratios of shape (items, rounds) without the cost of running second in a pair, and that cost.

    The cost is a log ratio: half the difference between the two orders (see `Pairs.order`), as the median of all items;
    0 if it is unknown. Alternating orders cancel it in the centre, but it would widen every interval. One value for all
    items avoids fitting the noise of single items. The correction requires two rounds of each order.
    """
    second, first = log_ratios[:, order > 0], log_ratios[:, order < 0]
    usable = (np.isfinite(second).sum(axis=1) >= 2) & (np.isfinite(first).sum(axis=1) >= 2)
    if not usable.any():
        return log_ratios, 0.0
    bias = float(np.median(np.nanmedian(second[usable], axis=1) - np.nanmedian(first[usable], axis=1)) / 2)
    return log_ratios - bias * order, bias
