"""What SM copies reach on a machine, from the roofs that a run measured."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple, Self

from kvbench.analysis.intervals import median_interval
from kvbench.results.schema import Roof

# If scattered small blocks take less than this factor times the time of the same blocks laid out densely, no
# translation limit is in reach.
_LIMITED: Final = 1.1


class Rate(NamedTuple):
    """The highest rate that was reached, a median of rounds, and its interval: NaN with fewer than six rounds."""

    rate: float
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def of(cls, amount: float, times_us: Sequence[float]) -> Self:
        """Return the rate of `amount` in the times of the rounds, per microsecond; NaN for a time of 0."""
        ends_us = median_interval(times_us)
        low, high = (amount / us if 0 < us < math.inf else math.nan for us in reversed(ends_us))
        middle_us = median(times_us)
        return cls(amount / middle_us if middle_us > 0 else math.nan, low, high)

    def times(self, factor: float) -> "Rate":
        return Rate(*(factor * value for value in self))


class Reach(NamedTuple):
    """What SM copies reach in one direction: GB/s in large blocks, and the translation limit in scattered blocks per
    second (None: not in reach).
    """

    sm_gbps: Rate
    limit_blocks_per_s: Rate | None

    @classmethod
    def of(cls, roofs: Sequence[Roof]) -> Self:
        """Return the medians of `roofs`, a non-empty sequence for one direction."""
        scattered_us, dense_us, copy_us = (
            [median(getattr(roof, name)) for roof in roofs] for name in ("scattered_us", "dense_us", "copy_us")
        )
        limited = median(scattered_us) > _LIMITED * median(dense_us)
        limit = Rate.of(roofs[0].blocks, scattered_us).times(1e6) if limited else None
        return cls(Rate.of(roofs[0].copy_bytes, copy_us).times(1e-3), limit)
