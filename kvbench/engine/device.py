"""The compiled swap engine as the rest of the package sees it: a device, its memory, its streams, its clocks."""

import ctypes
import importlib.util
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

import kvbench._engine
from kvbench._engine import Audit as Audit
from kvbench._engine import Buffer as Buffer
from kvbench._engine import EngineError as EngineError
from kvbench._engine import Event as Event
from kvbench._engine import MemoryKind as MemoryKind
from kvbench._engine import Queue as Queue
from kvbench._engine import Sample as Sample
from kvbench._engine import SmKernel as SmKernel
from kvbench._engine import SmMethod as SmMethod
from kvbench._engine import Stream as Stream
from kvbench._engine import Swap as Swap
from kvbench._engine import TimedRegion as TimedRegion
from kvbench._engine import audit_value as audit_value
from kvbench._engine import audit_words as audit_words
from kvbench._engine import batched as batched
from kvbench._engine import count_cuda_devices as count_cuda_devices
from kvbench._engine import per_block as per_block
from kvbench._engine import probe_cpu_us as probe_cpu_us
from kvbench._engine import sm_copy as sm_copy
from kvbench._engine import sm_copy_tensors as sm_copy_tensors
from kvbench._engine import verify as verify
from kvbench._engine import write_value as write_value
from kvbench._engine import write_words as write_words
from kvbench.cells.axes import Direction, Order, StreamState
from kvbench.cells.facts import DeviceFacts
from kvbench.engine import nvrtc
from kvbench.engine.faults import Fault, FaultPlan
from kvbench.errors import UsageError
from kvbench.machine.probes import available_bytes
from kvbench.machine.sources import Sources

Addresses = NDArray[np.uint64]
SOURCE_HASH: Final = kvbench._engine.SOURCE_HASH
DIRECTIONS: Final = {way: kvbench._engine.Direction[way] for way in Direction}
# Of the states that one submission can be timed in.
STREAM_STATES: Final = {state: kvbench._engine.StreamState[state] for state in (StreamState.IDLE, StreamState.BUSY)}
ACCESS_ORDERS: Final = {order: kvbench._engine.AccessOrder[order] for order in Order}
NORMAL_PRIORITY: Final = kvbench._engine.Priority.normal
HIGH_PRIORITY: Final = kvbench._engine.Priority.high
_BATCH_ENTRIES: Final = {
    kvbench._engine.BatchEntry.none: None,
    kvbench._engine.BatchEntry.cuda_12_8: "cuMemcpyBatchAsync (CUDA 12.8 signature, 9 arguments)",
    kvbench._engine.BatchEntry.cuda_13_0: "cuMemcpyBatchAsync (CUDA 13.0 signature, 8 arguments)",
    kvbench._engine.BatchEntry.host: "batched copy of the host device",
}
_FAULT_KINDS: Final = {
    "error@call": kvbench._engine.FaultKind.error_at_call,
    "error@descriptor": kvbench._engine.FaultKind.error_at_descriptor,
    "hang@call": kvbench._engine.FaultKind.hang,
    "crash@call": kvbench._engine.FaultKind.crash,
    "corrupt@descriptor": kvbench._engine.FaultKind.corrupt,
    "stray@descriptor": kvbench._engine.FaultKind.stray,
    "slow": kvbench._engine.FaultKind.slow,
}


@dataclass(frozen=True)
class Device:
    """An open device: `name` is "cpu" or "cuda:N"; `driver` is what buffers, streams and swaps are made on."""

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
        """Return what the plan has to know; free memory is that of this moment, in bytes."""
        info = self.driver.info
        host_free = available_bytes(Sources())
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
            shared_bytes=info.shared_bytes if self.is_cuda else None,
            has_torch=importlib.util.find_spec("torch") is not None,
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
        if isinstance(self.driver, kvbench._engine.HostDriver):
            kind, number = (_FAULT_KINDS[fault.kind], fault.number) if fault else (kvbench._engine.FaultKind.none, 0)
            self.driver.arm(kind, at=number, delay_us=number)


def resolve_device(name: str) -> str:
    """Return the device that `name` ("auto", "cpu", "cuda", "cuda:N") stands for; raises UsageError if not there."""
    if name == "cpu":
        return name
    if "," in name or name.endswith(":all"):
        raise UsageError(f"--device {name}: only a new kvbench sweep measures several devices at once; name one")
    try:
        count = count_cuda_devices()
    except EngineError:
        count = 0
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
        return Device(name, kvbench._engine.open_host(faults.with_batch))
    if faults != FaultPlan():
        raise UsageError(f"--fault: faults are injected on the cpu device only, not on {name}")
    device = Device(name, kvbench._engine.open_cuda(int(name.partition(":")[2])))
    # Loaded before anything is timed: lazy loading behind a blocked stream deadlocks.
    device.driver.load_delay_kernel(nvrtc.cached_cubin("delay", device.arch))
    device.driver.load_content_kernels(nvrtc.cached_cubin("audit", device.arch))
    return device


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent is gone, so that no worker is left holding a GPU."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
