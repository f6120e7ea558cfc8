"""What a run is resumed as: the plan that it was begun with, or not at all; and that nothing is measured twice."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvbench.ground.errors import MismatchError
from kvbench.results import RunInfo, Skip, Visit, load_run
from kvbench.results.rundir import Run
from kvbench.results.schema import identity_hash
from kvbench.run import runner
from kvbench.run.execution import Observer
from kvbench.run.protocol import Opened
from kvbench.run.worker_process import WorkerSlot
from kvbench.sweep.plan import expand
from kvbench.sweep.spec import SweepSpec
from tests import synthetic
from tests.command import BRIEF, records, succeeds, tiny
from tests.forks import forked
from tests.strategies import CPU, CPU_BACKENDS, opened

SPEC = SweepSpec(name="test", groups=({"backend": ("batched", "per_block")}, {"blocks": ("4",)}))


def begun() -> Run:
    info: RunInfo = msgspec.structs.replace(
        synthetic.info(), device=msgspec.to_builtins(CPU), backends=list(CPU_BACKENDS), spec=SPEC.to_plain()
    )
    return Run(Path("run"), info, [], [])


def here(**changes: Any) -> Opened:
    return opened(replace(CPU, **changes), CPU_BACKENDS)


@pytest.fixture
def _same_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "identity_hash", lambda _: begun().info.identity_hash)


@pytest.mark.usefixtures("_same_machine")
def test_memory_taken_by_others_since_the_start_does_not_change_the_plan() -> None:
    plan = expand(SPEC, CPU, CPU_BACKENDS)
    assert runner.plan_of(begun(), SPEC, here()) == plan
    assert runner.plan_of(begun(), SPEC, here(host_free_bytes=1 << 26, device_free_bytes=1 << 26)) == plan
    assert expand(SPEC, replace(CPU, host_free_bytes=1 << 26), CPU_BACKENDS) != plan


@pytest.mark.usefixtures("_same_machine")
def test_a_backend_installed_since_the_start_is_not_part_of_the_run() -> None:
    more = replace(CPU_BACKENDS[1], name="new")
    found = msgspec.structs.replace(here(), backends=[*CPU_BACKENDS, more])
    assert runner.plan_of(begun(), SPEC, found) == expand(SPEC, CPU, CPU_BACKENDS)


@pytest.mark.parametrize(
    ("backends", "package", "counts"),
    [(("batched",), "kvbench==1", False), (("batched", "auto"), "kvbench==1", True), (("batched",), "other==1", True)],
)
def test_a_library_counts_where_a_cell_of_the_run_may_use_it(
    monkeypatch: pytest.MonkeyPatch, backends: tuple[str, ...], package: str, counts: bool
) -> None:
    spec = SweepSpec(name="test", groups=({"backend": backends, "blocks": ("4",)},))
    then: dict[str, Any] = {"torch": "2.9", "triton": "3.5", "cpu_model": "a CPU"}
    facts = [replace(one, package=package) for one in CPU_BACKENDS]
    info = msgspec.structs.replace(begun().info, backends=facts, identity=then, identity_hash=identity_hash(then))
    monkeypatch.setattr(runner, "identity_of", lambda _: then | {"torch": "2.10", "triton": "3.6"})
    other = r'the run used other libraries \(torch: "2\.9" against "2\.10"; triton: '
    with pytest.raises(MismatchError, match=other) if counts else nullcontext():
        assert runner.plan_of(
            Run(Path("run"), info, [], []), spec, msgspec.structs.replace(here(), backends=facts)
        ).cells


@pytest.mark.usefixtures("_same_machine")
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"package": "kvbench==9"}, r", is kvbench==9\)"),
        ({"unavailable": "it rains"}, r"\(it rains\)"),
        ({"axes": frozenset()}, r"\(it changed\)"),
    ],
)
def test_a_changed_backend_is_a_mismatch(changes: dict[str, Any], why: str) -> None:
    changed = [replace(facts, **changes) if facts.name == "batched" else facts for facts in CPU_BACKENDS]
    found = msgspec.structs.replace(here(), backends=changed)
    with pytest.raises(MismatchError, match=r"backend batched differs from that of the run .*" + why):
        runner.plan_of(begun(), SPEC, found)


def interrupted(folder: Path, **axes: str) -> Path:
    """Return a run whose journal lacks its last line."""
    succeeds("sweep", *tiny(**axes), *BRIEF, "--device=cpu", "--out=run", cwd=folder)
    journal = folder / "run" / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    return folder / "run"


def test_what_another_process_measured_before_the_lock_is_not_repeated_and_was_made_by_a_new_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, run = WorkerSlot.start, interrupted(tmp_path)

    def late(slot: WorkerSlot) -> Opened:
        """Start the worker after another process has finished the run."""
        monkeypatch.setattr(WorkerSlot, "start", start)
        runner.resume_sweep(run, Observer())
        finished.extend(records(run))
        return start(slot)

    finished: list[object] = []
    monkeypatch.setattr(WorkerSlot, "start", late)
    with forked():
        runner.resume_sweep(run, Observer())
    assert records(run) == finished
    assert {one.process for one in finished if isinstance(one, Visit)} == {1, 2}
    assert [seen["at"] for seen in load_run(run).info.observed].count("end") == 3


def test_a_run_that_is_resumed_has_each_skip_once(tmp_path: Path) -> None:
    run = interrupted(tmp_path, backend="batched,sm")
    with forked():
        runner.resume_sweep(run, Observer())
    assert [record.cell.backend for record in records(run) if isinstance(record, Skip)] == ["sm"]
