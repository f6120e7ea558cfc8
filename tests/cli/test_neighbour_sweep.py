"""`kvbench sweep` beside neighbours on the cpu device: what is kept, what a death costs, what is skipped."""

from pathlib import Path

import pandas as pd
import pytest

from kvbench.results import Visit
from tests.command import cell_of, failures, kvbench_here, records, swept, tiny

BESIDE = ("--rounds=1", "--warmups=0", "--cell-seconds=0.3")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cells = tiny(backend="batched", blocks="64", neighbour="none,idle,swap,gemm")
    return swept(tmp_path_factory.mktemp("neighbour"), *cells, *BESIDE)


def test_a_visit_records_the_swaps_and_the_neighbour(run: Path) -> None:
    visits = {cell_of(record).neighbour: record for record in records(run) if isinstance(record, Visit)}
    assert set(visits) == {"none", "idle", "swap"}
    assert visits.pop("none").beside is None
    assert all(visit.beside and visit.beside.neighbour_beside_us for visit in visits.values())


def test_only_cells_beside_a_neighbour_have_its_figures_in_the_summary(run: Path) -> None:
    table = pd.read_csv(run / "summary.csv")
    beside = table[table["neighbour"].isin(["idle", "swap"])]
    for column in ("neighbour_slowdown", "swaps_alone_gbps", "swaps_beside_gbps", "exposure_us_per_gb"):
        assert beside[column].notna().all()
        assert table.loc[table["neighbour"].isna(), column].isna().all()
    assert set(table.loc[table["neighbour"] == "gemm", "status"]) == {"skipped"}


def test_a_neighbour_that_dies_fails_only_its_cell(tmp_path: Path) -> None:
    cells = tiny(backend="batched", neighbour="none,swap")
    fault = "--fault=error@call=2 when neighbour=swap"  # among the first that the neighbour makes
    done = kvbench_here("sweep", *cells, *BESIDE, fault, "--out", "run", cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    (failure,) = failures(tmp_path / "run")
    assert failure.message.startswith("the neighbour died: EngineError: copy_batch: INJECTED_ERROR")
    assert " -a neighbour=swap " in failure.command
    visits = [record for record in records(tmp_path / "run") if isinstance(record, Visit)]
    assert [cell_of(visit).neighbour for visit in visits if not visit.attempt] == ["none"]  # a busy host adds attempts
