"""The driver's batched copy: all descriptors in one call, or in calls of at most D."""

from kvbench.axes import Order
from kvbench.backends.base import Mechanism, PreparedSwap, SwapRequest
from kvbench.engine import ACCESS_ORDERS, DIRECTIONS, batched
from kvbench.facts import DeviceFacts


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
        )
        if swap.fell_back:
            return PreparedSwap(swap, Mechanism.FALLBACK)
        return PreparedSwap(swap, Mechanism.BATCHED_COPY if request.device.is_cuda else Mechanism.HOST_THREAD)
