"""Cliffs and knees on curves whose answer is known."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.analysis.compare import Visits
from kvbench.analysis.curves import Cliff, QueueKnee, find_cliff, find_queue_knee, knee, pareto_edge

KIB = 1024
SIZES = [kib * KIB for kib in (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 64, 128, 256)]


def cliff_of(sizes: list[int], rates: list[float], noise: float = 0.02) -> Cliff | None:
    return find_cliff(sizes, rates, [rate * (1 - noise) for rate in rates], [rate * (1 + noise) for rate in rates])


def test_a_cliff_lies_at_the_step() -> None:
    rates = [2.3, 2.4, 2.6, 3.5, 4.2, 4.7, 5.2, 5.6, 28.1, 29.0, 45.0, 52.0, 54.0]
    cliff = cliff_of(SIZES, rates)
    assert cliff is not None
    assert (cliff.below_bytes, cliff.above_bytes, cliff.rises) == (24 * KIB, 28 * KIB, True)
    assert cliff.height == pytest.approx(28.1 / 5.6)
    fall = cliff_of([16_000, 17_000, 1000], [25.6, 12.8, 1.0])  # more than the rise, relative to the sizes
    assert fall is not None
    assert fall.below_bytes == 16_000


def test_a_constant_cost_per_descriptor_is_no_cliff() -> None:
    """GB/s double with the size when every descriptor takes the same time: nothing happens there."""
    assert cliff_of(SIZES, [size / 3e3 for size in SIZES]) is None


def test_a_fall_is_a_cliff() -> None:
    cliff = cliff_of(SIZES, [50.0] * 5 + [10.0] * 8)
    assert cliff is not None
    assert (cliff.rises, cliff.height, cliff.excess, cliff.below_bytes) == (False, 5.0, 5.0, 12 * KIB)


def test_jumps_that_are_small_or_inside_the_noise_are_no_cliffs() -> None:
    for step in ([10.0] * 8 + [40.0] * 5, [40.0] * 8 + [10.0] * 5):
        assert cliff_of(SIZES, step, noise=0.02) is not None
        assert cliff_of(SIZES, step, noise=0.8) is None
    assert cliff_of(SIZES, [10.0] * 8 + [14.9] * 5, noise=0.001) is None


def test_too_few_or_unknown_points_have_no_cliff() -> None:
    assert find_cliff([], [], [], []) is None
    assert cliff_of([4096], [1.0]) is None
    for rates in ([math.nan, 40.0], [0.0, 40.0], [40.0, 0.0]):
        assert cliff_of([4096, 8192], rates) is None


@given(st.lists(st.floats(0.1, 100), min_size=13, max_size=13), st.sampled_from([0.25, 2.0, 1024.0]))
def test_cliffs_do_not_depend_on_the_unit(rates: list[float], scale: float) -> None:
    plain, scaled = cliff_of(SIZES, rates), cliff_of(SIZES, [rate * scale for rate in rates])
    assert (plain is None) == (scaled is None)
    if plain and scaled:
        assert scaled.height == pytest.approx(plain.height)
        assert plain.height >= 1.5


@pytest.mark.parametrize(
    ("counts", "rates", "noise", "wanted"),
    [
        ([1, 2, 3, 4, 8], [15.8, 37.4, 48.6, 48.9, 50.0], 0.005, 3),
        ([8, 4, 3, 2, 1], [50.0, 48.9, 48.6, 37.4, 15.8], 0.005, 3),
        ([1, 2, 3], [10.0, math.nan, 9.0], 0.005, 1),
        ([1, 2, 3], [math.nan, 10.0, 9.0], 0.005, 2),
        ([1, 2, 3, 4], [20.0, 48.0, 50.0, 50.0], 0.03, 3),  # noise alone may bring two near the best
        ([1, 2, 4], [10.0, 20.0, 40.0], 0.005, None),  # it still rises
        ([4], [10.0], 0.005, None),
    ],
)
def test_the_knee_is_the_first_count_that_is_surely_near_the_best(
    counts: list[int], rates: list[float], noise: float, wanted: int | None
) -> None:
    assert knee(counts, rates, [rate * (1 - noise) for rate in rates]) == wanted


DEPTHS = (0, 1, 4, 16, 64, 256, 1024, 4096)
OFFSETS = (-1.0, 0.6, 0.0, -0.2, 1.0, -0.6, 0.2)


def around(median: float, spread: float = 0.1, first: int = 0) -> Visits:
    """Return seven visits around a median; those of another `first` do not move together."""
    return {number: median * (1 + spread * OFFSETS[(first + 2 * number) % 7]) for number in range(7)}


def curve(*medians: float, spread: float = 0.1) -> dict[int, Visits]:
    points = zip(DEPTHS, medians, strict=False)
    return {depth: around(median, spread, first) for first, (depth, median) in enumerate(points)}


def test_the_knee_is_the_first_depth_that_takes_more_than_twice_as_long() -> None:
    assert find_queue_knee(curve(1, 2, 2.1, 2, 2.4, 3.9, 180, 190)) == QueueKnee(1024, 180, 2)
    assert find_queue_knee(dict(reversed(curve(1, 2, 50, 2, 2, 2).items()))) == QueueKnee(4, 50, 2)


@pytest.mark.parametrize(
    "times",
    [
        curve(2, 2.1, 2, 2.2, 2.1, 2, 2.1, 3.5), curve(2, 180), curve(2, 2, 2, 5, 6, spread=0.9), curve(2, 20, 20, 15),
        {},
    ],
    ids=["flat", "shallow depths alone", "within its own noise", "within the shallow noise", "nothing"],
)  # fmt: skip
def test_a_curve_may_have_no_knee(times: dict[int, Visits]) -> None:
    assert find_queue_knee(times) is None


def test_on_the_edge_nothing_gains_as_much_for_less_or_more_for_as_much() -> None:
    assert pareto_edge([10.0, 8.0, 10.0, 12.0], [5.0, 5.0, 6.0, 9.0]) == [True, False, False, True]
    assert pareto_edge([10.0, 10.0], [5.0, 5.0]) == [True, True], "equals stand side by side"
