"""What curves show: cliffs (jumps), knees (where they stop rising) and crossovers (where the fastest changes)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np

from kvbench.analysis.intervals import Quartiles

MIN_HEIGHT: Final = 1.5
KNEE_SHARE: Final = 0.95
SHALLOW: Final = 3
RISE: Final = 2.0


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


@dataclass(frozen=True, slots=True)
class Crossover:
    """`before` is fastest up to `below_bytes`, `after` from `above_bytes` on; any size in between is undecided."""

    below_bytes: int
    above_bytes: int
    before: str
    after: str


def leaders(times: Mapping[str, Quartiles]) -> list[str]:
    """Return the names that this noise does not tell apart from the fastest, by their medians: one where it is decided.

    An arm is told apart when its lower quartile lies above the upper quartile of the arm with the smallest median.
    """
    ordered = sorted(times, key=lambda name: (times[name].median, name))
    return [name for name in ordered if times[name].low <= times[ordered[0]].high]


def winners(arms: Mapping[str, Mapping[int, Quartiles]]) -> dict[int, str | None]:
    """Return the fastest arm at every size that all arms have, ascending; None where it is undecided."""
    common = sorted(set[int].intersection(*(set(times) for times in arms.values()))) if arms else []
    found: dict[int, str | None] = {}
    for size in common:
        first, *others = leaders({name: times[size] for name, times in arms.items()})
        found[size] = None if others else first
    return found


def crossovers(fastest: Mapping[int, str | None]) -> Sequence[Crossover]:
    """Return where the winner changes, from `winners`; sizes in any order."""
    decided = [(size, name) for size, name in sorted(fastest.items()) if name is not None]
    pairs = pairwise(decided)
    return [Crossover(below, above, before, after) for (below, before), (above, after) in pairs if before != after]


@dataclass(frozen=True, slots=True)
class QueueKnee:
    """The first `depth` at which a submission takes much longer than on a shallow queue; both times in microseconds."""

    depth: int
    submit_us: float
    shallow_us: float

    @property
    def height(self) -> float:
        return self.submit_us / self.shallow_us


def find_queue_knee(times: Mapping[int, Quartiles]) -> QueueKnee | None:
    """Return the first depth at which a submission takes more than `RISE` times as long as on a shallow queue, or None.

    `times` are the quartiles of the submission's time, by the number of swaps that were queued before it. The
    `SHALLOW` smallest depths are the shallow queue: its time is the median of their medians. A depth counts when its
    lower quartile is beyond that and above the upper quartile of every shallow depth.
    """
    depths = sorted(times)
    shallow = [times[depth] for depth in depths[:SHALLOW]]
    if len(depths) <= SHALLOW or (shallow_us := median(part.median for part in shallow)) <= 0:
        return None
    noise_us = max(part.high for part in shallow)
    for depth in depths[SHALLOW:]:
        if times[depth].low > max(RISE * shallow_us, noise_us):
            return QueueKnee(depth, times[depth].median, shallow_us)
    return None


def pareto_edge(gains: Sequence[float], costs: Sequence[float]) -> list[bool]:
    """Return for each of several things whether no other gains as much at a lower cost, or more at no higher one."""
    both = list(zip(gains, costs, strict=True))
    return [
        not any(other >= gain and price <= cost and (other, price) != (gain, cost) for other, price in both)
        for gain, cost in both
    ]
