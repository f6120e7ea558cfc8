"""Runs a sweep: plans it, holds the worker, and finishes what an earlier run left."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from kvbench._version import __version__
from kvbench.cells.cell import Cell
from kvbench.cells.facts import DeviceFacts
from kvbench.errors import MismatchError, UsageError, brief
from kvbench.machine.identity import differences, identity_hash
from kvbench.machine.observation import identity
from kvbench.results import Run, RunInfo, RunWriter, Scalar, load_run
from kvbench.results.schema import Retry
from kvbench.run.execution import Execution, Observer, Outcome, Progress
from kvbench.run.protocol import Opened
from kvbench.run.ranks import Rank, RankSlot
from kvbench.run.worker_process import WorkerSlot
from kvbench.sweep.installed import asked_for, installed
from kvbench.sweep.plan import Plan, expand
from kvbench.sweep.spec import SweepSpec
from kvbench.text import convert
from kvbench.tune.search import Search


def preview(spec: SweepSpec) -> tuple[Plan, Opened]:
    """Plan `spec` without measuring; return the plan and the device that would run it. Raises KvbenchError."""
    with _slot(replace(spec, device=spec.devices[0])) as (slot, clashes):
        opened = fitting(spec, slot.start(), clashes)
    return expand(spec, opened.device, opened.backends), opened


def survey(device: str, *, backends: bool = False) -> Opened:
    """Return what a worker finds on `device` ("auto", "cpu", "cuda", "cuda:N"), every backend too if asked for.

    Raises KvbenchError.
    """
    known, clashes = installed()
    with closing(WorkerSlot(SweepSpec(name="survey", device=device), known.values() if backends else ())) as slot:
        return _with_notes(slot.start(), clashes)


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
    with _slot(spec, rank) as (slot, clashes):
        opened = fitting(spec, slot.start(), clashes)
        plan = planned(spec, opened)
        with RunWriter.create(path, run_info(spec, opened, command)) as writer:
            search = None if searching is None else searching(plan.cells)
            return Execution(spec, plan, opened, writer, slot, observer, Progress(), search).run()


def planned(spec: SweepSpec, opened: Opened) -> Plan:
    """Return the plan of `spec` on an opened device; raises UsageError where it holds no cell."""
    plan = expand(spec, opened.device, opened.backends)
    if not plan.cells:  # a run of skips alone is most often a mistake
        raise nothing_to_measure(plan)
    return plan


def run_info(spec: SweepSpec, opened: Opened, command: Sequence[str]) -> RunInfo:
    """Return what a new run of `spec` says of itself."""
    fields = _identity(opened)
    return RunInfo(
        kvbench=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(command),
        spec=spec.to_plain(),
        device=asdict(opened.device),
        backends=opened.backends,
        identity=fields,
        identity_hash=identity_hash(fields),
    )


def nothing_to_measure(plan: Plan) -> UsageError:
    """Return the refusal of a plan without a cell."""
    reasons = "; ".join(dict.fromkeys(skip.reason for skip in plan.skipped)) or "no cell meets the filters"
    return UsageError(f"nothing to measure: {reasons}")


def resume_sweep(path: Path, asked: SweepSpec | None, observer: Observer, *, retry_failed: bool = False) -> Outcome:
    """Finish the run at `path`, its failed cells too if asked for: what was planned then, with the backends of then.

    Raises MismatchError if `asked`, this machine's identity or the backends of the run's cells are not the run's.
    """
    run = load_run(path)
    spec = SweepSpec.from_plain(run.info.spec)
    check_same_sweep(path, spec, asked)
    with _slot(spec) as (slot, clashes):
        opened = fitting(spec, slot.start(), clashes)
        plan = plan_of(run, spec, opened)
        with RunWriter.reopen(path) as writer:
            progress = progress_of(run, plan.cells, writer, retry_failed=retry_failed)
            return Execution(spec, plan, opened, writer, slot, observer, progress).run()


def check_same_sweep(path: Path, spec: SweepSpec, asked: SweepSpec | None) -> None:
    """Raise MismatchError where what is `asked` for is not the `spec` of the run at `path`."""
    if asked is not None and asked.to_plain() != spec.to_plain():
        raise MismatchError(f"--resume {path}: that run is of another sweep; give no other options to go on with it")


def progress_of(run: Run, cells: Iterable[Cell], writer: RunWriter, *, retry_failed: bool) -> Progress:
    """Return what a run holds; its failed cells are recorded to be tried again if asked for. Raises StorageError."""
    progress = Progress(run.records)
    for cell in cells if retry_failed else ():
        if cell.id in progress.failed:
            retry = Retry(cell_text=cell.as_strings())
            writer.append(retry)
            progress.note(retry)
    return progress


def plan_of(run: Run, spec: SweepSpec, opened: Opened) -> Plan:
    """Return the plan that `run` was begun with; raises MismatchError for another machine, or other backends."""
    known, _ = installed()
    if lost := [f"{then.name} of {then.package}" for then in run.info.backends if then.name not in known]:
        raise MismatchError(f"--resume {run.path}: backends of that run are not installed: {', '.join(lost)}")
    here = _identity(opened)
    if identity_hash(here) != run.info.identity_hash:
        changed = "; ".join(differences(run.info.identity, here)) or "its record was changed"
        raise MismatchError(f"--resume {run.path}: this is not the machine of that run ({changed})")
    return _plan_of(run, spec, opened)


def _plan_of(run: Run, spec: SweepSpec, opened: Opened) -> Plan:
    """Return the plan that `run` was begun with: free memory and backends are those of then. Raises MismatchError."""
    if not run.info.backends:  # a run from before they were kept
        return expand(spec, opened.device, opened.backends)
    device: DeviceFacts = convert(run.info.device, DeviceFacts, "device")
    plan = expand(spec, device, run.info.backends)
    here = {facts.name: facts for facts in opened.backends}
    used = {cell.backend for cell in plan.cells}
    for then in run.info.backends:
        if then.name in used and here.get(then.name) != then:
            now = here[then.name]
            why = f"{then.package} then, {now.package} now" if now.package != then.package else now.unavailable
            raise MismatchError(
                f"--resume {run.path}: backend {then.name} is not that of the run ({why or 'it changed'})"
            )
    return plan


@contextmanager
def _slot(spec: SweepSpec, rank: Rank | None = None) -> Iterator[tuple[WorkerSlot, Sequence[str]]]:
    """Yield the place of the worker for `spec`, and a line for each plug-in whose name clashes."""
    known, clashes = installed()
    backends = asked_for(spec, known)
    with closing(WorkerSlot(spec, backends) if rank is None else RankSlot(spec, backends, rank)) as slot:
        yield slot, clashes


def _with_notes(opened: Opened, notes: Sequence[str]) -> Opened:
    return msgspec.structs.replace(opened, notes=[*opened.notes, *notes])


def fitting(spec: SweepSpec, found: Opened, clashes: Sequence[str]) -> Opened:
    """Return `found` with a note for every plug-in whose name clashes, and where the policy is of another driver.

    Raises UsageError for a policy of another device.

    What is fastest where differs from device to device: such a policy would be no better than none.
    """
    opened, policy = _with_notes(found, clashes), spec.policy
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
    return _with_notes(opened, [note])


def _identity(opened: Opened) -> dict[str, Scalar]:
    device = opened.device
    return identity(device.name, opened.engine_hash, pci_bus_id=opened.pci_bus_id, sm_count=device.sm_count)
