"""A Triton copy kernel for descriptor lists: any mix of sizes, any alignment, the SM count as the grid size."""

import importlib.util
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kvbench.backends.base import Mechanism, PreparedSwap, SwapRequest
from kvbench.cells.axes import Direction
from kvbench.cells.backend_facts import TRITON
from kvbench.cells.device_facts import DeviceFacts
from kvbench.engine.device import DIRECTIONS, Addresses, Buffer, Device, Event, MemoryKind

WARPS: Final = 8
PIECE_BYTES: Final = 16 * 1024
SLOTS: Final = 2


class Triton:
    """Launched through torch, on the measured stream."""

    name = TRITON
    summary = "Triton copy kernel, with a chosen SM count"

    def axes(self, _device: DeviceFacts) -> frozenset[str]:
        return frozenset({"memory", "sms"})

    def unavailable(self, device: DeviceFacts) -> str | None:
        if device.kind != "cuda":
            return "Triton kernels need a GPU; the cpu device has no SMs"
        missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
        return f"{' and '.join(missing)} not installed; install kvbench[cuda]" if missing else None

    def create(self, request: SwapRequest) -> PreparedSwap:
        return PreparedSwap(TritonSwap(request), Mechanism.SM_KERNEL)


@dataclass(frozen=True)
class LaunchShape:
    """The launch of a descriptor list: items of up to PIECE_BYTES, and the lanes that a program copies at a time."""

    items: int
    pieces: int
    lanes: int


def shape_of(sizes: Addresses) -> LaunchShape:
    """Return the launch shape for descriptors of these sizes (bytes)."""
    largest = int(sizes.max())
    pieces = -(-largest // PIECE_BYTES)
    words = max(1, min(largest, PIECE_BYTES) // 8)
    return LaunchShape(len(sizes) * pieces, pieces, min(1024, max(128, 1 << (words - 1).bit_length())))


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
        # Imported here: torch and Triton take seconds to load, and a machine without a GPU can lack both.
        import torch

        from kvbench.backends.triton_kernel import copy_descriptors

        self._torch: Any = torch
        self._kernel: Any = copy_descriptors
        self._driver = request.device.driver
        self._ordinal = int(request.device.name.partition(":")[2] or 0)
        self._memory = request.memory
        self._shape = shape_of(request.memory.sizes)
        self._grid = (request.cell.sms or 1,)
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
        cuda = self._torch.cuda
        with cuda.stream(cuda.ExternalStream(stream, device=self._ordinal)):
            self._kernel[self._grid](
                slot.uploaded.address,
                self._shape.items,
                self._shape.pieces,
                piece_bytes=PIECE_BYTES,
                lanes=self._shape.lanes,
                num_warps=WARPS,
            )
        slot.done.record(stream)
