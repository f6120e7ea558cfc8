"""A Triton copy kernel for descriptor lists: any mix of sizes, any alignment, the SM count as the grid size."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kvbench.backends.base import Mechanism, PreparedSwap, SwapRequest
from kvbench.backends.through_torch import TorchGather, not_installed
from kvbench.cells.axes import Direction, ListPlace
from kvbench.cells.facts import TRITON, DeviceFacts
from kvbench.engine.device import DIRECTIONS, Addresses, Buffer, Device, Event, MemoryKind, Stream

WARPS: Final = 8
PIECE_BYTES: Final = 16 * 1024
SLOTS: Final = 2
MOST_LANES: Final = 1024
# A program that gathers has 1 024 threads, each with four words in flight, as many as rows of 576 to 1 024 bytes need.
GATHER_WARPS: Final = 32
TILE_WORDS: Final = 4096
# Triton compiles for the types of its arguments, and an integer of more than 32 bits has the type of every address.
_ANY_ADDRESS: Final = 1 << 40


class Triton:
    """Launched through torch, on the measured stream."""

    name = TRITON
    summary = "Triton copy kernel, with a chosen SM count"

    def axes(self, _device: DeviceFacts) -> frozenset[str]:
        return frozenset({"list", "memory", "sms"})

    def unavailable(self, device: DeviceFacts) -> str | None:
        if device.kind != "cuda":
            return "Triton kernels need a GPU; the cpu device has no SMs"
        return not_installed("torch", "triton")

    def create(self, request: SwapRequest) -> PreparedSwap:
        if request.cell.list_place is ListPlace.GPU:
            return _gather(request)
        return PreparedSwap(TritonSwap(request), Mechanism.SM_KERNEL)


def words_of(row_bytes: int) -> dict[str, Any]:
    """How the kernel `gather_rows` takes rows of this size: its constants."""
    # Imported here, as in _Launcher.
    import triton.language as tl

    alignment = next(size for size in (16, 4, 1) if row_bytes % size == 0)
    word_bytes = min(alignment, 8)
    lanes = 1 << (row_bytes // word_bytes - 1).bit_length()
    return {
        "row_words": row_bytes // word_bytes,
        "word": {8: tl.int64, 4: tl.int32, 1: tl.int8}[word_bytes],
        "word_bytes": word_bytes,
        "alignment": alignment,
        "tile": max(1, TILE_WORDS // lanes),
        "lanes": lanes,
    }


def _gather(request: SwapRequest) -> PreparedSwap:
    from kvbench.backends.triton_kernel import gather_rows

    kernel: Any = gather_rows
    words = words_of(request.cell.block_bytes)

    def launch(source_ids: Any, destination_ids: Any, rows: Any) -> None:
        grid = (request.cell.sms or 1,)
        kernel[grid](*request.memory.starts, source_ids, destination_ids, rows, num_warps=GATHER_WARPS, **words)

    return TorchGather(request, launch, types=("int64", "int64")).prepared


@dataclass(frozen=True)
class LaunchShape:
    """The launch of a descriptor list: items of up to PIECE_BYTES, and the lanes that a program copies at a time."""

    items: int
    pieces: int
    lanes: int


def shape_of(sizes: Addresses) -> LaunchShape:
    largest = int(sizes.max())
    pieces = -(-largest // PIECE_BYTES)
    words = max(1, min(largest, PIECE_BYTES) // 8)
    return LaunchShape(len(sizes) * pieces, pieces, min(MOST_LANES, max(128, 1 << (words - 1).bit_length())))


class _Launcher:
    def __init__(self, device: Device) -> None:
        # Imported here: torch and Triton take seconds to load, and a machine without a GPU can lack both.
        import torch

        from kvbench.backends.triton_kernel import copy_descriptors

        self._cuda: Any = torch.cuda
        self._kernel: Any = copy_descriptors
        self._ordinal = int(device.name.partition(":")[2] or 0)

    def launch(self, table_address: int, shape: LaunchShape, sms: int, stream: int) -> None:
        with self._cuda.stream(self._cuda.ExternalStream(stream, device=self._ordinal)):
            self._kernel[(sms,)](
                table_address, shape.items, shape.pieces, piece_bytes=PIECE_BYTES, lanes=shape.lanes, num_warps=WARPS
            )


def load_and_compile(device: Device) -> None:
    """Load what launches take seconds to load and to compile on a new machine, for blocks of at least 8 KiB."""
    device.driver.bind_thread()
    stream = Stream(device.driver)
    _Launcher(device).launch(_ANY_ADDRESS, LaunchShape(items=0, pieces=1, lanes=MOST_LANES), 1, stream.handle)
    stream.synchronize()


class _Slot:
    """A descriptor table in pinned memory and its copy on the device; `done` marks the last launch that read it."""

    def __init__(self, device: Device, table_bytes: int) -> None:
        self.pinned = Buffer(device.driver, MemoryKind.allocated, table_bytes)
        self.uploaded = Buffer(device.driver, MemoryKind.device, table_bytes)
        self.done = Event(device.driver)


class TritonSwap:
    """Packs the descriptors, enqueues their upload and launches the kernel."""

    calls = 2

    def __init__(self, request: SwapRequest) -> None:
        self._launcher = _Launcher(request.device)
        self._driver = request.device.driver
        self._memory = request.memory
        self._shape = shape_of(request.memory.sizes)
        self._sms = request.cell.sms or 1
        table_bytes = 3 * 8 * len(request.memory.sizes)
        self._slots = [_Slot(request.device, table_bytes) for _ in range(SLOTS)]
        self._next = 0

    def _write_table(self) -> _Slot:
        """Write the table into the slot with the oldest launch, after that launch has completed."""
        self._next = (self._next + 1) % SLOTS
        slot = self._slots[self._next]
        slot.done.wait()
        table = slot.pinned.array().view(np.int64).reshape(-1, 3)
        table[:, 0] = self._memory.kernel_sources
        table[:, 1] = self._memory.kernel_destinations
        table[:, 2] = self._memory.sizes
        return slot

    def submit(self, stream: int) -> None:
        slot = self._write_table()
        self._driver.transfer(
            slot.uploaded.address, slot.pinned.address, slot.pinned.size_bytes, DIRECTIONS[Direction.H2D], stream
        )
        self._launcher.launch(slot.uploaded.address, self._shape, self._sms, stream)
        slot.done.record(stream)
