"""Detects pairs spoiled by other activity on the machine: disturbed visits, or different conditions."""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from kvbench.analysis.intervals import MAD_TO_SIGMA, OUTLIER_SIGMAS, Floats

Mask = npt.NDArray[np.bool_]

CPU: Final = "CPU"

# Between the two visits of a pair: on a quiet CPU a fixed piece of work repeats within 5%.
CPU_APART: Final = 0.15
# Large copies on a quiet link repeat more closely.
SLOW_LINK: Final = 0.02
# The SM clock of an unlimited GPU does not change.
SLOW_CLOCK: Final = 0.03


def outlying(times_us: Floats, least: float) -> Mask:
    """Return a mask of the times that exceed the median by more than the fraction `least` and the usual scatter."""
    known = times_us[np.isfinite(times_us)]
    if not known.size:
        return np.zeros(times_us.shape, dtype=bool)
    middle = float(np.median(known))
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(known - middle)))
    return np.asarray(np.nan_to_num(times_us) > middle + max(least * middle, OUTLIER_SIGMAS * sigma))


def spoiled(
    disturbed: Mask, probes_us: Floats, cpu_bound: Mask, clocks_mhz: Floats, copies_us: Mapping[str, Floats]
) -> dict[str, Mask]:
    """Return cause -> mask of the spoiled pairs, of shape (cells, rounds).

    `disturbed` marks the visits disturbed by anything but a slow CPU. `probes_us` are the times of a fixed piece of
    work on their CPUs, which matter only for the `cpu_bound` cells; `clocks_mhz` are their SM clocks. All have the
    shape (2, cells, rounds). `copies_us`, of shape (2, rounds), are the times of both sides' large copies in one
    direction at the start of a round. What is slow for both sides spoils nothing. A link that is always slow for one
    side does not count here either: it appears as an unsteady control.
    """
    slow_link = np.zeros(disturbed.shape[1:], dtype=bool)
    for sides in copies_us.values():
        slow_link |= _apart(sides, SLOW_LINK)
    limited = [outlying(1 / clocks_mhz[:, place], SLOW_CLOCK).any(axis=0) for place in range(disturbed.shape[1])]
    return {
        "disturbed visit": np.asarray(disturbed.any(axis=0)),
        CPU: _apart(probes_us, CPU_APART) & cpu_bound[:, None],
        "link": slow_link,
        "clock": np.reshape(limited, slow_link.shape),
    }


def _apart(sides: Floats, least: float) -> Mask:
    """Return a mark where one of two sides is slower than the other, unusually so."""
    apart = sides[1] / sides[0]
    return outlying(apart, least) | outlying(1 / apart, least)
