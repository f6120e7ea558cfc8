"""The spread between runs, and the correlation of successive visits."""

import math

import numpy as np
import pytest

from kvbench.analysis.compare import Verdict, compare_apart
from kvbench.analysis.margins import BETWEEN_RUNS
from kvbench.report.faults import (
    CORRELATED,
    CardSpread,
    correlation_of_successive,
    kind_of,
    measured_spreads,
    spread_between,
)
from reports.spread import spread_by_kind

MIB = 1 << 20


def test_the_spread_covers_most_differences_of_two_starts() -> None:
    generator = np.random.default_rng(1)
    cells = [f"cell {number}" for number in range(200)]
    kinds = {cell: "noisy" if number % 2 else "steady" for number, cell in enumerate(cells)}
    sigma = {"noisy": 0.1, "steady": 0.01}
    starts = [{cell: math.exp(generator.normal(0, sigma[kinds[cell]])) for cell in cells} for _ in range(6)]
    spread = spread_by_kind(starts, kinds)
    for kind, of_one in sigma.items():
        assert math.log1p(spread[kind]) == pytest.approx(1.96 * math.sqrt(2) * of_one, rel=0.1)


def test_a_cell_that_one_start_lacks_counts_in_the_others() -> None:
    starts = [{"a": 1.0, "b": 1.0}, {"a": 1.0}, {"a": 1.0, "b": 2.0}]
    assert spread_by_kind(starts, {"a": "one", "b": "two"}) == pytest.approx({"one": 0.0, "two": 1.0})


def test_what_was_not_measured_has_the_largest_spread_that_could_be_its() -> None:
    (card, *_), kind = measured_spreads(), kind_of("batched", 4 * MIB)
    spreads = measured_spreads()[card].spread
    assert spread_between(card, kind).fraction == spreads[kind]
    assert spread_between(card, kind_of("my_kernel", 4 * MIB)).fraction == max(spreads.values())
    elsewhere = spread_between("another card", kind)
    assert elsewhere.fraction == max(one.spread[kind] for one in measured_spreads().values() if kind in one.spread)
    assert "other cards" in elsewhere.reason


def test_a_card_has_its_own_spread_and_an_unknown_one_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    of_cards = {
        card: CardSpread(driver="1", made="2026-11-20", starts=6, cells=9, spread={"batched": spread})
        for card, spread in (("calm", 0.01), ("wild", 0.4))
    }
    monkeypatch.setattr("kvbench.report.faults.measured_spreads", lambda: of_cards)
    spreads = [spread_between(card, "batched").fraction for card in ("calm", "wild", "unknown")]
    assert spreads == [0.01, 0.4, 0.4]


@pytest.mark.parametrize(
    ("change", "between", "verdict"),
    [
        (1.3, 0.0, Verdict.SLOWER),
        (1.3, 0.5, Verdict.UNDECIDED),
        (1.8, 0.5, Verdict.SLOWER),
        (0.5, 0.5, Verdict.FASTER),
        (1.0, 0.0, Verdict.SAME),
        (1.0, 0.01, Verdict.SAME),
        (1.0, 0.5, Verdict.UNDECIDED),
    ],
)
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
    drifting = correlation_of_successive(walks(0.95))
    assert drifting is not None
    assert drifting > CORRELATED
    assert correlation_of_successive(walks(0.0)[:10]) is None
