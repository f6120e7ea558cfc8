"""What SM copies reach on a machine, from the roofs that a run measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Self

from kvbench.results.schema import Roof
from kvbench.units import gigabytes_per_second

# If scattered small blocks take less than this factor times the time of the same blocks laid out densely, no
# translation limit is in reach.
_LIMITED: Final = 1.1


@dataclass(frozen=True, slots=True)
class Reach:
    """What SM copies reach in one direction: GB/s in large blocks, and the translation limit in scattered blocks per
    second (None: not in reach).
    """

    sm_gbps: float
    limit_blocks_per_s: float | None

    @classmethod
    def of(cls, roofs: Sequence[Roof]) -> Self:
        """Return the medians of `roofs`, a non-empty sequence for one direction."""
        scattered_us, dense_us, copy_us = (
            median(time for roof in roofs for time in getattr(roof, name))
            for name in ("scattered_us", "dense_us", "copy_us")
        )
        limited = scattered_us > _LIMITED * dense_us
        limit = roofs[0].blocks / scattered_us * 1e6 if limited else None
        return cls(gigabytes_per_second(roofs[0].copy_bytes, copy_us), limit)
