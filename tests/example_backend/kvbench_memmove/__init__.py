"""The smallest backend: `memmove` for each descriptor, on the cpu device."""

import ctypes

from kvbench import DeviceFacts, Mechanism, PreparedSwap, SwapRequest


class Memmove:
    name = "memmove"
    summary = "memmove on the calling thread"

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        del device
        return frozenset()

    def unavailable(self, device: DeviceFacts) -> str | None:
        return None if device.kind == "cpu" else "memmove cannot reach GPU memory"

    def create(self, request: SwapRequest) -> PreparedSwap:
        return PreparedSwap(MemmoveSwap(request), Mechanism.HOST_THREAD)


class MemmoveSwap:
    """`submit` keeps the stream's order by waiting for what was there before it.

    A kernel on a GPU would be launched on the stream instead, and not wait.
    """

    calls = 1

    def __init__(self, request: SwapRequest) -> None:
        self._driver = request.device.driver
        self._memory = request.memory

    def submit(self, stream: int) -> None:
        memory = self._memory
        columns = (memory.destinations.tolist(), memory.sources.tolist(), memory.sizes.tolist())
        self._driver.synchronize(stream)
        for destination, source, size in zip(*columns, strict=True):
            ctypes.memmove(destination, source, size)
