"""The wording of a report: Markdown pinned by the report of synthetic runs that fill every section, HTML the same.

`KVBENCH_REMAKE_GOLDEN=1 python -m pytest tests/unit/report/test_golden.py` writes the file anew; read its diff.
"""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Final

import msgspec
import pytest

from kvbench.analysis.compare import MIN_PAIRS
from kvbench.cells.axes import Direction, ListPlace, Neighbour, Order, Priority, Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.models.presets import ModelChoice
from kvbench.report.build import COMPARISON, SECTIONS, report_of
from kvbench.report.document import DETAILS_FILE, REPORT_FILE, render_details, render_report, snippet
from kvbench.report.drawing import STROKES, ink_of
from kvbench.report.model import Report
from kvbench.results import Note, Record, Run
from tests import synthetic
from tests.command import output
from tests.reports import is_bold, lines_of, part_in, run_of, sections_of

GOLDEN: Final = Path(__file__).parent / "golden"
REMAKE: Final = "KVBENCH_REMAKE_GOLDEN" in os.environ
CLIFF_KIB: Final = (4, 16, 24, 28, 64)
SWAPS: Final = ModelChoice(("llama-3-8b", "gpt-oss-20b"), tokens=2048).swaps()


def cells() -> list[Cell]:
    cliff = synthetic.cliff_cells(kib=CLIFF_KIB)
    shapes = product(Direction, (10_000,), (16 * 1024,), synthetic.STATES)
    ladder = [Cell("triton", *shape, sms=count) for shape in shapes for count in (1, 2, 4, 8)]
    orders = [cell for cell in synthetic.order_cells() if cell.block_bytes == 4096]
    queues = [cell for cell in synthetic.queue_cells() if cell.queued in (0, 1, 4, 64, 1024, 4096)]
    models = [
        Cell(name, Direction.H2D, swap.blocks, swap.block_bytes, state, Pattern.parse(swap.pattern), order=order)
        for swap in SWAPS
        for state in synthetic.STATES
        for name, order in (("per_block", None), ("batched", Order.ANY))
    ]
    hot = Cell("sm", Direction.H2D, 1024, 4096, sms=2)
    locality = [hot, replace(hot, priority=Priority.LOW), replace(hot, pool_bytes=16 << 30, reuse=Reuse.FRESH)]
    batch = Cell("batched", Direction.H2D, 320, 16384, order=Order.ANY, descriptors_per_call=0)
    runs = [
        replace(cell, pattern=Pattern.parse(pattern))
        for cell in (batch, replace(batch, backend="merged", descriptors_per_call=None))
        for pattern in ("shuffled", "runs-8", "runs-32")
    ]
    auto = [Cell("auto", Direction.H2D, 256, kib * 1024) for kib in CLIFF_KIB]
    engines = [
        Cell("vllm_batch", Direction.H2D, 256, 4096, order=Order.ANY),
        Cell("vllm_triton", Direction.H2D, 256, 4096),
    ]
    gates = [
        replace(batch, blocks=256, stream_state=state, descriptors_per_call=None)
        for state in (StreamState.GATED, StreamState.OPENED)
    ]
    calls = [
        Cell(backend, Direction.H2D, 64, 4096, sms=sms, pause_us=pause)
        for backend, sms in (("sm", 2), ("empty", None))
        for pause in (0, 5000)
    ]
    fragments = [
        replace(batch, backend=backend, blocks=512, block_bytes=256, pattern=Pattern.parse("fragments-16x8"))
        for backend in ("batched", "sm")
    ]
    gathers = [Cell("sm", Direction.H2D, n, 656, sms=4, list_place=ListPlace.GPU) for n in (16, 64, 2048)]
    slots = [replace(batch, memory=memory, pool_bytes=1 << 30) for memory in ("shared", "slots-256KiBx2")]
    groups = (
        cliff, ladder, orders, queues, models, auto, locality, runs, engines, gates, calls, fragments, gathers, slots,
    )  # fmt: skip
    return list(dict.fromkeys(cell for group in groups for cell in group))


def rate(cell: Cell) -> float:
    if cell.queued or cell.streams > 1:
        return synthetic.queue_gbps(cell)
    if cell.backend.startswith("vllm"):
        return 12.0
    if cell.backend == "merged":
        return 4.0 if cell.pattern.kind == "shuffled" else 50.0
    return 30.0 if cell.backend == "auto" else synthetic.gbps_of(cell)


def slower(cell: Cell) -> float:
    return synthetic.gbps_of(cell) * (0.8 if cell.block_bytes <= 16 * 1024 else 1.0)


def everything(visits: int = 6) -> Run:
    failed, left_out, *measured = cells()
    records: list[Record] = [*synthetic.ceilings(), *synthetic.roofs(), Note(text="the worker was replaced once")]
    records += synthetic.rounds(measured, rate, 7, range(visits))
    triton = [cell for cell in measured if (cell.backend, cell.blocks, cell.block_bytes) == ("triton", 256, 4096)]
    several = [replace(cell, devices=2) for cell in triton]
    records += synthetic.rounds(several, slower, 7, range(visits))
    for sms, (slowdown, gbps) in {1: (1.1, 20.0), 2: (1.2, 41.0), 4: (1.7, 40.0)}.items():
        cell = Cell("sm", Direction.D2H, 4096, 16384, sms=sms, neighbour=Neighbour.PREFILL)
        records += synthetic.beside(cell, slowdown, gbps, visits)
    records += synthetic.both_ways(Cell("sm", Direction.H2D, 4096, 16384, sms=4, opposite=True), visits)
    loads = next(cell for cell in measured if cell.backend == "batched" and cell.blocks == SWAPS[0].blocks)
    loads = replace(loads, stream_state=StreamState.IDLE, neighbour=Neighbour.DECODE, sequence="layers-32")
    records += synthetic.beside_step(loads, 2000.0, ([0.8, 0.81, 0.82] * 2)[:visits])
    records += synthetic.beside_step(replace(loads, sequence="at-once-32"), 1900.0, ([0.0, 0.01, 0.02] * 2)[:visits])
    for backend, gbps in (("batched", 5.0), ("sm", 48.0)):
        cell = Cell(backend, Direction.H2D, 256, 4096, sms=4 if backend == "sm" else None, sequence="trace")
        records += synthetic.replayed(cell, gbps, visits)
    records += [synthetic.failure(failed, "error 719"), synthetic.skip(left_out, "needs 9 GB")]
    spec = {"models": msgspec.to_builtins(SWAPS), "filters": ["swap_bytes<=1GB"]}
    info = synthetic.info(spec=spec, status="interrupted", status_reason="Ctrl-C")
    return run_of(records, info, "everything")


def again(visits: int = 6) -> Run:
    measured = [
        cell for cell in cells()[2:] if cell.backend in ("batched", "per_block") and cell.pattern.kind != "runs"
    ]
    made = synthetic.rounds(measured[:40], slower, 7, range(100, 100 + visits))
    identity = {"gpu_name": "Synthetic H200", "driver_version": "590.1", "cuda_driver_api": "13.0"}
    info = synthetic.info(identity=identity, identity_hash="f")
    return run_of([*synthetic.ceilings(), *made], info, "again")


@pytest.fixture(scope="module")
def run() -> Run:
    return everything()


@pytest.fixture(scope="module")
def report(run: Run) -> Report:
    return report_of([run, again()], ["elsewhere: journal line 3 was changed"])


@pytest.fixture(scope="module")
def alone(run: Run) -> Report:
    return report_of([run])


def test_the_golden_report_has_every_section(report: Report) -> None:
    assert set(sections_of(report)) == {section.name for section in (*SECTIONS, COMPARISON)}


def test_no_two_keys_of_a_legend_look_alike(report: Report) -> None:
    plots = {chart.stem: chart.plot for chart in report.charts}
    assert {stem.partition("-")[0] for stem in plots} == {"cliff", "threshold", "sm", "beside"}
    for plot in plots.values():
        drawn = {line.label: (ink_of(line.backend), line.variant % len(STROKES)) for line in plot.lines}
        assert len(set(drawn.values())) == len(drawn)


@pytest.mark.parametrize(("name", "render"), [(REPORT_FILE, render_report), (DETAILS_FILE, render_details)])
def test_the_markdown_is_that_of_the_golden_file(report: Report, name: str, render: Callable[[Report], str]) -> None:
    text = render(report)
    if REMAKE:
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


def test_the_first_page_is_short(alone: Report) -> None:
    lines = render_report(alone).splitlines()
    assert len(lines) <= 260
    assert sum(len(line.split()) for line in lines if not line.startswith("|")) <= 900


def test_the_answer_for_a_chat_has_five_lines_and_both_directions(alone: Report) -> None:
    lines = snippet(alone, "chat").splitlines()
    assert len(lines) == 5
    assert {line.split()[0] for line in lines} >= {"h2d:", "d2h:"}
    assert all(f" {place}: " in line for place in ("alone", "beside decode", "beside prefill") for line in lines[1:3])


def test_a_snippet_is_of_the_section_that_is_named_before_words_of_another_title(alone: Report) -> None:
    assert snippet(alone, "beside").startswith("**Beside a step: ")
    assert snippet(alone, "what else").startswith("**Beside steps, what else there is")


# Fewer visits than a verdict needs decide nothing: not in a report, in the terminal, or in the answers of a tuning


@pytest.fixture(scope="module")
def few() -> Run:
    return everything(MIN_PAIRS - 1)


@pytest.fixture(scope="module")
def few_visits(few: Run) -> Report:
    return report_of([few, again(MIN_PAIRS - 1)])


def test_with_few_visits_every_section_is_present_and_finds_nothing(few_visits: Report) -> None:
    assert set(sections_of(few_visits)) == {section.name for section in (*SECTIONS, COMPARISON)}
    sentences = {chapter.section.name: lines_of(chapter.part.findings) for chapter in few_visits.chapters}
    assert "0 slower, 0 faster, 0 the same, 40 undecided" in sentences.pop("comparison")[0]
    shown = {"cliff": "no jump", "sm-ladder": "", "queue": "full between", "limits": "dense"}
    assert not [text for name, texts in sentences.items() for text in texts if shown.get(name, "?") not in text]


def test_with_few_visits_no_table_marks_a_winner(few_visits: Report) -> None:
    rows = [row for part in few_visits.parts for table in part.tables for row in table.rows]
    assert not [cell for row in rows for cell in row if is_bold(cell)]


def test_with_few_visits_the_answer_is_batched_and_claims_no_gain(few: Run, tmp_path: Path) -> None:
    path = synthetic.write_run(tmp_path / "few", few.records, few.info)
    _, by_state, *_ = part_in("answer", [few]).tables
    for lines in (lines_of(by_state.notes), output("show", path).splitlines()):
        text = " ".join(" ".join(lines).split())
        assert "43 of 43 shapes undecided, each taken alone (fewer than 6 visits decide nothing)" in text
        assert "as fast as" not in text
    shown = json.loads(output("show", path, "--json"))
    assert [(one["decided"], one["interval_us"]) for one in shown["answers"]] == [(False, None)] * 43
