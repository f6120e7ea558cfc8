"""The copy kernel `sm` (on the device cpu the batched copy) with a delay behind it: a known share of the swap's time.

`sm_same` runs the same delay with no length, so that what launching it costs is on both sides of a comparison. And
`per_block` with calls that take longer, which `calls_same` do not.
"""

import time
from statistics import median

from kvbench.backends.base import Backend, PreparedSwap, SwapRequest
from kvbench.backends.batched import Batched
from kvbench.backends.per_block import PerBlock
from kvbench.backends.sm import Sm
from kvbench.cells.facts import DeviceFacts
from kvbench.engine.device import Stream

TIMED = 5


class Same:
    name = "sm_same"
    summary = "sm (cpu: batched) and a delay of no length"
    default_sms = 2
    share = 0.0

    def __init__(self) -> None:
        self._copies: dict[str, Backend] = {"cuda": Sm(), "cpu": Batched()}

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        return frozenset({"memory", "sms"}) if device.kind == "cuda" else frozenset()

    def unavailable(self, device: DeviceFacts) -> str | None:
        del device
        return None

    def create(self, request: SwapRequest) -> PreparedSwap:
        prepared = self._copies[request.device.kind].create(request)
        return PreparedSwap(Delayed(request, prepared, self.share), prepared.mechanism, prepared.retarget)


class Slow5(Same):
    name = "sm_slow5"
    summary = "sm (cpu: batched), slower by a twentieth"
    share = 0.05


class Slow10(Same):
    name = "sm_slow10"
    summary = "sm (cpu: batched), slower by a tenth"
    share = 0.10


class SameCalls:
    """One copy a block; `share` is how much longer the calls take than they do."""

    name = "calls_same"
    summary = "per_block"
    default_sms = None
    share = 0.0

    def __init__(self) -> None:
        self._copies = PerBlock()

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        return self._copies.axes(device)

    def unavailable(self, device: DeviceFacts) -> str | None:
        return self._copies.unavailable(device)

    def create(self, request: SwapRequest) -> PreparedSwap:
        prepared = self._copies.create(request)
        return PreparedSwap(SlowCalls(prepared, self.share), prepared.mechanism, prepared.retarget)


class SlowCalls5(SameCalls):
    name = "calls_slow5"
    summary = "per_block, its calls slower by a twentieth"
    share = 0.05


class SlowCalls:
    """A swap whose submission keeps its thread longer, by `share` of what it takes."""

    def __init__(self, prepared: PreparedSwap, share: float) -> None:
        self._swap, self._share = prepared.swap, share
        self.calls = prepared.swap.calls

    def prepare(self) -> None:
        self._swap.prepare()

    def submit(self, stream: int) -> None:
        began_ns = time.perf_counter_ns()
        self._swap.submit(stream)
        until_ns = began_ns + (1 + self._share) * (time.perf_counter_ns() - began_ns)
        while time.perf_counter_ns() < until_ns:
            pass


class Delayed:
    """A swap and, behind it on the stream, a delay of `share` of the time that the swap takes by itself.

    In front of it, the launch of the swap would go on behind the delay and hide a part of it.
    """

    def __init__(self, request: SwapRequest, prepared: PreparedSwap, share: float) -> None:
        self._driver = request.device.driver
        self._swap = prepared.swap
        self.delay_ns = round(share * self._own_ns())
        self.calls = prepared.swap.calls + 1

    def prepare(self) -> None:
        self._swap.prepare()

    def submit(self, stream: int) -> None:
        self._swap.submit(stream)
        self._driver.delay(self.delay_ns, stream)

    def _own_ns(self) -> float:
        """Return how long the swap takes here; what it copies meanwhile is overwritten before anything is compared."""
        stream = Stream(self._driver)
        return median([self._timed_ns(stream) for _ in range(1 + TIMED)][1:])

    def _timed_ns(self, stream: Stream) -> int:
        self._swap.prepare()
        start_ns = time.perf_counter_ns()
        self._swap.submit(stream.handle)
        stream.synchronize()
        return time.perf_counter_ns() - start_ns
