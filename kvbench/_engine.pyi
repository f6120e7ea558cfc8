import enum
from collections.abc import Callable
from typing import final

import numpy as np
from numpy.typing import NDArray

SOURCE_HASH: str

class EngineError(RuntimeError):
    call: str
    name: str
    descriptor: int | None

class Direction(enum.Enum):
    h2d = 0
    d2h = 1

class AccessOrder(enum.Enum):
    stream = 1
    during_api_call = 2
    any = 3

class StreamState(enum.Enum):
    idle = 0
    busy = 1

class MemoryKind(enum.Enum):
    device = 0
    allocated = 1
    registered = 2

class BatchEntry(enum.Enum):
    none = 0
    cuda_12_8 = 1
    cuda_13_0 = 2
    host = 3

class FaultKind(enum.Enum):
    none = 0
    error_at_call = 1
    error_at_descriptor = 2
    hang = 3
    crash = 4
    slow = 5
    corrupt = 6
    stray = 7

@final
class DeviceInfo:
    @property
    def kind(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def pci_bus_id(self) -> str: ...
    @property
    def driver_version(self) -> int: ...
    @property
    def compute_major(self) -> int: ...
    @property
    def compute_minor(self) -> int: ...
    @property
    def sm_count(self) -> int: ...
    @property
    def numa_node(self) -> int: ...

class Driver:
    @property
    def info(self) -> DeviceInfo: ...
    @property
    def batch_entry(self) -> BatchEntry: ...
    def free_memory(self) -> tuple[int, int]: ...
    def load_delay_kernel(self, cubin: bytes) -> None: ...
    def fill(self, address: int, value: int, size_bytes: int, stream: int) -> None: ...
    def transfer(self, destination: int, source: int, size_bytes: int, direction: Direction, stream: int) -> None: ...
    def delay(self, delay_ns: int, stream: int) -> None: ...
    def synchronize(self, stream: int) -> None: ...

@final
class HostDriver(Driver):
    def arm(self, kind: FaultKind, at: int = ..., delay_us: float = ...) -> None: ...

def open_host(with_batch: bool = ...) -> HostDriver: ...
def open_cuda(ordinal: int, library: str = ...) -> Driver: ...
def count_cuda_devices(library: str = ...) -> int: ...

@final
class Buffer:
    def __init__(self, driver: Driver, kind: MemoryKind, size_bytes: int) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def device_address(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def fill_random(self, size_bytes: int, seed: int) -> None: ...
    def fill_value(self, size_bytes: int, value: int) -> None: ...
    def array(self) -> NDArray[np.uint8]: ...

@final
class Stream:
    def __init__(self, driver: Driver) -> None: ...
    @property
    def handle(self) -> int: ...
    def synchronize(self) -> None: ...

@final
class Event:
    def __init__(self, driver: Driver) -> None: ...
    def record(self, stream: int) -> None: ...
    def wait(self) -> None: ...

@final
class Swap:
    def prepare(self) -> None: ...
    def submit(self, stream: int) -> None: ...
    @property
    def calls(self) -> int: ...
    @property
    def coalesce_us(self) -> float: ...
    @property
    def fell_back(self) -> bool: ...

def per_block(
    driver: Driver,
    sources: NDArray[np.uint64],
    destinations: NDArray[np.uint64],
    sizes: NDArray[np.uint64],
    direction: Direction,
) -> Swap: ...
def batched(
    driver: Driver,
    sources: NDArray[np.uint64],
    destinations: NDArray[np.uint64],
    sizes: NDArray[np.uint64],
    direction: Direction,
    *,
    order: AccessOrder,
    prefer_overlap: bool = ...,
    descriptors_per_call: int = ...,
    coalesce: bool = ...,
    prime_ns: int = ...,
) -> Swap: ...

class SmMethod(enum.Enum):
    lanes = 0
    bulk = 1

@final
class SmKernel:
    def __init__(
        self, driver: Driver, cubin: bytes, *, method: SmMethod, warps: int, depth: int, piece_bytes: int
    ) -> None: ...

def sm_copy(
    kernel: SmKernel,
    sources: NDArray[np.uint64],
    destinations: NDArray[np.uint64],
    sizes: NDArray[np.uint64],
    direction: Direction,
    *,
    sms: int,
    inline_up_to: int,
    upload_from: int,
) -> Swap: ...
def sm_copy_tensors(
    kernel: SmKernel,
    source_bases: NDArray[np.uint64],
    destination_bases: NDArray[np.uint64],
    source_ids: NDArray[np.uint32],
    destination_ids: NDArray[np.uint32],
    direction: Direction,
    *,
    stride: int,
    block_bytes: int,
    sms: int,
    inline_up_to: int,
    upload_from: int,
) -> Swap: ...

@final
class Sample:
    @property
    def prepare_us(self) -> float: ...
    @property
    def coalesce_us(self) -> float: ...
    @property
    def submit_us(self) -> float: ...
    @property
    def gpu_us(self) -> float: ...
    @property
    def wall_us(self) -> float: ...
    @property
    def cpu_us(self) -> float: ...
    @property
    def gap_us(self) -> float: ...
    @property
    def pending_before(self) -> bool: ...
    @property
    def pending_after(self) -> bool: ...
    @property
    def depth_held(self) -> bool: ...

@final
class Queue:
    def __init__(self, depth: int = ..., streams: int = ..., delay_ns: int = ...) -> None: ...
    @property
    def depth(self) -> int: ...
    @property
    def streams(self) -> int: ...
    @property
    def delay_ns(self) -> int: ...

@final
class TimedRegion:
    def __init__(self, driver: Driver, stream: int, busy_delay_ns: int) -> None: ...
    def measure(self, swap: Swap, state: StreamState, queue: Queue = ...) -> Sample: ...
    def measure_python(
        self,
        prepare: Callable[[], object],
        submit: Callable[[int], object],
        state: StreamState,
        queue: Queue = ...,
    ) -> Sample: ...

def probe_cpu_us() -> float: ...
def verify(
    destination: Buffer,
    source: Buffer,
    size_bytes: int,
    source_offsets: NDArray[np.uint64],
    destination_offsets: NDArray[np.uint64],
    sizes: NDArray[np.uint64],
    poison: int,
) -> tuple[int, int, int | None]: ...
