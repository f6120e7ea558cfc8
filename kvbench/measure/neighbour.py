"""The neighbour of the swaps: work on streams and in memory of its own, kept running by a thread of its own."""

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from typing import ClassVar, Final, NamedTuple, Protocol

from kvbench.cells.axes import Direction, Neighbour
from kvbench.cells.cell import Cell
from kvbench.engine.device import DIRECTIONS, Buffer, Device, Event, MemoryKind, Stream
from kvbench.ground.errors import KvbenchError
from kvbench.measure.torch_work import TorchWork
from kvbench.models.steps import BATCH, USUAL, StepSizes
from kvbench.run.rendezvous import Meeting

# Work kept on the stream ahead of what runs, and its maximum in iterations: a driver's queue has room for about a
# thousand operations, and a full queue also blocks the thread of the swaps.
AHEAD_US: Final = 30_000
LEAST_AHEAD, MOST_AHEAD = 3, 200
CALIBRATION_ITERATIONS: Final = 5
WARMUP_S: Final = 0.02
NAP_S: Final = 0.0005
# Long, since launches beside a swap's kernel delay the begin of another kernel by some 20 us (H200, driver 580.159.04).
IDLE_US: Final = 10_000

# A layer of the step beside `neighbour=idle`, which computes nothing.
IDLE_LAYER_US: Final = 100
# Of each sequence of a decode step: its token id and its position, the ids of its blocks, its sampled token.
IDS_BYTES, TABLE_BYTES, SAMPLED_BYTES = 16, 512, 8


class NeighbourError(KvbenchError):
    """The neighbour died; the message says why."""


class NeighbourWork(Protocol):
    """Iterations on the device. One that `reads_back` ends with a copy to the host."""

    reads_back: ClassVar[bool] = False

    def thread(self) -> AbstractContextManager[object]:
        """Return the context that the submitting thread enters once."""
        return nullcontext()

    def submit(self, computed: Event) -> None:
        """Submit one iteration, which ends on the neighbour's stream; record `computed` before its readback, if any."""


class IdleWork(NeighbourWork):
    """Waits: one thread of one SM spins on the clock."""

    def __init__(self, device: Device, stream: Stream) -> None:
        self._driver, self._handle = device.driver, stream.handle

    def submit(self, _computed: Event) -> None:
        self._driver.delay(IDLE_US * 1000, self._handle)


class DecodeWork(NeighbourWork):
    """Decode steps with the small copies of an engine, in pinned memory and on a stream of their own, `copies`.

    A step waits for its inputs, and its readback for the step, both on the device. The inputs of the next step follow
    the readback on the same stream, as an engine's, which are the tokens that were sampled.
    """

    reads_back = True

    def __init__(self, device: Device, copies: Stream, model: StepSizes, meeting: Meeting | None = None) -> None:
        self._driver, self._copies, self._step = device.driver, copies, Stream(device.driver)
        self._work = TorchWork(Neighbour.DECODE, ordinal_of(device), self._step.handle, model=model, meeting=meeting)
        self._arrived, self._stepped = Event(device.driver), Event(device.driver)
        self._inputs = [self._buffers(BATCH * size_bytes) for size_bytes in (IDS_BYTES, TABLE_BYTES)]
        self._sampled = self._buffers(BATCH * SAMPLED_BYTES)

    def thread(self) -> AbstractContextManager[object]:
        return self._work.thread()

    def submit(self, computed: Event) -> None:
        copies, step = self._copies.handle, self._step.handle
        for host, on_device in self._inputs:
            self._copy(on_device, host, Direction.H2D)
        self._arrived.record(copies)
        self._arrived.hold(step)
        self._work.submit()
        self._stepped.record(step)
        self._stepped.hold(copies)
        computed.record(copies)
        host, on_device = self._sampled
        self._copy(host, on_device, Direction.D2H)

    def _buffers(self, size_bytes: int) -> tuple[Buffer, Buffer]:
        host = Buffer(self._driver, MemoryKind.allocated, size_bytes)
        return host, Buffer(self._driver, MemoryKind.device, size_bytes)

    def _copy(self, to: Buffer, source: Buffer, direction: Direction) -> None:
        self._driver.transfer(to.address, source.address, to.size_bytes, DIRECTIONS[direction], self._copies.handle)


class Iteration(NamedTuple):
    """The events of an iteration: when it had computed, if it reads back, and its end."""

    computed: Event
    end: Event


class RunningNeighbour:
    """Keeps the device supplied with iterations of `work`, from its own thread, while it is wanted.

    Iterations end on `stream`. The time of an iteration is the device time between two consecutive ends, so it includes
    any time in which the stream was out of work; `dry` counts how often that happened.
    """

    def __init__(self, device: Device, stream: Stream, work: NeighbourWork) -> None:
        self._driver, self._stream, self._work = device.driver, stream, work
        self._wanted, self._parked, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self._closing = False
        self._error: Exception | None = None
        self._ahead, self.usual_us = LEAST_AHEAD, 0.0
        self._most = sys.maxsize  # iterations that are submitted while it is wanted
        self._flying: deque[Iteration] = deque()
        self._free: list[Iteration] = []
        self._last = self._iteration()
        self._times_us: list[float] = []
        self._readbacks_us: list[float] = []
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
            self._parked.wait()
        self.completed()

    def run_for(self, seconds: float, iterations: int) -> tuple[int, int]:
        """Return two results of `completed`, this many seconds and whole iterations apart at least.

        The iteration that runs when both have passed is whole too. Raises NeighbourError.
        """
        first, until_s = self.begin(seconds, iterations), time.perf_counter() + seconds
        while self.completed() < first + iterations or time.perf_counter() < until_s:
            time.sleep(NAP_S)
        wanted = self.end_of(first, iterations)
        while (last := self.completed()) < wanted:
            time.sleep(NAP_S)
        return first, last

    def completed(self) -> int:
        """Return the number of completed iterations; raises NeighbourError if the neighbour died."""
        with self._lock:
            if self._error is not None:
                raise NeighbourError(f"the neighbour died: {type(self._error).__name__}: {self._error}")
            self._reap()
            return len(self._times_us)

    def begin(self, _seconds: float, _iterations: int) -> int:
        """Return `completed` at the beginning of a turn, which lasts for a time and a number of iterations at least."""
        return self.completed()

    def end_of(self, first: int, iterations: int) -> int:
        """Return what `completed` is when a turn that began at `first` has enough whole iterations: with the one that
        runs now, for a long one is not cut off.
        """
        return max(self.completed() + 1, first + 1 + iterations)

    def times_us(self, first: int, last: int) -> list[float]:
        """Return the times of the iterations that began and ended between two results of `completed`."""
        return self._times_us[first + 1 : last]

    def readbacks_us(self, first: int, last: int) -> list[float]:
        """Return how long the same iterations waited for their readback; empty if they have none."""
        return self._readbacks_us[first + 1 : last]

    def close(self) -> None:
        self._closing = True
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._driver.bind_thread()
            with self._work.thread():
                self._calibrate()
                while self._is_wanted():  # the first iteration counts its wait too, and is one of the warm-up
                    submitted = 0
                    while self._wanted.is_set() and not self._closing:
                        submitted += self._supply(submitted)
                        if submitted == self._most:
                            self._wanted.clear()
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
        """Determine what an iteration takes alone, and so how many to keep ahead."""
        self._last.end.record(self._stream.handle)
        for _ in range(CALIBRATION_ITERATIONS):
            self._submit()
        self._drain()
        self.usual_us = max(1.0, median(self._times_us))
        self._ahead = min(MOST_AHEAD, max(LEAST_AHEAD, round(AHEAD_US / self.usual_us)))

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
        made = self._free.pop() if self._free else self._iteration()
        self._work.submit(made.computed)
        made.end.record(self._stream.handle)
        with self._lock:
            self._flying.append(made)

    def _iteration(self) -> Iteration:
        return Iteration(Event(self._driver), Event(self._driver))

    def _drain(self) -> None:
        self._stream.synchronize()
        with self._lock:
            self._reap()

    def _reap(self) -> None:
        while self._flying and self._flying[0].end.completed():
            ended = self._flying.popleft()
            self._times_us.append(ended.end.us_since(self._last.end))
            if self._work.reads_back:
                self._readbacks_us.append(ended.end.us_since(ended.computed))
            self._free.append(self._last)
            self._last = ended


class JoinedNeighbour(RunningNeighbour):
    """A decode step that waits for those of other devices: in each turn, all submit the same number.

    Devices meet before a turn, at the `meeting` of their visit. Nothing runs between turns; the first iteration of a
    turn, which waits for the others to begin, is not one of its whole ones.
    """

    def __init__(self, device: Device, model: StepSizes, meeting: Meeting) -> None:
        """Raises NeighbourError, EngineError."""
        self.meeting, stream = meeting, Stream(device.driver)
        super().__init__(device, stream, DecodeWork(device, stream, model, meeting))

    @contextmanager
    def running(self) -> Iterator[None]:
        yield

    def begin(self, seconds: float, iterations: int) -> int:
        needed = max(iterations, math.ceil(seconds * 1e6 / self.usual_us))
        first = self.completed()
        self._most = 1 + max(self.meeting.exchange(needed))
        self._parked.wait()
        self._parked.clear()
        self._wanted.set()
        return first

    def end_of(self, first: int, _iterations: int) -> int:
        return first + self._most


def open_neighbour(device: Device, kind: Neighbour, model: StepSizes = USUAL) -> RunningNeighbour:
    """Return a neighbour, of a model, which waits until it is wanted. Raises NeighbourError, EngineError."""
    stream = Stream(device.driver)
    return RunningNeighbour(device, stream, _work(device, stream, kind, model))


def _work(device: Device, stream: Stream, kind: Neighbour, model: StepSizes) -> NeighbourWork:
    """Return work whose iterations end on `stream`."""
    if kind == Neighbour.IDLE:
        return IdleWork(device, stream)
    if kind == Neighbour.DECODE:
        return DecodeWork(device, stream, model)
    return TorchWork(kind, ordinal_of(device), stream.handle, model=model)


def ordinal_of(device: Device) -> int:
    return int(device.name.partition(":")[2])


class LayeredStep:
    """One step of an engine on a stream of its own: layer by layer, each after its mark.

    The layers of `neighbour=idle` wait for a fixed time; those of `decode` are a CUDA graph each, with the waits
    between them. One graph with external event nodes would need events of torch's own as marks, and could not share
    this code with the device cpu.
    """

    def __init__(self, device: Device, cell: Cell) -> None:
        self._stream = Stream(device.driver)
        self.end = Event(device.driver)
        self._thread: Callable[[], AbstractContextManager[object]] = nullcontext
        if cell.neighbour == Neighbour.IDLE:
            handle = self._stream.handle
            self._layers: Sequence[Callable[[], object]] = [
                lambda: device.driver.delay(IDLE_LAYER_US * 1000, handle)
            ] * cell.layers
            return
        work = TorchWork(cell.neighbour, ordinal_of(device), self._stream.handle, cell.layers)
        self._layers, self._thread = work.parts, work.thread

    def submit(self, stream: int, marks: Sequence[Event]) -> None:
        """Submit the step, layers evenly over `marks`, and make later work on `stream` wait for its end.

        Raises NeighbourError.
        """
        handle, each = self._stream.handle, len(self._layers) // len(marks)
        try:
            with self._thread():
                for number, layer in enumerate(self._layers):
                    if number % each == 0:
                        marks[number // each].hold(handle)
                    layer()
            self.end.record(handle)
            self.end.hold(stream)
        except Exception as error:  # any error costs its cell, not the sweep
            raise NeighbourError(f"the neighbour died: {type(error).__name__}: {error}") from error
