"""Runs and reports that several files of these tests look at: they are made, read and drawn once."""

from collections.abc import Iterator

import msgspec
import pytest

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.report.build import report_files, report_of
from kvbench.report.model import Report
from kvbench.results import Run
from kvbench.results.between_runs import CardSpread
from tests import synthetic
from tests.reports import HOSTILE, hostile_run, made_run


@pytest.fixture(scope="module", autouse=True)
def spreads_between_runs() -> Iterator[None]:
    """The spreads of a card of these tests; those of `configs/` change with every measurement."""
    spreads = {"per_block": 0.01, "sm": 0.01, "batched": 0.5}
    kinds = {f"{backend}, {side} 8 MiB": spread for backend, spread in spreads.items() for side in ("below", "from")}
    card = CardSpread(driver="1", made="2026-11-20", starts=6, cells=9, spread=kinds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvbench.results.between_runs.measured_spreads", lambda: {"a card": card})
        yield


@pytest.fixture(scope="session")
def cliff_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    def path_of(cell: Cell) -> str:
        batched = cell.backend == "batched" and cell.stream_state == "idle" and cell.direction is Direction.H2D
        return "CPU inline" if batched and cell.block_bytes <= 24 * 1024 else "copy engine"

    visits = synthetic.rounds(synthetic.cliff_cells((256, 10_000), synthetic.FEW_KIB))
    on_paths = [msgspec.structs.replace(visit, path=path_of(visit.cell)) for visit in visits]
    return made_run(tmp_path_factory.mktemp("cliff"), [*synthetic.ceilings(), *on_paths], name="cliff")


@pytest.fixture(scope="session")
def cliff(cliff_run: Run) -> Report:
    return report_of([cliff_run])


@pytest.fixture(scope="session")
def cliff_files(cliff_run: Run) -> dict[str, bytes]:
    return report_files([cliff_run])


@pytest.fixture(scope="session", params=HOSTILE)
def hostile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Report]:
    """A text, and the report of a run that has it wherever it could, and of another of its machine."""
    text: str = request.param
    folder = tmp_path_factory.mktemp("hostile")
    runs = [hostile_run(folder, text), hostile_run(folder, text, "again", more=f"{text} more")]
    return text, report_of(runs)
