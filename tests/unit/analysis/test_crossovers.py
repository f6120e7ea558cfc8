"""Winners and crossovers on curves whose answer is known."""

import itertools
import random
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from kvbench.analysis.compare import Visits, leaders, winners
from kvbench.analysis.curves import Crossover, crossovers
from kvbench.analysis.margins import IN_TURN

KIB = 1024
SIZES = [kib * KIB for kib in (4, 8, 16, 24, 28, 32)]
Names = st.dictionaries(st.integers(1, 2**20), st.sampled_from(["batched", "sm", None]))


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


def test_a_crossover_lies_between_two_neighbours() -> None:
    arms = {"batched": times(90, 90, 90, 90, 20, 20), "sm": times(10, 20, 30, 40, 40, 40)}
    fastest = winners(arms, IN_TURN)
    assert fastest == dict(zip(SIZES, ["sm"] * 4 + ["batched"] * 2, strict=True))
    assert crossovers(fastest) == [Crossover(24 * KIB, 28 * KIB, "sm", "batched")]


def test_an_undecided_size_widens_the_interval() -> None:
    arms = {"batched": times(90, 90, 30, 30.6, 20, 20), "sm": times(10, 20, 30, 30.5, 40, 40)}
    fastest = winners(arms, IN_TURN)
    assert [size for size, name in fastest.items() if name is None] == [16 * KIB, 24 * KIB]
    assert crossovers(fastest) == [Crossover(8 * KIB, 28 * KIB, "sm", "batched")]


def test_undecided_sizes_at_the_ends_are_no_crossover() -> None:
    arms = {"batched": times(10, 20, 20, 20, 20, 40), "sm": times(10, 30, 30, 30, 30, 40)}
    assert crossovers(winners(arms, IN_TURN)) == []


def test_only_common_sizes_count() -> None:
    one, other = times(1, 1, 1, 1, 1, 1), {SIZES[1]: around(2), 7: around(2)}
    assert winners({"one": one, "other": other}, IN_TURN) == {SIZES[1]: "one"}
    assert winners({}, IN_TURN) == winners({"one": one, "other": {}}, IN_TURN) == {}


@given(Names)
def test_crossovers_chain_and_never_stay(fastest: dict[int, str | None]) -> None:
    changes = crossovers(fastest)
    for change in changes:
        assert change.below_bytes < change.above_bytes
        assert change.before != change.after
        assert fastest[change.below_bytes] == change.before
        assert fastest[change.above_bytes] == change.after
        between = [size for size in fastest if change.below_bytes < size < change.above_bytes]
        assert all(fastest[size] is None for size in between)
    for first, second in itertools.pairwise(changes):
        assert first.after == second.before
        assert first.above_bytes <= second.below_bytes
    names = [name for _, name in sorted(fastest.items()) if name is not None]
    assert len(changes) == sum(a != b for a, b in itertools.pairwise(names))


@given(Names, st.randoms(use_true_random=False))
def test_the_order_of_the_sizes_does_not_matter(fastest: dict[int, str | None], chance: random.Random) -> None:
    items = list(fastest.items())
    chance.shuffle(items)
    assert crossovers(dict(items)) == crossovers(fastest)


@given(st.dictionaries(st.text(min_size=1), st.lists(st.floats(1, 1e6), min_size=6, max_size=6), min_size=1))
def test_the_fastest_median_always_leads(drawn: dict[str, list[float]]) -> None:
    arms = {name: dict(enumerate(values)) for name, values in drawn.items()}
    first, *_ = leaders(arms, IN_TURN)
    assert median(arms[first].values()) == min(median(arm.values()) for arm in arms.values())
