"""Real null data: two runs of one build. Their cells differ by nothing but chance and what a host does."""

from collections import Counter

import pytest

from kvbench.analysis.compare import Verdict, Visits, compare_apart, compare_pairs
from kvbench.analysis.margins import BETWEEN_RUNS, IN_TURN
from kvbench.results import Run, load_run
from tests.data.freeze import FOLDER as FROZEN

FALSE = (Verdict.FASTER, Verdict.SLOWER)


@pytest.fixture(scope="module")
def runs() -> tuple[Run, Run]:
    return load_run(FROZEN / "h200-first"), load_run(FROZEN / "h200-again")


@pytest.fixture(scope="module")
def cells(runs: tuple[Run, Run]) -> list[tuple[Visits, Visits]]:
    first, second = (run.visit_times() for run in runs)
    assert len(first) > 100
    assert first.keys() == second.keys()
    return [(first[cell], second[cell]) for cell in first]


def test_visits_of_one_run_are_rarely_told_apart(cells: list[tuple[Visits, Visits]]) -> None:
    """Each visit against the next, in both runs: six pairs of the same cell."""
    verdicts: Counter[Verdict] = Counter()
    for both in cells:
        ones, others = ([times[number + offset] for times in both for number in (0, 2, 4)] for offset in (0, 1))
        verdicts[compare_pairs(ones, others, IN_TURN).verdict] += 1
    assert sum(verdicts[verdict] for verdict in FALSE) <= 0.05 * len(cells)
    assert verdicts[Verdict.SAME] > 0


def test_two_runs_of_one_build_are_rarely_told_apart(cells: list[tuple[Visits, Visits]]) -> None:
    verdicts = Counter(
        compare_apart(list(first.values()), list(second.values()), BETWEEN_RUNS).verdict for first, second in cells
    )
    assert sum(verdicts[verdict] for verdict in FALSE) <= 0.05 * len(cells)
    assert verdicts[Verdict.SAME] > len(cells) / 3  # the host of this pair was busy


def test_another_run_lies_where_a_run_says_it_may(runs: tuple[Run, Run]) -> None:
    first, second = (run.frame().set_index("cell_id") for run in runs)
    margin = 1 + BETWEEN_RUNS.fraction
    for one, other in ((first, second), (second, first)):
        figures = other.loc[one.index, "swap_us_median"]
        inside = (one["swap_us_low"] / margin <= figures) & (figures <= one["swap_us_high"] * margin)
        assert inside.mean() >= 0.9
