"""Runs that measured the same cells are compared: what differs in identity, which cells differ beyond the noise."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from kvbench.cells.axes import Direction, Neighbour
from kvbench.cells.cell import Cell
from kvbench.report.build import report_of
from kvbench.report.faults import CardSpread
from kvbench.report.model import Part, Report
from kvbench.report.sections import comparison
from kvbench.report.view import views_of
from kvbench.results import Record, Run, RunInfo
from tests import synthetic
from tests.reports import findings_of, highlights_of, made_run, part_of, rows_of, said, sections_of, table_of

ROUNDS = 6
SPREADS = {"per_block": 0.01, "sm": 0.01, "batched": 0.5}


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


def test_a_comparison_of_two_drivers_names_their_differences(tmp_path: Path, cells: list[Cell]) -> None:
    other = synthetic.info(identity={"gpu_name": "Synthetic H200", "driver_version": "600.1"}, identity_hash="f")
    runs = [run(tmp_path, "a", cells), run(tmp_path, "bb", cells, info=other)]
    differing = rows_of(table_of(compared(*runs), "Differences of identity"))
    assert differing["driver_version"] == ['"580.159"', '"600.1"']
    assert "device" not in differing
    assert differing["cuda_driver_api"] == ['"13.0"', "not recorded"]
    assert "comparison" not in sections_of(report_of([*runs, run(tmp_path, "third", cells)]))


# SM count -> (slowdown of the neighbour, GB/s beside it)
WAYS = {1: (1.1, 20.0), 2: (1.2, 41.0), 4: (1.7, 40.0)}


def beside(folder: Path, name: str, changed: float = 1.0) -> Run:
    """A run of kernels whose neighbour beside two SMs is slower by `changed` than in `WAYS`."""
    rng, records = np.random.default_rng(len(name)), list[Record]()
    for number, (sms, (slowdown, gbps)) in product(range(6), WAYS.items()):
        factor = (changed if sms == 2 else 1.0) * float(np.exp(rng.normal(0, 0.003)))
        cell = Cell("sm", Direction.D2H, 4096, 16384, neighbour=Neighbour.GEMM, sms=sms)
        (visit,) = synthetic.beside(cell, slowdown * factor, gbps, 1)
        records.append(msgspec.structs.replace(visit, round=number))
    return made_run(folder, records, name=name)


def test_a_comparison_finds_a_neighbour_that_is_slower_by_5_percent(tmp_path: Path) -> None:
    report = report_of([beside(tmp_path, "before"), beside(tmp_path, "afterwards", 1.05)])
    part = part_of(report, "comparison")
    _, finding = findings_of(part)
    assert re.match(
        r"afterwards against before, neighbours of 3 cells: 1 slower \(by up to [45]\S*%\), 0 faster", finding
    )
    first, *others = table_of(part, "Slowdown of neighbours").rows
    assert [said(text) for text in (*first[:3], first[-1])] == ["gemm", "d2h", "sm (2 SMs)", "slower"]
    assert [said(row[-1]) for row in others] == ["same", "same"]
    cells = table_of(part, "Cell by cell").rows
    assert {said(row[-1]) for row in cells} == {"same"}
    assert all("neighbour gemm" in said(row[5]) for row in cells)
