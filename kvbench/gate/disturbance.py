"""Which pairs something else on the machine spoiled, told by what no build changes, never by the times themselves."""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from kvbench.analysis.intervals import OUTLIER_SIGMAS, Floats

Mask = npt.NDArray[np.bool_]

# A fixed piece of work repeats within 5% on a quiet CPU; a core that is shared, or clocked down, takes far longer.
SLOW_CPU: Final = 0.15
# Large copies on a quiet link repeat more closely than that.
SLOW_LINK: Final = 0.02
# The SM clock of a GPU that nothing limits stays where it is.
SLOW_CLOCK: Final = 0.03
_MAD_TO_SIGMA: Final = 1.4826


def outlying(times_us: Floats, least: float) -> Mask:
    """Return a mark for every time above the median by more than the fraction `least`, and beyond the usual scatter."""
    known = times_us[np.isfinite(times_us)]
    if not known.size:
        return np.zeros(times_us.shape, dtype=bool)
    middle = float(np.median(known))
    sigma = _MAD_TO_SIGMA * float(np.median(np.abs(known - middle)))
    return np.asarray(np.nan_to_num(times_us) > middle + max(least * middle, OUTLIER_SIGMAS * sigma))


def spoiled(probes_us: Floats, copies_us: Mapping[str, Floats], clocks_mhz: Floats) -> dict[str, Mask]:
    """Return cause -> mark for every pair, of shape (cells, rounds).

    `probes_us`, of shape (2, cells, rounds), are the times of a fixed piece of work beside either side's visits;
    `copies_us`, of shape (2, rounds), those of either side's large copies one way, made at the begin of a round, and
    `clocks_mhz` the SM clock behind them. A link that is slow for one side throughout is none of this: it shows as a
    control that is not steady.
    """
    _, cells, rounds = probes_us.shape
    slow = np.zeros(rounds, dtype=bool)
    for sides in copies_us.values():
        slow |= outlying(sides[0], SLOW_LINK) | outlying(sides[1], SLOW_LINK)
    limited = outlying(1 / clocks_mhz, SLOW_CLOCK).any(axis=0)
    return {
        "CPU": np.asarray(outlying(probes_us, SLOW_CPU).any(axis=0)),
        "link": np.broadcast_to(slow, (cells, rounds)).copy(),
        "clock": np.broadcast_to(limited, (cells, rounds)).copy(),
    }
