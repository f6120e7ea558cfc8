"""Runs that measured the same cells are compared: what differs in identity, which cells differ beyond the noise."""

import re
from collections.abc import Callable, Sequence

import msgspec
import pytest

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.cells.units import size_text
from kvbench.report.build import report_of
from kvbench.report.document import render_report
from kvbench.report.model import plain
from kvbench.report.numbers import TIMES
from kvbench.results import Run, RunInfo
from tests import synthetic
from tests.reports import lines_of, part_in, part_of, rows_of, run_of, sections_of, table_of


def run(
    name: str,
    cells: Sequence[Cell],
    rate: Callable[[Cell], float] = synthetic.gbps_of,
    info: RunInfo | None = None,
) -> Run:
    first = 100 * len(name)  # visits of two runs, as of two rounds, have samples of their own
    visits = synthetic.rounds(cells, rate, 7, range(first, first + 6))
    return run_of([*synthetic.ceilings(), *visits], info, name)


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    """Return cells whose times differ little from run to run."""
    return [cell for cell in synthetic.cliff_cells((256,)) if cell.backend == "per_block"]


def test_slower_cells_come_first_in_a_comparison(cells: list[Cell]) -> None:
    times = {"1 KiB": 1.25, "2 KiB": 1.25, "4 KiB": 1.6}  # as long

    def slower_small_blocks(cell: Cell) -> float:
        return synthetic.gbps_of(cell) / times.get(size_text(cell.block_bytes), 1.0)

    report = report_of([run("before", cells), run("afterwards", cells, slower_small_blocks)])
    part = part_of(report, "comparison")
    rows = [list(map(plain, row)) for row in table_of(part, "Cell by cell").rows]
    slow = [row[4] in times for row in rows]
    assert slow == sorted(slow, reverse=True)
    assert [row[4] == "4 KiB" for row in rows[: sum(slow)]] == [True] * 4 + [False] * 8
    ratios = [float(row[-2].split()[0].removeprefix(TIMES)) for row in rows]
    assert all(ratio == pytest.approx(times[row[4]], abs=0.03) for ratio, row in zip(ratios, rows[:12], strict=False))
    assert [row[-1] == "slower" for row in rows] == slow
    assert [row[-1] for row in rows[sum(slow) :]].count("same") > 0.8 * (len(rows) - sum(slow))
    (highlight,) = lines_of(part.findings)
    assert highlight in render_report(report)
    assert re.search(r"afterwards against before, 52 cells in common: 1[2-5] slower \(by up to 6\d%\)", highlight)


@pytest.mark.parametrize(
    ("paths", "verdict"), [(("CPU inline",) * 2, "same"), (("CPU inline", "copy engine"), "slower")]
)
def test_two_runs_differ_by_more_where_the_cpu_copied_in_both(paths: Sequence[str], verdict: str) -> None:
    cells = [Cell("per_block", Direction.H2D, 256, 16 << 10)]
    runs = []
    for name, path, gbps in zip(("a", "bb"), paths, (50.0, 42.0), strict=True):
        visits = [
            msgspec.structs.replace(visit, path=path) for visit in synthetic.rounds(cells, lambda _, rate=gbps: rate)
        ]
        runs.append(run_of([*synthetic.ceilings(), *visits], None, name))
    (row,) = table_of(part_in("comparison", runs), "Cell by cell").rows
    assert plain(row[-1]) == verdict


def test_a_comparison_of_two_drivers_names_their_differences(cells: list[Cell]) -> None:
    other = synthetic.info(identity={"gpu_name": "Synthetic H200", "driver_version": "600.1"}, identity_hash="f")
    few = cells[:4]
    runs = [run("a", few), run("bb", few, info=other)]
    differing = rows_of(table_of(part_in("comparison", runs), "Differences of identity"))
    assert differing["driver_version"] == ['"580.159"', '"600.1"']
    assert "device" not in differing
    assert differing["cuda_driver_api"] == ['"13.0"', "not recorded"]
    assert "comparison" not in sections_of(report_of([*runs, run("third", few)]))
