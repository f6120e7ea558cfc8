"""The simulation behind docs/design/gate.md, on a few suites, which judges by the gate's code; and measured rates."""

from pathlib import Path

import pytest

from kvbench.gate.judgement import GateVerdict
from tests.simulate_gate import FEW, MARKERS, SCENARIOS, Change, Scenario, cells, quoted, simulate, upper_bound

ROOT = Path(__file__).parents[3]


def test_a_quiet_suite_passes_and_slower_cells_are_detected() -> None:
    assert len(set(cells())) == 40
    same, slower = (simulate(Scenario(0.005), change, seed=1) for change in (Change.NONE, Change.BY_5))
    assert (same.verdict, same.same_at_first, same.same) == (GateVerdict.SAME, 1, 1)
    assert slower.verdict is GateVerdict.SLOWER
    assert slower.detected == 1


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_equal_builds_are_no_alarm_however_few_pairs_there_was_time_for(scenario: Scenario) -> None:
    suites = [simulate(scenario, Change.NONE, seed, most) for most in FEW for seed in range(7)]
    assert not any(suite.false_alarm for suite in suites)


def test_a_count_is_quoted_with_its_bound() -> None:
    assert quoted(0, 700) == "0 of 700: below 0.5%"
    assert upper_bound(0, 299) == pytest.approx(0.01, rel=0.01)
    assert 3 / 100 < upper_bound(3, 100) < 0.08


def test_the_document_has_a_row_for_every_scenario() -> None:
    text = (ROOT / "docs/design/gate.md").read_text().partition(MARKERS[0])[2].partition(MARKERS[1])[0]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|"))[:3] for line in text.splitlines() if "%" in line]
    assert rows[1:-1] == [scenario.labels for scenario in SCENARIOS]
