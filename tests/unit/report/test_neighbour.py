"""The section on neighbours: slowdown and rate of every way to swap, the Pareto edge, and its chart."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from kvbench.cells.axes import Direction, Neighbour
from kvbench.cells.cell import Cell
from kvbench.report.build import report_files, report_of
from kvbench.report.model import Report
from kvbench.results import Beside, Record
from tests import synthetic
from tests.reports import chart_of, is_bold, lines_of, made_report, made_run, part_of, rows_of, sections_of

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


def test_the_table_has_both_sides_and_the_tail(report: Report) -> None:
    (table,) = part_of(report, "neighbour").tables
    assert str(table.title).startswith("gemm, d2h: 200 us per iteration")
    alone, gbps, slowdown, p99, worst, lost, block = rows_of(table)["sm, 2 SMs"]
    assert (alone, gbps, slowdown, p99, worst, block) == ("50.0", "41.0", "1.20", "5.00", "1000", "10.0 → 12.0")
    mean_us = 0.98 * 240 + 0.02 * 1000
    assert float(lost) == pytest.approx((1 - 200 / mean_us) * 1e6 / 41, rel=0.01)


def test_the_pareto_edge_is_bold_and_marked(report: Report) -> None:
    part = part_of(report, "neighbour")
    (table,) = part.tables
    assert [is_bold(row[0]) for row in table.rows] == [True, True, False]
    chart = chart_of(report, "neighbour-run")
    (line,) = chart.plot.lines  # type: ignore[union-attr]
    assert list(line.x) == [20.0, 40.0, 41.0]
    assert [mark.low for mark in line.marks] == [20.0, 41.0]


def test_what_a_rate_costs_at_least_is_said_in_words(report: Report) -> None:
    (line,) = lines_of(part_of(report, "neighbour").findings)
    assert line.startswith(
        "gemm beside d2h swaps at 40 GB/s or more is 20% slower at best, p99 5 times slower (sm, 2 SMs, 41 GB/s)"
    )
    assert line.endswith("; sm, 1 SM costs least: 10% slower at 20 GB/s.")


def test_fewer_than_six_visits_settle_nothing(tmp_path: Path) -> None:
    (table,) = part_of(made_report(tmp_path, ladder(rounds=5)), "neighbour").tables
    assert all(row[2].startswith("≈") for row in rows_of(table).values())


def test_ways_that_differ_in_another_axis_are_lines_of_their_own(tmp_path: Path) -> None:
    capped = replace(SM, sms=2, rate_cap=20, launch_bytes=4 << 20)
    report = made_report(tmp_path, [*ladder(), *synthetic.beside(capped, 1.05, 19.0)])
    plot = chart_of(report, "neighbour-run").plot
    labels = lines_of([line.label for line in plot.lines])  # type: ignore[union-attr]
    assert labels == ["sm", "sm, launch_bytes 4 MiB, rate_cap 20"]


def test_a_cell_whose_neighbour_died_is_there_with_its_reason(tmp_path: Path) -> None:
    dead = synthetic.failure(replace(SM, sms=8), "the neighbour died: OutOfMemoryError")
    (table,) = part_of(made_report(tmp_path, [*ladder(), dead]), "neighbour").tables
    assert "¹ failed: error: the neighbour died: OutOfMemoryError" in lines_of(table.notes)


def test_cells_beside_a_neighbour_stay_out_of_other_sections(report: Report) -> None:
    assert sections_of(report) == ["neighbour"]


def test_the_chart_is_the_same_every_time(tmp_path: Path) -> None:
    run = made_run(tmp_path, ladder())
    first, second = report_files([run]), report_files([run])
    assert first["neighbour-run.png"].startswith(b"\x89PNG")
    assert first["neighbour-run.svg"] == second["neighbour-run.svg"]


@pytest.mark.parametrize("turns", [Beside(), Beside(neighbour_alone_us=[200.0])])
def test_a_visit_without_a_whole_iteration_has_no_slowdown(tmp_path: Path, turns: Beside) -> None:
    records: Sequence[Record] = [
        msgspec.structs.replace(visit, beside=turns) for visit in synthetic.beside(SM, 1.0, 20.0)
    ]
    run = made_run(tmp_path, records)
    assert run.frame()["neighbour_slowdown"].isna().all()
    assert "neighbour" not in sections_of(report_of([run]))
