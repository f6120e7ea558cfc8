"""The definition of a verdict: an interval for a ratio of times, a margin with a reason, and four verdicts.

Times are skewed and have outliers, so everything here uses order statistics. An interval describes only the given
samples; it does not cover differences between two processes or two days.

The compared values are the medians of visits. Samples of one visit are not independent, because they share every
disturbance of the machine; visits are nearly independent. Both intervals are rank-based and exact for any number of
visits: visits made in turn are paired (Wilcoxon signed-rank, Hodges-Lehmann estimate), visits of two runs are not
(Mann-Whitney).
See Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, chapters 3 and 4.
"""

import math
import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from statistics import NormalDist, median
from typing import Final

import numpy as np
import numpy.typing as npt

from kvbench.analysis.margins import Margin

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Samples = Sequence[float] | Floats

CONFIDENCE: Final = 0.95
OUTLIER_SIGMAS: Final = 5.0
_MIN_SPREAD: Final = 6
_EXACT_UP_TO: Final = 500
MAD_TO_SIGMA: Final = 1.4826


def median_interval(samples: Samples) -> tuple[float, float]:
    """The interval that contains the true median with at least 95% confidence, from the binomial distribution.

    Both ends are samples. With fewer than 6 samples there is no interval, and the result is (-inf, inf).
    Raises ValueError if `samples` is empty.
    """
    values = np.sort(checked(samples))
    return ends_at(values, interval_rank(len(values)))


def known_interval(medians: Sequence[float]) -> tuple[float, float]:
    """The interval of the median of some visits, NaN where they are too few for one."""
    low, high = median_interval(medians) if len(medians) else (-math.inf, math.inf)
    return (low, high) if math.isfinite(low) else (math.nan, math.nan)


def grouped_outliers(values: Floats, counts: Counts) -> npt.NDArray[np.bool_]:
    """A mask of the values more than `OUTLIER_SIGMAS` robust standard deviations (MAD) from their median.

    `values` is the concatenation of non-empty groups of `counts` values. Outliers are marked, never dropped. A group
    has no outliers if more than half of its values are equal, or if it has fewer than six values.
    """
    _, middle, _ = grouped_quartiles(values, counts)
    distance = np.abs(values - np.repeat(middle, counts))
    _, spread, _ = grouped_quartiles(distance, counts)
    sigma = np.repeat(MAD_TO_SIGMA * spread, counts)
    has_spread = np.repeat(_counts_known(values, counts) >= _MIN_SPREAD, counts)
    return (distance > OUTLIER_SIGMAS * sigma) & (sigma > 0) & has_spread


def grouped_quartiles(values: Floats, counts: Counts) -> tuple[Floats, Floats, Floats]:
    """The quartiles of many groups, of shape (groups,) each: lower, median, upper.

    `values` is the concatenation of groups of `counts` values. NaN are left out; a group of nothing else has none.
    """
    counts, values = _counts_known(values, counts), values[~np.isnan(values)]
    quartiles = np.full((3, len(counts)), np.nan)
    first = np.cumsum(counts) - counts
    # Groups of one size make a rectangle, which one call of numpy takes.
    for count in np.unique(counts[counts > 0]):
        same_size = counts == count
        table = values[first[same_size][:, None] + np.arange(count)]
        quartiles[:, same_size] = np.quantile(table, (0.25, 0.5, 0.75), axis=1)
    return quartiles[0], quartiles[1], quartiles[2]


def _counts_known(values: Floats, counts: Counts) -> Counts:
    """Count the values of each group that are not NaN."""
    group = np.repeat(np.arange(len(counts)), counts)
    return np.bincount(group[~np.isnan(values)], minlength=len(counts))


@lru_cache(maxsize=4096)
def interval_rank(count: int, confidence: float = CONFIDENCE) -> int | None:
    """The largest r for which [x_(r), x_(n-1-r)], counted from 0, covers the median, or None.

    The coverage is 1 - 2 P(B <= r) with B binomial (n, 1/2), by the normal approximation for more than a few hundred
    samples.
    """
    if count > _EXACT_UP_TO:
        quantile = NormalDist().inv_cdf((1 + confidence) / 2)
        return math.floor((count - 1 - quantile * math.sqrt(count)) / 2)
    return rank_of([math.comb(count, below) for below in range(count + 1)], confidence)


def rank_of(ways: Sequence[int], confidence: float) -> int | None:
    """The largest k with P(statistic <= k) <= (1 - confidence) / 2, or None; `ways` are by value, from 0 on."""
    allowed = (1 - confidence) / 2 * sum(ways)
    below, rank = 0, -1
    while below + ways[rank + 1] <= allowed:
        rank += 1
        below += ways[rank]
    return rank if rank >= 0 else None


def middle_of(values: Floats) -> float:
    """The median of the finite values, NaN without any."""
    finite = values[np.isfinite(values)]
    return middle_of_sorted(np.sort(finite)) if finite.size else math.nan


def middle_of_sorted(ordered: Floats) -> float:
    """The median of ascending values, in a tenth of the time of numpy's for few."""
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def ends_at(ordered: Floats, rank: int | None) -> tuple[float, float]:
    """The values at `rank` from the beginning and from the end; (-inf, inf) without a rank."""
    return (-math.inf, math.inf) if rank is None else (float(ordered[rank]), float(ordered[-1 - rank]))


def checked(samples: Samples) -> Floats:
    """`samples` as an array; raises ValueError unless they are at least one finite number."""
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError("samples must be one or more finite numbers")
    return values


# Fewer pairs have no 95% interval; so few visits of one of two runs decide nothing either.
MIN_PAIRS: Final = 6
# The number of pairwise averages grows quadratically; beyond this limit the interval of the median is narrow enough.
_AVERAGED_UP_TO: Final = 200

# The median of each visit of one cell in microseconds, by round.
Visits = Mapping[int, float]


class MedianInTurn(float):
    """The median time of an arm in a visit whose samples alternated with those of others.

    `ratios` has the median over tuples of the log of the time of each arm over that of each other, of shape
    (arms, arms), NaN where no tuple has both; it is the same object for all arms of the visit.
    """

    __slots__ = ("arm", "ratios")
    arm: int
    ratios: Floats


def medians_in_turn(arms: Sequence[Samples]) -> list[MedianInTurn]:
    """The medians of arms whose samples were taken in turn: sample k of one beside sample k of the others.

    What the machine does to all samples of a tuple cancels in the log of their ratio. An arm has more in common within
    a visit, such as its memory, so that the median of a visit counts as one pair (`tests/simulate_pairs.py` says how
    often the interval holds). NaN is a time that is not known; each arm needs one that is.
    """
    times = np.array(arms, dtype=np.float64)
    logs = np.log(np.where(times > 0, times, np.nan))
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of arms without a tuple in common
        # nanmedian takes many times as long as median.
        middle = np.nanmedian if np.isnan(logs).any() else np.median
        ratios = middle(logs[None] - logs[:, None], axis=2)
    medians = []
    for number, arm_us in enumerate(times):
        median_us = MedianInTurn(middle_of(arm_us))
        median_us.arm, median_us.ratios = number, ratios
        medians.append(median_us)
    return medians


def log_ratio(base: float, other: float) -> float:
    """The log of the time of one arm over that of another in a round: tuple by tuple if taken in turn."""
    if isinstance(base, MedianInTurn) and isinstance(other, MedianInTurn) and base.ratios is other.ratios:
        ratio = float(base.ratios[base.arm, other.arm])
        if not math.isnan(ratio):
            return ratio
    return math.log(other / base)


class Verdict(StrEnum):
    """The result of comparing the times of a second thing with those of a first."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The `ratio` of the times of one thing to those of another, its interval [`low`, `high`], and the verdict.

    FASTER and SLOWER: the whole interval is outside the margin. SAME: the whole interval is inside. Otherwise
    UNDECIDED. With too few visits the interval is (0, inf) and the verdict is UNDECIDED.
    """

    ratio: float
    low: float
    high: float
    verdict: Verdict

    @property
    def significant(self) -> bool:
        return self.verdict in (Verdict.FASTER, Verdict.SLOWER)


def compare_visits(base: Visits, other: Visits, margin: Margin) -> Comparison:
    """Compare two cells of one run over the rounds that measured both.

    Without a common round, the ratio is that of the medians and the verdict is UNDECIDED.
    """
    logs = log_ratios(base, other)
    if not logs:
        medians = (median(visits.values()) if visits else math.nan for visits in (other, base))
        return Comparison(operator.truediv(*medians), 0.0, math.inf, Verdict.UNDECIDED)
    return _judged(*paired_interval(np.array(logs)), margin)


def log_ratios(base: Visits, other: Visits) -> list[float]:
    """The logs of the times of one arm over those of another, for the rounds that measured both, in order."""
    return [log_ratio(base[number], other[number]) for number in sorted(base.keys() & other.keys())]


def compare_over(shapes: Sequence[Sequence[float]], margin: Margin) -> Comparison:
    """Compare two methods over several shapes of swaps; `shapes` has the log ratios of the pairs at each, one or more,
    in the order of their rounds.

    What is compared is the mean over shapes, each as good as another. With `MIN_PAIRS` pairs or more at every shape it
    is one value for each round, and its interval that of signed ranks: it takes nothing from the distribution but its
    symmetry, so that a slow visit now and then does not narrow it. A search leaves fewer pairs at some shapes; then the
    interval is Student's, from the scatter within the shapes.
    """
    fewest = min(map(len, shapes))
    if fewest >= MIN_PAIRS:
        return _judged(*paired_interval(_round_means(shapes, fewest)), margin)
    means = [math.fsum(logs) / len(logs) for logs in shapes]
    centre = math.fsum(means) / len(means)
    reach = _students_reach(shapes, means)
    return _judged(centre, centre - reach, centre + reach, margin)


def _round_means(shapes: Sequence[Sequence[float]], rounds: int) -> Floats:
    """The mean over shapes for each of `rounds`; shapes with more visits share them out in their order."""
    rows = [
        logs if len(logs) == rounds else [float(np.mean(part)) for part in np.array_split(logs, rounds)]
        for logs in shapes
    ]
    means: Floats = np.mean(np.array(rows, dtype=np.float64), axis=0)
    return means


def _students_reach(shapes: Sequence[Sequence[float]], means: Sequence[float]) -> float:
    """Half of the 95% interval of the mean over shapes, inf with fewer than `MIN_PAIRS` values to go by."""
    freedom = sum(len(logs) - 1 for logs in shapes)
    if freedom < MIN_PAIRS - 1:
        return math.inf
    squares: list[float] = []
    for logs, mean in zip(shapes, means, strict=True):
        squares += [(log - mean) ** 2 for log in logs]
    per_value = math.fsum(1 / len(logs) for logs in shapes) / len(shapes) ** 2
    return _students_quantile(freedom) * math.sqrt(math.fsum(squares) / freedom * per_value)


@lru_cache(maxsize=256)
def _students_quantile(freedom: int) -> float:
    """The 97.5% quantile of Student's distribution, by the expansion of Cornish and Fisher (within 0.2% from
    five degrees of freedom on).
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms = (
        z,
        (z**3 + z) / (4 * freedom),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3),
    )
    return math.fsum(terms)


def mean_comparison(comparisons: Sequence[Comparison], margin: Margin) -> Comparison:
    """The comparison over several shapes that were compared apart, as if all of them erred to the same side.

    What sets two starts of kvbench apart may well move every shape alike, so that more shapes make nothing surer.
    """
    ratios, lows, highs = zip(*((each.ratio, each.low, each.high) for each in comparisons), strict=True)
    with np.errstate(divide="ignore"):  # the log of 0, where the visits are too few for an interval
        centre, low, high = (float(np.mean(np.log(values))) for values in (ratios, lows, highs))
    return _judged(centre, low, high, margin)


def compare_apart(base: Samples, other: Samples, margin: Margin, between: float = 0.0) -> Comparison:
    """Compare medians of visits of two runs, in any order and number; raises ValueError for times of 0 or less.

    `between` is the spread between runs as a fraction (`between_runs.spread_between`), by which the interval is wider
    on both sides: what lies within it is UNDECIDED, because one run a side cannot tell it from a difference of builds.
    """
    first, second = _logs(base), _logs(other)
    differences = np.sort(np.subtract.outer(second, first), axis=None)
    too_few = min(len(first), len(second)) < MIN_PAIRS
    rank = None if too_few else rank_of(_rank_sums(len(first), len(second)), CONFIDENCE)
    low, high = ends_at(differences, rank)
    reach = math.log1p(between)
    return _judged(middle_of_sorted(differences), low - reach, high + reach, margin)


def paired_interval(logs: Floats, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """The centre of paired log ratios and the ends of its interval; (-inf, inf) with too few pairs.

    With many pairs this is the interval of their median.
    """
    if len(logs) > _AVERAGED_UP_TO:
        values = np.sort(logs)
        rank = interval_rank(len(values), confidence)
    else:
        values = np.sort(np.add.outer(logs, logs)[_pairs_of(len(logs))] / 2)
        rank = rank_of(_signed_ranks(len(logs)), confidence)
    return middle_of_sorted(values), *ends_at(values, rank)


def interval_over_starts(values: Sequence[float], starts: Sequence[object]) -> tuple[float, float, float]:
    """The centre of the values of visits and the ends of its interval; (-inf, inf) with too few visits.

    Visits of one start of a worker agree more closely than starts do: the interval contains the centres of all starts.
    """
    visits = np.asarray(values, dtype=np.float64)
    centre, low, high = paired_interval(visits)
    centres = []
    for start in set(starts):
        made_by_start = [value for value, its_start in zip(visits, starts, strict=True) if its_start == start]
        centres.append(paired_interval(np.array(made_by_start))[0])
    return centre, min(low, *centres), max(high, *centres)


def least_difference(base: Mapping[int, float], other: Mapping[int, float], starts: Mapping[int, object]) -> float:
    """By how much a second figure is at least larger than a first; both can be 0 or negative.

    It is the lower end of the interval of the differences of the rounds that measured both. `starts` has the start of a
    worker that made each round: the interval contains the centres of all starts. Without a common round nothing bounds
    the difference: -inf, as with too few.
    """
    rounds = sorted(base.keys() & other.keys())
    if not rounds:
        return -math.inf
    differences = [other[number] - base[number] for number in rounds]
    _, low, _ = interval_over_starts(differences, [starts.get(number) for number in rounds])
    return low


@lru_cache(64)  # most comparisons of a run have as many visits
def _pairs_of(count: int) -> tuple[Counts, Counts]:
    return np.triu_indices(count)


def verdict_of(low: float, high: float, margin: float) -> Verdict:
    """The verdict for an interval of log ratios of times; `margin` is a log ratio too."""
    if high < -margin:
        return Verdict.FASTER
    if low > margin:
        return Verdict.SLOWER
    return Verdict.SAME if -margin <= low and high <= margin else Verdict.UNDECIDED


def leaders(arms: Mapping[str, Visits], margin: Margin) -> dict[str, Verdict]:
    """The arm with the smallest median and all arms that are not SLOWER than it, each with its verdict.

    The fastest arm comes first, with the verdict SAME. Raises ValueError for times that are not positive; no arm must
    be empty.
    """
    fastest, *others = sorted(arms, key=lambda name: (median(arms[name].values()), name))
    verdicts = {fastest: Verdict.SAME}
    for name in others:
        verdict = compare_visits(arms[fastest], arms[name], margin).verdict
        if verdict is not Verdict.SLOWER:
            verdicts[name] = verdict
    return verdicts


def winners(arms: Mapping[str, Mapping[int, Visits]], margin: Margin) -> dict[int, str | None]:
    """Size -> fastest arm for every common size, ascending; None if no arm is FASTER than all others.

    `arms` is arm -> size -> visits.
    """
    common = sorted(set[int].intersection(*(set(times) for times in arms.values()))) if arms else []
    fastest: dict[int, str | None] = {}
    for size in common:
        first, *others = leaders({name: times[size] for name, times in arms.items()}, margin)
        fastest[size] = None if others else first
    return fastest


def by_chance(comparisons: int) -> int:
    """The expected number of FASTER and SLOWER verdicts among comparisons of equal things, rounded up."""
    return math.ceil(round(comparisons * (1 - CONFIDENCE), 9))


def _judged(centre: float, low: float, high: float, margin: Margin) -> Comparison:
    verdict = verdict_of(low, high, math.log1p(margin.fraction))
    with np.errstate(over="ignore"):  # an untrusted run can hold any time
        ratio, least, most = np.exp([centre, low, high]).tolist()
    return Comparison(ratio, least, most, verdict)


def _logs(times: Samples) -> Floats:
    values = checked(times)
    if values.min() <= 0:
        raise ValueError("times must be positive and finite")
    return np.log(values)


@lru_cache(maxsize=256)
def _signed_ranks(pairs: int) -> tuple[int, ...]:
    """For each sum from 0 on, the number of sign choices of the ranks 1 to `pairs` with that positive sum."""
    ways = np.zeros(pairs * (pairs + 1) // 2 + 1, dtype=object)
    ways[0] = 1
    for rank in range(1, pairs + 1):
        ways[rank:] = ways[rank:] + ways[:-rank]
    return tuple(ways)


@lru_cache(maxsize=1024)
def _rank_sums(m: int, n: int) -> tuple[int, ...]:
    """For u = 0, 1, ..., m n, the number of orders of m and n values in which u of the m n pairs are in order.

    These are the coefficients of the Gaussian binomial (m + n over m).
    """
    ways = [1] + [0] * (m * n)
    for k in range(1, m + 1):
        for u in range(m * n, n + k - 1, -1):  # times 1 - q^(n + k)
            ways[u] -= ways[u - n - k]
        for u in range(k, m * n + 1):  # over 1 - q^k
            ways[u] += ways[u - k]
    return tuple(ways)
