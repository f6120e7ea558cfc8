"""Open what a sweep needs, preview it, run it on one device or on several at once, and resume an earlier run; ask what
a machine has, and look at it while copies run.
"""

import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
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
from kvbench.ground.files import commit, or_usage_error
from kvbench.ground.text import convert, quoted
from kvbench.machine.doctor import EngineReport
from kvbench.machine.probes import identity, observe
from kvbench.results import Ceiling, Run, RunInfo, RunWriter, Scalar, load_run
from kvbench.results.rundir import runs_in
from kvbench.results.schema import PLUG_INS, Retry, differences, identity_hash
from kvbench.run.execution import Execution, Observer, SweepEnd
from kvbench.run.protocol import START_ROWS, MeasureCeiling, Opened, Start
from kvbench.run.rendezvous import DeviceTurns, Rank, RankSlot, TurnSlot
from kvbench.run.schedule import Progress, Schedule
from kvbench.run.worker_process import Interpreter, WorkerSlot
from kvbench.sweep.plan import Plan, asked_for, expand, visits
from kvbench.sweep.spec import EVERY_GPU, SweepSpec

_MOST_FIELDS: Final = 4
_LIBRARIES: Final = {"torch", "triton"}
_OWN: Final = ("", "kvbench")  # the first for a backend that does not load
# In the folder of a sweep on several devices: where their workers meet.
_START_FILE: Final = ".start"
# The deadline of a look at the machine, how many large copies one has beside it, and when they run for certain.
_CHECK_DEADLINE_S: Final = 180.0
_LOAD_SAMPLES: Final = 40
_SETTLE_S: Final = 0.3


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
            records = load_run(path).records
            progress = Progress(records)
            slot.started += progress.processes
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


def preview_together(spec: SweepSpec) -> tuple[Plan, Opened]:
    """Plan `spec` on its devices without measuring; return the plan they have in common, and the first device.

    Raises KvbenchError.
    """
    with ExitStack() as stack:
        _, opened = _open_all(spec, Path(), DeviceTurns(), stack)
        _, plans = _plans_in_common(spec, opened)
        return plans[0], opened[0]


def start_together(spec: SweepSpec, path: Path, command: Sequence[str], observer: Observer) -> list[SweepEnd]:
    """Run `spec` on its devices, each into a run directory in `path`. Raises KvbenchError only before it starts."""
    with ExitStack() as stack:
        turns = DeviceTurns()
        slots, opened = _open_all(spec, path, turns, stack)
        spec, plans = _plans_in_common(spec, opened)
        stack.enter_context(_start_file(path, len(slots)))
        executions: list[Execution] = []
        for index, (slot, each, plan) in enumerate(zip(slots, opened, plans, strict=True)):
            name = f"cpu-{index}" if each.device.name == "cpu" else each.device.name.replace(":", "-")
            writer = stack.enter_context(RunWriter.create(path / name, run_info(spec, each, command)))
            shown = Observer() if executions else observer  # the others keep pace with the first
            executions.append(Execution(spec, plan, each, writer, slot, shown, Progress()))
        return _run_together(executions, path, turns)


def _plans_in_common(spec: SweepSpec, opened: Sequence[Opened]) -> tuple[SweepSpec, list[Plan]]:
    """Return `spec` on the opened devices, each cell on one and on all of them, and the plan of each.

    The plans have the cells that all devices can run; raises UsageError where there is none.
    """
    names, axis = [each.device.name for each in opened], {"devices": ("1", str(len(opened)))}
    groups = tuple({**axis, **group} for group in spec.groups)
    spec = msgspec.structs.replace(spec, device=",".join(names), groups=groups)
    plans = [planned(spec, each) for each in opened]
    common = set(plans[0].cells).intersection(*(plan.cells for plan in plans))
    if not common:
        raise UsageError(f"nothing to measure: no cell can run on all of {', '.join(spec.devices)}")
    return spec, [replace(plan, cells=tuple(cell for cell in plan.cells if cell in common)) for plan in plans]


def _open_all(spec: SweepSpec, path: Path, turns: DeviceTurns, stack: ExitStack) -> tuple[list[TurnSlot], list[Opened]]:
    """Open every device that `spec` names, or all GPUs; raises UsageError for a GPU that is named twice."""
    for name, count in Counter(spec.devices).items():
        if count > 1 and name != "cpu":
            raise UsageError(f"--device {spec.device}: {name} is named {count} times; name each GPU once")
    slots: list[TurnSlot] = []
    opened: list[Opened] = []
    backends = asked_for(spec)
    for name in spec.devices:
        start = Start(path=str(path.absolute() / _START_FILE), place=len(slots), number=0)
        slot = stack.enter_context(closing(TurnSlot(spec.with_options(device=name), backends, turns, start)))
        try:
            opened.append(fitting(spec, slot.start()))
        except UsageError:
            if spec.device == EVERY_GPU and opened:
                break
            raise
        turns.join(len(slots))
        slots.append(slot)
    return slots, opened


def _run_together(executions: Sequence[Execution], path: Path, turns: DeviceTurns) -> list[SweepEnd]:
    """Measure on all devices at once, in the order of the plan that they have in common."""
    first = executions[0]
    order: dict[tuple[int, str], int] = {}
    for index, visit in enumerate(visits(first.plan, first.spec.sampling, first.spec.seed)):
        order |= {(visit.round, cell.id): index for cell in visit.cells}
    turns.order = order

    def run(index: int) -> SweepEnd:
        try:
            return replace(executions[index].run(), folder=path)
        finally:
            turns.leave(index)

    with ThreadPoolExecutor(len(executions)) as pool:
        running = [pool.submit(run, index) for index in range(len(executions))]
        try:
            wait(running)
        except KeyboardInterrupt as why:
            turns.stop(str(why))
        return [future.result() for future in running]


@contextmanager
def _start_file(path: Path, devices: int) -> Iterator[None]:
    """Have the file there meanwhile at which the workers meet; the folder must be missing or empty."""
    file = path / _START_FILE
    with or_usage_error(f"{path} cannot be written"):
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise UsageError(f"{path} is not empty; choose another folder")
        file.write_bytes(bytes(8 * START_ROWS * devices))
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
