"""Swaps through a buffer on the device, for host memory in which the blocks of a swap lie together."""

from dataclasses import replace
from typing import Final

import numpy as np

from kvbench.backends.base import Backend, Mechanism, PreparedSwap, SwapRequest
from kvbench.backends.sm import INLINE_UP_TO_BYTES, Sm, shape_on
from kvbench.cells.axes import Direction
from kvbench.cells.backend_facts import STAGED, SmsRow, SmsRule
from kvbench.cells.device_facts import DeviceFacts
from kvbench.engine.device import DIRECTIONS, SmKernel, StagedSwap

# The first gathering and the last scattering are hidden by nothing: more SMs make them shorter, and what the kernels
# take from other work is their time on all of these SMs.
DEFAULT_SMS: Final[SmsRule] = (SmsRow(16),)


class Staged(Backend):
    """A kernel between the blocks and a ring of two buffers on the device, and large copies between ring and host.

    Serves every list. It is made for lists whose host side lies in long pieces: each piece is one copy.
    """

    name = STAGED
    summary = "gathered on the GPU, one large copy for each piece of host memory; and back"
    kernels = Sm.kernels
    default_sms = DEFAULT_SMS
    on_request = True  # without pages on the host it gains nothing

    def __init__(self) -> None:
        self._sm = Sm()

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        return self._sm.axes(device) if device.kind == "cuda" else frozenset()

    def create(self, request: SwapRequest) -> PreparedSwap:
        memory, sms = request.memory, request.cell.sms or DEFAULT_SMS[-1].sms
        swap = StagedSwap(
            request.device.driver,
            self._kernel(request) if request.device.is_cuda else None,
            memory.sources,
            memory.destinations,
            memory.sizes,
            DIRECTIONS[request.cell.direction],
            sms=sms,
            inline_up_to=INLINE_UP_TO_BYTES,
        )
        if not request.device.is_cuda:
            return PreparedSwap(swap, Mechanism.HOST_THREAD, staging_bytes=swap.staging_bytes)
        return PreparedSwap(
            swap,
            Mechanism.STAGED,
            staging_bytes=swap.staging_bytes,
            sm_us=lambda stream: sms * swap.kernel_us(stream),
        )

    def _kernel(self, request: SwapRequest) -> SmKernel:
        """Return the kernel for copies on the device, where no block waits for the link: the shapes for h2d."""
        memory = request.memory
        blocks = memory.kernel_destinations if request.cell.direction is Direction.H2D else memory.kernel_sources
        bits = int(np.bitwise_or.reduce(blocks)) | int(np.bitwise_or.reduce(memory.sizes))
        cell = replace(request.cell, direction=Direction.H2D, pool_bytes=0)
        return self._sm.kernel(request.device, shape_on(request.device, cell, int(memory.sizes.max()), bits))
