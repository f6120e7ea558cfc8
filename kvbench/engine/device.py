"""The compiled swap engine as the rest of the package sees it: a device, its memory, its streams, its clocks."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvbench import _engine
from kvbench._engine import (
    AccessOrder,
    Audit,
    BatchEntry,
    Buffer,
    EngineError,
    Event,
    MemoryKind,
    Queue,
    Sample,
    SmKernel,
    SmMethod,
    Stream,
    Sustained,
    Swap,
    TimedRegion,
    audit_value,
    audit_words,
    batched,
    count_cuda_devices,
    per_block,
    probe_cpu_us,
    sm_copy,
    sm_copy_tensors,
    verify,
    write_value,
    write_words,
)
from kvbench.cells.axes import Direction, Order, StreamState
from kvbench.cells.facts import DeviceFacts
from kvbench.engine import nvrtc
from kvbench.engine.faults import Fault, FaultPlan
from kvbench.errors import UsageError

__all__ = [
    "ACCESS_ORDERS",
    "DIRECTIONS",
    "SOURCE_HASH",
    "STREAM_STATES",
    "Audit",
    "Buffer",
    "Device",
    "EngineError",
    "Event",
    "MemoryKind",
    "Queue",
    "Sample",
    "SmKernel",
    "SmMethod",
    "Stream",
    "Sustained",
    "Swap",
    "TimedRegion",
    "audit_value",
    "audit_words",
    "batched",
    "count_cuda_devices",
    "open_device",
    "per_block",
    "probe_cpu_us",
    "resolve_device",
    "sm_copy",
    "sm_copy_tensors",
    "verify",
    "write_value",
    "write_words",
]

Addresses = NDArray[np.uint64]
SOURCE_HASH: Final = _engine.SOURCE_HASH
DIRECTIONS: Final = {Direction.H2D: _engine.Direction.h2d, Direction.D2H: _engine.Direction.d2h}
STREAM_STATES: Final = {
    StreamState.IDLE: _engine.StreamState.idle,
    StreamState.BUSY: _engine.StreamState.busy,
}
ACCESS_ORDERS: Final = {
    Order.STREAM: AccessOrder.stream,
    Order.DURING_API_CALL: AccessOrder.during_api_call,
    Order.ANY: AccessOrder.any,
}
_BATCH_ENTRIES: Final = {
    BatchEntry.none: None,
    BatchEntry.cuda_12_8: "cuMemcpyBatchAsync (CUDA 12.8 signature, 9 arguments)",
    BatchEntry.cuda_13_0: "cuMemcpyBatchAsync (CUDA 13.0 signature, 8 arguments)",
    BatchEntry.host: "batched copy of the host device",
}
_FAULT_KINDS: Final = {
    "error@call": _engine.FaultKind.error_at_call,
    "error@descriptor": _engine.FaultKind.error_at_descriptor,
    "hang@call": _engine.FaultKind.hang,
    "crash@call": _engine.FaultKind.crash,
    "corrupt@descriptor": _engine.FaultKind.corrupt,
    "stray@descriptor": _engine.FaultKind.stray,
    "slow": _engine.FaultKind.slow,
}


@dataclass(frozen=True)
class Device:
    """An open device: `name` is "cpu" or "cuda:N"; `driver` is what buffers, streams and swaps are made on."""

    name: str
    driver: _engine.Driver

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
        """Return what the plan has to know; free memory is that of this moment, in bytes."""
        info = self.driver.info
        host_free = _host_free_bytes()
        # The cpu device takes what the host can give, page cache included, which its driver does not count as free.
        device_free = self.driver.free_memory()[0] if self.is_cuda else host_free
        return DeviceFacts(
            name=self.name,
            kind=info.kind,
            title=info.title,
            sm_count=info.sm_count if self.is_cuda else None,
            device_free_bytes=device_free,
            host_free_bytes=host_free,
            batch_entry=self.batch_entry,
        )

    @contextmanager
    def injecting(self, fault: Fault | None) -> Iterator[None]:
        """Inject `fault` meanwhile (None: none); the cpu device only."""
        self.arm(fault)
        try:
            yield
        finally:
            self.arm(None)

    def arm(self, fault: Fault | None) -> None:
        """Inject `fault` from now on (None: nothing more); the cpu device only."""
        if isinstance(self.driver, _engine.HostDriver):
            if fault is None:
                self.driver.arm(_engine.FaultKind.none)
            elif fault.kind == "slow":
                self.driver.arm(_engine.FaultKind.slow, delay_us=float(fault.number))
            else:
                self.driver.arm(_FAULT_KINDS[fault.kind], at=fault.number)


def _count_or_none() -> int:
    try:
        return count_cuda_devices()
    except EngineError:
        return 0


def resolve_device(name: str) -> str:
    """Return the device that `name` ("auto", "cpu", "cuda", "cuda:N") stands for; raises UsageError if not there."""
    if name == "cpu":
        return name
    count = _count_or_none()
    if name == "auto":
        return "cuda:0" if count else "cpu"
    ordinal = int(name.partition(":")[2] or 0)
    if ordinal >= count:
        there = ", ".join(["cpu", *(f"cuda:{number}" for number in range(count))])
        raise UsageError(f"--device {name}: no such device; this machine has {there}")
    return f"cuda:{ordinal}"


def open_device(name: str, faults: FaultPlan) -> Device:
    """Open "cpu" or "cuda:N", with its kernels loaded.

    Raises EngineError, NvrtcError, and UsageError for faults on a GPU.
    """
    if name == "cpu":
        return Device(name, _engine.open_host(faults.with_batch))
    if faults != FaultPlan():
        raise UsageError(f"--fault: faults are injected on the cpu device only, not on {name}")
    device = Device(name, _engine.open_cuda(int(name.partition(":")[2])))
    # Loaded before anything is timed: lazy loading behind a blocked stream deadlocks.
    device.driver.load_delay_kernel(nvrtc.cached_cubin("delay", device.arch))
    device.driver.load_content_kernels(nvrtc.cached_cubin("audit", device.arch))
    return device


def _host_free_bytes() -> int:
    # What the kernel can give without swapping; the page cache counts as free.
    with Path("/proc/meminfo").open() as meminfo:
        for line in meminfo:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent is gone, so that no worker is left holding a GPU."""
    pr_set_pdeathsig, sigkill = 1, 9
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, sigkill)
