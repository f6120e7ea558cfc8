"""The environment of a run: its identity (the kind of machine) and observed values, by probes, one per field.

Probes read the GPU through NVML and the host from kernel files. A field that cannot be read is None, and `observe`
gives the reason under "unavailable".
"""

import os
import platform
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import PurePosixPath
from typing import Final, TypeVar

from kvbench.cells.axes import HARDWARE_QUEUES
from kvbench.machine.sources import Json, Machine, Scalar, Sources, UnavailableError, open_machine, reason_of

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
    limits: list[Json] = [word for bit, word in enumerate(_LIMITS) if bits >> bit & 1]
    unnamed = bits >> len(_LIMITS) << len(_LIMITS)
    return [*limits, f"bits_0x{unnamed:x}"] if unnamed else limits


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
    """The ECC errors in all memories of the GPU since the driver was loaded; raises."""
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
    "gpu_numa_node": lambda machine: machine.sources.near_node(str(machine.ask("nvmlDeviceGetPciInfo").busId)),
    "cpu_model": _cpu_model,
    "logical_cpus": lambda machine: len(machine.sources.numbers("sys/devices/system/cpu/online")),
    "numa_nodes": lambda machine: len(machine.sources.cpu_nodes()),
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
    "host_available_bytes": lambda machine: machine.sources.available_bytes(),
    "cpu_governor": lambda machine: machine.sources.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    "time_utc": lambda _: datetime.now(UTC).isoformat(timespec="seconds"),
}


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
    """The fields that identify a kind of machine; none of them changes while a machine runs.

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
    """The current observations, with units in the names, and under "unavailable" why each missing field is None.

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
    """The value of every field, None if its probe raised, and field -> reason for those."""
    values: dict[str, Value | None] = {}
    reasons: dict[str, str] = {}
    for field, probe in probes.items():
        try:
            values[field] = probe(machine)
        except Exception as error:
            values[field] = None
            reasons[field] = reason_of(error)
    return values, reasons
