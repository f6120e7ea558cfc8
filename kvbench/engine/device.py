"""The Python interface of the compiled swap engine: a device, its memory, its streams, its clocks."""

import ctypes
import importlib.util
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

import kvbench._engine
from kvbench._engine import STAGED_PAGE_BYTES as STAGED_PAGE_BYTES
from kvbench._engine import Audit as Audit
from kvbench._engine import BatchOptions as BatchOptions
from kvbench._engine import BlockCopier as BlockCopier
from kvbench._engine import Buffer as Buffer
from kvbench._engine import CopyTable as CopyTable
from kvbench._engine import CopyWay as CopyWay
from kvbench._engine import EngineError as EngineError
from kvbench._engine import Event as Event
from kvbench._engine import GatherKernel as GatherKernel
from kvbench._engine import GatherSwap as GatherSwap
from kvbench._engine import MemoryKind as MemoryKind
from kvbench._engine import Queue as Queue
from kvbench._engine import Sample as Sample
from kvbench._engine import SmKernel as SmKernel
from kvbench._engine import SmMethod as SmMethod
from kvbench._engine import Stream as Stream
from kvbench._engine import Swap as Swap
from kvbench._engine import SwapLoop as SwapLoop
from kvbench._engine import TimedRegion as TimedRegion
from kvbench._engine import audit_words as audit_words
from kvbench._engine import batched as batched
from kvbench._engine import copier_swap as copier_swap
from kvbench._engine import copy as copy
from kvbench._engine import copy_arrays as copy_arrays
from kvbench._engine import count_cuda_devices as count_cuda_devices
from kvbench._engine import per_block as per_block
from kvbench._engine import probe_cpu_us as probe_cpu_us
from kvbench._engine import register_pages as register_pages
from kvbench._engine import sm_copy as sm_copy
from kvbench._engine import staged as staged
from kvbench._engine import unregister_pages as unregister_pages
from kvbench._engine import write_words as write_words
from kvbench.cells.axes import Direction, Order, Priority, StreamState
from kvbench.cells.facts import DeviceFacts, device_named
from kvbench.cells.faults import Fault, FaultPlan
from kvbench.engine import nvrtc
from kvbench.ground.errors import UsageError
from kvbench.machine.sources import Sources

Addresses = NDArray[np.uint64]
SOURCE_HASH: Final = kvbench._engine.SOURCE_HASH
DIRECTIONS: Final = {direction: kvbench._engine.Direction[direction] for direction in Direction}
# The stream states in which a single submission can be timed.
STREAM_STATES: Final[Mapping[StreamState, kvbench._engine.StreamState]] = {
    state: kvbench._engine.StreamState[state.replace("-", "_")]
    for state in StreamState
    if state is not StreamState.SUSTAINED
}
PRIORITIES: Final = {
    Priority.NONE: kvbench._engine.Priority.normal,
    Priority.LOW: kvbench._engine.Priority.low,
    Priority.HIGH: kvbench._engine.Priority.high,
}
ACCESS_ORDERS: Final = {order: kvbench._engine.AccessOrder[order] for order in Order}
_BATCH_ENTRIES: Final = {
    kvbench._engine.BatchEntry.none: None,
    kvbench._engine.BatchEntry.cuda_12_8: "cuMemcpyBatchAsync (CUDA 12.8 signature, 9 arguments)",
    kvbench._engine.BatchEntry.cuda_13_0: "cuMemcpyBatchAsync (CUDA 13.0 signature, 8 arguments)",
    kvbench._engine.BatchEntry.host: "batched copy of the host device",
}
# The engine names most faults as `--fault` does, without what their number counts.
_OTHER_FAULTS: Final = {
    "error@call": "error_at_call", "error@descriptor": "error_at_descriptor", "inline": "inline_copies",
}  # fmt: skip


@dataclass(frozen=True)
class Device:
    """An open device: `name` is "cpu" or "cuda:N"; `driver` creates buffers, streams and swaps."""

    name: str
    driver: kvbench._engine.Driver

    @property
    def kind(self) -> str:
        return self.driver.info.kind

    @property
    def is_cuda(self) -> bool:
        return self.kind == "cuda"

    @property
    def arch(self) -> str:
        """The GPU's architecture as NVRTC names it: "sm_90"."""
        return f"sm_{self.driver.info.compute_major}{self.driver.info.compute_minor}"

    @property
    def batch_entry(self) -> str | None:
        return _BATCH_ENTRIES[self.driver.batch_entry]

    def facts(self) -> DeviceFacts:
        """The facts that the plan needs; free memory, in bytes, is the current value."""
        info = self.driver.info
        host_free = Sources().available_bytes()
        # The cpu device can use all available host memory, including page cache, which its driver does not count.
        device_free = self.driver.free_memory()[0] if self.is_cuda else host_free
        if info.integrated:  # the driver does not count what the kernel can free
            host_free = device_free = min(host_free, device_free)
        return DeviceFacts(
            name=self.name,
            kind=info.kind,
            title=info.title,
            sm_count=info.sm_count if self.is_cuda else None,
            device_free_bytes=device_free,
            host_free_bytes=host_free,
            batch_entry=self.batch_entry,
            has_torch=importlib.util.find_spec("torch") is not None,
            integrated=info.integrated,
            free_2mib_pages=Sources().free_pages(1 << 21),
            free_1gib_pages=Sources().free_pages(1 << 30),
        )

    def arm(self, fault: Fault | None) -> None:
        """Inject `fault` from now on (None: no fault); cpu device only."""
        if isinstance(self.driver, kvbench._engine.HostDriver):
            kind, number = (fault.kind, fault.number) if fault else ("none", 0)
            name = _OTHER_FAULTS.get(kind) or kind.partition("@")[0].replace("-", "_")
            self.driver.arm(kvbench._engine.FaultKind[name], at=int(number), delay_us=number)


def resolve_device(name: str) -> str:
    """The device for `name` ("auto", "cpu", "cuda", "cuda:N"); raises UsageError if it does not exist."""
    if name == "cpu":
        return name
    if "," in name or name.endswith(":all"):
        raise UsageError(f"--device {name}: only a new kvbench sweep supports several devices; name one device")
    try:
        count = count_cuda_devices()
    except EngineError:
        count = 0
    if name == "auto":
        return "cuda:0" if count else "cpu"
    ordinal = int(device_named(name, []).partition(":")[2])
    if ordinal >= count:
        devices = ", ".join(["cpu", *(f"cuda:{number}" for number in range(count))])
        raise UsageError(f"--device {name}: not found; this machine has {devices}")
    return f"cuda:{ordinal}"


def open_device(name: str, faults: FaultPlan) -> Device:
    """Open "cpu" or "cuda:N", with its kernels loaded; what is current in the thread stays so.

    Raises EngineError, NvrtcError, and UsageError for faults on a GPU.
    """
    if name == "cpu":
        return Device(name, kvbench._engine.open_host(faults.with_batch))
    if faults != FaultPlan():
        raise UsageError(f"--fault: not supported on {name}; use --device cpu")
    device = Device(name, kvbench._engine.open_cuda(int(name.partition(":")[2])))
    # Loaded before anything is timed: lazy loading while a stream is blocked deadlocks.
    device.driver.load_delay_kernel(nvrtc.cached_cubin("delay", device.arch))
    device.driver.load_content_kernels(nvrtc.cached_cubin("audit", device.arch))
    return device


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, so that no worker keeps holding a GPU."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


@dataclass(frozen=True)
class SwapMemory:
    """A cell's layout as addresses: those for the driver's copies, and the same as the device sees them for kernels.

    `starts` are the addresses at which the two pools begin, as kernels see them.
    """

    sources: Addresses
    destinations: Addresses
    kernel_sources: Addresses
    kernel_destinations: Addresses
    sizes: Addresses
    starts: tuple[int, int] = (0, 0)

    def part(self, start: int, end: int) -> "SwapMemory":
        """The descriptors from `start` up to, but not including, `end`, in the same memory."""
        lists = ("sources", "destinations", "kernel_sources", "kernel_destinations", "sizes")
        return replace(self, **{name: getattr(self, name)[start:end] for name in lists})
