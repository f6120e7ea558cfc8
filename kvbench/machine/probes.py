"""The environment of a run: its identity (the kind of machine) and observed values, by probes, one per field.

Probes read the GPU through NVML and the host from kernel files. A field that cannot be read is None, and `observe`
gives the reason under "unavailable".
"""

import ctypes
import os
import platform
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import PurePosixPath
from typing import Final, TypeVar

import numpy as np

from kvbench.cells.facts import HARDWARE_QUEUES
from kvbench.cells.units import KIB
from kvbench.machine.sources import Json, Machine, Scalar, Sources, UnavailableError, open_machine, reason_of

_NODES: Final = "sys/devices/system/node"
# Values of NVML's enumerations.
_CLOCK_SM: Final = 1
_CLOCK_MEMORY: Final = 2
_SENSOR_GPU: Final = 0
_VOLATILE: Final = 0
# Reasons why clocks are limited, from bit 0 on.
_LIMITS: Final = (
    "gpu_idle", "application_clocks", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown",
    "hw_thermal_slowdown", "hw_power_brake", "display_clocks",
)  # fmt: skip


def parse_cpu_list(text: str) -> set[int]:
    """Return the numbers in the kernel's list format ("0-3,8"); raises ValueError."""
    numbers: set[int] = set()
    for item in text.split(",") if text else ():
        first, _, last = item.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def cpu_nodes(sources: Sources) -> set[int]:
    """Return the NUMA nodes that have CPUs (GPU memory can be a node without CPUs); raises OSError, ValueError."""
    return parse_cpu_list(sources.text(f"{_NODES}/has_cpu"))


def cpus_of_node(node: int, *, sources: Sources | None = None) -> set[int]:
    """Return the CPUs of a NUMA node; empty if the kernel does not report them."""
    try:
        return parse_cpu_list((sources or Sources()).text(f"{_NODES}/node{node}/cpulist"))
    except (OSError, ValueError):
        return set()


def _cpu_fields(sources: Sources) -> dict[str, str]:
    first = sources.text("proc/cpuinfo").split("\n\n", 1)[0]
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}


def _cpu_model(machine: Machine) -> str:
    fields = _cpu_fields(machine.sources)
    if model := fields.get("model name"):
        return model
    if "CPU part" in fields:  # Arm has no model name, only implementer and part
        return f"{platform.machine()} implementer {fields.get('CPU implementer')} part {fields['CPU part']}"
    raise UnavailableError("/proc/cpuinfo has no model name")


def _hypervisor(machine: Machine) -> bool:
    flags = _cpu_fields(machine.sources).get("flags")
    if flags is None:
        raise UnavailableError("/proc/cpuinfo has no flags")
    return "hypervisor" in flags.split()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise UnavailableError(f"{package} is not installed") from None


def _kib_fields(text: str) -> dict[str, int]:
    lines = (line.replace(":", " ").split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) >= 2}


def available_bytes(sources: Sources) -> int:
    """Return the bytes that can still be pinned: what the kernel can free, limited by the control groups."""
    left = [_left_in_group(sources, folder, *files) for folder, files in _control_groups(sources)]
    available = _kib_fields(sources.text("proc/meminfo"))["MemAvailable"] * KIB
    return min([available, *(bytes_left for bytes_left in left if bytes_left is not None)])


def has_ipc_lock(sources: Sources) -> bool:
    """Return whether CAP_IPC_LOCK is among the effective capabilities of this process."""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", sources.text("proc/self/status"), re.MULTILINE)
    return match is not None and bool(int(match[1], 16) >> _CAP_IPC_LOCK & 1)


def shm_bytes(sources: Sources) -> int:
    """Return the bytes that are free for files in memory, 0 without a place for them."""
    try:
        free = os.statvfs(sources.root / "dev/shm")
    except OSError:
        return 0
    return free.f_bavail * free.f_frsize


def free_pages(sources: Sources, size_bytes: int) -> int:
    """The free huge pages of this size, 0 where there are none of this size."""
    with suppress(OSError, ValueError):
        return int(sources.text(f"sys/kernel/mm/hugepages/hugepages-{size_bytes >> 10}kB/free_hugepages"))
    return 0


_CAP_IPC_LOCK: Final = 14
_GROUP_FILES: Final = ("memory.max", "memory.current", "inactive_file")
_GROUP_FILES_OF_VERSION_1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _control_groups(sources: Sources) -> Iterator[tuple[PurePosixPath, tuple[str, str, str]]]:
    """Yield the folder of every memory control group of this process, and the names of its files."""
    try:
        lines = sources.text("proc/self/cgroup").splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = PurePosixPath("sys/fs/cgroup", "memory" if controllers else "")
        files = _GROUP_FILES_OF_VERSION_1 if controllers else _GROUP_FILES
        within = PurePosixPath(path.lstrip("/"))
        for group in dict.fromkeys((within, *within.parents)):
            if ".." not in group.parts:  # a group that this process cannot see
                yield root / group, files


def _left_in_group(sources: Sources, folder: PurePosixPath, limit: str, used: str, reclaimable: str) -> int | None:
    try:
        size, taken = (int(sources.text(f"{folder}/{name}")) for name in (limit, used))
        return max(0, size - taken + _kib_fields(sources.text(f"{folder}/memory.stat"))[reclaimable])
    except (OSError, ValueError, KeyError):
        return None  # the group does not exist, or its limit is "max"


def near_node(bus_id: str, sources: Sources) -> int:
    """Return the NUMA node whose CPUs are nearest to a PCI device; raises if the kernel does not report it."""
    domain, _, bus_and_device = bus_id.partition(":")  # of the driver or of NVML: "00000000:1B:00.0"
    node = int(sources.text(f"sys/bus/pci/devices/{int(domain, 16):04x}:{bus_and_device.lower()}/numa_node"))
    if node >= 0:
        return node
    nodes = cpu_nodes(sources)
    if len(nodes) == 1:
        return nodes.pop()
    raise UnavailableError("the kernel reports no NUMA node for the GPU, and the host has several")


def _cuda_driver_api(machine: Machine) -> str:
    version = int(machine.nvml("nvmlSystemGetCudaDriverVersion"))
    return f"{version // 1000}.{version % 1000 // 10}"


def _link(machine: Machine) -> str:
    # Only coherent GPUs support this query; an older driver or library without it implies PCIe.
    try:
        return "c2c" if machine.ask("nvmlDeviceGetC2cModeInfoV").isC2cEnabled else "pcie"
    except Exception:
        machine.ask("nvmlDeviceGetPciInfo")  # raises for a GPU that cannot be reached
        return "pcie"


def clock_limits(machine: Machine) -> list[Json]:
    try:
        bits = int(machine.ask("nvmlDeviceGetCurrentClocksEventReasons"))
    except Exception:
        bits = int(machine.ask("nvmlDeviceGetCurrentClocksThrottleReasons"))  # its name before driver 535
    known: list[Json] = [word for bit, word in enumerate(_LIMITS) if bits >> bit & 1]
    unknown = bits >> len(_LIMITS) << len(_LIMITS)
    return [*known, f"bits_0x{unknown:x}"] if unknown else known


def _other_processes(machine: Machine) -> list[Json]:
    kvbench_pids = {*machine.own_pids, os.getpid()}
    return [
        {"pid": process.pid, "name": _process_name(machine, process.pid), "bytes": process.usedGpuMemory}
        for process in machine.ask("nvmlDeviceGetComputeRunningProcesses")
        if process.pid not in kvbench_pids
    ]


def _process_name(machine: Machine, pid: int) -> str | None:
    try:
        return PurePosixPath(machine.nvml("nvmlSystemGetProcessName", pid)).name
    except Exception:
        return None


def _ecc_errors(machine: Machine) -> dict[str, Json]:
    """Return the ECC errors in all memories of the GPU since the driver was loaded; raises."""
    errors = enumerate(("corrected", "uncorrected"))  # by NVML's numbers
    return {kind: int(machine.ask("nvmlDeviceGetTotalEccErrors", number, _VOLATILE)) for number, kind in errors}


def _number(function: str, *arguments: int) -> Callable[[Machine], int]:
    return lambda machine: int(machine.ask(function, *arguments))


def _member(function: str, member: str) -> Callable[[Machine], int]:
    return lambda machine: int(getattr(machine.ask(function), member))


sm_clock_mhz: Final = _number("nvmlDeviceGetClockInfo", _CLOCK_SM)

IDENTITY: Final[Mapping[str, Callable[[Machine], Scalar]]] = {
    "gpu_name": lambda machine: str(machine.ask("nvmlDeviceGetName")),
    "compute_capability": lambda machine: ".".join(map(str, machine.ask("nvmlDeviceGetCudaComputeCapability"))),
    "driver_version": lambda machine: str(machine.nvml("nvmlSystemGetDriverVersion")),
    "cuda_driver_api": _cuda_driver_api,
    "link": _link,
    "pcie_max_generation": _number("nvmlDeviceGetMaxPcieLinkGeneration"),
    "pcie_max_width": _number("nvmlDeviceGetMaxPcieLinkWidth"),
    "bar1_bytes": _member("nvmlDeviceGetBAR1MemoryInfo", "bar1Total"),
    "gpu_numa_node": lambda machine: near_node(str(machine.ask("nvmlDeviceGetPciInfo").busId), machine.sources),
    "cpu_model": _cpu_model,
    "logical_cpus": lambda machine: len(parse_cpu_list(machine.sources.text("sys/devices/system/cpu/online"))),
    "numa_nodes": lambda machine: len(cpu_nodes(machine.sources)),
    "hypervisor": _hypervisor,
    "cuda_device_max_connections": lambda _: HARDWARE_QUEUES,  # in the environment of every worker
    "pinning": lambda machine: "none" if machine.device == "cpu" else "cuda",
    "python": lambda _: f"{sys.version_info.major}.{sys.version_info.minor}",
    "torch": lambda _: _version("torch"),
    "triton": lambda _: _version("triton"),
}

OBSERVED: Final[Mapping[str, Callable[[Machine], Json]]] = {
    "sm_clock_mhz": sm_clock_mhz,
    "sm_clock_max_mhz": _number("nvmlDeviceGetMaxClockInfo", _CLOCK_SM),
    "memory_clock_mhz": _number("nvmlDeviceGetClockInfo", _CLOCK_MEMORY),
    "pcie_generation": _number("nvmlDeviceGetCurrPcieLinkGeneration"),
    "pcie_width": _number("nvmlDeviceGetCurrPcieLinkWidth"),
    "clock_limits": clock_limits,
    "temperature_c": _number("nvmlDeviceGetTemperature", _SENSOR_GPU),
    "power_w": lambda machine: int(machine.ask("nvmlDeviceGetPowerUsage")) / 1000,
    "gpu_utilisation_percent": _member("nvmlDeviceGetUtilizationRates", "gpu"),
    "gpu_memory_used_bytes": _member("nvmlDeviceGetMemoryInfo", "used"),
    "gpu_memory_total_bytes": _member("nvmlDeviceGetMemoryInfo", "total"),
    "other_processes": _other_processes,
    "ecc": lambda machine: bool(machine.ask("nvmlDeviceGetEccMode")[0]),  # [1] is the mode after a restart
    "ecc_errors": _ecc_errors,
    "pcie_replays": _number("nvmlDeviceGetPcieReplayCounter"),
    "power_limit_w": lambda machine: int(machine.ask("nvmlDeviceGetEnforcedPowerLimit")) / 1000,
    "host_load_1min": lambda machine: float(machine.sources.text("proc/loadavg").split()[0]),
    "host_available_bytes": lambda machine: available_bytes(machine.sources),
    "cpu_governor": lambda machine: machine.sources.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    "time_utc": lambda _: datetime.now(UTC).isoformat(timespec="seconds"),
}


# The number of the system call move_pages; glibc has no function for it.
_MOVE_PAGES: Final = {"x86_64": 279, "aarch64": 239}
_SAMPLE: Final = 256


def stay_near(node: int, bus_id: str, *, sources: Sources | None = None) -> tuple[int, list[str]]:
    """Keep this process on the CPUs of the GPU's NUMA node, so that it pins memory there.

    `node` is what the driver says, -1 if it does not know: then the kernel is asked. Returns the node, -1 if neither
    knows, and a note if memory may be pinned elsewhere.
    """
    if node < 0:
        try:
            node = near_node(bus_id, sources or Sources())
        except Exception as error:
            return -1, [f"memory may be pinned far from the GPU, whose NUMA node is unknown: {reason_of(error)}"]
    near = cpus_of_node(node, sources=sources)
    if usable := near & os.sched_getaffinity(0):
        os.sched_setaffinity(0, usable)
    elif near:
        why = f"this process cannot run on the GPU's NUMA node {node}"
        return node, [f"{why}, so memory is pinned on another (taskset?)"]
    return node, []


def far_pages(address: int, size_bytes: int, node: int) -> list[str]:
    """Return a note if some of a sample of the pages, which must be in use, are not on `node` (-1: any will do)."""
    nodes = nodes_of_pages(address, size_bytes) if node >= 0 else []
    if far := [other for other in nodes if other != node]:
        where = ", ".join(map(str, sorted(set(far))))
        sampled = f"{len(far)} of {len(nodes)} sampled pages of host memory"
        return [f"{sampled} are on NUMA node {where}, the GPU is on {node}"]
    return []


def nodes_of_pages(address: int, size_bytes: int) -> list[int]:
    """Return the NUMA nodes of a sample of the pages in use; empty if the kernel does not report them."""
    pages = np.linspace(address, address + size_bytes - 1, _SAMPLE).astype(np.uint64) & ~np.uint64(0xFFF)
    nodes = np.full(_SAMPLE, -1, dtype=np.int32)
    # Of this process (0), and without nodes to move to (None): the call only asks.
    arguments = map(ctypes.c_void_p, (0, _SAMPLE, pages.ctypes.data, None, nodes.ctypes.data, 0))
    ctypes.CDLL(None).syscall(ctypes.c_long(_MOVE_PAGES.get(platform.machine(), -1)), *arguments)
    return [int(node) for node in nodes if node >= 0]


# NVML's event type of critical errors, and how many of them a run records at most.
_XID: Final = 8
_MOST_XIDS: Final = 100
Value = TypeVar("Value", bound=Json)


def identity(
    device: str,
    engine_hash: str,
    *,
    pci_bus_id: str | None = None,
    sm_count: int | None = None,
    sources: Sources | None = None,
) -> dict[str, Scalar]:
    """Return the fields that identify a kind of machine; none of them changes while a machine runs.

    `device` is "cpu" or "cuda:N". The other arguments come from the engine: the hash of its sources, the PCI bus id of
    the device (without it, the ordinal is taken as NVML's if that is certain) and the SM count, which NVML lacks.
    """
    with open_machine(device, pci_bus_id, sources or Sources()) as machine:
        fields, _ = _read_all(IDENTITY, machine)
    return {"device_kind": device.partition(":")[0], **fields, "sm_count": sm_count, "engine_hash": engine_hash}


class XidErrors:
    """The numbers of the Xid errors that NVML reports for a GPU from now on; raises where it reports none."""

    def __init__(self, device: str, pci_bus_id: str | None, sources: Sources | None = None) -> None:
        self._open = ExitStack()  # a closed NVML drops its events
        machine = self._open.enter_context(open_machine(device, pci_bus_id, sources or Sources()))
        if not int(machine.ask("nvmlDeviceGetSupportedEventTypes")) & _XID:
            raise UnavailableError("the GPU does not report Xid errors")
        events = machine.nvml("nvmlEventSetCreate")
        machine.ask("nvmlDeviceRegisterEvents", _XID, events)
        self._wait, self._numbers = partial(machine.nvml, "nvmlEventSetWait_v2", events, 0), list[Json]()

    def so_far(self) -> list[Json]:
        with suppress(Exception):  # raised when no event is left
            while len(self._numbers) < _MOST_XIDS:
                self._numbers.append(int(self._wait().eventData))
        return [*self._numbers]


def observe(
    device: str,
    pci_bus_id: str | None = None,
    *,
    own_pids: Collection[int] = (),
    sources: Sources | None = None,
    **of_run: Callable[[Machine], Json],
) -> dict[str, Json]:
    """Return the current observations, with units in the names, and under "unavailable" why each missing field is None.

    The reasons also cover the fields of `identity`. `own_pids` are kvbench's processes on the GPU (the worker), which
    do not count as other processes; `of_run` are more probes.
    """
    with open_machine(device, pci_bus_id, sources or Sources(), own_pids) as machine:
        fields, unavailable = _read_all({**OBSERVED, **of_run}, machine)
        _, unknown = _read_all(IDENTITY, machine)
    return {**fields, "unavailable": {**unknown, **unavailable}}


def _read_all(
    probes: Mapping[str, Callable[[Machine], Value]], machine: Machine
) -> tuple[dict[str, Value | None], dict[str, str]]:
    """Return the value of every field, None if its probe raised, and field -> reason for those."""
    values: dict[str, Value | None] = {}
    reasons: dict[str, str] = {}
    for field, probe in probes.items():
        try:
            values[field] = probe(machine)
        except Exception as error:
            values[field] = None
            reasons[field] = reason_of(error)
    return values, reasons
