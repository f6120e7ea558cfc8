"""The sources of the probes: NVML as one callable, and kernel files below one root, with what these say of the host's
memory and NUMA nodes. Tests replace both. And where the memory of a process lies among these nodes: kept near the GPU,
and asked for page by page.
"""

import ctypes
import os
import platform
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np

from kvbench.cells.units import KIB

Scalar = str | int | float | bool | None
Json = Scalar | list["Json"] | dict[str, "Json"]
# NVML as one callable: takes the name of a function of nvidia-ml-py and its arguments; raises what that raises.
Nvml = Callable[..., Any]
_NODES: Final = "sys/devices/system/node"
_CAP_IPC_LOCK: Final = 14
_GROUP_FILES: Final = ("memory.max", "memory.current", "inactive_file")
_GROUP_FILES_OF_VERSION_1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


class UnavailableError(Exception):
    """A value that cannot be read on this machine; the message is the reason."""


def _pci_folder(bus_id: str) -> str:
    domain, _, bus_and_device = bus_id.partition(":")  # of the driver or of NVML: "00000000:1B:00.0"
    return f"sys/bus/pci/devices/{int(domain, 16):04x}:{bus_and_device.lower()}"


def _kib_fields(text: str) -> dict[str, int]:
    lines = (line.replace(":", " ").split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) >= 2}


@cache
def driver_version() -> int:
    """The newest CUDA version that the driver supports as `cuDriverGetVersion` gives it (12040: 12.4).

    Returns 0 if there is no driver.
    """
    newest = ctypes.c_int(0)
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(newest))
    return newest.value


@contextmanager
def open_nvml() -> Iterator[Nvml]:
    """Open NVML on this machine; raises the underlying error (no package, no driver)."""
    import pynvml

    pynvml.nvmlInit()
    try:
        yield lambda function, *arguments: getattr(pynvml, function)(*arguments)
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


@dataclass(frozen=True, slots=True)
class Sources:
    """The NVML, files and environment variables of a machine."""

    nvml: Callable[[], AbstractContextManager[Nvml]] = open_nvml
    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def text(self, path: str) -> str:
        """The stripped text of a file below the root ("proc/loadavg"); raises OSError."""
        return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()

    def text_if_any(self, path: str) -> str:
        """The stripped text of a file below the root, "" where it cannot be read."""
        with suppress(OSError):
            return self.text(path)
        return ""

    def numbers(self, path: str) -> set[int]:
        """The numbers in a file in the kernel's list format ("0-3,8"); raises OSError, ValueError."""
        numbers: set[int] = set()
        text = self.text(path)
        for item in text.split(",") if text else ():
            first, _, last = item.partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
        return numbers

    def cpu_nodes(self) -> set[int]:
        """The NUMA nodes that have CPUs (GPU memory can be a node without CPUs); raises OSError, ValueError."""
        return self.numbers(f"{_NODES}/has_cpu")

    def cpus_of_node(self, node: int) -> set[int]:
        """The CPUs of a NUMA node; empty if the kernel does not report them."""
        try:
            return self.numbers(f"{_NODES}/node{node}/cpulist")
        except (OSError, ValueError):
            return set()

    def available_bytes(self) -> int:
        """The bytes that can still be pinned: what the kernel can free, limited by the control groups."""
        left = [self._left_in_group(folder, *files) for folder, files in self._control_groups()]
        available = _kib_fields(self.text("proc/meminfo"))["MemAvailable"] * KIB
        return min([available, *(bytes_left for bytes_left in left if bytes_left is not None)])

    def has_ipc_lock(self) -> bool:
        """Whether CAP_IPC_LOCK is among the effective capabilities of this process."""
        match = re.search(r"^CapEff:\s*([0-9a-f]+)", self.text("proc/self/status"), re.MULTILINE)
        return match is not None and bool(int(match[1], 16) >> _CAP_IPC_LOCK & 1)

    def shm_bytes(self) -> int:
        """The bytes that are free for files in memory, 0 without a place for them."""
        try:
            free = os.statvfs(self.root / "dev/shm")
        except OSError:
            return 0
        return free.f_bavail * free.f_frsize

    def free_pages(self, size_bytes: int) -> int:
        """The free huge pages of this size, 0 where there are none of this size."""
        return int(self.text_if_any(f"sys/kernel/mm/hugepages/hugepages-{size_bytes >> 10}kB/free_hugepages") or 0)

    def near_node(self, bus_id: str) -> int:
        """The NUMA node whose CPUs are nearest to a PCI device; raises if the kernel does not report it."""
        node = int(self.text(f"{_pci_folder(bus_id)}/numa_node"))
        if node >= 0:
            return node
        nodes = self.cpu_nodes()
        if len(nodes) == 1:
            return nodes.pop()
        raise UnavailableError("the kernel reports no NUMA node for the GPU, and the host has several")

    def iommu_type(self, bus_id: str) -> str:
        """The type of a PCI device's IOMMU group ("identity", "DMA", "DMA-FQ"), "" without one."""
        return self.text_if_any(f"{_pci_folder(bus_id)}/iommu_group/type")

    def huge_pages(self) -> str:
        """The kernel's setting of transparent huge pages ("always [madvise] never"), "" without one."""
        return self.text_if_any("sys/kernel/mm/transparent_hugepage/enabled")

    def _control_groups(self) -> Iterator[tuple[PurePosixPath, tuple[str, str, str]]]:
        """Yield the folder of every memory control group of this process, and the names of its files."""
        for line in (self.text_if_any("proc/self/cgroup") or "0::/").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root = PurePosixPath("sys/fs/cgroup", "memory" if controllers else "")
            files = _GROUP_FILES_OF_VERSION_1 if controllers else _GROUP_FILES
            within = PurePosixPath(path.lstrip("/"))
            for group in dict.fromkeys((within, *within.parents)):
                if ".." not in group.parts:  # a group that this process cannot see
                    yield root / group, files

    def _left_in_group(self, folder: PurePosixPath, limit: str, used: str, reclaimable: str) -> int | None:
        try:
            size, taken = (int(self.text(f"{folder}/{name}")) for name in (limit, used))
            return max(0, size - taken + _kib_fields(self.text(f"{folder}/memory.stat"))[reclaimable])
        except (OSError, ValueError, KeyError):
            return None  # the group does not exist, or its limit is "max"


@dataclass(frozen=True, slots=True)
class Machine:
    """The input of a probe: the device's name, NVML and its handle of the GPU, and the host's files.

    `own_pids` are kvbench's own processes.
    """

    device: str
    sources: Sources
    nvml: Nvml
    handle: Any = None
    own_pids: Collection[int] = ()

    def ask(self, function: str, /, *arguments: Any) -> Any:
        return self.nvml(function, self.handle, *arguments)


@contextmanager
def open_machine(
    device: str, pci_bus_id: str | None, sources: Sources, own_pids: Collection[int] = ()
) -> Iterator[Machine]:
    """Open the GPU of `device` ("cpu" or "cuda:N"). Never raises: the probes of an unreachable GPU give the reason."""
    with ExitStack() as stack:
        step = ""
        try:
            if device == "cpu":
                raise UnavailableError("the device is cpu")
            step = "NVML cannot be opened: "
            nvml = stack.enter_context(sources.nvml())
            step = f"NVML does not find {device}: "
            if pci_bus_id is not None:
                handle = nvml("nvmlDeviceGetHandleByPciBusId", pci_bus_id)
            else:
                handle = _handle_of_ordinal(nvml, int(device.removeprefix("cuda:")), sources.environ)
            machine = Machine(device, sources, nvml, handle, own_pids)
        except Exception as error:
            machine = Machine(device, sources, _out_of_reach(step + reason_of(error)))
        yield machine


def _out_of_reach(reason: str) -> Nvml:
    def nvml(*_: Any) -> Any:
        raise UnavailableError(reason)

    return nvml


def _handle_of_ordinal(nvml: Nvml, ordinal: int, environ: Mapping[str, str]) -> Any:
    """The handle of CUDA device `ordinal` if its PCI bus id is unknown because the engine did not load.

    Raises UnavailableError if CUDA can number the GPUs differently from NVML, which uses PCI order.
    """
    if "CUDA_VISIBLE_DEVICES" in environ:
        raise UnavailableError("CUDA_VISIBLE_DEVICES renumbers the GPUs, and the PCI bus id is unknown")
    handles = [nvml("nvmlDeviceGetHandleByIndex", index) for index in range(nvml("nvmlDeviceGetCount"))]
    if not 0 <= ordinal < len(handles):
        raise UnavailableError(f"the machine has {len(handles)} GPUs")
    kinds = {str(nvml("nvmlDeviceGetName", handle)) for handle in handles}
    if len(kinds) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise UnavailableError(
            "the machine has different GPUs and the PCI bus id is unknown; set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    return handles[ordinal]


def reason_of(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UnavailableError) else f"{type(error).__name__}: {text}".removesuffix(": ")


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
            node = (sources or Sources()).near_node(bus_id)
        except Exception as error:
            return -1, [f"memory may be pinned far from the GPU, whose NUMA node is unknown: {reason_of(error)}"]
    near = (sources or Sources()).cpus_of_node(node)
    if usable := near & os.sched_getaffinity(0):
        os.sched_setaffinity(0, usable)
    elif near:
        why = f"this process cannot run on the GPU's NUMA node {node}"
        return node, [f"{why}, so memory is pinned on another (taskset?)"]
    return node, []


def far_pages(address: int, size_bytes: int, node: int) -> list[str]:
    """A note if some of a sample of the pages, which must be in use, are not on `node` (-1: any will do)."""
    nodes = nodes_of_pages(address, size_bytes) if node >= 0 else []
    if far := [of_page for of_page in nodes if of_page != node]:
        far_nodes = ", ".join(map(str, sorted(set(far))))
        sampled = f"{len(far)} of {len(nodes)} sampled pages of host memory"
        return [f"{sampled} are on NUMA node {far_nodes}, the GPU is on {node}"]
    return []


def nodes_of_pages(address: int, size_bytes: int) -> list[int]:
    """The NUMA nodes of a sample of the pages in use; empty if the kernel does not report them."""
    pages = np.linspace(address, address + size_bytes - 1, _SAMPLE).astype(np.uint64) & ~np.uint64(0xFFF)
    nodes = np.full(_SAMPLE, -1, dtype=np.int32)
    # Of this process (0), and without nodes to move to (None): the call only asks.
    arguments = map(ctypes.c_void_p, (0, _SAMPLE, pages.ctypes.data, None, nodes.ctypes.data, 0))
    ctypes.CDLL(None).syscall(ctypes.c_long(_MOVE_PAGES.get(platform.machine(), -1)), *arguments)
    return [int(node) for node in nodes if node >= 0]
