"""The section on neighbours: slowdown and rate of every method of swapping, the Pareto edge, and its chart."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from kvbench.cells.axes import Direction, Neighbour
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.report.build import report_of
from kvbench.report.model import Report
from kvbench.results import Beside, Record, Run, Visit
from tests import synthetic
from tests.reports import (
    chart_of,
    findings_of,
    highlights_of,
    is_bold,
    lines_of,
    made_report,
    made_run,
    part_of,
    rows_of,
    said,
    sections_of,
    table_of,
)

SM = Cell("sm", Direction.D2H, 4096, 16384, neighbour=Neighbour.GEMM)
# SM count -> (slowdown of the neighbour, GB/s beside it); four SMs move less than two and cost more.
WAYS = {1: (1.1, 20.0), 2: (1.2, 41.0), 4: (1.7, 40.0)}


def ladder(rounds: int = 6) -> list[Record]:
    return [
        record
        for sms, (slowdown, gbps) in WAYS.items()
        for record in synthetic.beside(replace(SM, sms=sms), slowdown, gbps, rounds)
    ]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return made_report(tmp_path_factory.mktemp("neighbour"), ladder())


def test_the_table_has_times_of_swaps_and_neighbour_and_the_tail(report: Report) -> None:
    table = table_of(part_of(report, "neighbour"), "gemm, d2h: 200 us per iteration")
    alone, gbps, slowdown, typical, p99, worst, lost, start, end = rows_of(table)["sm (2 SMs)"]
    assert (alone, gbps, slowdown) == ("50.0", "41.0", "1.20x")
    assert (typical, p99, worst) == ("200 → 224", "200 → 1000", "200 → 1000")
    assert (start, end) == ("2.0", "300")  # beside the neighbour, in microseconds
    assert lost == "4070 (4070 to 4070)"  # (1 - 1 / 1.2) / 41 GB/s


def test_a_slow_fifth_of_the_iterations_counts_in_the_slowdown_and_the_time_lost(tmp_path: Path) -> None:
    """One iteration in five takes twice as long, beside swaps of 5 GB/s."""
    turns = Beside(
        neighbour_alone_us=[200.0] * 100, neighbour_beside_us=[200.0, 200.0, 400.0, 200.0, 200.0] * 20,
        swaps_alone_gbps=[5.0], swaps_beside_gbps=[5.0], one_block_alone_us=[10.0], one_block_beside_us=[10.0],
    )  # fmt: skip
    visits = [msgspec.structs.replace(visit, beside=turns) for visit in synthetic.beside(SM, 1.0, 5.0)]
    (row,) = made_run(tmp_path, visits).frame().to_dict("records")
    assert row["neighbour_slowdown"] == pytest.approx(1.2)
    assert row["neighbour_slowdown_median"] == pytest.approx(1.0)
    assert row["exposure_us_per_gb"] == pytest.approx(1e6 / 6 / 5)
    assert row["exposure_us_per_gb_low"] == pytest.approx(row["exposure_us_per_gb_high"])


def replace_round(visit: Visit, number: int) -> Visit:
    return msgspec.structs.replace(visit, round=number)


def test_the_pareto_edge_is_bold_and_marked(report: Report) -> None:
    part = part_of(report, "neighbour")
    table = table_of(part, "gemm, d2h")
    assert [is_bold(row[0]) for row in table.rows] == [True, True, False]
    chart = chart_of(report, "neighbour-run")
    (line,) = chart.plot.lines  # type: ignore[union-attr]
    assert list(line.x) == [20.0, 41.0, 40.0]  # by the SM count
    assert list(line.notes) == ["1 SM", "2 SMs", "4 SMs"]


@pytest.mark.parametrize(("iterations", "known"), [(83, False), (84, True)])
def test_fewer_than_500_iterations_of_six_visits_have_a_longest_but_no_p99(
    tmp_path: Path, iterations: int, known: bool
) -> None:
    run = made_run(
        tmp_path, [with_times(visit, lambda us: us[-iterations:]) for visit in synthetic.beside(SM, 1.2, 41.0)]
    )
    (row,) = run.frame().to_dict("records")
    assert math.isfinite(row["neighbour_slowdown_p99"]) == known
    part = part_of(report_of([run]), "neighbour")
    heads = [said(head) for head in table_of(part, "gemm, d2h").header]
    assert ("p99, us" in heads, "Worst, us" in heads) == (known, True)
    assert bool(part.tables[0].rows[0][-1]) == known


def with_times(visit: Visit, change: Callable[[list[float]], list[float]]) -> Visit:
    """Change the times of the neighbour of a visit."""
    assert visit.beside is not None
    times = {name: change([*getattr(visit.beside, name)]) for name in ("neighbour_alone_us", "neighbour_beside_us")}
    return msgspec.structs.replace(visit, beside=msgspec.structs.replace(visit.beside, **times))


def test_the_table_holds_one_workload_with_a_line_for_each_method(tmp_path: Path) -> None:
    """What moves other blocks, such as extents, does not stand beside them."""
    decode = [replace(SM, sms=sms, neighbour=Neighbour.DECODE) for sms in (2, 4)]
    other = replace(SM, backend="merged", sms=None, pattern=Pattern.parse("runs-32"))
    made = [*ladder(), *(visit for cell in decode for visit in synthetic.beside(cell, 1.4, 39.0 + (cell.sms or 0)))]
    part = part_of(made_report(tmp_path, [*made, *synthetic.beside(other, 1.01, 45.0)]), "neighbour")
    table = part.tables[0]
    assert lines_of(table.header) == [
        "Dir",
        "Method",
        "GB/s beside",
        "decode slower",
        "decode p99",
        "gemm slower",
        "gemm p99",
    ]
    rows = {said(method): [said(text) for text in rest] for _, method, *rest in table.rows}
    assert set(rows) == {"sm (1 SM)", "sm (2 SMs)", "sm (4 SMs)"}
    assert rows["sm (1 SM)"][1::2] == ["", "1.10x"]
    assert rows["sm (2 SMs)"][1::2] == ["1.40x", "1.20x"]
    (chart,) = part.charts
    assert "decode" in chart.text.title


def test_a_cell_whose_neighbour_died_is_listed_with_the_reason(tmp_path: Path) -> None:
    dead = synthetic.failure(replace(SM, sms=8), "the neighbour died: OutOfMemoryError")
    table = table_of(part_of(made_report(tmp_path, [*ladder(), dead]), "neighbour"), "gemm, d2h")
    assert "¹ failed: error: the neighbour died: OutOfMemoryError" in lines_of(table.notes)
    assert "; 42 samples a cell" in said(table.caption)


def test_cells_beside_a_neighbour_stay_out_of_other_sections(report: Report) -> None:
    assert sections_of(report) == ["neighbour"]


@pytest.mark.parametrize("turns", [Beside(), Beside(neighbour_alone_us=[200.0])])
def test_a_visit_without_a_whole_iteration_has_no_slowdown(tmp_path: Path, turns: Beside) -> None:
    records: Sequence[Record] = [
        msgspec.structs.replace(visit, beside=turns) for visit in synthetic.beside(SM, 1.0, 20.0)
    ]
    run = made_run(tmp_path, records)
    assert run.frame()["neighbour_slowdown"].isna().all()
    assert "neighbour" not in sections_of(report_of([run]))


def run_with(folder: Path, name: str, changed: float = 1.0) -> Run:
    """A run of the ladder whose neighbour beside two SMs is slower by `changed` than in `WAYS`."""
    rng = np.random.default_rng(len(name))
    records: list[Record] = []
    for number in range(6):
        for sms, (slowdown, gbps) in WAYS.items():
            factor = (changed if sms == 2 else 1.0) * float(np.exp(rng.normal(0, 0.003)))
            records.append(replace_round(synthetic.beside(replace(SM, sms=sms), slowdown * factor, gbps, 1)[0], number))
    return made_run(folder, records, name=name)


def test_a_comparison_finds_a_neighbour_that_is_slower_by_5_percent(tmp_path: Path) -> None:
    report = report_of([run_with(tmp_path, "before"), run_with(tmp_path, "afterwards", 1.05)])
    part = part_of(report, "comparison")
    _, beside = findings_of(part)
    assert re.match(
        r"afterwards against before, neighbours of 3 cells: 1 slower \(by up to [45]\S*%\), 0 faster", beside
    )
    assert beside in highlights_of(report, "comparison")
    first, *others = table_of(part, "Slowdown of neighbours").rows
    assert [said(text) for text in (*first[:3], first[-1])] == ["gemm", "d2h", "sm (2 SMs)", "slower"]
    assert [said(row[-1]) for row in others] == ["same", "same"]
    cells = table_of(part, "Cell by cell").rows
    assert {said(row[-1]) for row in cells} == {"same"}
    assert all("neighbour gemm" in said(row[5]) for row in cells)
