"""Leaders and winners on curves whose answer is known."""

import random
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from kvbench.analysis.compare import Visits, leaders, winners
from kvbench.analysis.margins import IN_TURN

KIB = 1024
SIZES = [kib * KIB for kib in (4, 8, 16, 24, 28, 32)]


def around(median_us: float, noise: float = 0.002) -> Visits:
    """Return six visits of a cell, spread evenly around a median; those of two cells do not move together."""
    spread = random.Random(median_us).sample([-1.0, -0.6, -0.2, 0.2, 0.6, 1.0], 6)
    return {number: median_us * (1 + noise * off) for number, off in enumerate(spread)}


def times(*medians: float) -> dict[int, Visits]:
    return {size: around(median) for size, median in zip(SIZES, medians, strict=True)}


def test_one_leads_where_the_intervals_lie_apart() -> None:
    assert list(leaders({"a": around(10), "b": around(11)}, IN_TURN)) == ["a"]
    assert list(leaders({"a": around(10.1), "b": around(10), "c": around(20)}, IN_TURN)) == ["b", "a"]
    assert list(leaders({"a": around(10), "b": around(11), "c": around(12, 0.5)}, IN_TURN)) == ["a", "c"]


def test_the_fastest_of_each_size_wins() -> None:
    arms = {"batched": times(90, 90, 90, 90, 20, 20), "sm": times(10, 20, 30, 40, 40, 40)}
    fastest = winners(arms, IN_TURN)
    assert fastest == dict(zip(SIZES, ["sm"] * 4 + ["batched"] * 2, strict=True))


def test_two_that_are_close_have_no_winner() -> None:
    arms = {"batched": times(90, 90, 30, 30.6, 20, 20), "sm": times(10, 20, 30, 30.5, 40, 40)}
    fastest = winners(arms, IN_TURN)
    assert [size for size, name in fastest.items() if name is None] == [16 * KIB, 24 * KIB]


def test_only_common_sizes_count() -> None:
    one, other = times(1, 1, 1, 1, 1, 1), {SIZES[1]: around(2), 7: around(2)}
    assert winners({"one": one, "other": other}, IN_TURN) == {SIZES[1]: "one"}
    assert winners({}, IN_TURN) == winners({"one": one, "other": {}}, IN_TURN) == {}


@given(st.dictionaries(st.text(min_size=1), st.lists(st.floats(1, 1e6), min_size=6, max_size=6), min_size=1))
def test_the_fastest_median_always_leads(drawn: dict[str, list[float]]) -> None:
    arms = {name: dict(enumerate(values)) for name, values in drawn.items()}
    first, *_ = leaders(arms, IN_TURN)
    assert median(arms[first].values()) == min(median(arm.values()) for arm in arms.values())
