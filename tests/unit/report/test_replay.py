"""The section on swaps of a trace: latency, GB/s, and which backend makes them fastest."""

from pathlib import Path

import pytest

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.report.build import report_of
from kvbench.report.model import Report
from tests import synthetic
from tests.reports import chart_of, highlights_of, made_report, made_run, part_of, rows_of, said, sections_of, table_of

GBPS = {"sm": 48.0, "batched": 5.0, "vllm_batch": 6.0}


def cell(backend: str) -> Cell:
    return Cell(backend, Direction.H2D, 128, 4096, sms=4 if backend == "sm" else None, sequence="trace")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    made = [visit for backend, gbps in GBPS.items() for visit in synthetic.replayed(cell(backend), gbps)]
    spec = {"trace": {"h2d": {"total": 400}}}
    return made_report(tmp_path_factory.mktemp("replay"), made, synthetic.info(spec=spec))


def test_the_table_has_the_latencies_of_all_swaps(report: Report) -> None:
    table = table_of(part_of(report, "replay"), "Loads (h2d)")
    assert said(table.title) == "Loads (h2d): 36 of 400 swaps of run run"
    rows = rows_of(table)
    assert list(rows) == ["sm (4 SMs)", "vllm_batch", "batched"]  # the fastest first
    swaps, p50, p90, worst, gbps, caller, left = rows["batched"]
    assert swaps == "36"
    worst, blocks = worst.rstrip(")").split(" (")
    assert blocks == "512"  # too few swaps for a p99
    assert float(worst) == pytest.approx(512 * 4096 / 5.0 / 1e3, rel=0.01)
    assert float(p50) < float(p90) <= float(worst)
    rate, interval = gbps.split(" (")
    assert float(rate) == pytest.approx(5.0, rel=0.01)
    assert [float(end) for end in interval.rstrip(")").split(" to ")] == pytest.approx([5.0, 5.0], rel=0.01)
    assert (float(caller) > 0, left) == (True, "50%")


def test_the_first_page_names_the_fastest_and_its_gain_over_batched_copies_and_an_engine(report: Report) -> None:
    (highlight,) = highlights_of(report, "replay")
    assert highlight.startswith(
        "Loads (h2d) of a trace (400 swaps, run run): sm (4 SMs) is fastest at 47.9 GB/s, worst "
    )
    assert highlight.endswith("; 9.6x as fast as batched, 8x as fast as vllm_batch.")


def test_two_methods_without_a_clear_difference_are_both_named(tmp_path: Path) -> None:
    made = [visit for name, gbps in (GBPS | {"merged": 48.0}).items() for visit in synthetic.replayed(cell(name), gbps)]
    (highlight,) = highlights_of(made_report(tmp_path, made), "replay")
    assert highlight.startswith(
        "Loads (h2d) of a trace (run run): merged and sm (4 SMs) are fastest at 47.9 GB/s, worst "
    )
    assert highlight.endswith("; 9.6x as fast as batched, 8x as fast as vllm_batch.")


def test_the_chart_has_a_line_over_swap_sizes_for_every_backend(report: Report) -> None:
    (panel,) = chart_of(report, "replay-run").plot.grid[0]  # type: ignore[union-attr]
    lines = {line.label: line for line in panel.lines}
    assert set(lines) == {"sm (4 SMs)", "vllm_batch", "batched"}
    assert list(lines["sm (4 SMs)"].x) == [16, 32, 64, 128, 256, 512]
    assert lines["batched"].y[0] == pytest.approx(16 * 4096 / 5.0 / 1e6, rel=0.01)  # ms


def test_swaps_of_a_trace_stay_out_of_other_sections(report: Report) -> None:
    assert sections_of(report) == ["answer", "replay"]


def test_a_report_of_two_traces_shows_both(tmp_path: Path) -> None:
    runs = []
    for name, rate in (("hour", 1.0), ("day", 0.5)):
        made = [visit for backend, gbps in GBPS.items() for visit in synthetic.replayed(cell(backend), gbps * rate)]
        spec = {"trace": {"path": f"/x/{name}.gz", "h2d": {"total": 400}}}
        runs.append(made_run(tmp_path, made, synthetic.info(spec=spec), name))
    both = report_of(runs)
    part = part_of(both, "replay")
    assert [said(table.title).rpartition(" ")[2] for table in part.tables] == ["hour", "day"]
    assert [", run hour)" in text for text in highlights_of(both, "replay")] == [True, False]
    assert len(part.charts) == 2


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"origin": "60 min of conversations, llama-3-8b, vllm"}, "60 min of conversations, llama-3-8b, vllm"),
        ({}, "a trace with blocks like llama-3-8b"),
        ({"descriptors": 63, "block_bytes": 63 * 4096}, "a trace with blocks of 63 x 4 KiB"),
    ],
)
def test_a_chart_names_its_trace_by_what_it_is(tmp_path: Path, more: dict[str, object], text: str) -> None:
    made = [visit for backend, gbps in GBPS.items() for visit in synthetic.replayed(cell(backend), gbps)]
    trace = {"path": "/x/hour.gz", "h2d": {"total": 400}, "descriptors": 64, "block_bytes": 2 << 20} | more
    spec = {"trace": trace, "question": "Which backend makes the swaps of this trace fastest?"}
    report = made_report(tmp_path, made, synthetic.info(spec=spec))
    (question,) = [said(row[1]) for row in report.runs.rows]
    assert question == f"Which backend makes the swaps of {text} fastest?"
    head = chart_of(report, "replay-run").text
    assert head.title.endswith(text)
    assert "hour.gz" not in f"{head} {highlights_of(report, 'replay')}"
