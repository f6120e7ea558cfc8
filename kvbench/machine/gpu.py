"""Probes of the GPU, through NVML."""

import os
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Final

from kvbench.machine.host import cpu_nodes
from kvbench.machine.sources import Json, Machine, Scalar, UnavailableError

# Values of NVML's enumerations.
_CLOCK_SM: Final = 1
_CLOCK_MEMORY: Final = 2
_SENSOR_GPU: Final = 0
# Reasons why clocks are limited, from bit 0 on.
_LIMITS: Final = (
    "gpu_idle", "application_clocks", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown",
    "hw_thermal_slowdown", "hw_power_brake", "display_clocks",
)  # fmt: skip


def _bus_id(machine: Machine) -> str:
    """Return the GPU's PCI address as sysfs spells it ("0000:1b:00.0"); raises."""
    domain, _, place = str(machine.ask("nvmlDeviceGetPciInfo").busId).partition(":")
    return f"{int(domain, 16):04x}:{place.lower()}"


def _numa_node(machine: Machine) -> int:
    """Return the NUMA node whose CPUs are nearest to the GPU; raises when the kernel does not say."""
    node = int(machine.sources.text(f"sys/bus/pci/devices/{_bus_id(machine)}/numa_node"))
    if node >= 0:
        return node
    nodes = cpu_nodes(machine.sources)
    if len(nodes) == 1:
        return nodes.pop()
    raise UnavailableError("the kernel gives the GPU no NUMA node, and there are several")


def _cuda_driver_api(machine: Machine) -> str:
    version = int(machine.nvml("nvmlSystemGetCudaDriverVersion"))
    return f"{version // 1000}.{version % 1000 // 10}"


def _link(machine: Machine) -> str:
    # Only coherent parts answer this; an older driver or library that does not know the question has PCIe.
    try:
        return "c2c" if machine.ask("nvmlDeviceGetC2cModeInfoV").isC2cEnabled else "pcie"
    except Exception:
        _bus_id(machine)
        return "pcie"


def clock_limits(machine: Machine) -> list[Json]:
    """Return the reasons that limit the GPU's clocks; raises."""
    try:
        bits = int(machine.ask("nvmlDeviceGetCurrentClocksEventReasons"))
    except Exception:
        bits = int(machine.ask("nvmlDeviceGetCurrentClocksThrottleReasons"))  # the name before driver 535
    known: list[Json] = [word for bit, word in enumerate(_LIMITS) if bits >> bit & 1]
    unknown = bits >> len(_LIMITS) << len(_LIMITS)
    return [*known, f"bits_0x{unknown:x}"] if unknown else known


def _other_processes(machine: Machine) -> list[Json]:
    own = {*machine.own_pids, os.getpid()}
    return [
        {"pid": process.pid, "name": _process_name(machine, process.pid), "bytes": process.usedGpuMemory}
        for process in machine.ask("nvmlDeviceGetComputeRunningProcesses")
        if process.pid not in own
    ]


def _process_name(machine: Machine, pid: int) -> str | None:
    try:
        return PurePosixPath(machine.nvml("nvmlSystemGetProcessName", pid)).name
    except Exception:
        return None


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
    "gpu_numa_node": _numa_node,
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
}
