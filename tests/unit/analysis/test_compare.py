import math
from collections.abc import Callable, Sequence
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.analysis.compare import (
    Comparison,
    Floats,
    Verdict,
    by_chance,
    compare_apart,
    compare_over,
    compare_visits,
    grouped_outliers,
    grouped_quartiles,
    leaders,
    least_difference,
    log_ratio,
    mean_comparison,
    median_interval,
    medians_in_turn,
    paired_interval,
    verdict_of,
    winners,
)
from kvbench.analysis.margins import IN_TURN, Margin
from tests.simulate_pairs import NOISES, Noise, simulate, simulate_over

NO_MARGIN = Margin(0.0, "")
times = st.floats(1.0, 1e6)


def compare_pairs(base: Sequence[float] | Floats, other: Sequence[float] | Floats, margin: Margin) -> Comparison:
    return compare_visits(dict(enumerate(base)), dict(enumerate(other)), margin)


@given(st.lists(st.tuples(times, times), min_size=1, max_size=20))
def test_swapping_the_sides_turns_the_verdict(pairs: list[tuple[float, float]]) -> None:
    a, b = zip(*pairs, strict=True)
    turned = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    for compare in (compare_pairs, compare_apart):
        there, back = compare(a, b, IN_TURN), compare(b, a, IN_TURN)
        assert there.ratio == pytest.approx(1 / back.ratio)
        assert back.verdict is turned.get(there.verdict, there.verdict)
        assert there.low <= there.ratio * (1 + 1e-9)
        assert there.ratio <= there.high * (1 + 1e-9)


@pytest.mark.parametrize("compare", [compare_pairs, compare_apart])
def test_six_visits_are_enough_and_five_are_not(compare: Callable[..., Comparison]) -> None:
    assert compare([1.0] * 6, [1.5] * 6, IN_TURN).verdict is Verdict.SLOWER
    assert compare([1.0] * 6, [1.001] * 6, IN_TURN).verdict is Verdict.SAME
    few = compare([1.0] * 5, [1.5] * 5, IN_TURN)
    assert (few.low, few.high, few.verdict) == (0.0, math.inf, Verdict.UNDECIDED)


def test_a_difference_inside_the_margin_is_the_same_however_certain() -> None:
    ramp = np.linspace(100, 110, 30)
    assert compare_pairs(ramp, ramp * 1.015, IN_TURN).verdict is Verdict.SAME
    assert compare_pairs(ramp, ramp * 1.03, IN_TURN).verdict is Verdict.SLOWER


def test_a_spread_between_runs_widens_an_interval_by_its_ratio_on_both_sides() -> None:
    apart, wider = (compare_apart(np.linspace(1, 2, 9), np.linspace(2, 3, 9), IN_TURN, more) for more in (0.0, 0.25))
    assert (wider.ratio, wider.low, wider.high) == pytest.approx((apart.ratio, apart.low / 1.25, 1.25 * apart.high))


def test_pairs_see_through_what_moves_both_sides() -> None:
    drift = np.array([100.0, 130, 90, 160, 110, 140, 95])
    assert compare_pairs(drift, drift * 0.95, IN_TURN).verdict is Verdict.FASTER
    assert compare_apart(drift, drift * 0.95, IN_TURN).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("pairs", [6, 7, 8, 11])
def test_the_interval_of_pairs_leaves_out_as_much_as_it_claims(pairs: int) -> None:
    ranks = np.arange(1, pairs + 1) / 100
    wrong = 0
    for signs in product((-1, 1), repeat=pairs):  # every outcome that no difference makes equally likely
        comparison = compare_pairs(np.ones(pairs), np.exp(ranks * signs), NO_MARGIN)
        wrong += comparison.verdict in (Verdict.FASTER, Verdict.SLOWER)
    assert 0.02 < wrong / 2**pairs <= 0.05


@pytest.mark.parametrize(("m", "n"), [(6, 6), (6, 9)])
def test_the_interval_of_two_runs_leaves_out_as_much_as_it_claims(m: int, n: int) -> None:
    values = np.exp(np.arange(m + n) ** 1.3 / 100)
    wrong = total = 0
    for first in combinations(range(m + n), m):
        second = sorted(set(range(m + n)) - set(first))
        comparison = compare_apart(values[list(first)], values[second], NO_MARGIN)
        wrong += comparison.verdict in (Verdict.FASTER, Verdict.SLOWER)
        total += 1
    assert 0.01 < wrong / total <= 0.05


@pytest.mark.parametrize("pairs", [6, 20, 21, 60, 200])
def test_the_centre_of_up_to_200_pairs_is_the_median_of_their_pairwise_averages(pairs: int) -> None:
    logs = np.random.default_rng(3).exponential(0.1, pairs) ** 2  # so skewed that it is not their median
    averages = [(one + other) / 2 for index, one in enumerate(logs) for other in logs[index:]]
    centre, low, high = paired_interval(logs)
    assert centre == pytest.approx(np.median(averages))
    assert centre != pytest.approx(np.median(logs), rel=0.01)
    assert {low, high} <= set(averages)


def test_a_stricter_confidence_widens_the_interval() -> None:
    logs = np.random.default_rng(2).normal(0, 0.1, 20)
    (_, usual_low, usual_high), (_, low, high) = paired_interval(logs), paired_interval(logs, confidence=0.999)
    assert low < usual_low < usual_high < high


def test_cells_are_compared_by_the_rounds_that_have_both() -> None:
    base = dict.fromkeys(range(7), 100.0)
    other = dict.fromkeys(range(1, 9), 50.0)
    assert compare_visits(base, other, IN_TURN).verdict is Verdict.FASTER
    assert compare_visits(base, {1: 50.0}, IN_TURN).verdict is Verdict.UNDECIDED


def test_leaders_are_the_fastest_and_what_is_not_slower() -> None:
    six = range(6)
    arms = {
        "slow": dict.fromkeys(six, 200.0),
        "fast": dict.fromkeys(six, 100.0),
        "tie": dict.fromkeys(six, 100.5),
        "open": {n: (101.0 if n else 50.0) for n in six},
    }
    assert leaders(arms, IN_TURN) == {"fast": Verdict.SAME, "tie": Verdict.SAME, "open": Verdict.UNDECIDED}


def test_a_winner_is_faster_than_all_others() -> None:
    def visits(us: float) -> dict[int, float]:
        return dict.fromkeys(range(6), us)

    arms = {"a": {1: visits(10), 2: visits(10), 4: visits(10)}, "b": {1: visits(5), 2: visits(10.1), 4: visits(20)}}
    arms["a"][8] = visits(10)  # not of all
    assert winners(arms, IN_TURN) == {1: "b", 2: None, 4: "a"}
    assert winners({}, IN_TURN) == {}


def test_a_twentieth_of_verdicts_comes_by_chance() -> None:
    assert [by_chance(comparisons) for comparisons in (0, 1, 20, 21, 60)] == [0, 1, 1, 2, 3]


@pytest.mark.parametrize("bad", [[], [0.0], [math.nan], [1.0, math.inf], [-1.0]])
def test_times_are_positive_numbers(bad: list[float]) -> None:
    with pytest.raises(ValueError, match=r"positive|finite"):
        compare_apart(bad, bad, IN_TURN)


def test_an_interval_is_held_against_the_margin() -> None:
    said = [verdict_of(low, low + 0.02, 0.03) for low in (-0.06, -0.04, -0.01, 0.02, 0.04)]
    assert said == ["FASTER", "UNDECIDED", "SAME", "UNDECIDED", "SLOWER"]


def test_over_shapes_a_round_is_one_value() -> None:
    """Six round means have the smallest and the largest as ends; a shape with more visits shares them out."""
    shapes = [[0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [-0.3, 0.0, -0.1, 0.0, 0.1, 0.2], [0.2, 0.0] * 6]
    made = compare_over(shapes, IN_TURN)
    means = [(a + b + 0.1) / 3 for a, b in zip(*shapes[:2], strict=True)]
    assert (made.low, made.high) == pytest.approx((math.exp(min(means)), math.exp(max(means))))


def test_over_shapes_with_few_visits_their_scatter_about_each_is_that_of_all() -> None:
    """Student's interval with five degrees of freedom; one pair says nothing of the scatter."""
    shapes = [[0.0, 0.3, 0.1], [0.5, 0.4, 0.9, 0.6], [0.4]]
    made = compare_over(shapes, IN_TURN)
    centre = (0.4 / 3 + 0.6 + 0.4) / 3
    squares = sum((x - 0.4 / 3) ** 2 for x in shapes[0]) + sum((x - 0.6) ** 2 for x in shapes[1])
    reach = 2.571 * math.sqrt(squares / 5 * (1 / 3 + 1 / 4 + 1) / 9)
    ends = centre, centre - reach, centre + reach
    assert (made.ratio, made.low, made.high) == pytest.approx(tuple(map(math.exp, ends)), rel=0.002)
    few = compare_over([shapes[0], shapes[0][:2], [0.4]], IN_TURN)
    assert (few.low, few.high, few.verdict) == (0.0, math.inf, Verdict.UNDECIDED)


def test_shapes_compared_apart_make_each_other_no_surer() -> None:
    each = compare_apart([1.0] * 6, [0.8] * 6, IN_TURN, between=0.1)
    over = mean_comparison([each] * 20, IN_TURN)
    assert (over.ratio, over.low, over.high) == pytest.approx((0.8, 0.8 / 1.1, 0.8 * 1.1))
    assert over.verdict is Verdict.FASTER
    half = compare_apart([1.0] * 6, [0.4] * 6, IN_TURN)
    assert mean_comparison([each, each, half], IN_TURN).ratio == pytest.approx(0.8 * 0.5 ** (1 / 3))
    three = compare_apart([1.0] * 3, [0.8] * 6, IN_TURN)
    assert (three.low, three.high) == (0.0, math.inf)
    few = compare_apart([1.0] * 2, [0.8] * 6, IN_TURN)
    assert mean_comparison([each, few], IN_TURN).verdict is Verdict.UNDECIDED


def test_a_difference_holds_in_every_start_and_needs_a_common_round() -> None:
    """Four of twelve visits, of one start, differ by nothing."""
    starts = {number: number // 4 for number in range(12)}
    base = dict.fromkeys(range(12), 1.0)
    other = {number: 1.0 if start == 0 else 4.0 for number, start in starts.items()}
    assert least_difference(base, other, starts) == 0
    assert least_difference(base, other, dict.fromkeys(range(12), 0)) > 0.7
    assert least_difference(base, dict.fromkeys(base, -0.5), starts) == -1.5
    assert least_difference(base, {number + 12: 9.0 for number in base}, starts) == -math.inf


def test_a_margin_is_a_share_of_the_larger_figure_or_its_least() -> None:
    margin = Margin(0.1, "", least=0.7)
    assert margin.allowed(-1.0, 0.0) == 0.7
    assert margin.allowed(20.0, -22.0) == pytest.approx(2.2)


def test_samples_are_paired_within_a_visit_alone() -> None:
    known, gap = ([1.0, 2.0, 9.0, 9.0], [2.0, 4.0, math.nan, math.nan])
    base, other = medians_in_turn([known, gap])
    assert (base, other) == (5.5, 3.0)
    assert log_ratio(base, other) == pytest.approx(math.log(2))  # of the two tuples that both know
    assert log_ratio(base, *medians_in_turn([gap])) == pytest.approx(math.log(3 / 5.5))
    assert log_ratio(base, 11.0) == pytest.approx(math.log(2)) == -log_ratio(11.0, base), "of a visit not in turn"


def test_intervals_of_pairs_hold_where_visits_are_correlated_and_processes_differ() -> None:
    for noise in NOISES:
        pairs, _, significant = simulate(noise, 6, draws=200)
        if not noise.start:  # no pairs of one start can hold what sets starts apart
            assert pairs >= (0.8 if noise.own else 0.9)
            assert significant <= (0.05 if noise.own else 0.01)  # a report says: hardly any


@pytest.mark.parametrize("noise", [one for one in NOISES if not (one.own or one.start)], ids=lambda noise: noise.name)
@pytest.mark.parametrize(("visits", "shapes"), [(6, 5), (6, 40), (2, 16)])
def test_intervals_over_shapes_hold_what_they_say(noise: Noise, visits: int, shapes: int) -> None:
    holds, significant = simulate_over(noise, visits, shapes, draws=1000)
    assert holds >= 0.93 - 0.015  # twice the deviation of a thousand draws
    assert significant <= 0.03


# Intervals and outliers of samples


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
