"""The neighbour of the swaps: work on a stream and in memory of its own, and swaps beside it.

Each side is measured alone and both together, in an order of turns that cancels drift.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Final, Protocol

import msgspec

from kvbench.backends.base import PreparedSwap
from kvbench.cells.axes import Neighbour
from kvbench.cells.cell import Cell
from kvbench.cells.units import gigabytes_per_second
from kvbench.engine.device import Device, Event, Stream, Swap, SwapLoop
from kvbench.errors import KvbenchError
from kvbench.measure.workload import Workload
from kvbench.results.schema import Beside

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
# Each side runs alone before and after both run together: turns with their shares of the time. Work beside swaps takes
# up to five times as long, and its slow iterations are what is looked for.
TURNS: Final = (("neighbour", 1), ("swaps", 0.5), ("both", 4), ("swaps", 0.5), ("neighbour", 1))
# The least of iterations of the neighbour in a share of 1.
LEAST_ITERATIONS: Final = 10
ONE_BLOCK_SWAPS: Final = 8
# Of a turn: a turn of small swaps has tens of thousands.
MOST_KEPT: Final = 1000


class NeighbourError(KvbenchError):
    """The neighbour died; the message says why."""


class NeighbourWork(Protocol):
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
        self._ahead, self.usual_us = LEAST_AHEAD, 0.0
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
        self._last.record(self._stream.handle)
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


def open_neighbour(device: Device, kind: Neighbour) -> RunningNeighbour:
    """Return a neighbour, which waits until it is wanted. Raises NeighbourError, EngineError."""
    stream = Stream(device.driver)
    return RunningNeighbour(device, stream, _work(device, stream, kind))


def _work(device: Device, stream: Stream, kind: Neighbour) -> NeighbourWork:
    if kind == Neighbour.IDLE:
        return IdleWork(device, stream)
    from kvbench.measure.torch_work import TorchWork

    return TorchWork(kind, int(device.name.partition(":")[2]), stream.handle)


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
        from kvbench.measure.torch_work import TorchWork

        work = TorchWork(cell.neighbour, int(device.name.partition(":")[2]), self._stream.handle, cell.layers)
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


@dataclass(frozen=True, slots=True)
class FlowSample:
    """One swap of a flow on an idle stream, with the fields of `engine.device.Sample`; cpu_us is at most the mean of a
    turn.
    """

    caller_us: float
    wall_us: float
    cpu_us: float
    event_us: float = 0.0
    chain_us: float = 0.0
    pending_before: bool = False
    pending_after: bool = False
    depth_held: bool = True


class Flow:
    """Consecutive swaps by the compiled loop, without gaps."""

    def __init__(self, device: Device, stream: Stream, workload: Workload, cell: Cell, prepared: PreparedSwap) -> None:
        self._workload, self._cell = workload, cell
        swap = prepared.swap if isinstance(prepared.swap, Swap) else prepared.swap.submit
        contents = [content.reshape(-1) for content in workload.contents()]
        columns = list(zip(workload.arrays(), contents, strict=True))
        self._loop = SwapLoop(device.driver, stream.handle, swap, columns)

    def run(self, seconds: float) -> tuple[list[FlowSample], float]:
        """Swap for `seconds`, at least once; return MOST_KEPT of the swaps at most, evenly spaced, and the GB/s of all
        over the whole time, without what the loop does between two swaps.
        """
        times = self._loop.run(seconds)
        rows = list(zip(times.caller_us, times.wall_us, strict=True))
        cpu_us = times.cpu_us / len(rows)
        self._workload.passed(len(rows))
        gbps = gigabytes_per_second(len(rows) * self._cell.swap_bytes, sum(times.wall_us))
        kept = rows[:: -(-len(rows) // MOST_KEPT)]
        return [FlowSample(caller_us, wall_us, min(caller_us, cpu_us)) for caller_us, wall_us in kept], gbps

    def finish(self) -> None:
        """Run the swap of the list that is written: swaps of one block have copied its first."""
        self._loop.finish()
        self._workload.passed(1)


def measure_beside(
    flow: Flow, neighbour: RunningNeighbour, one_block_us: Callable[[], float], seconds: float
) -> tuple[list[FlowSample], Beside]:
    """Run all turns, in `seconds` or as long as the neighbour's iterations need; return the swaps beside the neighbour
    and the record of the turns.

    `one_block_us` swaps one block and returns its wall time. Raises NeighbourError, and any error of a swap.
    """
    together: list[FlowSample] = []
    record = Beside()
    dry = neighbour.dry
    unit_s = max(seconds / sum(share for _, share in TURNS), LEAST_ITERATIONS * neighbour.usual_us / 1e6)
    for turn, share in TURNS:
        both = turn == "both"
        with nullcontext() if turn == "swaps" else neighbour.running():
            first = neighbour.completed()
            if turn == "neighbour":
                time.sleep(share * unit_s)
            else:
                samples, gbps = flow.run(share * unit_s)
                together += samples if both else []
                (record.swaps_beside_gbps if both else record.swaps_alone_gbps).append(gbps)
                usual_us = median(sample.wall_us for sample in samples)
                (record.swaps_beside_us if both else record.swaps_alone_us).append(usual_us)
            last = neighbour.completed()
            if turn != "swaps":
                times_us = record.neighbour_beside_us if both else record.neighbour_alone_us
                times_us += neighbour.times_us(first, last)
            if turn != "neighbour":
                blocks_us = record.one_block_beside_us if both else record.one_block_alone_us
                blocks_us += [one_block_us() for _ in range(ONE_BLOCK_SWAPS)]
    flow.finish()
    return together, msgspec.structs.replace(record, dry=neighbour.dry - dry)
