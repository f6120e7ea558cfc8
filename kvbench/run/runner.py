"""Open what a sweep needs, preview it, run it, and resume an earlier run; and what doctor asks of other processes."""

import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from kvbench import __version__
from kvbench.cells.cell import Cell
from kvbench.cells.facts import AUTO, CEILING_BYTES, COPIER, TRITON, BackendFacts, DeviceFacts
from kvbench.cells.installed import installed
from kvbench.cells.policy import NO_POLICY
from kvbench.ground.errors import MismatchError, UsageError
from kvbench.ground.files import commit
from kvbench.ground.text import convert, quoted
from kvbench.machine.doctor import EngineReport
from kvbench.machine.probes import identity, observe
from kvbench.results import Ceiling, Run, RunInfo, RunWriter, Scalar, load_run
from kvbench.results.rundir import runs_in
from kvbench.results.schema import PLUG_INS, Retry, differences, identity_hash
from kvbench.run.execution import Execution, Observer, SweepEnd
from kvbench.run.protocol import MeasureCeiling, Opened
from kvbench.run.ranks import Rank, RankSlot
from kvbench.run.schedule import Progress, Schedule
from kvbench.run.worker_process import Interpreter, WorkerSlot
from kvbench.sweep.plan import Plan, asked_for, expand
from kvbench.sweep.spec import SweepSpec

_MOST_FIELDS: Final = 4
_LIBRARIES: Final = {"torch", "triton"}
_OWN: Final = ("", "kvbench")  # the first for a backend that does not load


def preview(spec: SweepSpec) -> tuple[Plan, Opened]:
    """Plan `spec` on one device without measuring; return the plan and the opened device. Raises KvbenchError."""
    with opened_for(spec) as (_, opened):
        return expand(spec, opened.device, opened.backends), opened


def survey(device: str, *, backends: bool = False) -> Opened:
    """Ask a worker about `device` ("auto", "cpu", "cuda", "cuda:N"), optionally with every backend.

    Raises KvbenchError.
    """
    spec = SweepSpec(name="survey", device=device)
    with closing(WorkerSlot(spec, installed()[0].values() if backends else ())) as slot:
        return fitting(spec, slot.start())


def start_sweep(
    spec: SweepSpec,
    path: Path,
    command: Sequence[str],
    observer: Observer,
    scheduling: Callable[[Sequence[Cell]], Schedule] | None = None,
    rank: Rank | None = None,
) -> SweepEnd:
    """Run `spec` into the new run directory `path`. Raises KvbenchError only before anything is measured.

    `scheduling` returns a schedule of the plan's cells, which chooses the cells to visit and how often. As one of
    several ranks, the sweep begins together with the others.
    """
    with opened_for(spec, rank) as (slot, opened):
        plan = planned(spec, opened)
        schedule = None if scheduling is None else scheduling(plan.cells)
        info = run_info(spec, opened, command, None if schedule is None else schedule.command)
        with RunWriter.create(path, info) as writer:
            return Execution(spec, plan, opened, writer, slot, observer, Progress(), schedule).run()


def resume_sweep(path: Path, observer: Observer, *, retry_failed: bool = False) -> SweepEnd:
    """Finish the run at `path`, optionally with its failed cells: the original plan, with the original backends.

    Raises MismatchError if the identity of this machine or the backends differ from those of the run, and UsageError
    for a search, which visits only some of its plan and is not kept, and for runs of several devices.
    """
    if runs_in(path) != [path]:
        raise UsageError(
            f"--resume {path}: kvbench cannot continue the runs of several devices; to use what was measured: "
            f"kvbench report {shlex.quote(str(path))}"
        )
    run = load_run(path)
    spec = SweepSpec.from_plain(run.info.spec)
    if command := run.info.searched_by:
        raise UsageError(
            f"--resume {path}: {command} cannot continue a search; to use what was measured: "
            f"kvbench show {shlex.quote(str(path))}"
        )
    backends, _ = installed()
    if lost := [f"{facts.name} of {facts.package}" for facts in run.info.backends if facts.name not in backends]:
        raise MismatchError(f"--resume {path}: backends of the run are not installed: {', '.join(lost)}")
    with closing(WorkerSlot(spec, asked_for(spec))) as slot:
        found = slot.start()
        plan = plan_of(run, spec, found)  # first: on another machine, its policy is not the reason
        opened = fitting(spec, found)
        with RunWriter.reopen(path) as writer:
            # Read again: until the lock was taken, another process may have added to the run.
            progress = Progress(load_run(path).records)
            slot.count_after(progress.processes)
            for cell in plan.cells if retry_failed else ():
                if cell.id in progress.failed:
                    retry = Retry(cell_text=cell.as_strings())
                    writer.append(retry)
                    progress.note(retry)
            return Execution(spec, plan, opened, writer, slot, observer, progress).run()


def plan_of(run: Run, spec: SweepSpec, opened: Opened) -> Plan:
    """Return the plan that `run` was begun with, of the free memory and the backends of then.

    Raises MismatchError for another machine, or other backends.
    """
    device: DeviceFacts = convert(run.info.device, DeviceFacts, "device")
    plan = expand(spec, device, run.info.backends) if device.kind == opened.device.kind else None
    machine = {name: value for name, value in identity_of(opened).items() if name != PLUG_INS}
    # Of plug-ins, the backends that the run uses are compared below.
    without = {PLUG_INS} | (_unused_libraries(plan.cells, run.info.backends) if plan else set())
    machine |= {name: run.info.identity[name] for name in without & run.info.identity.keys()}
    if identity_hash(machine) != run.info.identity_hash:
        fields = differences(run.info.identity, machine) or ["its record was changed"]
        libraries = all(text.partition(":")[0] in _LIBRARIES for text in fields)
        other = "used other libraries" if libraries else "is of another machine"
        more = f"; and {len(fields) - _MOST_FIELDS} more fields" if len(fields) > _MOST_FIELDS else ""
        changed = "; ".join(fields[:_MOST_FIELDS]) + more
        raise MismatchError(f"--resume {run.path}: the run {other} ({changed})")
    if plan is None:
        raise MismatchError(
            f"--resume {run.path}: the run is of a device of kind {quoted(device.kind)}, "
            f"this is {quoted(opened.device.kind)}"
        )
    here = {facts.name: facts for facts in opened.backends}
    used = {cell.backend for cell in plan.cells}
    for then in run.info.backends:
        if then.name in used and here.get(then.name) != then:
            now = here[then.name]
            why = f"was {then.package}, is {now.package}" if now.package != then.package else now.unavailable
            raise MismatchError(
                f"--resume {run.path}: backend {then.name} differs from that of the run ({why or 'it changed'})"
            )
    return plan


def _unused_libraries(cells: Sequence[Cell], backends: Sequence[BackendFacts]) -> set[str]:
    """Return the libraries of an identity that no cell uses; another package's backend may use any."""
    used = {cell.backend for cell in cells}
    plug_ins = {facts.name for facts in backends if facts.package.split("==")[0] not in _OWN}
    kernels = used & {AUTO, COPIER, TRITON, *plug_ins}
    with_torch = kernels or any(cell.neighbour.uses_torch for cell in cells)
    return set() if kernels else {"triton"} if with_torch else _LIBRARIES


@contextmanager
def opened_for(spec: SweepSpec, rank: Rank | None = None) -> Iterator[tuple[WorkerSlot, Opened]]:
    """Yield the worker slot for `spec`, started, and the opened device."""
    backends = asked_for(spec)
    with closing(WorkerSlot(spec, backends) if rank is None else RankSlot(spec, backends, rank)) as slot:
        yield slot, fitting(spec, slot.start())


def planned(spec: SweepSpec, opened: Opened) -> Plan:
    """Return the plan of `spec` on an opened device; raises UsageError if it has no cell."""
    plan = expand(spec, opened.device, opened.backends)
    if not plan.cells:  # a run with only skipped cells is usually a mistake
        raise nothing_to_measure(plan)
    return plan


def nothing_to_measure(plan: Plan) -> UsageError:
    reasons = "; ".join(dict.fromkeys(skip.reason for skip in plan.skipped)) or plan.refusal
    return UsageError(f"nothing to measure: {reasons}")


def fitting(spec: SweepSpec, opened: Opened) -> Opened:
    """Return `opened` with a note for every plug-in whose name clashes, and for a policy of another driver or none.

    Raises UsageError for a policy of another device.
    """
    notes, policy = [*opened.notes, *installed()[1]], spec.policy
    if policy is not None:
        driver = identity_of(opened).get("driver_version") or ""
        notes += filter(None, [policy.check_machine(opened.device.title, str(driver))])
        for name, value in policy.workload.items():
            groups = [group for group in spec.groups if AUTO in group.get("backend", (AUTO,))]
            others = set().union(*(group.get(name, ()) for group in groups)) - {value}
            if others:
                now = ", ".join(sorted(others))
                notes.append(f"the policy was measured with {name} {value}, this sweep has {now}: build a new one")
    elif any(AUTO in group.get("backend", ()) for group in spec.groups):
        notes.append(NO_POLICY)
    return msgspec.structs.replace(opened, notes=notes)


def run_info(spec: SweepSpec, opened: Opened, command: Sequence[str], searched_by: str | None = None) -> RunInfo:
    fields = identity_of(opened)
    return RunInfo(
        kvbench=__version__,
        commit=commit(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(command),
        spec=spec.to_plain(),
        device=asdict(opened.device),
        backends=opened.backends,
        identity=fields,
        identity_hash=identity_hash(fields),
        searched_by=searched_by,
    )


def identity_of(opened: Opened) -> dict[str, Scalar]:
    device = opened.device
    fields = identity(device.name, opened.engine_hash, pci_bus_id=opened.pci_bus_id, sm_count=device.sm_count)
    packages = {facts.package for facts in opened.backends if not facts.package.startswith("kvbench==")} - {""}
    return fields | ({PLUG_INS: ", ".join(sorted(packages))} if packages else {})


_CHECK_DEADLINE_S: Final = 180.0
_LOAD_SAMPLES: Final = 40
_SETTLE_S: Final = 0.3


def inspect() -> EngineReport:
    """The components that load and the devices that exist; a crash of the inspection is part of the report."""
    command = Interpreter().command("-m", "kvbench.measure.inspection")
    try:
        done = subprocess.run(command, capture_output=True, timeout=_CHECK_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        return EngineReport(engine_error=f"no answer within {_CHECK_DEADLINE_S:g} s")
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return EngineReport(engine_error=f"the process ended with {done.returncode}: {''.join(last)}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=EngineReport)


def observe_under_load(device: str) -> Mapping[str, Any]:
    """Return `observe` of `device` while a worker copies over its link. Raises KvbenchError."""
    with closing(WorkerSlot(SweepSpec(name="doctor", device=device))) as slot:
        opened = slot.start()
        slot.reserve(CEILING_BYTES[opened.device.kind])
        request = MeasureCeiling(direction="h2d", round=0, samples=_LOAD_SAMPLES)
        with ThreadPoolExecutor(1) as thread:
            copying = thread.submit(slot.ask, request, Ceiling, _CHECK_DEADLINE_S)
            wait((copying,), _SETTLE_S)
            observed = observe(opened.device.name, opened.pci_bus_id, own_pids=slot.pids)
        copying.result()
        return observed
