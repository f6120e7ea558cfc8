"""The section on runs of adjacent blocks: where merged copies win."""

from pathlib import Path

import pytest

from kvbench.cells.axes import Direction, Order, Reuse
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.report.numbers import TIMES
from kvbench.report.sections.runs import run_length
from tests import synthetic
from tests.reports import chart_of, highlights_of, is_bold, lines_of, made_report, part_of, said, table_of

LENGTHS = (1, 2, 8, 32, 128)


def cell(backend: str, run: int, direction: Direction = Direction.H2D, blocks: int = 1504) -> Cell:
    batched = {"order": Order.ANY, "descriptors_per_call": 0, "overlap": False}
    return Cell(
        backend, direction, blocks, 16 * 1024,
        pattern=Pattern("runs", run) if run > 1 else Pattern("shuffled"), pool_bytes=1 << 34, reuse=Reuse.FRESH,
        **({"sms": 2} if backend == "sm" else batched),
    )  # fmt: skip


def rate(of: Cell) -> float:
    """Merged copies overtake the kernel between runs of 8 and 32 where they go to the device, and never from it."""
    if of.backend == "sm":
        return 49.0
    if of.backend == "batched" or of.direction is Direction.D2H:
        return 5.0
    return {1: 4.9, 2: 9.0, 8: 45.7, 32: 51.6, 128: 53.5}[of.pattern.run]


def test_the_finding_names_the_run_lengths_around_the_change_to_merged_copies(tmp_path: Path) -> None:
    cells = [cell(backend, run, way) for backend in ("batched", "merged", "sm") for run in LENGTHS for way in Direction]
    report = made_report(tmp_path, [*synthetic.ceilings(), *synthetic.rounds(cells, rate, noise=0.001)])
    part = part_of(report, "runs")
    assert [said(line) for line in part.findings] == [
        f"h2d, 1 504 {TIMES} 16 KiB: merged wins from runs of 32 blocks, sm up to 8.",
        f"d2h, 1 504 {TIMES} 16 KiB: merged is never clearly the fastest at long runs.",
    ]
    (highlight,) = highlights_of(report, "runs")
    assert highlight.startswith(
        "h2d on an idle stream: merged copies are the fastest from runs of 32 blocks on, in 1 of 1"
    )
    table = table_of(part, "h2d")
    rows = [[said(text) for text in row] for row in table.rows]
    assert [row[1] for row in rows] == [str(run) for run in LENGTHS]
    assert [float(row[3]) for row in rows] == pytest.approx([4.9, 9.0, 45.7, 51.6, 53.5], rel=0.01)
    assert [is_bold(row[3]) for row in table.rows] == [False, False, False, True, True]
    points = chart_of(report, "runs-1504-run").points
    assert set(points["run_blocks"]) == set(LENGTHS)


def test_the_finding_says_when_merged_copies_win_at_every_length(tmp_path: Path) -> None:
    cells = [cell(backend, run) for backend in ("batched", "merged") for run in LENGTHS[2:]]
    part = part_of(made_report(tmp_path, synthetic.rounds(cells, rate, noise=0.001)), "runs")
    (line,) = part.findings
    assert said(line).endswith("merged wins from runs of 8 blocks, the shortest decided length.")


def test_the_section_needs_three_run_lengths(tmp_path: Path) -> None:
    report = made_report(tmp_path, synthetic.visits([cell("batched", run) for run in (1, 8)]))
    assert any("it needs a backend measured at 3 run lengths" in line for line in lines_of(report.missing))


@pytest.mark.parametrize(
    ("pattern", "blocks"),
    [("shuffled", 1), ("runs-8", 8), ("runs-geometric-8", None), ("turning-8", None), ("contiguous", None)],
)
def test_run_length_is_none_for_patterns_of_mixed_runs(pattern: str, blocks: int | None) -> None:
    assert run_length(pattern) == blocks
