"""Runs that measured the same cells are compared: what differs in identity, which cells differ beyond the noise."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kvbench.cells.cell import Cell
from kvbench.report.build import report_of
from kvbench.report.document import render_details, snippet
from kvbench.report.faults import CardSpread
from kvbench.report.model import Part, Report
from kvbench.report.sections import comparison
from kvbench.report.view import views_of
from kvbench.results import Record, Run, RunInfo
from tests import synthetic
from tests.markdown import tokens
from tests.reports import highlights_of, lines_of, made_run, part_of, rows_of, sections_of, table_of
from tests.unit.report.test_report import HOSTILE

ROUNDS = 6
SPREADS = {"per_block": 0.01, "batched": 0.5}


def run(
    tmp_path: Path,
    name: str,
    cells: Sequence[Cell],
    rate: Callable[[Cell], float] = synthetic.gbps_of,
    info: RunInfo | None = None,
    rounds: int = ROUNDS,
) -> Run:
    seeded = (  # visits of two runs, as of two rounds, have samples of their own
        synthetic.visits(cells, rate, count=7, round_=number + 100 * len(name)) for number in range(rounds)
    )
    records: list[Record] = [*synthetic.ceilings(), *(visit for visits in seeded for visit in visits)]
    return made_run(tmp_path, records, info, name)


def points_of(*runs: Run) -> pd.DataFrame:
    """Return the cells that two runs share, with their verdicts."""
    return comparison._cells(*views_of(runs))


def compared(*runs: Run) -> Part:
    return part_of(report_of(runs), "comparison")


@pytest.fixture(scope="module", autouse=True)
def spreads_between_runs() -> Iterator[None]:
    """The spreads of a card of these tests; those of `configs/` change with every measurement."""
    kinds = {f"{backend}, {side} 8 MiB": spread for backend, spread in SPREADS.items() for side in ("below", "from")}
    card = CardSpread(driver="1", made="2026-11-20", starts=6, cells=9, spread=kinds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvbench.report.faults.measured_spreads", lambda: {"a card": card})
        yield


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    """Return cells whose times differ little from run to run."""
    return [cell for cell in synthetic.cliff_cells((256,)) if cell.backend == "per_block"]


def slower_small_blocks(cell: Cell) -> float:
    return synthetic.gbps_of(cell) * (0.8 if cell.block_bytes <= 4096 else 1.0)


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory, cells: list[Cell]) -> list[Run]:
    folder = tmp_path_factory.mktemp("slower")
    return [run(folder, "before", cells), run(folder, "afterwards", cells, slower_small_blocks)]


@pytest.fixture(scope="module")
def report(slower: list[Run]) -> Report:
    return report_of(slower)


def test_slower_cells_come_first_in_a_comparison(report: Report, slower: list[Run], cells: list[Cell]) -> None:
    points = points_of(*slower)
    assert len(points) == len(cells)
    slow = points["block_bytes"] <= 4096
    assert (points.loc[slow, "verdict"] == "SLOWER").all()
    assert np.allclose(points.loc[slow, "change"], 0.25, atol=0.03)
    assert (points.loc[~slow, "verdict"] == "SAME").mean() > 0.8
    assert points["verdict"].eq("SLOWER").to_numpy()[: slow.sum()].all()
    (highlight,) = highlights_of(report, "comparison")
    assert re.search(r"afterwards against before, 52 cells in common: 1[2-5] slower \(by up to 2\d%\)", highlight)


def test_what_lies_within_the_spread_between_runs_is_undecided(tmp_path: Path) -> None:
    cells = [cell for cell in synthetic.cliff_cells((256,)) if cell.backend == "batched"]
    points = points_of(run(tmp_path, "a", cells), run(tmp_path, "bb", cells, slower_small_blocks))
    assert set(points["verdict"]) == {"UNDECIDED"}


def test_a_comparison_of_two_drivers_names_their_differences(tmp_path: Path, cells: list[Cell]) -> None:
    other = synthetic.info(identity={"gpu_name": "Synthetic H200", "driver_version": "600.1"}, identity_hash="f")
    runs = [run(tmp_path, "a", cells), run(tmp_path, "bb", cells, info=other)]
    differing = rows_of(table_of(compared(*runs), "Differences of identity"))
    assert differing["driver_version"] == ['"580.159"', '"600.1"']
    assert "device" not in differing
    assert differing["cuda_driver_api"] == ['"13.0"', "not recorded"]
    assert "comparison" not in sections_of(report_of([*runs, run(tmp_path, "third", cells)]))


def test_a_comparison_of_two_runs_of_one_machine_comes_last(tmp_path: Path, cells: list[Cell]) -> None:
    report = report_of([run(tmp_path, "a", cells), run(tmp_path, "bb", cells)])
    assert sections_of(report)[-1] == "comparison"
    assert all(table.rows for part in report.parts for table in part.tables)
    by_backend, *_ = part_of(report, "comparison").tables
    assert by_backend.title == "Time of bb / time of a, by backend"
    assert "The identities of both runs are the same" in lines_of(by_backend.notes)
    assert snippet(report, "comparison").startswith("**Time of bb / time of a, by backend**")


@pytest.mark.parametrize("bad", HOSTILE[:7])
def test_an_untrusted_identity_stays_text(tmp_path: Path, cells: list[Cell], bad: str) -> None:
    info = synthetic.info(kvbench=bad, identity={bad: bad, "gpu_name": bad}, command=[bad], created=bad)
    text = render_details(report_of([run(tmp_path, "a", cells[:4]), run(tmp_path, "bb", cells[:4], info=info)]))
    parts = list(tokens(text))
    kinds = {token.type for token in parts}
    assert "## Comparison: two runs" in text
    assert not kinds & {"html_inline", "hr"}
    assert all(char.isprintable() or char in "\n\N{NO-BREAK SPACE}\N{WORD JOINER}" for char in text)
    assert not [token for token in parts if "javascript" in str(token.attrGet("href"))]
