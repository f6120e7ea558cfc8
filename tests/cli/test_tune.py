"""`kvbench tune` from end to end on the cpu device."""

import json
from collections import Counter
from pathlib import Path

import pytest

from kvbench.cells.axes import StreamState
from kvbench.cells.policy import load_policy
from kvbench.results import Visit, load_run
from kvbench.run.worker_process import WorkerSlot
from tests.command import Done, kvbench_here, records, refused, succeeds, with_times

ON_CPU = ("--device=cpu", "-a", "direction=h2d", "-a", "pool=4MiB")
SMALL = (*ON_CPU, "-a", "blocks=64", "-a", "block_size=4KiB")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkerSlot, "visit", with_times(lambda _, made: 100.0 + 100 * (made.cell.backend != "batched")))
        return succeeds("tune", *SMALL, "-o", "run", "-p", "mine.toml", cwd=folder), folder


def test_tune_measures_answers_and_writes_a_policy(tuned: tuple[Done, Path]) -> None:
    done, folder = tuned
    assert "h2d  nothing  batched" in done.stdout
    assert "Beside a step: needs a GPU" in done.stdout
    assert "mine.toml: a policy for " in done.stderr
    answers = json.loads(succeeds("show", "run", "--json", cwd=folder).stdout)["answers"]
    assert {answer["quantity"] for answer in answers} == {"latency", "sustained"}
    assert {answer["choice"] for answer in answers} == {"batched"}
    assert all(answer["interval_us"] for answer in answers)
    tables = load_policy(folder / "mine.toml").tables
    assert {table.stream_state for table in tables} == {StreamState.IDLE, StreamState.SUSTAINED}
    run = load_run(folder / "run")
    assert run.info.status == "complete"
    assert {one.cell.backend for one in run.records if isinstance(one, Visit)} <= {"batched", "merged", "per_block"}


def test_a_search_cannot_be_resumed(tuned: tuple[Done, Path]) -> None:
    folder = tuned[1]
    before = [*load_run(folder / "run").records]
    assert refused("sweep", "--resume", "run", cwd=folder) == (
        "--resume run: kvbench tune cannot continue a search; to use what was measured: kvbench show run"
    )
    assert [*load_run(folder / "run").records] == before


def test_blocks_in_runs_are_measured_next_to_shuffled_ones(tuned: tuple[Done, Path]) -> None:
    visits = [record for record in records(tuned[1] / "run") if isinstance(record, Visit)]
    in_runs = Counter(str(visit.cell.pattern) for visit in visits if visit.cell.backend == "merged")
    assert {name: in_runs[name] for name in ("runs-8", "runs-32")} == {"runs-8": 6, "runs-32": 6}


def test_tune_answers_without_failed_cells_and_reports_them(tmp_path: Path) -> None:
    few = ("--backends=batched,per_block", "--fault=corrupt@descriptor=1 when backend=per_block")
    done = kvbench_here("tune", *SMALL, *few, "--json", "-o", "run", cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    assert {answer["choice"] for answer in json.loads(done.stdout)["answers"]} == {"batched"}
