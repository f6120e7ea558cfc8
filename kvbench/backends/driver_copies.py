"""The driver's copies: one for each descriptor, as engines did before the batched call existed, or batched, all in one
call or a limited number per call.
"""

from typing import Final

from kvbench.backends.base import Backend, Mechanism, PreparedSwap, SwapRequest
from kvbench.cells.axes import Direction, Order
from kvbench.cells.cell import Cell
from kvbench.cells.facts import BATCHED, CPU_INLINE_UP_TO_BYTES, MERGED, PER_BLOCK, PRIMED, QUEUE_AXES, DeviceFacts
from kvbench.engine.device import ACCESS_ORDERS, DIRECTIONS, BatchOptions, Device, batched, per_block

_PRIME_NS: Final = 2000


class PerBlock(Backend):
    """cuMemcpyHtoDAsync or cuMemcpyDtoHAsync for each descriptor."""

    name = PER_BLOCK
    summary = "one asynchronous copy per descriptor"

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        return QUEUE_AXES | ({"memory"} if device.kind == "cuda" else set())

    def create(self, request: SwapRequest) -> PreparedSwap:
        memory = request.memory
        swap = per_block(
            request.device.driver, memory.sources, memory.destinations, memory.sizes, DIRECTIONS[request.cell.direction]
        )
        return PreparedSwap(swap, Mechanism.SINGLE_COPIES if request.device.is_cuda else Mechanism.HOST_THREAD)


class Batched(Backend):
    """cuMemcpyBatchAsync; if the driver does not have it, single copies, which the results report."""

    name = BATCHED
    summary = "cuMemcpyBatchAsync: many descriptors per call"
    sliced = merged = False

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        if device.batch_entry is None:
            return QUEUE_AXES | ({"memory"} if device.kind == "cuda" else set())
        everywhere = QUEUE_AXES | {"descriptors_per_call"}
        return everywhere | {"memory", "order", "overlap"} if device.kind == "cuda" else everywhere

    def create(self, request: SwapRequest) -> PreparedSwap:
        cell, memory = request.cell, request.memory
        lists, options = (memory.sources, memory.destinations, memory.sizes), self.options(request.device, cell)
        swap = batched(request.device.driver, *lists, DIRECTIONS[cell.direction], options)
        mechanism = Mechanism.BATCHED_COPY if request.device.is_cuda else Mechanism.HOST_THREAD
        return PreparedSwap(swap, Mechanism.FALLBACK if swap.fell_back else mechanism)

    def options(self, device: Device, cell: Cell) -> BatchOptions:
        """How its calls copy the swaps of a cell."""
        primed = self.sliced and device.is_cuda and cell.direction is Direction.H2D
        return BatchOptions(
            order=ACCESS_ORDERS[cell.order or Order.STREAM],
            prefer_overlap=bool(cell.overlap),
            descriptors_per_call=cell.descriptors_per_call or 0,
            sliced=self.sliced,
            by_host_address=self.merged,
            merge=self.merged,
            prime_ns=_PRIME_NS,
            prime_up_to_bytes=CPU_INLINE_UP_TO_BYTES if primed else 0,
        )


class Primed(Batched):
    """The batched copy in slices, preceded by a short kernel for small h2d blocks on an idle stream.

    On an idle stream, cuMemcpyBatchAsync copies small h2d blocks on the CPU, inside the call. If any work is pending,
    it passes them to the copy engine, which starts when the call returns. The kernel makes the stream busy. With
    slices, the copy engine copies the first blocks while the last are submitted.
    """

    name = PRIMED
    summary = "batched, in slices, after a short kernel where the driver would copy on the CPU"
    sliced = True

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        return super().axes(device) - {"descriptors_per_call"}

    def unavailable(self, device: DeviceFacts) -> str | None:
        if device.kind != "cuda":
            return "priming runs a kernel; the cpu device has no kernels"
        return None if device.batch_entry else "the driver has no batched copy to prime"


class Merged(Primed):
    """The batched copy of what is left after blocks that adjoin on both sides have become one descriptor.

    Sorts the list by host address, which also serves blocks that descend together on both sides, and merges it. Then
    copies as `primed` does. On the device cpu there is nothing to prime.
    """

    name = MERGED
    summary = "primed, after blocks that adjoin on both sides are merged into one descriptor"
    merged = True

    def unavailable(self, device: DeviceFacts) -> str | None:
        return None if device.batch_entry else "the driver has no batched copy"
