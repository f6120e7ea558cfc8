"""The section on queue depth: knees in table, words and chart, and queued cells kept out of every other section."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.cells.axes import StreamState
from kvbench.report.assemble import report_of
from kvbench.report.build import report_files
from kvbench.report.model import DataTable, Report
from kvbench.report.numbers import ABSENT, TIMES
from kvbench.results import Record, Run
from tests import synthetic
from tests.reports import chart_of, lines_of, made_report, made_run, part_of, rows_of, said, sections_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    visits = synthetic.rounds(synthetic.queue_cells(), synthetic.queue_gbps)
    return made_run(tmp_path_factory.mktemp("queue"), visits)


@pytest.fixture(scope="module")
def report(run: Run) -> Report:
    return report_of([run])


@pytest.fixture(scope="module")
def table(report: Report) -> DataTable:
    (table,) = part_of(report, "queue-depth").tables
    return table


def test_the_table_has_a_row_for_every_depth_and_the_knee_below(table: DataTable) -> None:
    assert lines_of(table.header) == [
        "Queued",
        *(f"per_block, N = 1, {streams}" for streams in ("1 stream", "8 streams")),
        *(f"batched, N = 64, {streams}" for streams in ("1 stream", "8 streams")),
    ]
    at = {depth: [text.replace("†", "") for text in row] for depth, row in rows_of(table).items()}
    assert list(at) == ["0", "1", "4", "16", "64", "256", "1 024", "4 096", "knee"]
    single, pool, *batched = zip(*(map(float, at[depth]) for depth in ("256", "1 024")), strict=True)
    assert single[1] == pytest.approx(50 * single[0], rel=0.1)
    assert all(late == pytest.approx(early, rel=0.1) for early, late in (pool, *batched))
    assert re.fullmatch(rf"1 024 \({TIMES}\d+\.\d\)", at["knee"][0])
    assert at["knee"][1:] == ["none"] * 3
    caption = said(table.caption)
    assert caption.startswith(
        "Synthetic H200 · driver 580.159 · 2026-11-20 · 30 samples per cell. Time of one submission"
    )


def test_depths_that_the_queue_did_not_hold_are_marked(table: DataTable) -> None:
    rows = rows_of(table)
    assert not any("†" in text for text in rows["256"])
    assert all("†" in text for text in rows["1 024"])
    assert any("† in most samples some of the queued swaps had started" in note for note in lines_of(table.notes))


def test_a_finding_describes_each_knee(report: Report) -> None:
    part = part_of(report, "queue-depth")
    (line,) = lines_of(part.findings)
    assert re.fullmatch(
        r"per_block, N = 1, 1 stream, h2d, 32 KiB blocks: a submission behind 1 024 queued swaps takes 50x as long "
        r"\([\d.]+ to 1\d\d us\)\.",
        line,
    )
    assert [finding.text for finding in part.highlights] == list(part.findings)


def test_the_chart_has_its_csv_and_the_same_run_gives_the_same_chart(run: Run, report: Report) -> None:
    points = chart_of(report, "queue-depth-run").points
    assert len(points) == len(synthetic.queue_cells())
    assert set(points["queued"]) == {0, 1, 4, 16, 64, 256, 1024, 4096}
    assert points["caller_us_median"].between(points["caller_us_q1"], points["caller_us_q3"]).all()
    files = report_files([run])
    assert files["queue-depth-run.png"].startswith(b"\x89PNG")
    assert files["queue-depth-run.svg"] == report_files([run])["queue-depth-run.svg"]


def test_the_report_says_when_a_queue_has_no_knee(tmp_path: Path) -> None:
    visits = synthetic.rounds(synthetic.queue_cells(), lambda cell: cell.swap_bytes / 1e4)
    part = part_of(made_report(tmp_path, visits), "queue-depth")
    (line,) = lines_of(part.findings)
    assert line.startswith("At no depth does a submission take more than 2 times as long")
    assert not part.highlights


def test_a_depth_that_failed_has_a_footnote_with_the_reason(tmp_path: Path) -> None:
    *cells, last = synthetic.queue_cells()
    records: list[Record] = [*synthetic.rounds(cells, synthetic.queue_gbps), synthetic.failure(last, "error 719")]
    (table,) = part_of(made_report(tmp_path, records), "queue-depth").tables
    assert rows_of(table)["4 096"][-1] == f"{ABSENT}¹"
    assert "¹ failed: error: error 719" in lines_of(table.notes)


def test_too_few_depths_make_no_section(tmp_path: Path) -> None:
    cells = [cell for cell in synthetic.queue_cells() if cell.queued <= 4]
    report = made_report(tmp_path, synthetic.rounds(cells, synthetic.queue_gbps))
    assert "queue-depth" not in sections_of(report)
    assert any(line.startswith("Queue depth: it needs") for line in lines_of(report.missing))


def test_queued_cells_stay_out_of_other_sections(tmp_path: Path) -> None:
    """More cells with a queue than without must not move the cliff's tables to the cells with one."""
    plain = [cell for cell in synthetic.cliff_cells((256,)) if cell.backend == "batched"]
    queued = [
        replace(cell, queued=depth, streams=streams)
        for cell in plain
        if cell.stream_state is StreamState.BUSY
        for depth, streams in ((4, 1), (16, 1), (4, 8))
    ]
    visits = synthetic.rounds(plain)
    alone = made_report(tmp_path / "alone", visits)
    both = made_report(tmp_path / "both", visits + synthetic.rounds(queued, lambda _: 1.0))
    assert part_of(both, "cliff").tables == part_of(alone, "cliff").tables
