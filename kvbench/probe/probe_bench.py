"""What probes share inside their process: a device with a stream, a gate before it, and blocks to copy and compare."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvbench.cells.axes import Direction, Order
from kvbench.engine.device import (
    ACCESS_ORDERS,
    DIRECTIONS,
    Addresses,
    Buffer,
    Device,
    Event,
    MemoryKind,
    Stream,
    copy_arrays,
)
from kvbench.probe import Step

POISON: Final = 0xA5
# The gate holds the stream for a bounded time; where a call took longer than that, it is tried with a longer one.
_GATES_MS: Final = (20, 100, 400)
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Arrays:
    """The arguments of one batched copy, as memory of this process."""

    destinations: Addresses
    sources: Addresses
    sizes: Addresses
    attributes: NDArray[np.int32]
    firsts: Addresses


def arrays_of(destinations: Addresses, sources: Addresses, sizes: Addresses, order: Order = Order.STREAM) -> Arrays:
    """The arguments of a batched copy with one CUmemcpyAttributes for all."""
    # The access order, two hints of a location with two numbers each, the flags.
    attributes = np.array([ACCESS_ORDERS[order].value, 0, 0, 0, 0, 0], np.int32)
    return Arrays(destinations.copy(), sources.copy(), sizes.copy(), attributes, np.zeros(1, np.uint64))


@dataclass(frozen=True)
class ProbeBench:
    device: Device
    stream: Stream

    def step(self, doing: str, number: float = 0, unit: str = "") -> None:
        """Tell the parent what comes next, so that a crash or a hang is located."""
        sys.stdout.buffer.write(msgspec.json.encode(Step(doing, number, unit)) + b"\n")
        sys.stdout.buffer.flush()

    def gate(self, hold_ms: float) -> Event:
        """Keep the stream busy; the event completes when it is free again."""
        self.device.driver.delay(int(hold_ms * 1e6), self.stream.handle)
        opened = Event(self.device.driver)
        opened.record(self.stream.handle)
        return opened

    def gated(self, work: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> bool:
        """Run `work` while the stream is busy; return whether the stream stayed busy until its end."""
        for hold_ms in _GATES_MS:
            prepare()
            opened = self.gate(hold_ms)
            work()
            was_busy = not opened.completed()
            self.stream.synchronize()
            if was_busy:
                break
        return was_busy

    def submit(self, arrays: Arrays, direction: Direction) -> tuple[float, float]:
        """Make one call; return its wall time and its thread's CPU time in microseconds. Raises EngineError."""
        lists = arrays.destinations, arrays.sources, arrays.sizes
        attributes = arrays.attributes.ctypes.data, arrays.firsts.ctypes.data
        self.device.driver.bind_thread()
        wall_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        copy_arrays(self.device.driver, *lists, *attributes, 1, DIRECTIONS[direction], self.stream.handle)
        return (time.perf_counter_ns() - wall_ns) / 1e3, (time.thread_time_ns() - cpu_ns) / 1e3


class Blocks:
    """Blocks in a host and in a device buffer, at the same offsets of both, copied in a shuffled order."""

    def __init__(self, bench: ProbeBench, sizes: Sequence[int]) -> None:
        self._bench, self._sizes = bench, np.array(sizes, np.uint64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._order = np.random.default_rng(len(sizes)).permutation(len(sizes))
        self.total_bytes = int(self._sizes.sum())
        driver = bench.device.driver
        self.host, self._spare = (Buffer(driver, MemoryKind.allocated, self.total_bytes) for _ in range(2))
        self.card = Buffer(driver, MemoryKind.device, self.total_bytes)
        self._expected: Bytes = self._spare.array()

    def arrays(self, direction: Direction, order: Order = Order.STREAM, size: int | None = None) -> Arrays:
        """The arguments of a copy of every block, or of its first `size` bytes."""
        sizes = self._sizes if size is None else np.full(len(self._sizes), size, np.uint64)
        host, card = (self._starts + np.uint64(buffer.address) for buffer in (self.host, self.card))
        to, source = (card, host) if direction is Direction.H2D else (host, card)
        return arrays_of(to[self._order], source[self._order], sizes[self._order], order)

    def load(self, direction: Direction) -> None:
        """Write random bytes into the source and a poison into the destination."""
        driver, stream = self._bench.device.driver, self._bench.stream
        self._spare.fill_random(self.total_bytes, seed=1)
        self._expected = self._spare.array().copy()
        if direction is Direction.H2D:
            self.host.array()[:] = self._expected
            driver.fill(self.card.address, POISON, self.total_bytes, stream.handle)
        else:
            self.host.fill_value(self.total_bytes, POISON)
            self.move(self.card, self._spare, Direction.H2D)
        stream.synchronize()

    def move(self, to: Buffer, source: Buffer, direction: Direction) -> None:
        """Queue a plain copy of the whole buffer, which no fault applies to."""
        driver, stream = self._bench.device.driver, self._bench.stream
        driver.transfer(to.address, source.address, self.total_bytes, DIRECTIONS[direction], stream.handle)

    def wrong(self, direction: Direction) -> int:
        """Count the blocks of the destination, without gaps, that differ from what `load` wrote into the source."""
        if direction is Direction.H2D:
            self.move(self._spare, self.card, Direction.D2H)
        self._bench.stream.synchronize()
        arrived = (self._spare if direction is Direction.H2D else self.host).array()
        differ = np.logical_or.reduceat(arrived != self._expected, self._starts.astype(np.int64))
        return int(np.count_nonzero(differ))
