"""What a run begins with: the opened device, the plan on it, and the origin that run.json keeps."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime

import msgspec

from kvbench._version import __version__
from kvbench.cells.backend_facts import AUTO
from kvbench.cells.cell import AXES
from kvbench.errors import UsageError
from kvbench.machine.identity import PLUG_INS, identity_hash
from kvbench.machine.observation import identity
from kvbench.policy import NO_POLICY
from kvbench.results import RunInfo, Scalar
from kvbench.run.protocol import Opened
from kvbench.run.ranks import Rank, RankSlot
from kvbench.run.worker_process import WorkerSlot
from kvbench.sweep.installed import asked_for, installed
from kvbench.sweep.plan import Plan, expand
from kvbench.sweep.spec import SweepSpec


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
            others = {str(AXES[name].show(one)) for group in groups for one in group.get(name, ())} - {value}
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
