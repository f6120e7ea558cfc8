"""Detects pairs spoiled by other activity on the machine: disturbed visits, or different conditions."""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from kvbench.analysis.intervals import MAD_TO_SIGMA, OUTLIER_SIGMAS, Floats, interval_rank
from kvbench.gate.visit_times import VisitValues

Mask = npt.NDArray[np.bool_]

CPU: Final = "CPU"

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
