import contextlib
import json
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from kvbench.machine import probes
from kvbench.machine.sources import Nvml, Scalar, Sources, far_pages, nodes_of_pages, stay_near
from kvbench.results.schema import differences, machine_differences

BUS_ID = "00000000:1B:00.0"
GIB = 2**30
# What an NVML of two like GPUs answers; {index} becomes the GPU's.
ANSWERS: dict[str, Any] = {
    "nvmlSystemGetDriverVersion": "580.159.03",
    "nvmlSystemGetCudaDriverVersion": 13000,
    "nvmlSystemGetProcessName": "/usr/bin/python3",
    "nvmlDeviceGetCount": 2,
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetCudaComputeCapability": (9, 0),
    "nvmlDeviceGetPciInfo": SimpleNamespace(busId=BUS_ID),
    "nvmlDeviceGetC2cModeInfoV": SimpleNamespace(isC2cEnabled=0),
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": 1,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetBAR1MemoryInfo": SimpleNamespace(bar1Total=256 * GIB),
    "nvmlDeviceGetClockInfo": 345,
    "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x001 | 0x040,
    "nvmlDeviceGetTemperature": 31,
    "nvmlDeviceGetPowerUsage": 76543,
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=3),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=1 * GIB, total=140 * GIB),
    "nvmlDeviceGetEccMode": (1, 0),
    "nvmlDeviceGetTotalEccErrors": lambda _, kind, counter: (3, 0)[kind] + counter,
    "nvmlDeviceGetPcieReplayCounter": 12,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetComputeRunningProcesses": [
        SimpleNamespace(pid=4_000_001, usedGpuMemory=GIB),
        SimpleNamespace(pid=4_000_002, usedGpuMemory=None),
    ],
}


class FakeNvml:
    """Answers from a table; a missing answer raises, as NVML does for what it does not support."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[Any] = []

    def __call__(self, function: str, /, *arguments: Any) -> Any:
        if function == "nvmlDeviceGetHandleByIndex":
            return arguments[0]
        if function == "nvmlDeviceGetHandleByPciBusId":
            return f"bus {arguments[0]}"
        if function not in self.answers:
            raise RuntimeError("Not Supported")
        if function == "nvmlDeviceGetCudaComputeCapability":
            self.asked.append(arguments[0])
        answer = self.answers[function]
        return answer(*arguments) if callable(answer) else answer

    @contextlib.contextmanager
    def open(self) -> Iterator[Nvml]:
        yield self


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Xeon\nflags\t: fpu hypervisor\n\nmodel name\t: Other\n",
        "proc/loadavg": "1.25 0.50 0.10 1/100 4242\n",
        "proc/meminfo": "MemTotal: 4000 kB\nMemAvailable:    2000 kB\n",
        "sys/devices/system/cpu/online": "0-7\n",
        "sys/devices/system/node/has_cpu": "0-1\n",
        "sys/devices/system/node/node1/cpulist": "4-6,15\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "sys/bus/pci/devices/0000:1b:00.0/numa_node": "1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def sources(root: Path, nvml: FakeNvml | None = None, **environ: str) -> Sources:
    return Sources(nvml=(nvml or FakeNvml(ANSWERS)).open, root=root, environ=environ)


def test_the_identity_of_a_gpu_machine_has_every_field(root: Path) -> None:
    fields = probes.identity("cuda:0", "e1", sm_count=132, sources=sources(root))

    assert fields | {"python": "-", "torch": "-", "triton": "-"} == {
        "device_kind": "cuda", "gpu_name": "NVIDIA H200", "compute_capability": "9.0", "driver_version": "580.159.03",
        "cuda_driver_api": "13.0", "link": "pcie", "pcie_max_generation": 5, "pcie_max_width": 16,
        "bar1_bytes": 256 * GIB, "gpu_numa_node": 1, "cpu_model": "Xeon", "logical_cpus": 8, "numa_nodes": 2,
        "hypervisor": True, "cuda_device_max_connections": 32, "pinning": "cuda", "python": "-", "torch": "-",
        "triton": "-", "sm_count": 132, "engine_hash": "e1",
    }  # fmt: skip


def test_the_observation_of_a_gpu_machine_has_every_field(root: Path) -> None:
    fields = probes.observe("cuda:0", own_pids=[4_000_002], sources=sources(root))

    assert fields.pop("time_utc")
    assert fields == {
        "sm_clock_mhz": 345, "sm_clock_max_mhz": 1980, "memory_clock_mhz": 345, "pcie_generation": 1, "pcie_width": 16,
        "clock_limits": ["gpu_idle", "hw_thermal_slowdown"], "temperature_c": 31, "power_w": 76.543,
        "gpu_utilisation_percent": 3, "gpu_memory_used_bytes": GIB, "gpu_memory_total_bytes": 140 * GIB,
        "other_processes": [{"pid": 4_000_001, "name": "python3", "bytes": GIB}], "ecc": True,
        "ecc_errors": {"corrected": 3, "uncorrected": 0}, "pcie_replays": 12, "power_limit_w": 700.0,
        "host_load_1min": 1.25, "host_available_bytes": 2000 * 1024, "cpu_governor": "performance",
        "unavailable": {
            name: f"{name} is not installed" for name in ("torch", "triton") if probes.identity("cpu", "")[name] is None
        },
    }  # fmt: skip


class Events:
    """The events of a GPU, as NVML hands them out."""

    def __init__(self) -> None:
        self.left: list[int] = []

    def wait(self, events: str, timeout_ms: int) -> SimpleNamespace:
        assert (events, timeout_ms) == ("events", 0)
        if not self.left:
            raise RuntimeError("Timeout")
        return SimpleNamespace(eventData=self.left.pop(0))

    def nvml(self, supported: int) -> FakeNvml:
        registered = {"nvmlDeviceGetSupportedEventTypes": supported, "nvmlEventSetCreate": "events"}
        more = {"nvmlDeviceRegisterEvents": lambda *_: None, "nvmlEventSetWait_v2": self.wait}
        return FakeNvml(ANSWERS | registered | more)


def test_xid_errors_are_read_from_when_they_are_watched(root: Path) -> None:
    events = Events()
    where = sources(root, events.nvml(supported=0x1F))
    watched = probes.XidErrors("cuda:0", BUS_ID, where)
    looks = []
    for happened in ([], [79, 94], [31]):
        events.left += happened
        looks.append(probes.observe("cuda:0", xids=lambda _: watched.so_far(), sources=where)["xids"])
    assert looks == [[], [79, 94], [79, 94, 31]]


def test_clock_limits_of_older_and_newer_drivers_are_read(root: Path) -> None:
    answers = {name: answer for name, answer in ANSWERS.items() if name != "nvmlDeviceGetCurrentClocksEventReasons"}
    nvml = FakeNvml(answers | {"nvmlDeviceGetCurrentClocksThrottleReasons": 0x004 | 0x1000})
    observed = probes.observe("cuda:0", sources=sources(root, nvml))
    assert observed["clock_limits"] == ["sw_power_cap", "bits_0x1000"]


@pytest.mark.parametrize(
    ("nvml", "reason"),
    [
        (FakeNvml({}).open, "NVML does not find cuda:0: RuntimeError: Not Supported"),
        (mock.Mock(side_effect=OSError("no\nlibrary")), "NVML cannot be opened: OSError: no library"),
    ],
)
def test_an_nvml_that_raises_leaves_reasons(root: Path, nvml: Any, reason: str) -> None:
    where = Sources(nvml=nvml, root=root, environ={})
    observed, identity = probes.observe("cuda:0", sources=where), probes.identity("cuda:0", "", sources=where)
    reasons: Any = observed["unavailable"]
    assert reasons["gpu_name"] == reasons["sm_clock_mhz"] == reason
    assert (observed["sm_clock_mhz"], observed["host_load_1min"]) == (None, 1.25)
    assert (identity["gpu_name"], identity["gpu_numa_node"]) == (None, None)


def test_every_field_that_cannot_be_read_has_a_reason(tmp_path: Path) -> None:
    where = sources(tmp_path, FakeNvml({}))
    identity, observed = probes.identity("cpu", "e", sources=where), probes.observe("cpu", sources=where)
    reasons: Any = observed["unavailable"]
    missing = {name for name, value in {**identity, **observed}.items() if value is None}
    assert missing - {"sm_count"} == set(reasons)
    assert {"cpu_model", "logical_cpus", "host_load_1min", "gpu_name"} <= missing
    assert json.loads(json.dumps(observed)) == observed


def test_the_pci_bus_id_goes_before_the_ordinal(root: Path) -> None:
    nvml = FakeNvml(ANSWERS)
    probes.identity("cuda:1", "", pci_bus_id=BUS_ID, sources=sources(root, nvml, CUDA_VISIBLE_DEVICES="none"))
    assert nvml.asked == [f"bus {BUS_ID}"]


@pytest.mark.parametrize(
    ("device", "visible", "index"),
    [("cuda:1", None, 1), ("cuda:0", None, 0), ("cuda:2", None, None),
     *(("cuda:0", visible, None) for visible in ("1", "1, 0", "GPU-bbbb", ""))],
)  # fmt: skip
def test_an_ordinal_is_taken_only_where_it_is_certain(
    root: Path, device: str, visible: str | None, index: int | None
) -> None:
    nvml = FakeNvml(ANSWERS)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    probes.identity(device, "", sources=sources(root, nvml, **environ))
    assert nvml.asked == ([] if index is None else [index])


def test_gpus_of_several_kinds_are_not_guessed(root: Path) -> None:
    answers = ANSWERS | {"nvmlDeviceGetName": lambda index: f"kind {index}"}
    where = sources(root, FakeNvml(answers))
    assert probes.identity("cuda:0", "", sources=where)["gpu_name"] is None
    where = sources(root, FakeNvml(answers), CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert probes.identity("cuda:1", "", sources=where)["gpu_name"] == "kind 1"


def test_the_numa_node_of_a_gpu_is_read(root: Path) -> None:
    def node_of(device: str) -> Scalar:
        return probes.identity(device, "", sources=sources(root))["gpu_numa_node"]

    assert node_of("cuda:0") == 1
    (root / "sys/bus/pci/devices/0000:1b:00.0/numa_node").write_text("-1\n")
    assert node_of("cuda:0") is None
    (root / "sys/devices/system/node/has_cpu").write_text("0\n")
    assert (node_of("cuda:0"), node_of("cpu")) == (0, None)


def test_differences_name_the_field_and_both_values() -> None:
    a: dict[str, Scalar] = {"triton": "3.6.0", "sm_count": 132, "link": "pcie"}
    b: dict[str, Scalar] = {"triton": "3.7.1", "sm_count": None}
    assert differences(a, b) == [
        'link: "pcie" against not recorded',
        "sm_count: 132 against unknown",
        'triton: "3.6.0" against "3.7.1"',
    ]


def test_what_is_under_test_is_not_the_machine() -> None:
    a: dict[str, Scalar] = {"gpu_name": "one", "engine_hash": "old", "plug_ins": "mine==0.1"}
    assert machine_differences(a, {"gpu_name": "one", "engine_hash": "new"}) == []
    assert machine_differences(a, {**a, "gpu_name": "two"}) == ['gpu_name: "one" against "two"']


V2 = {"memory.max": "max", "memory.current": "500000", "memory.stat": "anon 7\ninactive_file 100000\n"}
V1 = {"memory.limit_in_bytes": "1000000", "memory.usage_in_bytes": "400000", "memory.stat": "total_inactive_file 5\n"}


@pytest.mark.parametrize(
    ("of_process", "groups", "available"),
    [
        ("", {"": V2}, 2000 * 1024),
        ("", {"": V2 | {"memory.max": "1000000"}}, 600_000),
        ("", {"": V2 | {"memory.max": "100"}}, 0),
        ("0::/slice/job\n", {"slice": V2 | {"memory.max": "1000000"}, "slice/job": V2}, 600_000),
        ("0::/slice/job\n", {"slice": V2, "slice/job": V2 | {"memory.max": "700000"}}, 300_000),  # the tightest
        ("7:cpu,cpuacct:/job\n5:memory:/job\n", {"memory/job": V1}, 600_005),
    ],
)
def test_a_control_group_limits_the_available_memory(
    root: Path, of_process: str, groups: dict[str, dict[str, str]], available: int
) -> None:
    (root / "proc/self").mkdir(parents=True)
    if of_process:
        (root / "proc/self/cgroup").write_text(of_process)
    for path, files in groups.items():
        (root / "sys/fs/cgroup" / path).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (root / "sys/fs/cgroup" / path / name).write_text(text)
    assert sources(root).available_bytes() == available
    assert probes.observe("cpu", sources=sources(root))["host_available_bytes"] == available


# Host memory near the GPU


CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def stays_where_it_is() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def host(root: Path, node_of_gpu: int | None, cpus: dict[int, str]) -> Sources:
    """Return the files of a host whose node N has the CPUs `cpus[N]`."""
    nodes = root / "sys/devices/system/node"
    for node, text in cpus.items():
        (nodes / f"node{node}").mkdir(parents=True)
        (nodes / f"node{node}" / "cpulist").write_text(text)
    (nodes / "has_cpu").write_text(",".join(map(str, cpus)))
    if node_of_gpu is not None:
        gpu = root / "sys/bus/pci/devices/0000:1b:00.0"
        gpu.mkdir(parents=True)
        (gpu / "numa_node").write_text(str(node_of_gpu))
    return Sources(root=root, environ={})


FAR = {0: f"{CPUS[0]}", 1: "4000"}


@pytest.mark.parametrize(
    ("driver_says", "kernel_says", "nodes", "node", "stays_on", "noted"),
    [
        (1, 0, {0: "4000-4001", 1: f"{CPUS[-1]},4002"}, 1, {CPUS[-1]}, ""),
        (-1, 1, {0: "4000-4001", 1: f"{CPUS[-1]},4002"}, 1, {CPUS[-1]}, ""),
        (-1, 0, {0: f"{CPUS[-1]}", 1: "4000"}, 0, {CPUS[-1]}, ""),
        (-1, -1, {0: f"{CPUS[0]}"}, 0, {CPUS[0]}, ""),  # the only one
        (-1, None, FAR, -1, {*CPUS}, "NUMA node is unknown"),
        (-1, -1, FAR, -1, {*CPUS}, "NUMA node is unknown"),
        (1, 1, FAR, 1, {*CPUS}, "cannot run on the GPU's NUMA node 1"),
    ],
)
def test_the_process_stays_on_the_cpus_of_the_gpu_s_node_or_notes_why_not(
    tmp_path: Path, driver_says: int, kernel_says: int | None, nodes: dict[int, str], node: int, stays_on: set[int],
    noted: str,
) -> None:  # fmt: skip
    found, notes = stay_near(driver_says, BUS_ID, sources=host(tmp_path, kernel_says, nodes))
    assert (found, os.sched_getaffinity(0), len(notes)) == (node, stays_on, noted != "")
    assert noted in "".join(notes)
    stay_near(0, BUS_ID, sources=host(tmp_path / "wide", 0, {0: ",".join(map(str, CPUS))}))
    assert os.sched_getaffinity(0) == stays_on  # what it was kept from, by taskset or by a call before, stays so


def test_pages_in_use_are_on_a_node_of_this_host_and_others_on_none() -> None:
    with mmap.mmap(-1, 1 << 20) as untouched:
        assert nodes_of_pages(np.frombuffer(untouched, np.uint8).ctypes.data, 1 << 20) == []
    used = np.ones(1 << 20, np.uint8)
    nodes = nodes_of_pages(used.ctypes.data, used.nbytes)
    real = Sources().numbers("sys/devices/system/node/has_memory") if Path("/sys/devices/system/node").is_dir() else {0}
    assert set() < set(nodes) <= real
    assert far_pages(used.ctypes.data, used.nbytes, nodes[0]) == []


def test_pages_on_another_node_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.machine.sources.nodes_of_pages", lambda *_: [0, 1, 1, 2])
    assert far_pages(0, 1, 1) == ["2 of 4 sampled pages of host memory are on NUMA node 0, 2, the GPU is on 1"]
    assert far_pages(0, 1, 0) == ["3 of 4 sampled pages of host memory are on NUMA node 1, 2, the GPU is on 0"]
    assert far_pages(0, 1, -1) == []
