"""The values that a visit contributes to a pair: two times of its swap, its caller's time, and what disturbed it."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from kvbench.analysis.intervals import Floats, middle_of
from kvbench.results import Visit
from kvbench.results.cost import cost_of
from kvbench.results.schema import Disturbance

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

# One visit; what is unknown, zero or negative is NaN. `fast_us`, `middle_us` and `upper_us` are times of the swap,
# `caller_us` is the time that it takes from its thread, `slowdown` that of a neighbour, `disturbed` the number of
# disturbances.
_FIELDS: Final = (
    "fast_us", "middle_us", "upper_us", "caller_us", "unevenness", "slowdown",
    "disturbed", "probe_us", "clock_mhz", "began_ns", "ended_ns", "began_s", "process",
)  # fmt: skip
VISIT: Final = np.dtype([(name, np.float64) for name in _FIELDS])
VisitValues = npt.NDArray[np.void]


def unknown(*shape: int) -> VisitValues:
    return np.full(shape, math.nan, VISIT)


@np.errstate(all="ignore")  # an untrusted run can hold any time
def values_of(visit: Visit) -> tuple[float, ...]:
    """Return the fields of `VISIT`; the times are NaN for a visit without a figure."""
    state, samples = visit.cell.stream_state, visit.samples
    fast, middle, upper, caller, uneven = (math.nan,) * 5
    if times_us := visit.swap_times_us:
        fast, middle, upper = map(float, np.quantile(times_us, (FAST_SHARE, 0.5, UPPER_SHARE)))
        if not state.pending:  # there the time of the swap does not hold that of the caller
            caller = fast_us(samples.caller_us)
            uneven = float(np.median(samples.caller_us) / caller) if caller > 0 else math.nan
    cost = cost_of(visit.beside)
    began_ns, ended_ns = visit.span_ns or (math.nan, math.nan)
    values = (
        *(fast, middle, upper, caller, uneven, math.nan if cost is None else cost.slowdown),
        *(_disturbances(visit), visit.probe_us, visit.sm_clock_mhz),
        *(began_ns, ended_ns, visit.began, visit.process),
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
