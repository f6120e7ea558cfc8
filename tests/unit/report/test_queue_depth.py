"""The section on queue depth: knees in table, words and chart, and queued cells kept out of every other section."""

import io
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from kvbench.cells.axes import StreamState
from kvbench.report.build import report_files
from kvbench.report.curves import cliff_curves
from kvbench.report.tables import cliff_tables
from kvbench.report.view import View
from kvbench.results import Record, Run, load_run
from tests import markdown, synthetic

TITLE = "## Queue depth: submission time against queued swaps"


def make(tmp_path: Path, records: Iterable[Record]) -> Run:
    return load_run(synthetic.write_run(tmp_path / "run", records))


def words_of(report: bytes) -> str:
    return report.decode().translate(str.maketrans("\N{NO-BREAK SPACE}\N{MULTIPLICATION SIGN}\N{EN DASH}", " x-"))


def text_of(run: Run) -> str:
    return words_of(report_files([run])["report.md"])


@pytest.fixture(scope="module")
def queue_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("queue")
    return make(folder, [*synthetic.visits(synthetic.queue_cells(), synthetic.queue_gbps)])


@pytest.fixture(scope="module")
def files(queue_run: Run) -> dict[str, bytes]:
    return report_files([queue_run])


@pytest.fixture(scope="module")
def text(files: dict[str, bytes]) -> str:
    return words_of(files["report.md"])


def test_the_table_has_a_row_for_every_depth_and_the_knee_below(text: str) -> None:
    section = markdown.section(text, TITLE)
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    assert rows[0] == [
        "Queued",
        *(f"per\\_block, N = 1, {streams}" for streams in ("1 stream", "8 streams")),
        *(f"batched, N = 64, {streams}" for streams in ("1 stream", "8 streams")),
    ]
    assert [row[0] for row in rows[2:]] == ["0", "1", "4", "16", "64", "256", "1 024", "4 096", "knee"]
    at = {row[0]: [re.sub("[†*]", "", text) for text in row[1:]] for row in rows[2:]}
    single, pool, *batched = zip(*(map(float, at[depth]) for depth in ("256", "1 024")), strict=True)
    assert single[1] == pytest.approx(50 * single[0], rel=0.1)
    assert all(late == pytest.approx(early, rel=0.1) for early, late in (pool, *batched))
    assert re.fullmatch(r"1 024 \(x\d+\.\d\)", at["knee"][0])
    assert at["knee"][1:] == ["none"] * 3
    assert "Synthetic H200 · driver 580.159 · 2026-11-20 · 30 samples a cell. Time of one submission" in section


def test_depths_that_the_queue_did_not_hold_are_marked(text: str) -> None:
    section = text.partition(TITLE)[2]
    rows = {depth: re.findall(rf"^\| {depth} \|.*$", section, re.MULTILINE)[0] for depth in ("256", "1 024")}
    assert "†" not in rows["256"]
    assert rows["1 024"].count("†") == 4
    assert "† in most samples some of the queued swaps had started" in section


def test_a_knee_is_said_in_words(text: str) -> None:
    said = re.findall(r"^- per\\_block, N = 1, .* queued swaps .*$", text, re.MULTILINE)
    assert any(
        re.fullmatch(
            r"- per\\_block, N = 1, 1 stream, h2d of 32 KiB: behind 1 024 queued swaps a submission takes x[\d.]+ as "
            r"long \([\d.]+ to 1\d\d us\)\.",
            line,
        )
        for line in said
    )
    assert not any("8 streams" in line for line in said)


def test_the_chart_has_its_numbers_and_is_the_same_every_time(queue_run: Run, files: dict[str, bytes]) -> None:
    points = pd.read_csv(io.BytesIO(files["queue-depth-run.csv"]))
    assert len(points) == len(synthetic.queue_cells())
    assert set(points["queued"]) == {0, 1, 4, 16, 64, 256, 1024, 4096}
    assert points["submit_us_median"].between(points["submit_us_q1"], points["submit_us_q3"]).all()
    assert files["queue-depth-run.png"].startswith(b"\x89PNG")
    assert files["queue-depth-run.svg"] == report_files([queue_run])["queue-depth-run.svg"]


def test_queues_without_a_knee_are_said_too(tmp_path: Path) -> None:
    text = text_of(make(tmp_path, [*synthetic.visits(synthetic.queue_cells(), lambda cell: cell.swap_bytes / 1e4)]))
    assert "No depth at which a submission takes more than 2 times as long" in text


def test_a_depth_that_failed_is_absent_with_its_reason(tmp_path: Path) -> None:
    *cells, last = synthetic.queue_cells()
    records: list[Record] = [*synthetic.visits(cells, synthetic.queue_gbps), synthetic.failure(last, "error 719")]
    text = text_of(make(tmp_path, records))
    assert re.search(r"^\| 4 096 \|.*\| -¹ \|$", text, re.MULTILINE)
    assert "¹ failed: error: error 719" in text


def test_too_few_depths_make_no_section(tmp_path: Path) -> None:
    cells = [cell for cell in synthetic.queue_cells() if cell.queued <= 4]
    text = text_of(make(tmp_path, [*synthetic.visits(cells, synthetic.queue_gbps)]))
    assert "T7 (Queue depth: submission time against queued swaps): it needs" in text


def test_queued_cells_are_in_no_other_section(tmp_path: Path) -> None:
    """More cells with a queue than without must not move the cliff's tables to the cells with one."""
    plain = [cell for cell in synthetic.cliff_cells((256,)) if cell.backend == "batched"]
    queued = [
        replace(cell, queued=depth, streams=streams)
        for cell in plain
        if cell.stream_state is StreamState.BUSY
        for depth, streams in ((4, 1), (16, 1), (4, 8))
    ]
    visits = synthetic.visits(plain)
    alone = make(tmp_path / "alone", visits)
    both = make(tmp_path / "both", visits + synthetic.visits(queued, lambda _: 1.0))
    assert _cliff(both) == _cliff(alone)


def _cliff(run: Run) -> list[str]:
    view = View(run, "run")
    curves = cliff_curves(view.frame)
    assert not isinstance(curves, str)
    return [table.markdown() for table in cliff_tables(view, curves)]
