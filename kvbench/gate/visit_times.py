"""What a visit contributes to a pair: its undisturbed time, that of its submission, its neighbour and disturbances."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from kvbench.analysis.intervals import Floats, middle_of
from kvbench.analysis.margins import SLOW_CPU
from kvbench.cells.axes import StreamState
from kvbench.results import Visit
from kvbench.results.cost import cost_of

# Between two sides with the same code, on a busy host, the lower tenths of visits differ by a third to a half of the
# difference of their medians (H200, driver 580.159.04, 114 cells).
FAST_SHARE: Final = 0.1
# The shares of a swap's time from which its submission is protected from a slow CPU, and judged itself.
CPU_BOUND: Final = 1 / 3
SUBMISSION_BOUND: Final = 1 / 2
# A core that works for two guests is half as fast for each. Where the CPU took longer than this times its best, the
# host had stalled: of such visits of `sm`, which the CPU only starts, 60% were slower by 5% or more, and of visits on
# CPUs at half their speed 1 to 3% (H100 on a busy host, driver 580.159.04).
STALLED: Final = 3.0


def has_figure(visit: Visit) -> bool:
    """Return whether a visit has samples and, on a busy stream, the delay outlasted the submission in all of them."""
    samples = visit.samples
    return len(samples) > 0 and (visit.cell.stream_state is not StreamState.BUSY or all(samples.pending_after))


def visit_us(visit: Visit) -> float:
    """Return the undisturbed time of a swap in a visit: the `FAST_SHARE` quantile of swap_us, in microseconds.

    Disturbances of the machine only make copies slower. NaN for a visit without a figure.
    """
    if not has_figure(visit):
        return math.nan
    return undisturbed_us(getattr(visit.samples, visit.cell.stream_state.swap_clock))


def undisturbed_us(times_us: Sequence[float]) -> float:
    """Return the `FAST_SHARE` quantile: disturbances of the machine only make copies slower."""
    return float(np.quantile(times_us, FAST_SHARE))


def slowdown(visit: Visit) -> float:
    """Return how much slower the visit's neighbour was, a ratio; NaN without one."""
    cost = cost_of(visit.beside)
    return math.nan if cost is None else cost.slowdown


def disturbances(visit: Visit) -> int:
    """Return the number of disturbances of a visit.

    A CPU that was slow is none, because the CPUs of both sides are compared; a host that stalled is one.
    """
    return len(visit.disturbed) - (1 + SLOW_CPU.fraction < (visit.slowdown or 0) <= STALLED)


def submission_us(visit: Visit) -> float:
    """Return the undisturbed time of the submission; NaN where the time of the swap does not hold it."""
    if visit.cell.stream_state is StreamState.BUSY or not has_figure(visit):
        return math.nan
    return undisturbed_us(visit.samples.caller_us)


def unevenness(visit: Visit) -> float:
    """Return the ratio of the median submission to the undisturbed one; NaN where there is none."""
    undisturbed = submission_us(visit)
    return float(np.median(visit.samples.caller_us)) / undisturbed if undisturbed > 0 else math.nan


def shares_of(submissions_us: Floats, times_us: Floats) -> Floats:
    """Return the submission's share of each cell's time, 0 where the time does not hold it."""
    return np.nan_to_num([middle_of(own) for own in np.swapaxes(submissions_us / times_us, 0, 1)])
