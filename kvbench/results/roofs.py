"""What SM copies reach in a run: in large blocks, and in scattered small ones, which address translation limits."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple, Self

from kvbench.analysis.compare import median_interval
from kvbench.cells.axes import Direction
from kvbench.results.schema import Record, Roof

# If scattered small blocks take less than this factor times the time of the same blocks laid out densely, no
# translation limit is in reach.
_LIMITED: Final = 1.1


class Rate(NamedTuple):
    """A rate that was reached, a median of rounds, and its interval: NaN with fewer than six rounds."""

    rate: float
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def per_us(cls, amount: float, times_us: Sequence[float]) -> Self:
        """The rate of `amount` in the times of the rounds, per microsecond; NaN for a time of 0."""
        ends_us = median_interval(times_us)
        low, high = (amount / us if 0 < us < math.inf else math.nan for us in reversed(ends_us))
        middle_us = median(times_us)
        return cls(amount / middle_us if middle_us > 0 else math.nan, low, high)

    def scaled(self, factor: float) -> "Rate":
        return Rate(*(factor * value for value in self))


@dataclass(frozen=True, slots=True)
class SmReach:
    """What SM copies reach in a direction: GB/s in large blocks, and small blocks a second, scattered over
    `pool_bytes` and dense.
    """

    gbps: Rate
    scattered: Rate
    dense: Rate
    block_bytes: int
    pool_bytes: int

    @property
    def limit(self) -> Rate:
        """The translation limit, in blocks a second; NaN where dense blocks are not clearly faster."""
        return self.scattered if self.dense.rate > _LIMITED * self.scattered.rate else Rate(math.nan)


def reached(records: Iterable[Record], direction: Direction) -> SmReach | None:
    """What SM copies reached in a run, None if it did not measure that."""
    roofs = [record for record in records if isinstance(record, Roof) and record.direction == direction]
    roofs = [roof for roof in roofs if min(map(min, (roof.copy_us, roof.scattered_us, roof.dense_us))) > 0]
    if not roofs:
        return None
    scattered_us, dense_us, copy_us = (
        [median(getattr(roof, name)) for roof in roofs] for name in ("scattered_us", "dense_us", "copy_us")
    )
    first = roofs[0]
    return SmReach(
        Rate.per_us(first.copy_bytes, copy_us).scaled(1e-3),
        Rate.per_us(first.blocks, scattered_us).scaled(1e6),
        Rate.per_us(first.blocks, dense_us).scaled(1e6),
        first.block_bytes,
        first.pool_bytes,
    )
