"""The section on auto: it is judged at shapes that its policy was not measured at."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.report.build import report_of
from kvbench.report.charts.plot import LinePlot
from kvbench.report.model import Part
from kvbench.results import Run, Visit, load_run
from tests import synthetic
from tests.reports import findings_of, highlights_of, is_bold, lines_of, made_report, part_of, said

KNOWN, NEW = 4096, 16384
POLICY: dict[str, Any] = {
    "format": 1,
    "device": "Synthetic H200",
    "driver": "580.159",
    "identity_hash": "0123456789ab",
    "made": "2026-11-19T10:00:00Z",
    "runs": ["kvbench sweep quick"],
    "tables": [
        {"direction": "h2d", "stream_state": "idle", "block_bytes": [KNOWN], "blocks": [256], "choices": [["batched"]]}
    ],
}


def part(tmp_path: Path, slow_bytes: int, policy: dict[str, Any] | None) -> Part:
    """Return the section of a run in which auto takes twice as long as batched copies at one block size."""
    batched = [Cell("batched", Direction.H2D, 256, size) for size in (KNOWN, NEW)]
    auto = [replace(cell, backend="auto") for cell in batched]

    def rate(cell: Cell) -> float:
        return 10.0 if cell.backend == "auto" and cell.block_bytes == slow_bytes else 20.0

    info = synthetic.info(spec={"policy": policy} if policy else {})
    return part_of(made_report(tmp_path, synthetic.rounds([*batched, *auto], rate, noise=0.001), info), "auto")


@pytest.mark.parametrize(("slow_bytes", "close"), [(KNOWN, 1), (NEW, 0)])
def test_shapes_that_the_policy_was_measured_at_do_not_count(tmp_path: Path, slow_bytes: int, close: int) -> None:
    made = part(tmp_path, slow_bytes, POLICY)
    verdict, *rest = findings_of(made)
    assert verdict.startswith(f"auto is within 3% of the fastest in {close} of 1 cell new to its policy")
    assert [said(finding.text) for finding in made.findings if finding.weight] == [verdict]
    assert any("In 1 cell that the policy was measured at, auto was as close in " in line for line in rest)
    known, new = (row[1] for row in made.tables[0].rows)
    assert said(known).startswith("(")
    assert is_bold(new) == (slow_bytes == NEW)


def test_without_a_policy_every_shape_counts(tmp_path: Path) -> None:
    made = part(tmp_path, NEW, None)
    verdict, *rest = findings_of(made)
    assert verdict.startswith(
        "auto is within 3% of the fastest in 1 of 2 cells; at worst it takes 2x as long (h2d, idle, 256"
    )
    assert "auto had no policy and used built-in defaults" in rest


def test_of_several_runs_the_latest_shows_auto_though_it_has_fewer_cells(tmp_path: Path) -> None:
    """Its policy is the latest too."""
    batched = [Cell("batched", Direction.H2D, 256, size) for size in (KNOWN, NEW)]
    cells = [*batched, *(replace(cell, backend="auto") for cell in batched)]
    runs = []
    for day, kept in (("2026-11-21", [cells[0], cells[2]]), ("2026-11-20", cells)):
        info = synthetic.info(created=f"{day}T10:00:00+00:00")
        records = [*synthetic.ceilings(), *synthetic.rounds(kept, lambda _: 20.0, noise=0.001)]
        runs.append(load_run(synthetic.write_run(tmp_path / day, records, info)))
    (chapter,) = (one for one in report_of(runs).chapters if one.section.name == "auto")
    assert chapter.view.run.path.name == "2026-11-21"


def test_charts_and_text_show_auto_by_the_last_policy_alone(tmp_path: Path) -> None:
    """The run with most cells, which other sections show, has another policy."""
    sizes = (1024, 2048, 4096, 8192)
    batched = [Cell("batched", Direction.H2D, 256, size) for size in sizes]
    cells = [*batched, *(replace(cell, backend="auto") for cell in batched)]

    def run(day: int, kept: Sequence[Cell], policy: dict[str, Any], driver: str = "1") -> Run:
        identity = {"driver_version": driver}
        info = synthetic.info(created=f"2026-11-{day}T10:00:00+00:00", spec={"policy": policy}, identity=identity)
        records = [*synthetic.ceilings(), *synthetic.rounds(kept, lambda _: 20.0, noise=0.001)]
        return load_run(synthetic.write_run(tmp_path / f"{day}", records, info))

    def drawn(runs: Sequence[Run]) -> set[str]:
        plots = [chart.plot for chart in report_of(runs).charts]
        return {line.backend for plot in plots if isinstance(plot, LinePlot) for line in plot.lines}

    old, new = run(20, cells, POLICY), run(21, [*batched[:1], *cells[4:5]], POLICY | {"made": "2026-11-20T10:00:00Z"})
    report = report_of([old, new])
    assert drawn([old, new]) == {"batched"}
    assert drawn([old]) == drawn([old, run(22, cells[3:], POLICY, driver="2")]) == {"auto", "batched"}
    assert any(line.startswith("20: a later run used another policy of auto") for line in lines_of(report.warnings))
    assert not any(line.startswith("21: ") for line in lines_of(report.warnings))
    measured = {said(row[0]): said(row[3]) for row in report.runs.rows}
    assert measured == {"20": "8", "21": "2"}
    (chapter,) = (one for one in report.chapters if one.section.name == "auto")
    assert chapter.view.label == "21"
    assert chapter.others == []


def test_the_worst_case_is_a_cell_whose_visits_agree(tmp_path: Path) -> None:
    batched = [Cell("batched", Direction.H2D, 256, size) for size in (KNOWN, NEW)]

    def records(number: int) -> list[Visit]:
        def rate(cell: Cell) -> float:
            return 20.0 * (0.5 if cell.backend == "auto" and cell.block_bytes == NEW and number % 2 else 1.0)

        cells = [*batched, *(replace(cell, backend="auto") for cell in batched)]
        return synthetic.visits(cells, rate, count=5, noise=0.001, round_=number)

    report = made_report(tmp_path, [one for number in range(6) for one in records(number)])
    assert highlights_of(report, "auto") == ["auto is within 3% of the fastest in 1 of 2 cells, undecided in 1."]


def test_marks_in_the_table_and_the_sentence_count_the_same_cells(tmp_path: Path) -> None:
    """One cell is as fast as the fastest, one clearly slower, one slower by 2% to 6%: by about the 3% that count."""
    sizes = (KNOWN, NEW, 2 * NEW)
    slower = {KNOWN: [1.0] * 6, NEW: [2.0] * 6, 2 * NEW: [1.025, 1.028, 1.03, 1.04, 1.05, 1.06]}
    visits = [
        synthetic.visit(Cell(name, Direction.H2D, 256, size), us, count=5, noise=0.0, round_=number)
        for number in range(6)
        for size in sizes
        for name, us in (("batched", 100.0), ("auto", 100.0 * slower[size][number]))
    ]
    report = made_report(tmp_path, visits)
    (line,) = highlights_of(report, "auto")
    assert line.startswith("auto is within 3% of the fastest in 1 of 3 cells, undecided in 1; at worst it takes 2x as")
    marks = [("≈" in said(row[1]), is_bold(row[1])) for row in part_of(report, "auto").tables[0].rows]
    assert marks == [(False, False), (False, True), (True, False)]


def test_the_cliff_section_does_not_report_falls_of_auto(tmp_path: Path) -> None:
    cells = [
        Cell(name, Direction.D2H, blocks, size)
        for name in ("auto", "batched")
        for blocks in (1000, 200_000)
        for size in (1024, 2048, 4096, 8192)
    ]

    def rate(cell: Cell) -> float:
        return 30.0 if cell.blocks > 1000 else 52.0

    highlights = highlights_of(made_report(tmp_path, synthetic.rounds(cells, rate, noise=0.001)), "cliff")
    assert [
        text for text in highlights if "fall from 52 to 30 GB/s between N = 1 000 and 200 000" in text
    ] == highlights[:1]
    assert highlights[0].startswith("batched d2h on an idle stream: ")
