"""Real null data: the visits of one cell of a committed run, split in two, differ by nothing but chance."""

from collections import Counter
from pathlib import Path

import pytest

from kvbench.analysis.compare import Verdict, compare_apart, compare_pairs
from kvbench.analysis.margins import BETWEEN_RUNS, IN_TURN
from kvbench.results import load_run

RUNS = sorted(Path(__file__, "../../../../reports").resolve().glob("*/runs/*"))
VISITS = 12
FALSE = (Verdict.FASTER, Verdict.SLOWER)


def _cells() -> list[list[float]]:
    found = [list(visits.values()) for path in RUNS for visits in load_run(path).visit_times().values()]
    return [times for times in found if len(times) >= VISITS]


@pytest.fixture(scope="module")
def cells() -> list[list[float]]:
    found = _cells()
    assert len(found) >= 100, "the committed runs hold too few cells with many visits to say anything"
    return found


def test_equal_cells_are_rarely_told_apart(cells: list[list[float]]) -> None:
    paired = Counter(compare_pairs(times[0::2][:6], times[1::2][:6], IN_TURN).verdict for times in cells)
    apart = Counter(compare_apart(times[:6], times[-6:], BETWEEN_RUNS).verdict for times in cells)
    for verdicts in (paired, apart):
        assert sum(verdicts[verdict] for verdict in FALSE) <= 0.05 * len(cells)
        assert verdicts[Verdict.SAME] > 0
