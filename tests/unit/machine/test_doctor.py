import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock, patch

import pytest
import typer
from typer.testing import CliRunner

from kvbench.cells.facts import DeviceFacts, device_named
from kvbench.cli import doctor as command
from kvbench.ground.errors import ExitCode, UsageError
from kvbench.machine.doctor import Check, Component, EngineReport, Findings, Status, diagnose

GIB = 2**30
GPU = DeviceFacts("cuda:0", "cuda", "NVIDIA H200", 132, 139 * GIB, 100 * GIB, "cuMemcpyBatchAsync 13.0")
HOST = DeviceFacts("cpu", "cpu", "host memory", None, 8 * GIB, 8 * GIB, None)
LOADED = Component(version="1.0")
ENGINE = EngineReport(
    engine_error=None,
    engine_version="abc",
    devices=(GPU, HOST),
    nvrtc=LOADED,
    triton=LOADED,
    torch=LOADED,
    pci_bus_ids={"cuda:0": "0000:1b:00.0"},
)
IDENTITY: Mapping[str, Any] = {
    "driver_version": "580.159", "cuda_driver_api": "13.0", "link": "pcie", "pcie_max_generation": 5,
    "pcie_max_width": 16, "bar1_bytes": 256 * GIB, "gpu_numa_node": 0, "logical_cpus": 16,
}  # fmt: skip
IDLE: Mapping[str, Any] = {
    "sm_clock_mhz": 345, "sm_clock_max_mhz": 1980, "memory_clock_mhz": 3201, "pcie_generation": 1, "pcie_width": 16,
    "clock_limits": ["gpu_idle"], "temperature_c": 30, "power_w": 76.5, "gpu_utilisation_percent": 0,
    "gpu_memory_total_bytes": 140 * GIB, "other_processes": [], "host_load_1min": 0.1,
    "host_available_bytes": 100 * GIB, "cpu_governor": None, "unavailable": {},
}  # fmt: skip
BUSY: Mapping[str, Any] = {**IDLE, "pcie_generation": 5, "sm_clock_mhz": 1980, "clock_limits": []}
HEALTHY = Findings(
    device="cuda:0",
    engine=ENGINE,
    identity=IDENTITY,
    observed=IDLE,
    under_load=BUSY,
    allowed_cpus=frozenset({0, 1}),
    gpu_cpus=frozenset({0, 1, 2, 3}),
    memlock_bytes=None,
    iommu="identity",
    huge_pages="always [madvise] never",
)
NOTHING: Mapping[str, Any] = {
    "unavailable": dict.fromkeys(["driver_version", "pcie_generation", "sm_clock_mhz"], "no NVML")
}
OTHERS = [{"pid": 7, "name": "train", "bytes": GIB}, {"pid": 8, "name": None, "bytes": None}]


def check(findings: Findings, name: str) -> Check:
    (diagnosis,) = [one for one in diagnose(findings) if one.name == name]
    return diagnosis


def changed(part: str, **changes: Any) -> Findings:
    return replace(HEALTHY, **{part: {**getattr(HEALTHY, part), **changes}})


observed, loaded, identity = (partial(changed, part) for part in ("observed", "under_load", "identity"))


def engine(**changes: Any) -> Findings:
    return replace(HEALTHY, engine=replace(ENGINE, **changes))


def pinning(driver: str, mlock: str, *, ipc_lock: bool = False) -> Findings:
    tried = {"cuda:0": driver, "mlock": mlock}
    return replace(engine(pinning=tried), memlock_bytes=65536, ipc_lock=ipc_lock)


NO_COPIES = replace(HEALTHY, under_load="no copies")


def test_a_healthy_machine_has_nothing_to_mend() -> None:
    checks = diagnose(HEALTHY)
    assert {one.status for one in checks} == {Status.OK}
    assert not [one for one in checks if one.remedy]
    assert len({one.name for one in checks}) == len(checks)


@pytest.mark.parametrize(
    ("findings", "name", "status", "said"),
    [
        (engine(engine_error="ImportError: no _engine"), "engine", Status.FAIL, "no _engine"),
        (engine(devices=(HOST,), cuda_error="cuInit: error 100"), "device", Status.FAIL, "cuInit: error 100"),
        (replace(HEALTHY, device="cpu"), "device", Status.INFO, "this machine also has a GPU"),
        (identity(driver_version=None), "driver", Status.WARN, "was not read"),
        (engine(devices=(replace(GPU, batch_entry=None),)), "batch entry", Status.WARN, "one copy per descriptor"),
        (identity(link="c2c"), "link", Status.OK, "C2C"),
        (loaded(pcie_width=8), "link", Status.WARN, "gen 5 x8 of gen 5 x16 (under load)"),
        (identity(bar1_bytes=256 * 2**20), "BAR1", Status.WARN, "256 MiB for 143360 MiB"),
        (HEALTHY, "NUMA", Status.OK, "node 0; this process may use 2 of its 4 CPUs"),
        (replace(HEALTHY, allowed_cpus=frozenset({9})), "NUMA", Status.WARN, "node 0"),
        (replace(HEALTHY, gpu_cpus=frozenset()), "NUMA", Status.INFO, "the GPU's node is unknown"),
        (NO_COPIES, "link", Status.INFO, "gen 1 x16 of gen 5 x16 (read idle: no copies)"),
        (NO_COPIES, "clocks", Status.INFO, "345 of 1980 MHz, memory 3201 MHz (read idle)"),
        (loaded(sm_clock_mhz=1484), "clocks", Status.INFO, "1484 of 1980 MHz, memory 3201 MHz (under load)"),
        (loaded(sm_clock_mhz=1485), "clocks", Status.OK, "1485 of 1980 MHz"),
        (loaded(clock_limits=["thermal", "sw_power_cap"]), "throttle", Status.WARN, "76.5 W; cool the card"),
        (loaded(clock_limits=["sw_power_cap"]), "throttle", Status.WARN, "sw_power_cap at 30 °C, 76.5 W; check"),
        (loaded(clock_limits=["application_clocks"]), "throttle", Status.WARN, "unlock them: nvidia-smi -rgc"),
        (loaded(clock_limits=None), "throttle", Status.INFO, "unknown: it was not read"),
        (observed(other_processes=OTHERS), "other processes", Status.WARN, "train (7, 1024 MiB), a process (8)"),
        (observed(gpu_utilisation_percent=60), "other processes", Status.WARN, "60% busy"),
        (observed(other_processes=None), "other processes", Status.INFO, "unknown: it was not read"),
        (engine(nvrtc=Component(error="no wheel")), "NVRTC", Status.WARN, "no wheel"),
        (replace(engine(triton=Component(error="none")), device="cpu"), "Triton", Status.INFO, "not needed for the"),
        (observed(host_available_bytes=GIB), "host memory", Status.WARN, "1024 MiB"),
        (replace(HEALTHY, memlock_bytes=65536), "memlock", Status.INFO, "64KiB: whether the CUDA driver counts was"),
        (pinning("", "ENOMEM"), "memlock", Status.INFO, "the CUDA driver does not count; CapEff has no CAP_IPC_LOCK"),
        (pinning("OUT", "ENOMEM"), "memlock", Status.WARN, "the CUDA driver counts (OUT)"),
        (pinning("", "", ipc_lock=True), "memlock", Status.INFO, "CAP_IPC_LOCK lifts it for mlock and RDMA"),
        (pinning("", "ENOMEM", ipc_lock=True), "memlock", Status.INFO, "CAP_IPC_LOCK does not lift it"),
        (replace(HEALTHY, iommu="DMA-FQ"), "IOMMU", Status.INFO, "translates the GPU's addresses (DMA-FQ)"),
        (replace(HEALTHY, iommu=""), "IOMMU", Status.INFO, "no IOMMU group of the GPU is visible here"),
        (replace(HEALTHY, huge_pages="always madvise [never]"), "huge pages", Status.INFO, "transparent: never"),
        (replace(HEALTHY, huge_pages=""), "huge pages", Status.INFO, "is not visible here"),
        (observed(host_load_1min=8.1), "host load", Status.WARN, "8.10 on 16 CPUs"),
        (observed(host_load_1min=8.0), "host load", Status.OK, "8.00 on 16 CPUs"),
        (observed(cpu_governor="powersave"), "host load", Status.INFO, "powersave"),
    ],
)
def test_a_finding_decides_the_status_of_its_check(findings: Findings, name: str, status: Status, said: str) -> None:
    diagnosis = check(findings, name)
    assert diagnosis.status is status
    assert said in f"{diagnosis.found}; {diagnosis.remedy}"
    assert diagnosis.remedy or status in (Status.OK, Status.INFO)


def test_without_a_gpu_the_checks_of_one_are_left_out() -> None:
    checks = {one.name: one for one in diagnose(replace(engine(devices=(HOST,)), device="cpu"))}
    assert "link" not in checks
    assert not [one for one in checks.values() if one.status is Status.FAIL]
    assert checks["device"].status is Status.WARN
    assert "no GPU" in checks["device"].found


def test_without_nvml_every_check_says_so() -> None:
    checks = {one.name: one for one in diagnose(replace(HEALTHY, identity={}, observed=NOTHING, under_load=NOTHING))}
    assert not [one for one in checks.values() if one.status is Status.FAIL]
    for name in ("driver", "link", "clocks"):
        assert "no NVML" in checks[name].found


def test_devices_are_resolved() -> None:
    assert device_named("auto", ENGINE.devices) == "cuda:0"
    assert device_named("auto", (HOST,)) == "cpu"
    assert device_named("cuda:12", ENGINE.devices) == "cuda:12"
    assert device_named("cuda:00", ENGINE.devices) == "cuda:0"
    assert device_named("cuda", ()) == "cuda:0"
    for wrong in ("", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "cuda:²"):
        with pytest.raises(UsageError, match="write auto, cpu, cuda or cuda:N"):
            device_named(wrong, ENGINE.devices)


def run(engine: EngineReport | Exception, *arguments: str, probe: Mock | None = None) -> Any:
    app = typer.Typer()
    app.callback()(lambda: None)
    app.command()(command.doctor)
    outcome = {"side_effect": engine} if isinstance(engine, Exception) else {"return_value": engine}
    with (
        patch("kvbench.run.runner.inspect", **outcome),
        patch("kvbench.run.runner.observe_under_load", probe or Mock(side_effect=RuntimeError("no copies"))),
    ):
        return CliRunner().invoke(app, ["doctor", *arguments])


def test_the_command_fails_where_a_check_fails() -> None:
    result = run(RuntimeError("the worker died"), "--json")
    assert result.exit_code == ExitCode.FAILED_CELLS
    answer = json.loads(result.stdout)
    assert answer["device"] == "cpu"
    found = {"name": "engine", "status": "fail", "found": "does not load: RuntimeError: the worker died"}
    assert answer["checks"][0] == found | {"remedy": answer["checks"][0]["remedy"]}


def test_the_command_ends_with_one_line_that_says_whether_the_host_is_healthy() -> None:
    result = run(ENGINE, "--device", "cpu")
    assert result.stdout.split("\n\n")[-1].startswith("healthy: not answered")
    assert run(ENGINE, "--engines", "--measure").exit_code != ExitCode.DONE
    answer = json.loads(run(replace(ENGINE, devices=(replace(GPU, batch_entry=None), HOST)), "--json").stdout)
    assert answer["card"] == "NVIDIA H200"
    assert answer["health"]["answer"] == "no"


def test_an_unhealthy_host_has_an_exit_code_of_its_own() -> None:
    broken = replace(ENGINE, devices=(replace(GPU, batch_entry=None), HOST))
    with patch("kvbench.run.runner.start_sweep", side_effect=UsageError("nothing to measure")):
        result = run(broken, "--measure")
    assert result.exit_code == ExitCode.REGRESSION
    assert "healthy: no: copies: nothing to measure" in " ".join(result.stdout.split())


def test_the_link_is_read_while_copies_run() -> None:
    probe = Mock(side_effect=RuntimeError("copies stopped"))
    assert run(ENGINE, probe=probe).exit_code == ExitCode.DONE
    assert run(ENGINE, "--device", "cpu", probe=probe).exit_code == ExitCode.DONE
    probe.assert_called_once_with("cuda:0")


def test_pools_follow_the_rules_of_engines() -> None:
    findings = replace(observed(host_available_bytes=110 * GIB), memlock_bytes=8 << 20)
    found = {check.name: check.found for check in command.pool_checks(findings)}
    assert found["SGLang pool"].startswith("up to 80.0 GiB a rank")
    assert found["TensorRT-LLM pool"].startswith("up to 6.4 MiB a rank")
    assert "/dev/shm" in found["vLLM pool"]
