"""One asynchronous copy per block, as engines did before the batched call existed."""

from kvbench.backends.base import Backend, Mechanism, PreparedSwap, SwapRequest
from kvbench.cells.facts import PER_BLOCK, QUEUE_AXES, DeviceFacts
from kvbench.engine.device import DIRECTIONS, per_block


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
