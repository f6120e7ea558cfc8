"""`kvbench doctor`: gather facts about this machine and show every check with its remedy."""

import json
import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from kvbench.cells.facts import DeviceFacts, HostMemory, device_named
from kvbench.errors import ExitCode
from kvbench.machine.doctor import Check, EngineReport, Findings, Status, diagnose


def doctor(
    device: Annotated[str, typer.Option(help="Device: auto (first GPU, else cpu), cpu or cuda:N.")] = "auto",
    engines: Annotated[
        bool, typer.Option("--engines", help="Check instead which serving engines load on this machine.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check whether this machine is fit to measure on, and print a remedy for each problem."""
    if engines:
        about, checks = "engines", engine_checks()
    else:
        findings = gather(device)
        about, checks = findings.device, [*diagnose(findings), *pool_checks(findings)]
    if as_json:
        rows = [{**asdict(check), "remedy": check.remedy or None} for check in checks]
        print(json.dumps({"device": about, "checks": rows}, indent=2))
    else:
        _write_lines(checks)
    if any(check.status is Status.FAIL for check in checks):
        sys.exit(ExitCode.FAILED_CELLS)


def engine_checks() -> list[Check]:
    """Return for the code of each engine's backend whether it would load on a machine with a GPU."""
    from kvbench.backends.base import facts_of
    from kvbench.sweep.installed import installed

    gpu = DeviceFacts("cuda:0", "cuda", "a GPU", None, 0, 0, None)
    checks = []
    for facts in (facts_of(name, gpu) for name, backend in installed()[0].items() if backend.engine):
        reason = facts.unavailable or ""
        status = Status.INFO if reason.endswith("is not installed") else Status.WARN if reason else Status.OK
        checks.append(Check(facts.name, status, reason or f"{facts.package} loads"))
    return checks


def pool_checks(findings: Findings) -> list[Check]:
    from kvbench.machine.sources import Sources
    from kvbench.sweep.installed import engines

    host = HostMemory(
        available_bytes=findings.observed.get("host_available_bytes") or 0,
        shm_bytes=Sources().shm_bytes(),
        memlock_bytes=findings.memlock_bytes,
        memlock_counts=bool(findings.engine.pinning.get(findings.device)),
        ranks=max(1, len(findings.engine.pci_bus_ids)),
    )
    return [Check(f"{one.title} pool", Status.INFO, one.pool(host)) for one in engines().values() if one.pool]


def gather(asked: str) -> Findings:
    """Return the facts about the requested device, including errors; raises UsageError for an invalid device name."""
    from kvbench.machine.probes import identity, observe
    from kvbench.machine.sources import Sources
    from kvbench.run import runner

    device_named(asked, ())  # reject a misspelt device before the engine loads
    try:
        engine = runner.inspect()
    except Exception as error:
        engine = EngineReport(engine_error=f"{type(error).__name__}: {error}")
    device = device_named(asked, engine.devices)
    bus_id = engine.pci_bus_ids.get(device)
    facts = next((one for one in engine.devices if one.name == device), None)
    known = identity(device, engine.engine_version or "", pci_bus_id=bus_id, sm_count=facts.sm_count if facts else None)
    node = known["gpu_numa_node"]
    memlock_bytes, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Findings(
        device=device,
        engine=engine,
        identity=known,
        observed=observe(device, bus_id),
        under_load=_under_load(device) if facts and facts.kind == "cuda" else "no copies were running",
        allowed_cpus=frozenset(os.sched_getaffinity(0)),
        gpu_cpus=frozenset(Sources().cpus_of_node(node)) if isinstance(node, int) else frozenset(),
        memlock_bytes=None if memlock_bytes == resource.RLIM_INFINITY else memlock_bytes,
        ipc_lock=Sources().has_ipc_lock(),
    )


def _under_load(device: str) -> Mapping[str, Any] | str:
    from kvbench.run import runner

    try:
        return runner.observe_under_load(device)
    except Exception as error:
        return f"copies failed: {type(error).__name__}: {error}"


def _write_lines(checks: list[Check]) -> None:
    from kvbench.cli.options import print_rows

    rows = []
    for check in checks:
        rows.append((check.status.value, check.name, check.found))
        if check.remedy:
            rows.append(("", "", f"remedy: {check.remedy}"))
    print_rows(rows)
