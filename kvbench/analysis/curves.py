"""Features of curves: cliffs (jumps), knees (the curve stops rising), and what gains most for its cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np

from kvbench.analysis.compare import Verdict, Visits, compare_visits
from kvbench.analysis.margins import KNEE, QUEUE_KNEE

MIN_HEIGHT: Final = 1.5
SHALLOW: Final = 2


@dataclass(frozen=True, slots=True)
class Cliff:
    """A jump between two consecutive block sizes: `height` is the faster GB/s divided by the slower."""

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

    @property
    def excess(self) -> float:
        """The height divided by the ratio of the sizes on a rise: at a constant cost per descriptor, GB/s double with
        the size.
        """
        return self.height * self.below_bytes / self.above_bytes if self.rises else self.height


def find_cliff(
    sizes: Sequence[int], gbps: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> Cliff | None:
    """The jump between consecutive points of a curve with the largest excess over the ratio of sizes, or None.

    `sizes` are unique block sizes in bytes, in any order, for one number of blocks; `gbps` and its interval [`low`,
    `high`] belong to them. A jump must be at least `MIN_HEIGHT`, and its intervals must not overlap. On a rise, even
    the ratio of the nearest ends must exceed the ratio of the sizes: larger blocks take less time than smaller ones.
    """
    points = sorted(zip(sizes, gbps, low, high, strict=True))
    cliffs: list[Cliff] = []
    for (size, rate, lowest, highest), (next_size, next_rate, next_lowest, next_highest) in pairwise(points):
        rates = [rate, lowest, highest, next_rate, next_lowest, next_highest]
        if not np.isfinite(rates).all() or min(lowest, next_lowest) <= 0:
            continue
        rise = next_lowest / highest > next_size / size
        fall = next_highest < lowest
        cliff = Cliff(size, next_size, rate, next_rate)
        if (rise or fall) and cliff.height >= MIN_HEIGHT:
            cliffs.append(cliff)
    return max(cliffs, key=lambda cliff: cliff.excess, default=None)


def knee(sm_counts: Sequence[int], gbps: Sequence[float], low: Sequence[float]) -> int | None:
    """The smallest SM count within `KNEE` of the best GB/s, or None if GB/s still rise at the end.

    `low` are the lower ends of the intervals of `gbps`; an SM count whose interval reaches below the limit is skipped.
    """
    points = [point for point in zip(sm_counts, gbps, low, strict=True) if np.isfinite(point[1])]
    limit = (1 - KNEE.fraction) * max((rate for _, rate, _ in points), default=0.0)
    smallest = min((count for count, _, lowest in points if lowest >= limit), default=None)
    return None if smallest == max((count for count, _, _ in points), default=None) else smallest


@dataclass(frozen=True, slots=True)
class QueueKnee:
    """The first `depth` at which a submission is much slower than on a shallow queue; both times in microseconds."""

    depth: int
    submit_us: float
    shallow_us: float

    @property
    def height(self) -> float:
        return self.submit_us / self.shallow_us


def find_queue_knee(times: Mapping[int, Visits]) -> QueueKnee | None:
    """The first depth at which a submission is slower than on a shallow queue by `QUEUE_KNEE`, or None.

    `times` are submission times by the number of swaps queued before it. The `SHALLOW` smallest depths are the shallow
    queue; its time in a round is the longer of theirs, as a second swap can take twice as long as the first.
    """
    depths = sorted(times)
    if len(depths) <= SHALLOW:
        return None
    first = [times[depth] for depth in depths[:SHALLOW]]
    rounds = first[0].keys() & first[1].keys()
    shallow = {number: max(visits[number] for visits in first) for number in rounds}
    for depth in depths[SHALLOW:]:
        if shallow and compare_visits(shallow, times[depth], QUEUE_KNEE).verdict is Verdict.SLOWER:
            return QueueKnee(depth, median(times[depth].values()), median(shallow.values()))
    return None


def pareto_edge(gains: Sequence[float], costs: Sequence[float]) -> list[bool]:
    """Whether each item is on the Pareto edge: no other item gains as much at a lower cost, or more at the same or a
    lower cost.
    """
    items = list(zip(gains, costs, strict=True))

    def beats(better: tuple[float, float], item: tuple[float, float]) -> bool:
        return better[0] >= item[0] and better[1] <= item[1] and better != item

    return [not any(beats(better, item) for better in items) for item in items]
