"""Which pairs something else on the machine spoiled: visits that were disturbed, or conditions that differ."""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from kvbench.analysis.intervals import MAD_TO_SIGMA, OUTLIER_SIGMAS, Floats

Mask = npt.NDArray[np.bool_]

CPU: Final = "CPU"

# Between the two visits of a pair: a fixed piece of work repeats within 5% on a quiet CPU.
CPU_APART: Final = 0.15
# Large copies on a quiet link repeat more closely than that.
SLOW_LINK: Final = 0.02
# The SM clock of a GPU that nothing limits stays where it is.
SLOW_CLOCK: Final = 0.03


def outlying(times_us: Floats, least: float) -> Mask:
    """Return a mark for every time above the median by more than the fraction `least`, and beyond the usual scatter."""
    known = times_us[np.isfinite(times_us)]
    if not known.size:
        return np.zeros(times_us.shape, dtype=bool)
    middle = float(np.median(known))
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(known - middle)))
    return np.asarray(np.nan_to_num(times_us) > middle + max(least * middle, OUTLIER_SIGMAS * sigma))


def spoiled(disturbed: Mask, probes_us: Floats, clocks_mhz: Floats, copies_us: Mapping[str, Floats]) -> dict[str, Mask]:
    """Return cause -> mark for every pair, of shape (cells, rounds).

    `disturbed` marks the visits that were, `probes_us` are the times of a fixed piece of work on their CPUs and
    `clocks_mhz` their SM clocks, each of shape (2, cells, rounds); `copies_us`, of shape (2, rounds), are the times of
    either side's large copies one way, made at the begin of a round. A link that is slow for one side throughout is
    none of this: it shows as a control that is not steady.
    """
    slow_link = np.zeros(disturbed.shape[1:], dtype=bool)
    for sides in copies_us.values():
        slow_link |= outlying(sides[0], SLOW_LINK) | outlying(sides[1], SLOW_LINK)
    apart = probes_us[1] / probes_us[0]
    limited = [outlying(1 / clocks_mhz[:, place], SLOW_CLOCK).any(axis=0) for place in range(disturbed.shape[1])]
    return {
        "disturbed visit": np.asarray(disturbed.any(axis=0)),
        CPU: outlying(apart, CPU_APART) | outlying(1 / apart, CPU_APART),
        "link": slow_link,
        "clock": np.reshape(limited, slow_link.shape),
    }
