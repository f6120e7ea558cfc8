"""`kvbench sweep` over the queue's depth on the cpu device: queued swaps run, are verified, and can fail a cell."""

from pathlib import Path

import pytest

from kvbench.results.rundir import visits_that_count
from tests.command import cell_of, failures, kvbench_here, records, swept, tiny

ONE_SAMPLE = ("--rounds=1", "--warmups=0", "--min-samples=1", "--max-samples=1")
# A delay that a thread which has to wait for its core does not outlast.
LONG_DELAY = "--busy-delay-us=100000"
QUEUED = (*tiny(blocks="1", stream_state="busy", queued="0,3", streams="1,2"), *ONE_SAMPLE, LONG_DELAY)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return swept(tmp_path_factory.mktemp("queue"), *QUEUED)


def test_a_sample_records_whether_the_whole_queue_was_waiting(run: Path) -> None:
    visits = visits_that_count(records(run))
    held = {(cell_of(visit).queued, cell_of(visit).streams): list(visit.samples.depth_held or ()) for visit in visits}
    assert held == {(0, 1): [], (0, 2): [], (3, 1): [1], (3, 2): [1]}
    assert not any(visit.warnings for visit in visits)


# The verified swap, the check of the order, three plain ones that tell how long the delay has to be, and the sample
# behind its queue of three: nine calls, of which the fault strikes the last or one that is not made.
@pytest.mark.parametrize(("call", "status"), [(8, "failed"), (9, "ok")])
def test_a_fault_counts_calls_of_queued_swaps_too(tmp_path: Path, call: int, status: str) -> None:
    cell = tiny(backend="per_block", blocks="1", stream_state="busy", queued="3", streams="2")
    done = kvbench_here("sweep", *cell, *ONE_SAMPLE, f"--fault=error@call={call}", "--out", "run", cwd=tmp_path)
    assert done.returncode == (0 if status == "ok" else 5), done.stderr
    assert [record.message for record in failures(tmp_path / "run")] == (
        [] if status == "ok" else ["copy: INJECTED_ERROR (descriptor 0)"]
    )


def test_a_stray_byte_of_a_queued_swap_fails_the_cell(tmp_path: Path) -> None:
    cell = tiny(backend="per_block", blocks="1", pattern="contiguous", stream_state="busy", queued="3")
    done = kvbench_here("sweep", *cell, *ONE_SAMPLE, "--fault=stray@descriptor=1", "--out", "run", cwd=tmp_path)
    assert done.returncode == 5
    (failure,) = failures(tmp_path / "run")
    assert failure.kind == "mismatch"
    assert " -a queued=3 " in failure.command
