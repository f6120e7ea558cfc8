"""Statistics: intervals that hold, verdicts that know noise, nothing that depends on the unit."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.analysis.compare import grouped_outliers, grouped_quartiles, median_interval


def outliers(samples: list[float]) -> list[bool]:
    return list(map(bool, grouped_outliers(np.array(samples), np.array([len(samples)]))))


TIMES = st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=200)
SCALES = st.integers(-20, 20).map(lambda power: 2.0**power)  # powers of two leave the digits alone


@given(TIMES, SCALES)
def test_nothing_depends_on_the_unit(samples: list[float], scale: float) -> None:
    scaled = [sample * scale for sample in samples]
    low, high = median_interval(samples)
    assert median_interval(scaled) == (low * scale, high * scale)
    assert outliers(scaled) == outliers(samples)


@pytest.mark.parametrize("count", [6, 7, 10, 30, 99, 200, 500, 501, 2000])
def test_the_interval_has_the_coverage_it_promises(count: int) -> None:
    """Exact: P(x_(r) <= median <= x_(n-1-r)) for the ranks that the interval of 0 … n-1 shows."""
    low, high = median_interval(list(range(count)))
    outside = 2 * sum(math.comb(count, k) for k in range(int(low) + 1)) / 2**count
    assert int(low) + int(high) == count - 1
    assert outside <= 0.05 if count <= 500 else outside == pytest.approx(0.05, abs=0.005)
    assert outside + 2 * math.comb(count, int(low) + 1) / 2**count > 0.049


def test_outliers_are_marked_and_few() -> None:
    samples = [10.0, 10.1, 9.9, 10.05, 9.95, 50.0]
    assert outliers(samples) == [False] * 5 + [True]
    assert not any(outliers([1.0, 1.0, 1.0, 9.0]))


GROUPS = st.lists(st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=12), min_size=1, max_size=6)


@given(GROUPS)
def test_groups_are_judged_as_each_alone(groups: list[list[float]]) -> None:
    values = np.array([value for group in groups for value in group])
    counts = np.array([len(group) for group in groups])
    low, middle, high = grouped_quartiles(values, counts)
    alone = [tuple(np.quantile(group, (0.25, 0.5, 0.75)).tolist()) for group in groups]
    assert list(zip(low, middle, high, strict=True)) == alone
    marks = [mark for group in groups for mark in outliers(group)]
    assert grouped_outliers(values, counts).tolist() == marks
