"""The copy kernel `sm` (on the device cpu the batched copy) with a delay behind it: a known share of the swap's time.

`sm_same` runs the same delay with no length, so that what launching it costs is on both sides of a comparison. And
`batched` with a call that takes longer, which that of `calls_same` does not.
"""

import time
from collections import deque
from collections.abc import Callable
from statistics import median

from kvbench.backends.base import Backend, PreparedSwap, SwapRequest
from kvbench.backends.batched import Batched
from kvbench.backends.sm import Sm
from kvbench.cells.axes import StreamState
from kvbench.cells.facts import DeviceFacts
from kvbench.engine.device import Event, Stream

TIMED = 5
# Between two visits of a side lies one of the other, of 15 pauses of 4 ms in halves.toml.
BETWEEN_VISITS_NS = 45_000_000
# The warm-ups and half of the samples of a visit in halves.toml.
FIRST_HALF = 2 + 8


class Same:
    name = "sm_same"
    summary = "sm (cpu: batched) and a delay of no length"
    default_sms = Sm.default_sms

    @staticmethod
    def share(swap: int) -> float:
        """Return the delay behind a swap, as a share of its time; `swap` counts those of a visit from 0 on."""
        del swap
        return 0.0

    def __init__(self) -> None:
        self._copies: dict[str, Backend] = {"cuda": Sm(), "cpu": Batched()}

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        return frozenset({"memory", "sms"}) if device.kind == "cuda" else frozenset()

    def unavailable(self, device: DeviceFacts) -> str | None:
        del device
        return None

    def create(self, request: SwapRequest) -> PreparedSwap:
        prepared = self._copies[request.device.kind].create(request)
        return PreparedSwap(Delayed(request, prepared, self.share), prepared.mechanism)


class Slow5(Same):
    name = "sm_slow5"
    summary = "sm (cpu: batched), slower by a twentieth"

    @staticmethod
    def share(swap: int) -> float:
        del swap
        return 0.05


class Slow10(Same):
    name = "sm_slow10"
    summary = "sm (cpu: batched), slower by a tenth"

    @staticmethod
    def share(swap: int) -> float:
        del swap
        return 0.10


class EverySecond(Same):
    name = "sm_second"
    summary = "sm (cpu: batched), every second swap takes twice as long"

    @staticmethod
    def share(swap: int) -> float:
        return float(swap % 2)


class SecondHalf(Same):
    name = "sm_later"
    summary = "sm (cpu: batched), twice as long in the second half of a visit"

    @staticmethod
    def share(swap: int) -> float:
        return float(swap >= FIRST_HALF)


class SameCalls:
    """The batched copy; `share` is how much longer its call takes than it does."""

    name = "calls_same"
    summary = "batched"
    share = 0.0

    def __init__(self) -> None:
        self._copies = Batched()

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        return self._copies.axes(device)

    def unavailable(self, device: DeviceFacts) -> str | None:
        return self._copies.unavailable(device)

    def create(self, request: SwapRequest) -> PreparedSwap:
        prepared = self._copies.create(request)
        return PreparedSwap(SlowCalls(prepared, self.share), prepared.mechanism)


class SlowCalls5(SameCalls):
    name = "calls_slow5"
    summary = "batched, its call slower by a twentieth"
    share = 0.05


class SlowCalls:
    """A swap whose submission keeps its thread longer, by `share` of what it takes."""

    def __init__(self, prepared: PreparedSwap, share: float) -> None:
        self._swap, self._share = prepared.swap, share
        self.calls = prepared.swap.calls

    def submit(self, stream: int) -> None:
        began_ns = time.perf_counter_ns()
        self._swap.submit(stream)
        until_ns = began_ns + (1 + self._share) * (time.perf_counter_ns() - began_ns)
        while time.perf_counter_ns() < until_ns:
            pass


class Delayed:
    """A swap and, behind it on the stream, a delay of `share` of the time that the swap before it took.

    In front of it, the launch of the swap would go on behind the delay and hide a part of it.
    """

    def __init__(self, request: SwapRequest, prepared: PreparedSwap, share: Callable[[int], float]) -> None:
        self._driver = request.device.driver
        self._swap = prepared.swap
        self._share = share
        self._number, self._last_ns = 0, 0
        self._began, self._ended = (Event(self._driver) for _ in range(2))
        self._times_us: deque[float] = deque(maxlen=TIMED)
        # What the host sees of a swap beyond its time on the device, which a latency holds.
        self._around_us = 0.0
        walls_us = self._walls_us()
        if request.cell.stream_state is StreamState.IDLE:
            self._around_us = max(0.0, median(walls_us) - median(self._times_us))
        self.calls = prepared.swap.calls + 1

    def delay_ns(self, swap: int) -> int:
        return round(self._share(swap) * 1e3 * (self._around_us + median(self._times_us)))

    def submit(self, stream: int) -> None:
        self._note()
        now_ns = time.monotonic_ns()
        self._number = 0 if now_ns - self._last_ns > BETWEEN_VISITS_NS else self._number + 1
        self._submit_timed(stream)
        self._driver.delay(self.delay_ns(self._number), stream)
        self._last_ns = time.monotonic_ns()

    def _submit_timed(self, stream: int) -> None:
        self._began.record(stream)
        self._swap.submit(stream)
        self._ended.record(stream)

    def _note(self) -> None:
        """Note the time of the last submission, if it has completed."""
        if self._ended.completed():
            self._times_us.append(self._ended.us_since(self._began))

    def _walls_us(self) -> list[float]:
        """Swap a few times; what this copies is overwritten before anything is compared."""
        stream, walls_us = Stream(self._driver), []
        for _ in range(1 + TIMED):
            start_ns = time.perf_counter_ns()
            self._submit_timed(stream.handle)
            stream.synchronize()
            walls_us.append((time.perf_counter_ns() - start_ns) / 1e3)
            self._note()
        return walls_us[1:]
