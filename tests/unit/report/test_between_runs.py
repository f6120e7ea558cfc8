"""The spread between runs, and the correlation of successive visits."""

import math

import numpy as np
import pytest

from kvbench.analysis.compare import Verdict, compare_apart
from kvbench.analysis.margins import BETWEEN_RUNS
from kvbench.report.whole_runs import CORRELATED, correlation_of_successive
from kvbench.results.between_runs import CardSpread, kind_of, spread_between
from reports import spread


def test_the_spread_covers_most_differences_of_two_starts() -> None:
    generator = np.random.default_rng(1)
    cells = [f"cell {number}" for number in range(200)]
    kinds = {cell: "noisy" if number % 2 else "steady" for number, cell in enumerate(cells)}
    sigma = {"noisy": 0.1, "steady": 0.01}
    starts = [{cell: math.exp(generator.normal(0, sigma[kinds[cell]])) for cell in cells} for _ in range(6)]
    found = spread.spread_by_kind(starts, kinds)
    for kind, of_one in sigma.items():
        assert math.log1p(found[kind]) == pytest.approx(1.96 * math.sqrt(2) * of_one, rel=0.1)


def test_a_swap_of_just_as_many_bytes_is_a_large_one() -> None:
    assert [kind_of("sm", (8 << 20) - less) for less in (0, 1)] == ["sm, from 8 MiB", "sm, below 8 MiB"]


def test_a_cell_that_one_start_lacks_counts_in_the_others() -> None:
    starts = [{"a": 1.0, "b": 1.0}, {"a": 1.0}, {"a": 1.0, "b": 2.0}]
    assert spread.spread_by_kind(starts, {"a": "one", "b": "two"}) == pytest.approx({"one": 0.0, "two": 1.0})


def test_what_was_not_measured_has_the_largest_spread_that_could_be_its(monkeypatch: pytest.MonkeyPatch) -> None:
    of_cards = {
        card: CardSpread(driver="1", made="2026-11-20", starts=6, cells=9, spread={"large": most / 2, "small": most})
        for card, most in (("calm", 0.01), ("wild", 0.4))
    }
    monkeypatch.setattr("kvbench.results.between_runs.measured_spreads", lambda: of_cards)
    asked = {("calm", "small"): 0.01, ("wild", "large"): 0.2, ("wild", "mine"): 0.4, ("new", "large"): 0.2}
    assert {one: spread_between(*one).fraction for one in asked} == asked
    assert "other cards" in spread_between("new", "large").reason


@pytest.mark.parametrize(
    ("change", "between", "verdict"),
    [
        (1.3, 0.0, Verdict.SLOWER), (1.3, 0.5, Verdict.UNDECIDED), (1.8, 0.5, Verdict.SLOWER),
        (0.5, 0.5, Verdict.FASTER), (1.0, 0.0, Verdict.SAME), (1.0, 0.01, Verdict.SAME), (1.0, 0.5, Verdict.UNDECIDED),
    ],
)  # fmt: skip
def test_what_lies_within_the_spread_between_runs_is_undecided(change: float, between: float, verdict: Verdict) -> None:
    base = [99.9, 100.0, 100.1, 100.2, 99.8, 100.0, 100.1]
    assert compare_apart(base, [change * us for us in base], BETWEEN_RUNS, between).verdict is verdict


def walks(kept: float) -> list[dict[int, float]]:
    """Return the times of 200 cells in eight visits; each visit keeps a share of the deviation of the one before."""
    generator = np.random.default_rng(2)
    cells = []
    for _ in range(200):
        deviation, visits = generator.normal(), {}
        for number in range(8):
            deviation = kept * deviation + math.sqrt(1 - kept**2) * generator.normal()
            visits[number] = math.exp(0.02 * deviation)
        cells.append(visits)
    return cells


def test_the_correlation_of_independent_visits_is_none_and_that_of_a_drift_is_found() -> None:
    assert correlation_of_successive(walks(0.0)) == pytest.approx(0.0, abs=0.05)
    assert (correlation_of_successive(walks(0.95)) or 0.0) > CORRELATED
    assert correlation_of_successive(walks(0.0)[:10]) is None
