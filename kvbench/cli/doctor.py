"""`kvbench doctor`: show every check of this machine with its remedy, and say whether it is healthy."""

import json
import os
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from kvbench.cells.facts import DeviceFacts, HostMemory, device_named
from kvbench.cli.options import print_lines, print_rows, version_line
from kvbench.ground.errors import ExitCode, KvbenchError, UsageError
from kvbench.machine.doctor import Check, EngineReport, Findings, Status, diagnose

if TYPE_CHECKING:
    from kvbench.report.health import Health


def doctor(
    device: Annotated[str, typer.Option(help="Device: auto (first GPU, else cpu), cpu or cuda:N.")] = "auto",
    measure: Annotated[
        bool, typer.Option("--measure", help="Copy for half a minute, and say whether this host is healthy.")
    ] = False,
    engines: Annotated[
        bool, typer.Option("--engines", help="Check instead which serving engines load on this machine.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check whether this machine is fit to measure on, and print a remedy for each problem."""
    if engines and measure:
        raise UsageError("--engines: only checks what is installed; leave out --measure")
    if engines:
        about, card, checks, health = "engines", "", engine_checks(), None
    else:
        findings = gather(device)
        about, card = findings.device, findings.facts.title if findings.facts else ""
        checks = [*diagnose(findings), *pool_checks(findings)]
        health = _health(findings, checks, measure=measure)
    if as_json:
        print(_json(about, card, checks, health))
    else:
        _write_lines(checks)
        print_lines(["", health.sentence] if health else [])
    if measure and health and health.answer == "no":
        sys.exit(ExitCode.REGRESSION)
    if any(check.status is Status.FAIL for check in checks):
        sys.exit(ExitCode.FAILED_CELLS)


def print_hosts(paths: Sequence[Path]) -> None:
    """Print a line for each host whose JSON is in a file, by what some stand out, and the files that hold none."""
    from kvbench.report.health import HOST_HEADER, host_remarks, host_row, hosts_in

    read, unread = [], []
    for path in paths:
        try:
            hosts_in([path])
            read.append(path)
        except UsageError as why:
            unread.append(str(why))
    if not read:
        raise UsageError(unread[0])
    hosts = hosts_in(read)
    print_rows([host_row(name, report) for name, report in hosts.items()], HOST_HEADER)
    if lines := [*host_remarks(hosts), *unread]:
        print_lines(["", *lines])
    if unread:
        sys.exit(ExitCode.USAGE)


def _json(about: str, card: str, checks: Sequence[Check], health: "Health | None") -> str:
    """One object for a host: `kvbench show` reads those of many."""
    rows = [{**asdict(check), "remedy": check.remedy or None} for check in checks]
    plain = {"host": platform.node(), "kvbench": version_line(), "device": about, "card": card, "checks": rows}
    return json.dumps(plain | ({} if health is None else {"health": msgspec.to_builtins(health)}), indent=2)


def _health(findings: Findings, checks: Sequence[Check], *, measure: bool) -> "Health":
    """Whether the host is healthy: by copies, or, if nothing is to be or can be measured, by the checks."""
    from kvbench.report.health import SPEC, health_of, unmeasured_health
    from kvbench.results import load_run
    from kvbench.run.execution import Observer
    from kvbench.run.runner import start_sweep

    if not measure or any(check.status is Status.FAIL for check in checks):
        return unmeasured_health(checks, findings.device)
    if sys.stderr.isatty():
        typer.echo("copying for about half a minute ...", err=True)
    with TemporaryDirectory(prefix="kvbench-health-") as folder:
        run = Path(folder) / "run"
        try:
            end = start_sweep(SPEC.with_options(device=findings.device), run, ["kvbench", *sys.argv[1:]], Observer())
        except KvbenchError as error:
            failed = Check("copies", Status.FAIL, str(error))
            return unmeasured_health([failed, *checks], findings.device)
        if end.status == "interrupted":
            raise typer.Exit(ExitCode.INTERRUPTED)
        return health_of(load_run(run), checks)


def engine_checks() -> list[Check]:
    """Return for the code of each engine's backend whether it would load on a machine with a GPU."""
    from kvbench.backends.base import facts_of
    from kvbench.cells.installed import installed

    gpu = DeviceFacts("cuda:0", "cuda", "a GPU", None, 0, 0, None)
    checks = []
    for facts in (facts_of(name, gpu) for name, backend in installed()[0].items() if backend.engine):
        reason = facts.unavailable or ""
        status = Status.INFO if reason.endswith("is not installed") else Status.WARN if reason else Status.OK
        checks.append(Check(facts.name, status, reason or f"{facts.package} loads"))
    return checks


def pool_checks(findings: Findings) -> list[Check]:
    from kvbench.cells.installed import engines
    from kvbench.machine.sources import Sources

    host = HostMemory(
        available_bytes=findings.observed.get("host_available_bytes") or 0,
        shm_bytes=Sources().shm_bytes(),
        memlock_bytes=findings.memlock_bytes,
        memlock_counts=bool(findings.engine.pinning.get(findings.device)),
        ranks=max(1, len(findings.engine.pci_bus_ids)),
    )
    return [
        Check(f"{engine.title} pool", Status.INFO, engine.pool(host)) for engine in engines().values() if engine.pool
    ]


def gather(asked: str) -> Findings:
    """The facts about the requested device, including errors; raises UsageError for an invalid device name."""
    from kvbench.machine.probes import identity, observe
    from kvbench.machine.sources import Sources
    from kvbench.run.runner import inspect

    device_named(asked, ())  # reject a misspelt device before the engine loads
    try:
        engine = inspect()
    except Exception as error:
        engine = EngineReport(engine_error=f"{type(error).__name__}: {error}")
    device = device_named(asked, engine.devices)
    bus_id = engine.pci_bus_ids.get(device)
    facts = next((facts for facts in engine.devices if facts.name == device), None)
    sm_count = facts.sm_count if facts else None
    fields = identity(device, engine.engine_version or "", pci_bus_id=bus_id, sm_count=sm_count)
    node = fields["gpu_numa_node"]
    memlock_bytes, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Findings(
        device=device,
        engine=engine,
        identity=fields,
        observed=observe(device, bus_id),
        under_load=_under_load(device) if facts and facts.kind == "cuda" else "no copies were running",
        allowed_cpus=frozenset(os.sched_getaffinity(0)),
        gpu_cpus=frozenset(Sources().cpus_of_node(node)) if isinstance(node, int) else frozenset(),
        memlock_bytes=None if memlock_bytes == resource.RLIM_INFINITY else memlock_bytes,
        ipc_lock=Sources().has_ipc_lock(),
        iommu=Sources().iommu_type(bus_id) if bus_id else "",
        huge_pages=Sources().huge_pages(),
    )


def _under_load(device: str) -> Mapping[str, Any] | str:
    from kvbench.run.runner import observe_under_load

    try:
        return observe_under_load(device)
    except Exception as error:
        return f"copies failed: {type(error).__name__}: {error}"


def _write_lines(checks: Sequence[Check]) -> None:
    rows = []
    for check in checks:
        rows.append((check.status.value, check.name, check.found))
        if check.remedy:
            rows.append(("", "", f"remedy: {check.remedy}"))
    print_rows(rows)
