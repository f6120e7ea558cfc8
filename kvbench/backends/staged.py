"""Swaps through pages on the GPU, for host memory in which many blocks of the GPU lie together."""

from dataclasses import replace
from typing import Final

import numpy as np

from kvbench.backends.base import Backend, Mechanism, PreparedSwap, SwapRequest
from kvbench.backends.sm import KernelShape, Sm, shape_on
from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.cells.facts import LEAST_RUN_BYTES, STAGED, DeviceFacts
from kvbench.cells.units import format_size
from kvbench.engine.device import DIRECTIONS, STAGED_PAGE_BYTES, Device, staged
from kvbench.ground.errors import KvbenchError

# With 2, copies wait for pages, and a decode step pays more for a GB; 8 gain nothing (H200, driver 580).
DEFAULT_SMS: Final = 4


class Staged(Backend):
    """A kernel between blocks and pages on the device, and large copies between those and the host."""

    name = STAGED
    summary = "gathered into pages on the GPU, one large copy for each run of host memory; and back"
    default_sms = DEFAULT_SMS
    host_run_bytes = LEAST_RUN_BYTES
    on_request = True  # of the patterns that a sweep takes by default, no host side has such runs

    def __init__(self) -> None:
        self._sm = Sm()

    def axes(self, _device: DeviceFacts) -> frozenset[str]:
        return frozenset({"memory", "sms"})

    def unavailable(self, device: DeviceFacts) -> str | None:
        return self._sm.unavailable(device)

    def create(self, request: SwapRequest) -> PreparedSwap:
        cell, memory = request.cell, request.memory
        largest = int(memory.sizes.max())
        if largest > STAGED_PAGE_BYTES:
            raise KvbenchError(
                f"staged takes blocks of up to {format_size(STAGED_PAGE_BYTES)}, not {format_size(largest)}: "
                "the copy engine takes these as they are"
            )
        blocks = memory.kernel_destinations if cell.direction is Direction.H2D else memory.kernel_sources
        bits = int(np.bitwise_or.reduce(blocks) | np.bitwise_or.reduce(memory.sizes))
        swap = staged(
            self._sm.kernel(request.device, page_shape(request.device, cell, largest, bits)),
            *(memory.sources, memory.destinations, memory.sizes),
            DIRECTIONS[cell.direction],
            sms=cell.sms or DEFAULT_SMS,
        )
        return PreparedSwap(swap, Mechanism.STAGED)


def page_shape(device: Device, cell: Cell, largest_bytes: int, address_bits: int) -> KernelShape:
    """The shape of the kernel, as of `shape_on`: no block of it waits for the link, in either direction."""
    return shape_on(device, replace(cell, direction=Direction.H2D), largest_bytes, address_bits)
