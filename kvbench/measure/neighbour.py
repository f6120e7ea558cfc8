"""The neighbour of the swaps: work that runs continuously on its own stream and memory, with timed iterations."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from typing import Final, Protocol

import numpy as np

from kvbench.backends.base import Backend, SwapRequest, another
from kvbench.cells.axes import Neighbour
from kvbench.cells.cell import Cell
from kvbench.cells.locality import opposite, region_bytes
from kvbench.engine.device import Device, Event, Stream
from kvbench.errors import KvbenchError
from kvbench.measure.layout import lay_out
from kvbench.measure.workload import Pools, Workload
from kvbench.policy import Policy

# Work kept on the stream ahead of what runs, and its maximum in iterations: a driver's queue has room for about a
# thousand operations, and a full queue also blocks the thread of the swaps.
AHEAD_US: Final = 30_000
LEAST_AHEAD, MOST_AHEAD = 3, 200
CALIBRATION_ITERATIONS: Final = 5
WARMUP_S: Final = 0.02
NAP_S: Final = 0.0005
# Long, since launches beside a swap's kernel delay the begin of another kernel by some 20 us (H200, driver 580.159.04).
IDLE_US: Final = 10_000
SWAPS_AHEAD: Final = 16


class NeighbourError(KvbenchError):
    """The neighbour died; the message says why."""


class NeighbourWork(Protocol):
    """The work of a neighbour."""

    def thread(self) -> AbstractContextManager[object]:
        """Return the context that the submitting thread enters once."""
        return nullcontext()

    def submit(self) -> None:
        """Submit one iteration to the neighbour's stream."""


class IdleWork(NeighbourWork):
    """Waits: one thread of one SM spins on the clock."""

    def __init__(self, device: Device, stream: Stream) -> None:
        self._driver, self._handle = device.driver, stream.handle

    def submit(self) -> None:
        self._driver.delay(IDLE_US * 1000, self._handle)


class SwapsBack(NeighbourWork):
    """Swaps of the cell's kind and size in the opposite direction, on the same backend, in pools of their own.

    Their blocks are fresh and scattered where the cell's are.
    """

    def __init__(self, device: Device, stream: Stream, backend: Backend, cell: Cell, policy: Policy | None) -> None:
        backend = another(backend)
        cell, rng = opposite(cell), np.random.default_rng(0)
        self._pools = Pools(device, stream, region_bytes(cell, SWAPS_AHEAD))
        workload = Workload(self._pools, cell, lay_out(cell, SWAPS_AHEAD, rng), rng, SWAPS_AHEAD)
        self._contents, self._sets = workload.contents(), workload.sets
        self._lists = [workload.arrays(slot) for slot in range(SWAPS_AHEAD)]
        self._swaps = [backend.create(SwapRequest(device, cell, memory, policy)).swap for memory in workload.memories]
        self._done = [Event(device.driver) for _ in self._swaps]
        self._submitted = 0
        self._driver, self._handle = device.driver, stream.handle

    def submit(self) -> None:
        slot, number = self._submitted % SWAPS_AHEAD, self._submitted % self._sets
        self._submitted += 1
        self._done[slot].wait()
        for array, content in zip(self._lists[slot], self._contents, strict=True):
            array[:] = content[number]
        self._swaps[slot].submit(self._handle)
        self._done[slot].record(self._handle)


class RunningNeighbour:
    """Keeps a stream supplied with iterations of `work`, from its own thread, while it is wanted.

    The time of an iteration is the device time between two consecutive ends, so it includes any time in which the
    stream was out of work; `dry` counts how often that happened.
    """

    def __init__(self, device: Device, stream: Stream, work: NeighbourWork) -> None:
        self._driver, self._stream, self._work = device.driver, stream, work
        self._wanted, self._parked, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self._closing = False
        self._error: Exception | None = None
        self._ahead = LEAST_AHEAD
        self._flying: deque[Event] = deque()
        self._free: list[Event] = []
        self._last = Event(device.driver)
        self._times_us: list[float] = []
        self.dry = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._parked.wait()
        self.completed()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run within the context, warmed up at its start; at its end the stream is drained. Raises NeighbourError."""
        self._parked.clear()
        self._wanted.set()
        try:
            began, warm_s = self.completed(), time.perf_counter() + WARMUP_S
            while self.completed() == began or time.perf_counter() < warm_s:
                time.sleep(NAP_S)
            yield
        finally:
            self._wanted.clear()
            while not self._parked.wait(1.0) and self._thread.is_alive():
                pass
        self.completed()

    def completed(self) -> int:
        """Return the number of completed iterations; raises NeighbourError if the neighbour died."""
        with self._lock:
            if self._error is not None:
                raise NeighbourError(f"the neighbour died: {type(self._error).__name__}: {self._error}")
            self._reap()
            return len(self._times_us)

    def times_us(self, first: int, last: int) -> list[float]:
        """Return the times of the iterations that began and ended between two results of `completed`."""
        return self._times_us[first + 1 : last]

    def close(self) -> None:
        """End the thread."""
        self._closing = True
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._driver.bind_thread()
            with self._work.thread():
                self._calibrate()
                while self._is_wanted():
                    self._last.record(self._stream.handle)
                    submitted = 0
                    while self._wanted.is_set() and not self._closing:
                        submitted += self._supply(submitted)
                    self._drain()
        except Exception as error:  # any error costs its cell, not the sweep
            with self._lock:
                self._error = error
        finally:
            self._parked.set()

    def _is_wanted(self) -> bool:
        self._parked.set()
        self._wanted.wait()
        return not self._closing

    def _calibrate(self) -> None:
        """Determine how many iterations to keep ahead."""
        self._last.record(self._stream.handle)
        for _ in range(CALIBRATION_ITERATIONS):
            self._submit()
        self._drain()
        usual_us = max(1.0, median(self._times_us))
        self._ahead = min(MOST_AHEAD, max(LEAST_AHEAD, round(AHEAD_US / usual_us)))

    def _supply(self, submitted: int) -> bool:
        """Submit an iteration, or wait a little if enough are on the stream; return whether one was submitted."""
        with self._lock:
            self._reap()
            waiting = len(self._flying)
            self.dry += waiting == 0 and submitted > 0
        if waiting >= self._ahead:
            time.sleep(NAP_S)
            return False
        self._submit()
        return True

    def _submit(self) -> None:
        self._work.submit()
        end = self._free.pop() if self._free else Event(self._driver)
        end.record(self._stream.handle)
        with self._lock:
            self._flying.append(end)

    def _drain(self) -> None:
        self._stream.synchronize()
        with self._lock:
            self._reap()

    def _reap(self) -> None:
        while self._flying and self._flying[0].completed():
            end = self._flying.popleft()
            self._times_us.append(end.us_since(self._last))
            self._free.append(self._last)
            self._last = end


def open_neighbour(device: Device, backend: Backend, cell: Cell, policy: Policy | None) -> RunningNeighbour:
    """Return the neighbour of `cell`, which waits until it is wanted. Raises NeighbourError, EngineError."""
    stream = Stream(device.driver)
    return RunningNeighbour(device, stream, _work(device, stream, backend, cell, policy))


def _work(device: Device, stream: Stream, backend: Backend, cell: Cell, policy: Policy | None) -> NeighbourWork:
    match cell.neighbour:
        case Neighbour.IDLE:
            return IdleWork(device, stream)
        case Neighbour.SWAP:
            return SwapsBack(device, stream, backend, cell, policy)
        case _:
            from kvbench.measure.torch_work import TorchWork

            return TorchWork(cell.neighbour, int(device.name.partition(":")[2]), stream.handle)
