"""The copy kernel `sm` (on the device cpu the batched copy) with a delay behind it: a known share of the swap's time.

`sm_same` runs the same delay with no length, so that what launching it costs is on both sides of a comparison.
"""

import time
from collections import deque
from statistics import median

from kvbench.backends.base import Backend, PreparedSwap, SwapRequest
from kvbench.backends.driver_copies import Batched
from kvbench.backends.sm import Sm
from kvbench.cells.axes import StreamState
from kvbench.cells.facts import DeviceFacts
from kvbench.engine.device import Event, Stream

TIMED = 5


class Same:
    """The copy; `share` is the delay behind a swap, as a share of its time."""

    name = "sm_same"
    summary = "sm (cpu: batched) and a delay of no length"
    default_sms = Sm.default_sms
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
        return PreparedSwap(Delayed(request, prepared, self.share), prepared.mechanism)


class Slow5(Same):
    name = "sm_slow5"
    summary = "sm (cpu: batched), slower by a twentieth"
    share = 0.05


class Delayed:
    """A swap and, behind it on the stream, a delay of `share` of the time that the swap before it took.

    In front of it, the launch of the swap would go on behind the delay and hide a part of it.
    """

    def __init__(self, request: SwapRequest, prepared: PreparedSwap, share: float) -> None:
        self._driver = request.device.driver
        self._swap = prepared.swap
        self._share = share
        self._began, self._ended = (Event(self._driver) for _ in range(2))
        self._times_us: deque[float] = deque(maxlen=TIMED)
        # What the host sees of a swap beyond its time on the device, which a latency holds.
        self._around_us = 0.0
        walls_us = self._walls_us()
        if request.cell.stream_state is StreamState.IDLE:
            self._around_us = max(0.0, median(walls_us) - median(self._times_us))
        self.calls = prepared.swap.calls + 1

    def delay_ns(self) -> int:
        return round(self._share * 1e3 * (self._around_us + median(self._times_us)))

    def submit(self, stream: int) -> None:
        self._note()
        self._submit_timed(stream)
        self._driver.delay(self.delay_ns(), stream)

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
