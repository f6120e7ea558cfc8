"""Real null data: two runs of one build. Their cells differ by nothing but chance and what a host does."""

from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kvbench.analysis.compare import Verdict, Visits, compare_apart, log_ratios
from kvbench.analysis.margins import BETWEEN_RUNS
from kvbench.results import Run, Visit, load_run
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


def test_two_runs_of_one_build_are_rarely_told_apart(cells: list[tuple[Visits, Visits]]) -> None:
    verdicts = Counter(
        compare_apart(list(first.values()), list(second.values()), BETWEEN_RUNS).verdict for first, second in cells
    )
    assert sum(verdicts[verdict] for verdict in FALSE) <= 0.05 * len(cells)
    assert verdicts[Verdict.SAME] > len(cells) / 3  # the host of this pair was busy


def test_another_run_lies_where_a_run_says_it_may(runs: tuple[Run, Run]) -> None:
    first, second = (run.table.set_index("cell_id") for run in runs)
    margin = 1 + BETWEEN_RUNS.fraction
    for one, other in ((first, second), (second, first)):
        figures = other.loc[one.index, "swap_us_median"]
        inside = (one["swap_us_low"] / margin <= figures) & (figures <= one["swap_us_high"] * margin)
        assert inside.mean() >= 0.9


@pytest.mark.parametrize("name", ["engine", "order", "sm-ladder"])
def test_what_tells_arms_in_turn_apart_does_not_correlate_from_visit_to_visit(name: str) -> None:
    """Their interval takes visits for independent."""
    for run in map(load_run, (Path(__file__).parents[3] / "reports").glob(f"*/runs/{name}")):
        group_of = {record.cell.id: record.group for record in run.records if isinstance(record, Visit)}
        groups = defaultdict(list)
        for outcome in run.outcomes.values():
            if outcome.status == "ok":
                groups[group_of[outcome.cell.id]].append(outcome.times())
        correlations = []
        for base, other in (both for arms in groups.values() for both in pairwise(arms)):
            logs = np.array(log_ratios(base, other))
            apart = logs - logs.mean()
            # of independent visits -1/n
            correlations.append((apart[1:] * apart[:-1]).sum() / (apart**2).sum() + 1 / len(apart))
        assert len(correlations) >= 30
        assert abs(np.mean(correlations)) < 0.1
