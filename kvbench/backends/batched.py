"""The driver's batched copy: all descriptors in one call, or in calls of at most D."""

from typing import Final

from kvbench.axes import Direction, Order
from kvbench.backends.base import Mechanism, PreparedSwap, SwapRequest
from kvbench.engine import ACCESS_ORDERS, DIRECTIONS, batched
from kvbench.facts import DeviceFacts

# Up to this size the driver copies on the CPU; seen with driver 580 on an H200, see the cliff in reports/.
CPU_INLINE_UP_TO_BYTES: Final = 24 * 1024
PRIME_NS: Final = 2000


class Batched:
    """cuMemcpyBatchAsync; single copies, and said so, where the driver has none."""

    name = "batched"
    summary = "cuMemcpyBatchAsync: many descriptors a call"

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        if device.batch_entry is None:
            return frozenset({"memory"} if device.kind == "cuda" else ())
        everywhere = frozenset({"descriptors_per_call", "coalesce"})
        return everywhere | {"memory", "order", "overlap"} if device.kind == "cuda" else everywhere

    def unavailable(self, device: DeviceFacts) -> str | None:
        del device
        return None

    def create(self, request: SwapRequest) -> PreparedSwap:
        return _prepared(request, prime_ns=0)


class Primed(Batched):
    """The batched copy with a short kernel in front of it where the stream is idle.

    On an idle stream cuMemcpyBatchAsync copies small h2d blocks on the CPU, inside the call; with anything pending it
    hands them to the copy engine. The kernel's launch is part of the submission.
    """

    name = "primed"
    summary = "batched, with a short kernel in front of it on an idle stream (h2d, small blocks)"

    def unavailable(self, device: DeviceFacts) -> str | None:
        if device.kind != "cuda":
            return "priming runs a kernel; the cpu device has none"
        return None if device.batch_entry else "the driver has no batched copy to prime"

    def create(self, request: SwapRequest) -> PreparedSwap:
        smallest = int(request.memory.sizes.min())
        inline = request.cell.direction is Direction.H2D and smallest <= CPU_INLINE_UP_TO_BYTES
        return _prepared(request, prime_ns=PRIME_NS if inline else 0)


def _prepared(request: SwapRequest, prime_ns: int) -> PreparedSwap:
    cell, memory = request.cell, request.memory
    swap = batched(
        request.device.driver,
        memory.sources,
        memory.destinations,
        memory.sizes,
        DIRECTIONS[cell.direction],
        order=ACCESS_ORDERS[cell.order or Order.STREAM],
        prefer_overlap=bool(cell.overlap),
        descriptors_per_call=cell.descriptors_per_call or 0,
        coalesce=bool(cell.coalesce),
        prime_ns=prime_ns,
    )
    if swap.fell_back:
        return PreparedSwap(swap, Mechanism.FALLBACK)
    return PreparedSwap(swap, Mechanism.BATCHED_COPY if request.device.is_cuda else Mechanism.HOST_THREAD)
