"""From paired values to effects with intervals, for many items at once.

An effect is the median of the paired log ratios of candidate to base, one pair a round. Its interval is the percentile
bootstrap of that median. The one step before that is to take off what the second slot of a round costs: without it,
alternating orders make two clusters of pairs, and the interval of their median is as wide as they are apart.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from kvbench.analysis.intervals import CONFIDENCE, MIN_PAIRS, Counts, Floats

RESAMPLES: Final = 1999
SEED: Final = 20_261_121
_LARGEST_LOG: Final = 700.0


@dataclass(frozen=True, slots=True)
class Effects:
    """Log ratios of candidate to base, an entry per item: the median, its 95% interval, and the pairs behind it.

    The interval is (-inf, inf) with fewer than `MIN_PAIRS` pairs; the median is NaN without any.
    """

    median: Floats
    low: Floats
    high: Floats
    pairs: Counts


def effects(log_ratios: Floats) -> Effects:
    """Return the effects for log ratios of shape (items, rounds), NaN where an item was not measured.

    The resamples are the same for every item with as many pairs, so an item's interval does not depend on the others.
    """
    pairs = np.isfinite(log_ratios).sum(axis=1)
    low, high = np.full(len(pairs), -np.inf), np.full(len(pairs), np.inf)
    for count in (int(count) for count in np.unique(pairs) if count >= MIN_PAIRS):
        resamples = np.random.default_rng(SEED).integers(0, count, (RESAMPLES, count))
        middle = [(count - 1) // 2, count // 2]
        for place in np.flatnonzero(pairs == count):
            values = log_ratios[place][np.isfinite(log_ratios[place])]
            medians = np.sort(values[resamples], axis=1)[:, middle].mean(axis=1)  # for a few values faster than median
            low[place], high[place] = np.quantile(medians, (0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2))
    return Effects(row_medians(log_ratios), low, high, pairs)


def without_slot_bias(log_ratios: Floats, slots: Floats) -> tuple[Floats, float]:
    """Return the log ratios without what running second in a round costs, and that cost, a log ratio, 0 if unknown.

    It is half the difference between the two orders, the items' median. `slots` has one entry a round: 1 where the
    candidate ran second, -1 where it ran first, 0 where that is not known. Alternating orders cancel the bias in the
    mean; what is left of it would only widen every interval. One number is taken from all items together, so that no
    item's noise is fitted away. Without two rounds of either order nothing is.
    """
    second, first = log_ratios[:, slots > 0], log_ratios[:, slots < 0]
    both = (np.isfinite(second).sum(axis=1) >= 2) & (np.isfinite(first).sum(axis=1) >= 2)
    if not both.any():
        return log_ratios, 0.0
    bias = float(np.median(np.nanmedian(second[both], axis=1) - np.nanmedian(first[both], axis=1)) / 2)
    return log_ratios - bias * slots, bias


def row_medians(values: Floats) -> Floats:
    """Return the median of each row's finite values, NaN for a row without any."""
    medians = np.full(len(values), np.nan)
    known = np.isfinite(values).any(axis=1)
    if known.any():
        medians[known] = np.nanmedian(values[known], axis=1)
    return medians


def ratio_of(log_ratio: float) -> float:
    """Return the ratio; inf where it is too large for a float, as times from a stranger's run may make it."""
    return math.inf if log_ratio > _LARGEST_LOG else math.exp(log_ratio)
