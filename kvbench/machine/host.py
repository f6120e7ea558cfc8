"""Probes of the host: the kernel's files and the installed packages."""

import platform
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from typing import Final

from kvbench.machine.sources import Json, Machine, Scalar, Sources, UnavailableError
from kvbench.units import KIB

_NODES: Final = "sys/devices/system/node"


def parse_cpu_list(text: str) -> set[int]:
    """Return the numbers in the kernel's list format ("0-3,8"); raises ValueError."""
    numbers: set[int] = set()
    for item in text.split(",") if text else ():
        first, _, last = item.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def cpu_nodes(sources: Sources) -> set[int]:
    """Return the NUMA nodes that have CPUs (a GPU's own memory can be a node without); raises OSError, ValueError."""
    return parse_cpu_list(sources.text(f"{_NODES}/has_cpu"))


def cpus_of_node(node: int, *, sources: Sources | None = None) -> set[int]:
    """Return the CPUs of a NUMA node; empty where the kernel does not tell."""
    try:
        return parse_cpu_list((sources or Sources()).text(f"{_NODES}/node{node}/cpulist"))
    except (OSError, ValueError):
        return set()


def _cpu_fields(sources: Sources) -> dict[str, str]:
    """Return what /proc/cpuinfo says of the first CPU."""
    first = sources.text("proc/cpuinfo").split("\n\n", 1)[0]
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}


def _cpu_model(machine: Machine) -> str:
    fields = _cpu_fields(machine.sources)
    if model := fields.get("model name"):
        return model
    if "CPU part" in fields:  # Arm names no model, only who made which part
        return f"{platform.machine()} implementer {fields.get('CPU implementer')} part {fields['CPU part']}"
    raise UnavailableError("/proc/cpuinfo names no model")


def _hypervisor(machine: Machine) -> bool:
    flags = _cpu_fields(machine.sources).get("flags")
    if flags is None:
        raise UnavailableError("/proc/cpuinfo has no flags that would tell")
    return "hypervisor" in flags.split()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise UnavailableError(f"{package} is not installed") from None


def _kib_fields(text: str) -> dict[str, int]:
    lines = (line.replace(":", " ").split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) >= 2}


def _available_bytes(machine: Machine) -> int:
    """Bytes that can still be pinned: what the kernel can free, at most what the control group leaves."""
    sources = machine.sources
    available = _kib_fields(sources.text("proc/meminfo"))["MemAvailable"] * KIB
    try:
        limit = int(sources.text("sys/fs/cgroup/memory.max"))
        used = int(sources.text("sys/fs/cgroup/memory.current"))
        reclaimable = _kib_fields(sources.text("sys/fs/cgroup/memory.stat"))["inactive_file"]
    except (OSError, ValueError, KeyError):
        return available  # no group of our own, or "max": no limit
    return min(available, max(0, limit - used + reclaimable))


IDENTITY: Final[Mapping[str, Callable[[Machine], Scalar]]] = {
    "cpu_model": _cpu_model,
    "logical_cpus": lambda machine: len(parse_cpu_list(machine.sources.text("sys/devices/system/cpu/online"))),
    "numa_nodes": lambda machine: len(cpu_nodes(machine.sources)),
    "hypervisor": _hypervisor,
    "pinning": lambda machine: "none" if machine.device == "cpu" else "cuda",
    "python": lambda _: f"{sys.version_info.major}.{sys.version_info.minor}",
    "torch": lambda _: _version("torch"),
    "triton": lambda _: _version("triton"),
}

OBSERVED: Final[Mapping[str, Callable[[Machine], Json]]] = {
    "host_load_1min": lambda machine: float(machine.sources.text("proc/loadavg").split()[0]),
    "host_available_bytes": _available_bytes,
    "cpu_governor": lambda machine: machine.sources.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    "time_utc": lambda _: datetime.now(UTC).isoformat(timespec="seconds"),
}
