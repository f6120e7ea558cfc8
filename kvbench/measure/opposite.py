"""Swaps of both directions at once: each alone and both together, in an order of turns that cancels drift.

One thread submits all of them, as an engine's does, each direction on a stream of its own, so that the next swap of a
direction is on its stream before the one that runs has ended. Rates and times are between events.
"""

import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from kvbench.backends.base import PreparedSwap
from kvbench.cells.cell import Cell
from kvbench.cells.units import gigabytes_per_second
from kvbench.engine.device import Device, Event, Stream
from kvbench.measure.beside import MOST_KEPT, FlowSample
from kvbench.measure.workload import Workload
from kvbench.results.schema import Opposite

# The shares of a visit's time: of each of two turns of one direction alone, and of the turn of both.
ALONE_SHARE, BOTH_SHARE = 0.1, 0.6
# Swaps of a direction that are submitted and have not ended.
AHEAD: Final = 2
# The least of swaps of each direction in a turn: from the end of the first to that of the last are whole swaps.
LEAST_SWAPS: Final = 4


class Ended(NamedTuple):
    """A swap: its end on the device's clock and on the host's, since the turn began, and its submission, in us."""

    device_us: float
    host_us: float
    caller_us: float


class OneWay:
    """The swaps of one direction, on a stream and in pools of their own."""

    def __init__(self, device: Device, stream: Stream, workload: Workload, cell: Cell, prepared: PreparedSwap) -> None:
        self.stream, self.swap_bytes = stream, cell.swap_bytes
        self._workload, self._swap = workload, prepared.swap
        contents = [content.reshape(workload.sets, -1) for content in workload.contents()]
        self._lists = list(zip(workload.arrays(), contents, strict=True))
        self._free = [Event(device.driver) for _ in range(AHEAD)]
        self._flying: deque[tuple[Event, float]] = deque()
        self._submitted = 0
        self.ended: list[Ended] = []

    def supply(self) -> None:
        """Submit a swap if one more may be on the stream. Its list is read by then, so the next can be written."""
        if not self._free:
            return
        for array, content in self._lists:
            array[:] = content[self._submitted % self._workload.sets]
        began_s = time.perf_counter()
        self._swap.submit(self.stream.handle)
        caller_us = (time.perf_counter() - began_s) * 1e6
        self._submitted += 1
        self._workload.passed(1)
        event = self._free.pop()
        event.record(self.stream.handle)
        self._flying.append((event, caller_us))

    def reap(self, began: Event, began_s: float, *, wait: bool = False) -> None:
        """Note the swaps that have ended; with `wait`, all."""
        while self._flying and (wait or self._flying[0][0].completed()):
            event, caller_us = self._flying.popleft()
            event.wait()
            self.ended.append(Ended(event.us_since(began), (time.perf_counter() - began_s) * 1e6, caller_us))
            self._free.append(event)

    def gbps(self, ended: Sequence[Ended]) -> float:
        return gigabytes_per_second((len(ended) - 1) * self.swap_bytes, ended[-1].device_us - ended[0].device_us)


def both_ways(device: Device, here: OneWay, there: OneWay, seconds: float) -> tuple[Opposite, list[FlowSample]]:
    """Run the turns of a visit; return the rates, and a sample for each swap of `here` while `there` swapped too.

    Raises any error of a swap.
    """
    record = Opposite()

    def alone() -> None:
        for way, rates in ((here, record.alone_gbps), (there, record.opposite_alone_gbps)):
            turn(device, [way], ALONE_SHARE * seconds)
            rates.append(way.gbps(way.ended))

    alone()
    cpu_us = turn(device, [here, there], BOTH_SHARE * seconds)
    own, others = while_all(here.ended, there.ended)
    record.at_once_gbps.append(here.gbps(own))
    record.opposite_at_once_gbps.append(there.gbps(others))
    cpu_us /= len(here.ended)
    alone()
    samples = [_sample(before, after, cpu_us) for before, after in pairwise(own)]
    return record, samples[:: -(-len(samples) // MOST_KEPT)]


def _sample(before: Ended, after: Ended, cpu_us: float) -> FlowSample:
    """The sample of a swap, which began at the end of the one before it; `cpu_us` is the mean of its turn."""
    wall_us, event_us = after.host_us - before.host_us, after.device_us - before.device_us
    return FlowSample(after.caller_us, wall_us, min(after.caller_us, cpu_us), event_us)


def turn(device: Device, ways: Sequence[OneWay], seconds: float) -> float:
    """Swap for this long, and LEAST_SWAPS of each direction; return the CPU time of the thread in us."""
    began, cpu_s = Event(device.driver), time.thread_time()
    began.record(ways[0].stream.handle)
    for way in ways:
        way.ended = []
    began.wait()
    began_s = time.perf_counter()
    while time.perf_counter() < began_s + seconds or min(len(way.ended) for way in ways) < LEAST_SWAPS:
        for way in ways:
            way.supply()
            way.reap(began, began_s)
    for way in ways:
        way.reap(began, began_s, wait=True)
    return (time.thread_time() - cpu_s) * 1e6


def while_all(*ended: Sequence[Ended]) -> list[Sequence[Ended]]:
    """Return of each direction the swaps that ended while all directions swapped, two or more."""
    first_us = max(swaps[0].device_us for swaps in ended)
    last_us = min(swaps[-1].device_us for swaps in ended)
    common = [[swap for swap in swaps if first_us <= swap.device_us <= last_us] for swaps in ended]
    return [inside if len(inside) > 1 else swaps for inside, swaps in zip(common, ended, strict=True)]
