"""`kvbench sweep` by layers on the cpu device: what the results hold, what a failure costs, what is refused."""

from pathlib import Path

import pandas as pd
import pytest

from kvbench.results import Visit
from tests.command import BRIEF, cell_of, failures, kvbench_here, records, succeeds, swept, tiny

MODEL = ("--model=llama-3-8b@tokens16", "--model=llama-3-70b@tp8@tokens16", "--kv-dtype=fp8")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cells = tiny(backend="batched", blocks="64", sequence="whole,layers-4,at-once-4", neighbour="none,idle")
    return swept(tmp_path_factory.mktemp("layers"), *cells, *BRIEF)


def test_the_summary_has_the_times_of_layers_and_the_share_that_a_step_hides(run: Path) -> None:
    table = pd.read_csv(run / "summary.csv").set_index(["sequence", "neighbour"]).sort_index()
    assert (table.loc["layers-4", ["first_layer_us", "slowest_gap_us"]] > 0).all(axis=None)
    beside = table[table["hidden_share"].notna()]
    assert sorted(beside.index) == [("at-once-4", "idle"), ("layers-4", "idle")]
    share = 1 - (beside["neighbour_beside_us"] - beside["neighbour_alone_us"]) / beside["wall_us_median"]
    assert share.tolist() == pytest.approx(beside["hidden_share"].tolist(), abs=0.01)


def test_a_sequence_has_the_number_of_layers_of_each_model(tmp_path: Path) -> None:
    axes = ("-abackend=batched", "-asequence=layers,at-once", "-adirection=h2d", "-astream_state=idle")
    succeeds("sweep", *MODEL, *axes, *BRIEF, "--device=cpu", "--out", "run", cwd=tmp_path)
    visits = [record for record in records(tmp_path / "run") if isinstance(record, Visit)]
    swaps = {(cell_of(visit).sequence, cell_of(visit).blocks) for visit in visits}
    assert swaps == {("layers-32", 64), ("at-once-32", 64), ("layers-80", 160), ("at-once-80", 160)}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("error@call=2", "INJECTED_ERROR"),  # the third layer of the first swap
        ("closed-gate@wait=9", "no answer within 1 s"),  # a layer of the step waits for ever
    ],
)
def test_a_failed_layer_or_a_hanging_step_fails_only_its_cell(tmp_path: Path, fault: str, said: str) -> None:
    cells = tiny(backend="batched", blocks="64", sequence="whole,layers-4", neighbour="none,idle")
    only = f"--fault={fault} when sequence=layers-4,neighbour=idle"
    options = (*BRIEF, "--deadline-s=1", only, "--out=run")
    done = kvbench_here("sweep", *cells, *options, cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    (failure,) = failures(tmp_path / "run")
    assert said in failure.message
    assert " -a sequence=layers-4" in failure.command
    visits = [record for record in records(tmp_path / "run") if isinstance(record, Visit) and not record.attempt]
    measured = {(cell_of(visit).sequence, str(cell_of(visit).neighbour)) for visit in visits}
    assert measured == {("whole", "none"), ("whole", "idle"), ("layers-4", "none")}
