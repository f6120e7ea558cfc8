"""The checks of `kvbench doctor`: from facts about the machine to checks with remedies. Pure functions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final

from kvbench.cells.facts import DeviceFacts
from kvbench.cells.units import MIB, format_size

_FREE_ENOUGH_BYTES: Final = 4096 * MIB
_BUSY_PERCENT: Final = 5
_HARMLESS_LIMITS: Final = frozenset({"gpu_idle"})
_INSTALL_CUDA: Final = 'pip install "kvbench[cuda]"'


class Status(StrEnum):
    """The result of a check; only FAIL makes the command fail."""

    OK = "ok"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was found, and the remedy ("" if nothing is wrong)."""

    name: str
    status: Status
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Component:
    version: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class EngineReport:
    """The report of a process that loads everything: each component and every device.

    `engine_error` is why the compiled engine did not load or answer, or None. `pci_bus_ids` maps the name of a CUDA
    device to its PCI address. `pinning` says why pinning more than a lowered memlock limit was refused, "" where it was
    not: by `mlock`, and by the driver of each CUDA device.
    """

    engine_error: str | None
    engine_version: str | None = None
    devices: tuple[DeviceFacts, ...] = ()
    cuda_error: str | None = None
    nvrtc: Component = Component(error="not tried")
    triton: Component = Component(error="not tried")
    torch: Component = Component(error="not tried")
    pci_bus_ids: Mapping[str, str] = field(default_factory=dict)
    pinning: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Findings:
    """The input of all checks. `identity` and `observed` are those of `kvbench.machine.probes`.

    `under_load` is a second `observed`, read while copies run, or the reason why it was not read. CPUs are CPU numbers;
    `gpu_cpus` is empty if the GPU's NUMA node is unknown. `memlock_bytes` is None without a limit.
    `ipc_lock` tells whether CapEff has CAP_IPC_LOCK. `iommu` is the kernel's type of the GPU's IOMMU group, and
    `huge_pages` its setting for transparent huge pages; "" where it has none, or a virtual machine hides it.
    """

    device: str
    engine: EngineReport
    identity: Mapping[str, Any]
    observed: Mapping[str, Any]
    under_load: Mapping[str, Any] | str
    allowed_cpus: frozenset[int]
    gpu_cpus: frozenset[int]
    memlock_bytes: int | None
    ipc_lock: bool = False
    iommu: str = ""
    huge_pages: str = ""

    @property
    def facts(self) -> DeviceFacts | None:
        return next((device for device in self.engine.devices if device.name == self.device), None)

    @property
    def busiest(self) -> Mapping[str, Any]:
        """The observation under load, or the idle one if there is none under load."""
        return self.observed if isinstance(self.under_load, str) else self.under_load

    def reason(self, name: str) -> str:
        return str(self.observed.get("unavailable", {}).get(name, "it was not read"))


# What a check returns: its status, what was found and, if something is wrong, the remedy.
_Result = tuple[Status, str] | tuple[Status, str, str]


def diagnose(findings: Findings) -> list[Check]:
    """Every check that applies to the device, in the order in which to fix problems."""
    engine = findings.engine
    of_gpu = {"driver": _driver, "batch entry": _batch_entry, "link": _link, "BAR1": _bar1, "NUMA": _numa}
    of_gpu |= {"clocks": _clocks, "throttle": _throttle, "other processes": _others, "IOMMU": _iommu}
    libraries = {"NVRTC": engine.nvrtc, "Triton": engine.triton, "torch": engine.torch}
    checks = {"engine": _engine, "device": _device} | (of_gpu if findings.device != "cpu" else {})
    checks |= {name: partial(_library, part) for name, part in libraries.items()}
    checks |= {"host memory": _free_memory, "huge pages": _huge_pages, "memlock": _memlock, "host load": _load}
    return [Check(name, *check(findings)) for name, check in checks.items()]


def _engine(findings: Findings) -> _Result:
    engine = findings.engine
    if engine.engine_error is None:
        return Status.OK, f"loads ({engine.engine_version or 'no version'})"
    remedy = "install a C++20 compiler, then reinstall kvbench (in a checkout: make clean, then make sweep)"
    return Status.FAIL, f"does not load: {engine.engine_error}", remedy


def _device(findings: Findings) -> _Result:
    facts = findings.facts
    if findings.engine.engine_error is not None:
        return Status.INFO, f"{findings.device}; the engine did not load, so the devices are unknown"
    why = f" ({findings.engine.cuda_error})" if findings.engine.cuda_error else ""
    if findings.device == "cpu":
        if any(device.kind == "cuda" for device in findings.engine.devices):
            return Status.INFO, "cpu, as requested: copies between host buffers; this machine also has a GPU"
        message = (
            f"no GPU{why}: sweeps run on the device cpu, which copies between host buffers and says nothing about a GPU"
        )
        remedy = "if the machine has a GPU: check that nvidia-smi works here, and start containers with --gpus all"
        return Status.WARN, message, remedy
    if facts is None:
        names = ", ".join(device.name for device in findings.engine.devices) or "none"
        remedy = "check that nvidia-smi works here, start containers with --gpus all, and check CUDA_VISIBLE_DEVICES"
        return Status.FAIL, f"{findings.device} not found{why}; devices: {names}", remedy
    free = f"{facts.device_free_bytes // MIB} MiB free{', of one memory with the host' if facts.integrated else ''}"
    return Status.OK, f"{facts.name}: {facts.title}, {facts.sm_count} SMs, {free}"


def _driver(findings: Findings) -> _Result:
    version = findings.identity.get("driver_version")
    if version is None:
        remedy = "install nvidia-ml-py and the driver's NVML; without them, runs do not record what NVML reports"
        return Status.WARN, findings.reason("driver_version"), remedy
    return Status.OK, f"{version}, CUDA driver API {findings.identity.get('cuda_driver_api')}"


def _batch_entry(findings: Findings) -> _Result:
    if findings.facts is None:
        return Status.INFO, "unknown without the device"
    if findings.facts.batch_entry is None:
        remedy = "install a driver for CUDA 12.8 or newer (570 or newer)"
        message = "no cuMemcpyBatchAsync: the backend batched falls back to one copy per descriptor, and reports it"
        return Status.WARN, message, remedy
    return Status.OK, f"{findings.facts.batch_entry}; kvbench probe finds out what it does"


def _link(findings: Findings) -> _Result:
    if findings.identity.get("link") == "c2c":
        return Status.OK, "NVLink-C2C"
    now, idle = findings.busiest, isinstance(findings.under_load, str)
    how = f"read idle: {findings.under_load}" if idle else "under load"
    generation, width = now.get("pcie_generation"), now.get("pcie_width")
    most = findings.identity.get("pcie_max_generation"), findings.identity.get("pcie_max_width")
    if None in (generation, width, *most):
        return Status.INFO, f"unknown: {findings.reason('pcie_generation')}"
    message = f"PCIe gen {generation} x{width} of gen {most[0]} x{most[1]} ({how})"
    if (generation, width) == most:
        return Status.OK, message
    if idle:
        return Status.INFO, f"{message}; the link of an idle GPU runs at a lower speed"
    remedy = "reseat the card, use a slot with all lanes, and check the slot's speed in the firmware settings"
    return Status.WARN, message, remedy


def _bar1(findings: Findings) -> _Result:
    bar1, memory = findings.identity.get("bar1_bytes"), findings.observed.get("gpu_memory_total_bytes")
    if bar1 is None or memory is None:
        missing = "bar1_bytes" if bar1 is None else "gpu_memory_total_bytes"
        return Status.INFO, f"unknown: {findings.reason(missing)}"
    message = f"{bar1 // MIB} MiB for {memory // MIB} MiB of GPU memory"
    if bar1 >= memory:
        return Status.OK, message
    remedy = "enable Resizable BAR and Above 4G Decoding; in a virtual machine, enlarge the 64-bit MMIO window"
    return Status.WARN, f"{message}: inline copies by the CPU presumably need a BAR1 of the full size", remedy


def _numa(findings: Findings) -> _Result:
    node, allowed, near = findings.identity.get("gpu_numa_node"), findings.allowed_cpus, findings.gpu_cpus
    if node is None or not near:
        return Status.INFO, f"the GPU's node is unknown: {findings.reason('gpu_numa_node')}"
    if allowed & near:
        return Status.OK, f"node {node}; this process may use {len(allowed & near)} of its {len(near)} CPUs"
    remedy = f"numactl --cpunodebind={node} --membind={node} kvbench …, or a container cpuset with CPUs of that node"
    return Status.WARN, f"the GPU is on node {node}, whose CPUs this process cannot use", remedy


def _clocks(findings: Findings) -> _Result:
    now = findings.busiest
    how = "read idle" if isinstance(findings.under_load, str) else "under load"
    clock, most = now.get("sm_clock_mhz"), findings.observed.get("sm_clock_max_mhz")
    if clock is None or most is None:
        return Status.INFO, f"unknown: {findings.reason('sm_clock_mhz' if clock is None else 'sm_clock_max_mhz')}"
    message = f"SM {clock} of {most} MHz, memory {now.get('memory_clock_mhz')} MHz ({how})"
    return Status.OK if clock >= most * 3 // 4 else Status.INFO, message


def _throttle(findings: Findings) -> _Result:
    now = findings.busiest
    limits = now.get("clock_limits")
    if limits is None:
        return Status.INFO, f"unknown: {findings.reason('clock_limits')}"
    message = f"{', '.join(limits) or 'none'} at {now.get('temperature_c')} °C, {now.get('power_w')} W"
    harmful = [word for word in limits if word not in _HARMLESS_LIMITS]
    if not harmful:
        return Status.OK, message
    if any("thermal" in word for word in harmful):
        remedy = "cool the card, or wait until it has cooled"
    elif "application_clocks" in harmful:
        remedy = "unless you locked the clocks yourself, unlock them: nvidia-smi -rgc and nvidia-smi -rac"
    else:
        remedy = "check the power limit and the power supply (nvidia-smi -q -d POWER,PERFORMANCE)"
    return Status.WARN, message, remedy


def _others(findings: Findings) -> _Result:
    others, busy = findings.observed.get("other_processes"), findings.observed.get("gpu_utilisation_percent")
    remedy = "stop them, or choose another GPU with --device or CUDA_VISIBLE_DEVICES"
    if others:
        sizes = ["" if other["bytes"] is None else f", {other['bytes'] // MIB} MiB" for other in others]
        named = ", ".join(
            f"{other['name'] or 'a process'} ({other['pid']}{size})" for other, size in zip(others, sizes, strict=True)
        )
        return Status.WARN, f"{named}; the GPU is {busy}% busy", remedy
    if others is None:
        return Status.INFO, f"unknown: {findings.reason('other_processes')}"
    if busy is not None and busy >= _BUSY_PERCENT:
        message = f"none visible from here, but the GPU is {busy}% busy"
        return Status.WARN, message, "check from outside the container, or choose another GPU"
    return Status.OK, "none seen"


def _iommu(findings: Findings) -> _Result:
    """Whether the IOMMU translates the GPU's addresses: then copies of scattered blocks can be slower."""
    if not findings.iommu:
        return Status.INFO, "no IOMMU group of the GPU is visible here: there is none, or a virtual machine hides it"
    if findings.iommu == "identity":
        return Status.OK, "does not translate the GPU's addresses (identity)"
    remedy = "if scattered copies are slow: boot with iommu=pt"
    return Status.INFO, f"translates the GPU's addresses ({findings.iommu})", remedy


def _library(part: Component, findings: Findings) -> _Result:
    if part.error is None:
        return Status.OK, f"loads ({part.version or 'no version'})"
    if findings.device == "cpu":
        return Status.INFO, f"does not load: {part.error}; not needed for the device cpu"
    return Status.WARN, f"does not load: {part.error}; its backends are skipped", _INSTALL_CUDA


def _free_memory(findings: Findings) -> _Result:
    free = findings.observed.get("host_available_bytes")
    if free is None:
        return Status.INFO, f"unknown: {findings.reason('host_available_bytes')}"
    message = f"up to {free // MIB} MiB can be pinned"
    if free >= _FREE_ENOUGH_BYTES:
        return Status.OK, message
    remedy = "free memory, raise the container's limit, or sweep fewer and smaller blocks"
    return Status.WARN, f"{message}: large cells are skipped", remedy


def _huge_pages(findings: Findings) -> _Result:
    match = re.search(r"\[(\w+)\]", findings.huge_pages)
    if match is None:
        return Status.INFO, "the kernel's setting of transparent huge pages is not visible here"
    remedy = "if scattered copies are slow: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    return (
        (Status.INFO, "transparent: never", remedy) if match[1] == "never" else (Status.OK, f"transparent: {match[1]}")
    )


def _memlock(findings: Findings) -> _Result:
    if findings.memlock_bytes is None:
        return Status.OK, "no limit"
    tried = findings.engine.pinning
    driver, limits = tried.get(findings.device), tried.get("mlock") != ""
    of_driver = f"the CUDA driver counts ({driver})" if driver else "the CUDA driver does not count"
    if driver is None:
        of_driver = "whether the CUDA driver counts was not tried"
    lifted = "does not lift it, as in a user namespace" if limits else "lifts it for mlock and RDMA"
    of_lock = f"CAP_IPC_LOCK {lifted}" if findings.ipc_lock else "CapEff has no CAP_IPC_LOCK, so mlock and RDMA count"
    message = f"limit {format_size(findings.memlock_bytes)}: {of_driver}; {of_lock}"
    remedy = "raise it: ulimit -l unlimited, or --ulimit memlock=-1 for a container"
    return Status.WARN if driver else Status.INFO, message, remedy


def _load(findings: Findings) -> _Result:
    load, cpus = findings.observed.get("host_load_1min"), findings.identity.get("logical_cpus")
    governor = findings.observed.get("cpu_governor")
    if load is None or cpus is None:
        return Status.INFO, f"unknown: {findings.reason('host_load_1min' if load is None else 'logical_cpus')}"
    message = f"{load:.2f} on {cpus} CPUs, governor {governor or 'unknown'}"
    if load > cpus / 2:
        return Status.WARN, message, "stop other programs: submission is timed on a CPU"
    if governor in ("powersave", "ondemand", "conservative"):
        return Status.INFO, message, "for steadier submission times: cpupower frequency-set -g performance"
    return Status.OK, message
