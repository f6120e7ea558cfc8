"""The driver's batched copy: all descriptors in one call, or a limited number per call."""

from math import sqrt
from typing import Final

from kvbench.backends.base import Mechanism, PreparedSwap, SwapRequest
from kvbench.cells.axes import Direction, Order
from kvbench.cells.facts import QUEUE_AXES, DeviceFacts
from kvbench.cells.locality import SCATTERED_FROM_BYTES
from kvbench.engine.device import ACCESS_ORDERS, DIRECTIONS, batched

# Up to this block size the driver copies on the CPU: observed with driver 580 on an H200, see the cliff in reports/.
CPU_INLINE_UP_TO_BYTES: Final = 24 * 1024
PRIME_NS: Final = 2000
MIN_SLICE: Final = 32


def slice_of(blocks: int) -> int:
    """Return the descriptors per call of a sliced submission of `blocks` descriptors.

    The copy engine starts when a call returns. Each additional slice costs some host time, and no copying hides the
    submission of the last slice. The sum of both costs is minimal if the slice grows with the square root of the number
    of blocks; the factor was the best on an H200 with driver 580.
    """
    return max(MIN_SLICE, round(2 * sqrt(blocks)))


class Batched:
    """cuMemcpyBatchAsync; if the driver does not have it, single copies, which the results report."""

    name = "batched"
    summary = "cuMemcpyBatchAsync: many descriptors per call"

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        if device.batch_entry is None:
            return QUEUE_AXES | ({"memory"} if device.kind == "cuda" else set())
        everywhere = QUEUE_AXES | {"descriptors_per_call", "coalesce"}
        return everywhere | {"memory", "order", "overlap"} if device.kind == "cuda" else everywhere

    def unavailable(self, _device: DeviceFacts) -> str | None:
        return None

    def create(self, request: SwapRequest) -> PreparedSwap:
        return _prepared(request, request.cell.descriptors_per_call or 0)


class Primed(Batched):
    """The batched copy in slices, preceded by a short kernel for small h2d blocks on an idle stream.

    Scattered blocks are sorted by host address: adjacent blocks share address translations, which otherwise slow down
    the copy engine. Sorting is part of the preparation.

    On an idle stream, cuMemcpyBatchAsync copies small h2d blocks on the CPU, inside the call. If any work is pending,
    it passes them to the copy engine, which starts when the call returns. The kernel makes the stream busy; its launch
    is part of the submission. With slices, the copy engine copies the first blocks while the last are submitted.
    """

    name = "primed"
    summary = "batched, in slices, after a short kernel where the driver would copy on the CPU"

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        return super().axes(device) - {"descriptors_per_call"}

    def unavailable(self, device: DeviceFacts) -> str | None:
        if device.kind != "cuda":
            return "priming runs a kernel; the cpu device has no kernels"
        return None if device.batch_entry else "the driver has no batched copy to prime"

    def create(self, request: SwapRequest) -> PreparedSwap:
        smallest = int(request.memory.sizes.min())
        inline = request.cell.direction is Direction.H2D and smallest <= CPU_INLINE_UP_TO_BYTES
        return _prepared(
            request,
            slice_of(len(request.memory.sizes)),
            prime_ns=PRIME_NS if inline else 0,
            by_host_address=request.cell.spread_bytes >= SCATTERED_FROM_BYTES,
        )


def _prepared(
    request: SwapRequest, descriptors_per_call: int, prime_ns: int = 0, *, by_host_address: bool = False
) -> PreparedSwap:
    cell, memory = request.cell, request.memory
    swap = batched(
        request.device.driver,
        memory.sources,
        memory.destinations,
        memory.sizes,
        DIRECTIONS[cell.direction],
        order=ACCESS_ORDERS[cell.order or Order.STREAM],
        prefer_overlap=bool(cell.overlap),
        descriptors_per_call=descriptors_per_call,
        coalesce=bool(cell.coalesce),
        by_host_address=by_host_address,
        prime_ns=prime_ns,
    )
    mechanism = Mechanism.BATCHED_COPY if request.device.is_cuda else Mechanism.HOST_THREAD
    return PreparedSwap(
        swap,
        Mechanism.FALLBACK if swap.fell_back else mechanism,
        retarget=lambda: swap.retarget(memory.sources, memory.destinations),
    )
