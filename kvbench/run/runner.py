"""Runs a sweep: plans it, holds the worker, and finishes what an earlier run left."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from kvbench._version import __version__
from kvbench.cells.cell import Cell
from kvbench.errors import MismatchError, UsageError, brief
from kvbench.machine.identity import differences, identity_hash
from kvbench.machine.observation import identity
from kvbench.results import RunInfo, RunWriter, Scalar, load_run
from kvbench.run.execution import Execution, Observer, Outcome, Progress
from kvbench.run.protocol import Opened
from kvbench.run.ranks import Rank, RankSlot
from kvbench.run.worker_process import WorkerSlot
from kvbench.sweep.plan import Plan, expand
from kvbench.sweep.spec import SweepSpec
from kvbench.tune.search import Search


def preview(spec: SweepSpec) -> tuple[Plan, Opened]:
    """Plan `spec` without measuring; return the plan and the device that would run it. Raises KvbenchError."""
    with closing(WorkerSlot(replace(spec, device=spec.devices[0]))) as slot:
        opened = fitting(spec, slot.start())
    return expand(spec, opened.device, opened.backends), opened


def survey(device: str) -> Opened:
    """Return what a worker finds on `device` ("auto", "cpu", "cuda", "cuda:N"). Raises KvbenchError."""
    with closing(WorkerSlot(SweepSpec(name="survey", device=device))) as slot:
        return slot.start()


def start_sweep(
    spec: SweepSpec,
    path: Path,
    command: Sequence[str],
    observer: Observer,
    searching: Callable[[Sequence[Cell]], Search] | None = None,
    rank: Rank | None = None,
) -> Outcome:
    """Run `spec` into the new run directory `path`. Raises KvbenchError before anything was measured.

    `searching` makes a search of the plan's cells, which then says what of them is visited, and how often. As one of
    several ranks it begins with the others.
    """
    with closing(WorkerSlot(spec) if rank is None else RankSlot(spec, rank)) as slot:
        opened = fitting(spec, slot.start())
        plan = planned(spec, opened)
        info = info_of(spec, opened, command)
        with RunWriter.create(path, info) as writer:
            search = None if searching is None else searching(plan.cells)
            return Execution(spec, plan, opened, writer, slot, observer, Progress(), search).run()


def planned(spec: SweepSpec, opened: Opened) -> Plan:
    """Return the plan of `spec` on an opened device; raises UsageError where it holds no cell."""
    plan = expand(spec, opened.device, opened.backends)
    if not plan.cells:  # a run of skips alone is most often a mistake
        reasons = "; ".join(dict.fromkeys(skip.reason for skip in plan.skipped)) or "no cell meets the filters"
        raise UsageError(f"nothing to measure: {reasons}")
    return plan


def info_of(spec: SweepSpec, opened: Opened, command: Sequence[str]) -> RunInfo:
    """Return what a new run on an opened device says of itself."""
    fields = _identity(opened)
    return RunInfo(
        kvbench=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(command),
        spec=spec.to_plain(),
        device=asdict(opened.device),
        identity=fields,
        identity_hash=identity_hash(fields),
    )


def resume_sweep(path: Path, asked: SweepSpec | None, observer: Observer) -> Outcome:
    """Finish the run at `path`. Raises MismatchError if `asked` or this machine's identity is not the run's."""
    run = load_run(path)
    spec = SweepSpec.from_plain(run.info.spec)
    if asked is not None and asked.to_plain() != spec.to_plain():
        raise MismatchError(f"--resume {path}: that run is of another sweep; give no other options to go on with it")
    with closing(WorkerSlot(spec)) as slot:
        opened = fitting(spec, slot.start())
        here = _identity(opened)
        if identity_hash(here) != run.info.identity_hash:
            changed = "; ".join(differences(run.info.identity, here)) or "its record was changed"
            raise MismatchError(f"--resume {path}: this is not the machine of that run ({changed})")
        plan = expand(spec, opened.device, opened.backends)
        with RunWriter.reopen(path) as writer:
            return Execution(spec, plan, opened, writer, slot, observer, Progress(run.records)).run()


def fitting(spec: SweepSpec, opened: Opened) -> Opened:
    """Return `opened` with a note where the policy is of another driver; raises UsageError for one of another device.

    What is fastest where differs from device to device: such a policy would be no better than none.
    """
    policy = spec.policy
    if policy is None:
        return opened
    if policy.device != opened.device.title:
        raise UsageError(
            f"policy: it was measured on {brief(policy.device)!r}, this is {opened.device.title!r}; make one here with "
            "kvbench tune RUN -p FILE"
        )
    driver = _identity(opened).get("driver_version") or ""
    if policy.driver == driver:
        return opened
    note = f"the policy was measured with driver {policy.driver or 'none'}, this is {driver or 'none'}: make a new one"
    return msgspec.structs.replace(opened, notes=[*opened.notes, note])


def _identity(opened: Opened) -> dict[str, Scalar]:
    device = opened.device
    return identity(device.name, opened.engine_hash, pci_bus_id=opened.pci_bus_id, sm_count=device.sm_count)
