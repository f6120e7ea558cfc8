"""Of several runs with policies, a report shows auto by the last alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.report.build import report_of
from kvbench.report.charts.plot import LinePlot
from kvbench.results import Run, load_run
from tests import synthetic
from tests.reports import lines_of, said

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
