"""`kvbench sweep` beside neighbours, by layers, behind queues and gates, on the cpu device: what is kept, what a fault
costs.
"""

from pathlib import Path

import pandas as pd
import pytest

from kvbench.cells.axes import Neighbour
from kvbench.report.sections.layers import hidden_share
from kvbench.results import load_run
from kvbench.results.attempts import visits_that_count
from kvbench.results.outcomes import LAYER_TIMES
from tests.command import BRIEF, HOT, failures, kvbench_here, records, succeeds, swept, tiny

BESIDE = ("--rounds=1", "--warmups=0", "--cell-seconds=0.6")
ONE_SAMPLE = ("--rounds=1", "--warmups=0", "--min-samples=1", "--max-samples=1")
QUEUED = {"blocks": "1", "stream_state": "busy", "queued": "3", "streams": "2"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    axes = {"neighbour": "none,idle,prefill", "sequence": "whole,layers-4,at-once-4"}
    return swept(tmp_path_factory.mktemp("beside"), *tiny(backend="batched", blocks="64", **axes), *BESIDE)


def test_only_cells_beside_a_neighbour_have_its_figures(run: Path) -> None:
    visits = {(str(one.cell.neighbour), one.cell.sequence): one for one in visits_that_count(records(run))}
    whole = {neighbour: one.beside for (neighbour, sequence), one in visits.items() if sequence == "whole"}
    assert set(whole) == {"none", "idle"}
    assert whole.pop("none") is None
    assert all(beside and beside.neighbour_beside_us for beside in whole.values())
    table = pd.read_csv(run / "summary.csv")
    beside = table[(table["neighbour"] == "idle") & table["sequence"].isna()]
    assert len(beside) == 1
    for column in ("neighbour_slowdown", "swaps_beside_gbps", "lost_ms_per_gb", "thread_ms_per_gb"):
        assert beside[column].notna().all()
        assert table.loc[table["neighbour"].isna(), column].isna().all()
    assert set(table.loc[table["neighbour"] == "prefill", "status"]) == {"skipped"}


def test_a_run_by_layers_has_the_times_of_its_layers_and_the_share_that_a_step_hides(run: Path) -> None:
    beside = {cell.sequence: one for cell, one in load_run(run).outcomes.items() if cell.neighbour == Neighbour.IDLE}
    assert all(beside["layers-4"].us(time) > 0 for time in LAYER_TIMES)
    shares = {name: [hidden_share(turns) for turns in one.beside.values()] for name, one in beside.items()}
    assert all(shares[name] and None not in shares[name] for name in ("at-once-4", "layers-4"))


def test_a_sequence_has_the_number_of_layers_of_each_model(tmp_path: Path) -> None:
    models = ("--model=llama-3-8b@tokens16", "--model=llama-3-70b@tp8@tokens16", "--kv-dtype=fp8")
    axes = ("-abackend=batched", "-asequence=layers,at-once", "-adirection=h2d", "-astream_state=idle")
    succeeds("sweep", *models, *axes, *BRIEF, "--device=cpu", "--out", "run", cwd=tmp_path)
    swaps = {(visit.cell.sequence, visit.cell.blocks) for visit in visits_that_count(records(tmp_path / "run"))}
    assert swaps == {("layers-32", 64), ("at-once-32", 64), ("layers-80", 160), ("at-once-80", 160)}


def test_a_sample_behind_a_queue_records_whether_all_of_it_was_waiting(tmp_path: Path) -> None:
    cells = tiny(backend="batched", **QUEUED | {"queued": "0,3", "streams": "1,2"})
    visits = visits_that_count(records(swept(tmp_path, *cells, *ONE_SAMPLE)))
    recorded = {(one.cell.queued, one.cell.streams): len(one.samples.depth_held or ()) for one in visits}
    assert recorded == {(0, 1): 0, (0, 2): 0, (3, 1): 1, (3, 2): 1}


GATED = {"backend": "per_block", "blocks": "1,2", "stream_state": "gated,opened"} | HOT
LAYERS = {"backend": "batched", "blocks": "64", "sequence": "whole,layers-4", "neighbour": "none,idle"}
IN_LAYERS, BUT_LAYERS = "sequence=layers-4,neighbour=idle", ["whole none", "whole idle", "layers-4 none"]


@pytest.mark.parametrize(
    ("axes", "options", "fault", "kind", "said", "again", "left"),
    [
        # the third layer of the first swap
        (LAYERS, BRIEF, f"error@call=2 when {IN_LAYERS}", "error",
         "INJECTED_ERROR", " -a sequence=layers-4", BUT_LAYERS),
        # a layer of the step waits for ever
        (LAYERS, (*BRIEF, "--deadline-s=12"), f"closed-gate@wait=9 when {IN_LAYERS}", "timeout",
         "no answer within 12 s", " -a sequence=layers-4", BUT_LAYERS),
        (GATED, (*BRIEF, "--deadline-s=12"), "closed-gate@wait=1 when blocks=1, stream_state=gated", "timeout",
         "no answer within 12 s", " -a stream_state=gated", ["whole none"] * 3),
        # The verified swap, the check of the order, three plain ones that tell how long the delay has to be, and the
        # sample behind its queue of three: nine calls, of which the fault strikes the last or one that is not made.
        (QUEUED | {"backend": "per_block"}, ONE_SAMPLE, "error@call=8", "error",
         "copy: INJECTED_ERROR (descriptor 0)", " -a queued=3 ", []),
        (QUEUED | {"backend": "per_block"}, ONE_SAMPLE, "error@call=9", "", "", "", ["whole none"]),
        (QUEUED | {"backend": "per_block", "pattern": "contiguous"}, ONE_SAMPLE, "stray@descriptor=1", "mismatch",
         "", " -a queued=3 ", []),
    ],
    ids=["layer", "step", "gate", "queue", "behind a queue", "stray byte"],
)  # fmt: skip
def test_a_fault_fails_only_its_cell(
    tmp_path: Path, axes: dict[str, str], options: tuple[str, ...], fault: str, kind: str, said: str, again: str,
    left: list[str],
) -> None:  # fmt: skip
    cells = tiny(**{"backend": "batched"} | axes)
    done = kvbench_here("sweep", *cells, *options, f"--fault={fault}", "--out=run", cwd=tmp_path)
    assert done.returncode == (5 if kind else 0), done.stderr
    failed = failures(tmp_path / "run")
    assert [one.kind for one in failed] == ([kind] if kind else [])
    assert all(said in one.message and again in one.command for one in failed)
    visits = visits_that_count(records(tmp_path / "run"))
    assert sorted(f"{one.cell.sequence} {one.cell.neighbour}" for one in visits) == sorted(left)
