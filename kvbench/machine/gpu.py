"""Probes of the GPU, through NVML."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from kvbench.machine.host import cpu_nodes
from kvbench.machine.probes import Json, Machine, Scalar
from kvbench.machine.sources import UnavailableError

# Values of NVML's enumerations.
_CLOCK_SM: Final = 1
_CLOCK_MEMORY: Final = 2
_SENSOR_GPU: Final = 0
_LIMITS: Final = {
    0x001: "gpu_idle",
    0x002: "application_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
}


def bus_id(machine: Machine) -> str:
    """Return the GPU's PCI address as sysfs spells it ("0000:1b:00.0"); raises."""
    text = _text(machine.gpu.ask("nvmlDeviceGetPciInfo").busId)
    match = re.fullmatch(r"([0-9a-fA-F]+):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])", text)
    if match is None:
        raise UnavailableError(f"{text!r} is no PCI address")
    return f"{int(match[1], 16):04x}:{match[2].lower()}"


def numa_node(machine: Machine) -> int:
    """Return the NUMA node whose CPUs are nearest to the GPU; raises when the kernel does not say."""
    nodes = cpu_nodes(machine.sources)
    node = int(machine.sources.text(f"sys/bus/pci/devices/{bus_id(machine)}/numa_node"))
    if node >= 0:
        return node
    if len(nodes) == 1:
        return nodes[0]
    raise UnavailableError("the kernel gives the GPU no NUMA node, and there are several")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _compute_capability(machine: Machine) -> str:
    major, minor = machine.gpu.ask("nvmlDeviceGetCudaComputeCapability")
    return f"{major}.{minor}"


def _cuda_driver_api(machine: Machine) -> str:
    version = int(machine.gpu.system("nvmlSystemGetCudaDriverVersion"))
    return f"{version // 1000}.{version % 1000 // 10}"


def _link(machine: Machine) -> str:
    # Only coherent parts answer this; an older driver or library that does not know the question has PCIe.
    try:
        coherent = bool(machine.gpu.ask("nvmlDeviceGetC2cModeInfoV").isC2cEnabled)
    except Exception:
        bus_id(machine)
        coherent = False
    return "c2c" if coherent else "pcie"


def _limits(machine: Machine) -> list[Json]:
    try:
        bits = int(machine.gpu.ask("nvmlDeviceGetCurrentClocksEventReasons"))
    except Exception:
        bits = int(machine.gpu.ask("nvmlDeviceGetCurrentClocksThrottleReasons"))  # the name before driver 535
    unknown = bits & ~sum(_LIMITS)
    return [*(word for bit, word in _LIMITS.items() if bits & bit), *([f"bits_0x{unknown:x}"] if unknown else [])]


def _other_processes(machine: Machine) -> list[Json]:
    own = machine.own_pids | {os.getpid()}
    processes = machine.gpu.ask("nvmlDeviceGetComputeRunningProcesses")
    return [
        {"pid": int(process.pid), "name": _process_name(machine, int(process.pid)), "bytes": process.usedGpuMemory}
        for process in processes
        if int(process.pid) not in own
    ]


def _process_name(machine: Machine, pid: int) -> str | None:
    try:
        return PurePosixPath(_text(machine.gpu.system("nvmlSystemGetProcessName", pid))).name
    except Exception:
        return None


def _number(function: str, *arguments: int) -> Callable[[Machine], int]:
    return lambda machine: int(machine.gpu.ask(function, *arguments))


def _member(function: str, member: str) -> Callable[[Machine], int]:
    return lambda machine: int(getattr(machine.gpu.ask(function), member))


IDENTITY: Final[Mapping[str, Callable[[Machine], Scalar]]] = {
    "gpu_name": lambda machine: _text(machine.gpu.ask("nvmlDeviceGetName")),
    "compute_capability": _compute_capability,
    "driver_version": lambda machine: _text(machine.gpu.system("nvmlSystemGetDriverVersion")),
    "cuda_driver_api": _cuda_driver_api,
    "link": _link,
    "pcie_max_generation": _number("nvmlDeviceGetMaxPcieLinkGeneration"),
    "pcie_max_width": _number("nvmlDeviceGetMaxPcieLinkWidth"),
    "bar1_bytes": _member("nvmlDeviceGetBAR1MemoryInfo", "bar1Total"),
    "gpu_numa_node": numa_node,
}

OBSERVED: Final[Mapping[str, Callable[[Machine], Json]]] = {
    "sm_clock_mhz": _number("nvmlDeviceGetClockInfo", _CLOCK_SM),
    "sm_clock_max_mhz": _number("nvmlDeviceGetMaxClockInfo", _CLOCK_SM),
    "memory_clock_mhz": _number("nvmlDeviceGetClockInfo", _CLOCK_MEMORY),
    "pcie_generation": _number("nvmlDeviceGetCurrPcieLinkGeneration"),
    "pcie_width": _number("nvmlDeviceGetCurrPcieLinkWidth"),
    "clock_limits": _limits,
    "temperature_c": _number("nvmlDeviceGetTemperature", _SENSOR_GPU),
    "power_w": lambda machine: int(machine.gpu.ask("nvmlDeviceGetPowerUsage")) / 1000,
    "gpu_utilisation_percent": _member("nvmlDeviceGetUtilizationRates", "gpu"),
    "gpu_memory_used_bytes": _member("nvmlDeviceGetMemoryInfo", "used"),
    "gpu_memory_total_bytes": _member("nvmlDeviceGetMemoryInfo", "total"),
    "other_processes": _other_processes,
}
