"""Where a curve jumps, and where it stops rising."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

MIN_HEIGHT: Final = 1.5
KNEE_SHARE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Cliff:
    """A jump between two neighbouring block sizes: `height` is the faster GB/s over the slower."""

    below_bytes: int
    above_bytes: int
    below_gbps: float
    above_gbps: float

    @property
    def rises(self) -> bool:
        return self.above_gbps > self.below_gbps

    @property
    def height(self) -> float:
        return max(self.above_gbps / self.below_gbps, self.below_gbps / self.above_gbps)


def find_cliff(
    sizes: Sequence[int], gbps: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> Cliff | None:
    """Return the largest jump between neighbours of a curve, or None.

    `sizes` are block sizes in bytes, in any order and unique, for one number of blocks; `gbps` with its interval
    [`low`, `high`] belongs to them. A jump counts when it is at least `MIN_HEIGHT` and the intervals clear it. On a
    rise they must also clear the ratio of the sizes: where every descriptor costs the same, GB/s double with the size
    and nothing happened; beyond that, the larger blocks take less time than the smaller ones.
    """
    points = sorted(zip(sizes, gbps, low, high, strict=True))
    found: list[Cliff] = []
    for (size, rate, least, most), (next_size, next_rate, next_least, next_most) in pairwise(points):
        if not np.isfinite([rate, least, most, next_rate, next_least, next_most]).all() or min(least, next_least) <= 0:
            continue
        rise = next_least / most > next_size / size
        fall = next_most < least
        cliff = Cliff(size, next_size, rate, next_rate)
        if (rise or fall) and cliff.height >= MIN_HEIGHT:
            found.append(cliff)
    return max(found, key=lambda cliff: cliff.height, default=None)


def knee(sm_counts: Sequence[int], gbps: Sequence[float]) -> int | None:
    """Return the smallest SM count within 5% of the best GB/s; None without a finite value."""
    finite = [(count, rate) for count, rate in zip(sm_counts, gbps, strict=True) if np.isfinite(rate)]
    best = max((rate for _, rate in finite), default=0.0)
    return min((count for count, rate in finite if rate >= KNEE_SHARE * best), default=None)
