import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.analysis.compare import Visits
from kvbench.analysis.curves import QueueKnee, find_queue_knee

DEPTHS = (0, 1, 4, 16, 64, 256, 1024, 4096)


OFFSETS = (-1.0, 0.6, 0.0, -0.2, 1.0, -0.6, 0.2)


def around(median: float, spread: float = 0.1, first: int = 0) -> Visits:
    """Return seven visits around a median; those of another `first` do not move together."""
    return {number: median * (1 + spread * OFFSETS[(first + 2 * number) % 7]) for number in range(7)}


def curve(*medians: float, spread: float = 0.1) -> dict[int, Visits]:
    found = zip(DEPTHS, medians, strict=False)
    return {depth: around(median, spread, first) for first, (depth, median) in enumerate(found)}


def test_the_knee_is_the_first_depth_that_takes_more_than_twice_as_long() -> None:
    assert find_queue_knee(curve(2, 2.2, 2.1, 2, 2.4, 3.9, 180, 190)) == QueueKnee(1024, 180, 2.1)
    assert find_queue_knee(curve(2, 2, 2, 50, 2, 2)) == QueueKnee(16, 50, 2)


def test_the_height_of_a_knee_is_its_time_over_the_shallow_one() -> None:
    knee = find_queue_knee(curve(2, 2, 2, 2, 180))
    assert knee is not None
    assert knee.height == 90


def test_depths_in_any_order_are_one_curve() -> None:
    times = curve(2, 2, 2, 2, 180, 190)
    assert find_queue_knee(dict(reversed(times.items()))) == find_queue_knee(times)


@pytest.mark.parametrize(
    "times",
    [
        curve(2, 2.1, 2, 2.2, 2.1, 2, 2.1, 3.5),
        curve(2, 2, 180),
        curve(2, 2, 2, 5, 6, spread=0.9),
        curve(2, 20, 20, 15),
        {},
    ],
    ids=["flat", "shallow depths alone", "within its own noise", "within the shallow noise", "nothing"],
)
def test_a_curve_may_have_no_knee(times: dict[int, Visits]) -> None:
    assert find_queue_knee(times) is None


@given(st.lists(st.floats(1.0, 1.9), min_size=4, max_size=8), st.floats(0.01, 1000))
def test_less_than_twice_as_long_is_no_knee_in_any_unit(medians: list[float], unit: float) -> None:
    assert find_queue_knee({depth: around(unit * median) for depth, median in enumerate(medians)}) is None
