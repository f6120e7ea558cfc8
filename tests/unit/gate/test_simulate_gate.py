"""The simulation behind CONTRIBUTING's table, on a few suites: it judges by the gate's own code and tells the truth."""

from pathlib import Path

import pytest

from tests.simulate_gate import MARKERS, SCENARIOS, Scenario, cells, simulate, write_between_markers

ROOT = Path(__file__).parents[3]


def test_a_quiet_suite_of_200_cells_passes_and_its_slow_cells_are_found() -> None:
    assert len(set(cells())) == 200
    same, slower = simulate(Scenario(0.005), 0.0, seed=1), simulate(Scenario(0.005), 0.05, seed=1)
    assert (same.regressed, same.contaminated, same.unclear) == (False, False, 0)
    assert slower.regressed
    assert slower.found == 1


def test_noise_ends_in_inconclusive_and_not_in_a_regression() -> None:
    noisy = simulate(Scenario(0.02), 0.0, seed=2)
    assert not noisy.regressed
    assert noisy.unclear_first > noisy.unclear > 0


def test_the_document_has_a_row_for_every_scenario() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition(MARKERS[0])[2].partition(MARKERS[1])[0]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|"))[:3] for line in text.splitlines() if "%" in line]
    assert rows[1:] == [scenario.words for scenario in SCENARIOS]


def test_the_table_goes_between_its_markers_and_nowhere_else(tmp_path: Path) -> None:
    document = tmp_path / "doc.md"
    document.write_text(f"before\n{MARKERS[0]}\nold\n{MARKERS[1]}\nafter\n")
    write_between_markers(document, "new")
    assert document.read_text() == f"before\n{MARKERS[0]}\nnew\n{MARKERS[1]}\nafter\n"
    document.write_text("no markers")
    with pytest.raises(SystemExit):
        write_between_markers(document, "new")
