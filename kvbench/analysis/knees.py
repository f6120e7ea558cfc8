"""From which queue depth on one more submission takes longer."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from kvbench.stats import Quartiles

SHALLOW: Final = 3
RISE: Final = 2.0


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
    return next(
        (
            QueueKnee(depth, times[depth].median, shallow_us)
            for depth in depths[SHALLOW:]
            if times[depth].low > max(RISE * shallow_us, noise_us)
        ),
        None,
    )
