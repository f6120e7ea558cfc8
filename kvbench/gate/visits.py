"""What a visit contributes to a pair (times of its swap, its caller's time), and which pairs other activity spoiled."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from kvbench.analysis.intervals import MAD_TO_SIGMA, OUTLIER_SIGMAS, Floats, interval_rank, middle_of
from kvbench.results import Visit
from kvbench.results.cost import cost_of
from kvbench.results.schema import Disturbance

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


def unknown(*shape: int) -> VisitValues:
    return np.full(shape, math.nan, VISIT)


@np.errstate(all="ignore")  # an untrusted side can report any time
def values_of(visit: Visit) -> tuple[float, ...]:
    """Return the fields of `VISIT`; the times are NaN for a visit without a figure."""
    state, samples = visit.cell.stream_state, visit.samples
    fast, upper, caller, uneven = (math.nan,) * 4
    if times_us := visit.swap_times_us:
        fast, upper = map(float, np.quantile(times_us, (FAST_SHARE, UPPER_SHARE)))
        if not state.pending:  # there the time of the swap does not hold that of the caller
            caller = fast_us(samples.caller_us)
            uneven = float(np.median(samples.caller_us) / caller) if caller > 0 else math.nan
    cost = cost_of(visit.beside)
    began_ns = visit.span_ns[0] if visit.span_ns else math.nan
    values = (
        *(fast, upper, caller, uneven, math.nan if cost is None else cost.slowdown),
        *(_disturbances(visit), visit.probe_us, visit.sm_clock_mhz, began_ns, visit.process),
    )
    return tuple(float(value) if value and value > 0 else math.nan for value in values)


def fast_us(times_us: Sequence[float] | Floats) -> float:
    """Return the lower tenth: disturbances of the machine only make copies slower."""
    return float(np.quantile(times_us, FAST_SHARE))


def shares_of(callers_us: Floats, times_us: Floats) -> Floats:
    """Return the caller's share of each cell's time, 0 where the time does not hold it."""
    return np.nan_to_num([middle_of(shares) for shares in np.swapaxes(callers_us / times_us, 0, 1)])


def _disturbances(visit: Visit) -> int:
    """Return the number of disturbances of a visit.

    A CPU that was slow is none, because the CPUs of both sides are compared; a host that stalled is one.
    """
    none = {Disturbance.SLOW_CPU} if (visit.slowdown or 0) <= STALLED else set()
    return len(set(visit.disturbed) - none)


def outlying(times_us: Floats, least: float) -> Mask:
    """Return a mask of the times that exceed the median by more than the fraction `least` and the usual scatter."""
    known = times_us[np.isfinite(times_us)]
    if not known.size:
        return np.zeros(times_us.shape, dtype=bool)
    middle = float(np.median(known))
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(known - middle)))
    return np.asarray(np.nan_to_num(times_us) > middle + max(least * middle, OUTLIER_SIGMAS * sigma))


def spoiled(visits: VisitValues, cpu_bound: Mask, copies_us: Mapping[str, Floats]) -> dict[str, Mask]:
    """Return cause -> mask of the spoiled pairs, of shape (cells, rounds).

    `visits` have the shape (2, cells, rounds); the `cpu_bound` cells wait for the CPU. `copies_us`, of shape
    (2, rounds), are the times of both sides' large copies in one direction at the start of a round. What is slow for
    both sides spoils nothing. A link that is always slow for one side does not count here either: it appears as an
    unsteady control.
    """
    unsteady = np.zeros(visits.shape[2], dtype=bool)
    for sides in copies_us.values():
        unsteady |= _apart(sides, SLOW_LINK)
    # Other traffic on the link can be over before the next visit: the pair must be affected too.
    apart = [_apart(sides, SLOW_LINK) for sides in np.swapaxes(visits["fast_us"], 0, 1)]
    slow_link = np.reshape(apart, visits.shape[1:]) & unsteady
    limited = [outlying(1 / sides, SLOW_CLOCK).any(axis=0) for sides in np.swapaxes(visits["clock_mhz"], 0, 1)]
    return {
        "disturbed visit": _disturbed(visits),
        CPU: _by_cpu(visits) & cpu_bound[:, None],
        "link": slow_link,
        "clock": np.reshape(limited, visits.shape[1:]),
    }


def _disturbed(visits: VisitValues) -> Mask:
    """Return a mask of the pairs with a disturbed visit.

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
    """Return a mask of the pairs in which only one of the CPUs was slow, or changed its speed."""
    probes_us = visits["probe_us"]
    slow = np.array([times_us > (1 + SLOWED) * _of_each(times_us, 1 / 4) for times_us in visits["caller_us"]])
    slow &= probes_us > (1 + SLOWED) * np.min(probes_us, initial=math.inf, where=probes_us > 0)
    logs = np.log(visits["unevenness"][1] / visits["unevenness"][0])
    changed = np.abs(logs - _of_each(logs, 1 / 2)) > math.log1p(CHANGED)
    return np.asarray((slow[0] != slow[1]) | changed)


def _apart(sides: Floats, least: float) -> Mask:
    apart = sides[1] / sides[0]
    return outlying(apart, least) | outlying(1 / apart, least)


def _of_each(values: Floats, share: float) -> Floats:
    """Return the quantile of the finite values of each cell, of shape (cells, 1); 0 without any."""
    known = (row[np.isfinite(row)] for row in values)
    return np.reshape([float(np.quantile(row, share)) if row.size else 0.0 for row in known], (-1, 1))
