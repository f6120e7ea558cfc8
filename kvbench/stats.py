"""Numbers in, numbers and verdicts out: medians with intervals that assume no distribution, and comparisons.

Times are skewed and have outliers, so everything here rests on order statistics. An interval says what the samples at
hand say; it knows nothing of a difference between two processes or two days.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

Samples = Sequence[float] | npt.NDArray[np.float64]

CONFIDENCE: Final = 0.95
_EXACT_UP_TO: Final = 500
_NORMAL_QUANTILE: Final = 1.959963984540054
_MAD_TO_SIGMA: Final = 1.4826
# Fewer have no order-statistic interval of 95%.
MIN_PAIRS: Final = 6


@dataclass(frozen=True, slots=True)
class Quartiles:
    """Lower quartile, median, upper quartile, in the unit of the samples."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """b / a with its interval; `decided` when the interval excludes 1."""

    value: float
    low: float
    high: float

    @property
    def decided(self) -> bool:
        return self.low > 1 or self.high < 1


def quartiles(samples: Samples) -> Quartiles:
    """Return the quartiles (numpy's linear rule); raises ValueError for no samples."""
    values = _checked(samples)
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
    return Quartiles(float(low), float(median), float(high))


def median_interval(samples: Samples) -> tuple[float, float]:
    """Return the interval that holds the true median with at least 95% confidence, from the binomial distribution.

    Both ends are samples. With fewer than 6 no such interval exists: the result is (-inf, inf).
    Raises ValueError for no samples.
    """
    values = np.sort(_checked(samples))
    rank = _interval_rank(len(values))
    if rank is None:
        return -math.inf, math.inf
    return float(values[rank]), float(values[-1 - rank])


def relative_half_width(samples: Samples) -> float:
    """Return half the median's interval over the median, 0.01 = known to 1%; inf with fewer than 6 samples.

    Raises ValueError for no samples.
    """
    low, high = median_interval(samples)
    if low == high:
        return 0.0
    median = float(np.median(samples))
    return (high - low) / 2 / abs(median) if median and math.isfinite(high) else math.inf


def outliers(samples: Samples, limit: float = 5.0) -> npt.NDArray[np.bool_]:
    """Return a mark for every sample further than `limit` robust standard deviations (MAD) from the median.

    Marks only: nothing is dropped anywhere. Where more than half the samples are equal, none is marked.
    """
    values = _checked(samples)
    distance = np.abs(values - np.median(values))
    sigma = _MAD_TO_SIGMA * float(np.median(distance))
    return distance > limit * sigma if sigma > 0 else np.zeros(len(values), dtype=bool)


def paired_ratio(a: Samples, b: Samples) -> Ratio:
    """Return the median of b[i] / a[i] with its interval; pair i was measured close together in time.

    Samples of one visit share what disturbed the machine meanwhile and are not independent; visits, one of each arm a
    round, nearly are. So pass the medians of the visits, one a round. The interval is that of the median of the pairs'
    log ratios (see `median_interval`) and says nothing with fewer than six. Raises ValueError unless there are as many
    of a as of b, and all positive.
    """
    first, second = _positive(a), _positive(b)
    if len(first) != len(second):
        raise ValueError("pairs need as many of one as of the other")
    logs = np.log(second / first)
    low, high = median_interval(logs)
    return Ratio(math.exp(float(np.median(logs))), math.exp(low), math.exp(high))


@lru_cache(maxsize=4096)
def _interval_rank(count: int) -> int | None:
    """Return the largest r for which [x_(r), x_(n-1-r)], counted from 0, covers the median; None if there is none.

    Coverage is 1 - 2 P(B <= r) with B binomial (n, 1/2); past a few hundred samples by its normal limit.
    """
    if count > _EXACT_UP_TO:
        return math.floor((count - 1 - _NORMAL_QUANTILE * math.sqrt(count)) / 2)
    allowed = (1 - CONFIDENCE) / 2 * 2**count
    below, rank = 0, -1
    while below + math.comb(count, rank + 1) <= allowed:
        rank += 1
        below += math.comb(count, rank)
    return rank if rank >= 0 else None


def _checked(samples: Samples) -> npt.NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError("samples are at least one finite number")
    return values


def _positive(samples: Samples) -> npt.NDArray[np.float64]:
    values = _checked(samples)
    if (values <= 0).any():
        raise ValueError("a ratio needs positive samples")
    return values
