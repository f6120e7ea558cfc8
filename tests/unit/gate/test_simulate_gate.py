"""The simulation behind docs/how-to/gate.md, on a few suites, which judges by the gate's code; and measured rates."""

from pathlib import Path

import pytest

from kvbench.gate.judgement import GateVerdict
from tests.gate_rates import Gated, rates, read, write
from tests.simulate_gate import HALVES, MARKERS, SCENARIOS, Change, Scenario, cells, quoted, simulate, upper_bound

ROOT = Path(__file__).parents[3]


def test_a_quiet_suite_passes_and_slower_cells_are_detected() -> None:
    assert len(set(cells())) == 40
    same, slower = (simulate(Scenario(0.005), change, seed=1) for change in (Change.NONE, Change.BY_5))
    assert (same.verdict, same.same_at_first, same.same) == (GateVerdict.SAME, 1, 1)
    assert slower.verdict is GateVerdict.SLOWER
    assert slower.detected == 1


def test_noise_leads_to_undecided_and_not_to_slower() -> None:
    noisy = simulate(Scenario(0.05), Change.NONE, seed=2)
    assert noisy.verdict is GateVerdict.UNDECIDED
    assert noisy.same_at_first < noisy.same < 1


@pytest.mark.parametrize("change", HALVES)
def test_a_suite_is_slower_if_half_of_all_swaps_take_twice_as_long(change: Change) -> None:
    suites = [simulate(Scenario(0.03, spikes=0.1), change, seed) for seed in range(2)]
    assert {suite.verdict for suite in suites} == {GateVerdict.SLOWER}
    assert all(suite.detected == 1 for suite in suites)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: ", ".join(scenario.labels))
def test_a_few_suites_of_each_noise_give_no_false_alarm(scenario: Scenario) -> None:
    assert GateVerdict.SLOWER not in {simulate(scenario, Change.NONE, seed).verdict for seed in range(2)}


def test_a_count_is_quoted_with_its_bound() -> None:
    assert quoted(0, 700) == "0 of 700: below 0.5%"
    assert upper_bound(0, 299) == pytest.approx(0.01, rel=0.01)
    assert 3 / 100 < upper_bound(3, 100) < 0.08


def test_the_document_has_a_row_for_every_scenario() -> None:
    text = (ROOT / "docs/how-to/gate.md").read_text().partition(MARKERS[0])[2].partition(MARKERS[1])[0]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|"))[:3] for line in text.splitlines() if "%" in line]
    assert rows[1:-1] == [scenario.labels for scenario in SCENARIOS]


def test_measured_rates_count_each_verdict_and_go_on_in_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "rates.json"
    assert read(file) == []
    verdicts = {"the same build": ["SAME", "UNDECIDED", "SAME"], "the kernel 5% slower": ["SLOWER", "FAILED"]}
    for kind, each in verdicts.items():
        for day, verdict in enumerate(each, start=1):
            one = Gated(kind, f"gate {kind}", f"2026-11-0{day}", "H100", "580", "ab", verdict, 0, 20.0 + day, {})
            write(file, [*read(file), one])
    rows = [line.strip("| ").split(" | ") for line in rates(read(file)).splitlines() if "H100" in line]
    assert [row[2:] for row in rows] == [
        ["2026-11-01 to 2026-11-03", "3", "0", "1", "2", "0", "22, at most 23"],
        ["2026-11-01 to 2026-11-02", "2", "1", "0", "0", "1", "22, at most 22"],
    ]
