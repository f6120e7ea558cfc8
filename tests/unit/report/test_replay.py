"""The section on swaps of a trace: latency, GB/s, and which backend makes them fastest."""

from pathlib import Path

import msgspec
import pytest

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.report.model import Report
from tests import synthetic
from tests.reports import chart_of, highlights_of, made_report, part_of, rows_of, said, sections_of, table_of

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


def test_a_swap_that_began_late_took_that_much_longer(tmp_path: Path) -> None:
    late = [0.0] * 3 + [1e6] * 3
    made = [
        msgspec.structs.replace(one, samples=msgspec.structs.replace(one.samples, late_us=late))
        for one in synthetic.replayed(cell("batched"), 5.0)
    ]
    report = made_report(tmp_path, made, synthetic.info(spec={"trace": {"speed": 1.0, "h2d": {"total": 400}}}))
    (row,) = rows_of(table_of(part_of(report, "replay"), "Loads (h2d)")).values()
    _, begun_late, _, p90, worst, *_ = row
    assert begun_late == "18 (1000000 to 1000000 us)"
    assert min(float(p90), float(worst.split()[0])) > 1e6


def test_the_first_page_names_the_fastest_and_its_gain_over_batched_copies_and_an_engine(report: Report) -> None:
    (highlight,) = highlights_of(report, "replay")
    assert highlight.startswith(
        "Loads (h2d) of a trace (400 swaps, run run): sm (4 SMs) is fastest at 47.9 GB/s, worst "
    )
    assert highlight.endswith("; 9.6x as fast as batched, 8x as fast as vllm_batch.")


def test_swaps_of_a_trace_stay_out_of_other_sections(report: Report) -> None:
    assert sections_of(report) == ["answer", "replay"]


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
    assert question == f"Which backend makes the swaps of this trace fastest? ({text})"
    head = chart_of(report, "replay-run").text
    assert head.title.endswith(text)
    assert "hour.gz" not in f"{head} {highlights_of(report, 'replay')}"
