"""Swaps beside a neighbour, or beside swaps of the other direction: each is measured alone and both together, in an
order of turns that cancels drift.

Of swaps of both directions one thread submits all, as an engine's does, each direction on a stream of its own, so that
the next swap of a direction is on its stream before the one that runs has ended. Their rates and times are between
events.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

import msgspec

from kvbench.backends.base import PreparedSwap
from kvbench.cells.cell import Cell
from kvbench.cells.units import gigabytes_per_second
from kvbench.engine.device import Device, Event, Stream, Swap, SwapLoop
from kvbench.measure.neighbour import NeighbourError, RunningNeighbour
from kvbench.measure.workload import Workload
from kvbench.results.schema import Beside, Opposite

# The shares of a visit's time: of each of two turns of the swaps alone, of each of two of the neighbour alone, and of
# the turn of both, whose slow iterations are what is looked for.
SWAPS_SHARE, ALONE_SHARE, BOTH_SHARE = 0.07, 0.14, 0.58
# The least of whole iterations of the neighbour in a turn alone; those of a decode step differ by a thousandth.
LEAST_ALONE: Final = 5
# While an iteration is waited for, swaps go on for this long at a time.
STEP_S: Final = 0.001
# After that, at most, or as long as so much slower iterations take, it counts as stuck.
LONGEST_S, LONGEST_SLOWDOWN = 10.0, 50.0
# A queue has room for the copies of such a submission. One of more would wait for room, and the gate for it.
MOST_GATED_CALLS: Final = 256
# Of a turn: a turn of small swaps has tens of thousands.
MOST_KEPT: Final = 1000
# Of swaps of both directions: the shares of a visit's time of each of two turns of one direction alone, and of the turn
# of both.
ONE_WAY_SHARE, BOTH_WAYS_SHARE = 0.1, 0.6
# Swaps of a direction that are submitted and have not ended.
AHEAD: Final = 2
# The least of swaps of each direction in a turn: from the end of the first to that of the last are whole swaps.
LEAST_SWAPS: Final = 4


@dataclass(frozen=True, slots=True)
class FlowSample:
    """One swap of a flow, with the fields of `engine.device.Sample`; cpu_us is at most the mean of a turn."""

    caller_us: float
    wall_us: float
    cpu_us: float
    event_us: float = 0.0
    chain_us: float = 0.0
    pending_before: bool = False
    pending_after: bool = False
    depth_held: bool = True


@dataclass(slots=True)
class Turn:
    """The swaps of a turn: times in microseconds, one of each for a swap, and the CPU time of the thread in all."""

    caller_us: list[float] = field(default_factory=list)
    wall_us: list[float] = field(default_factory=list)
    cpu_us: float = 0.0

    @property
    def samples(self) -> list[FlowSample]:
        """MOST_KEPT of the swaps at most, evenly spaced."""
        rows = list(zip(self.caller_us, self.wall_us, strict=True))
        cpu_us = self.cpu_us / len(rows)
        kept = rows[:: -(-len(rows) // MOST_KEPT)]
        return [FlowSample(caller_us, wall_us, min(caller_us, cpu_us)) for caller_us, wall_us in kept]


class Flow:
    """Consecutive swaps by the compiled loop: each is waited for before the next is submitted.

    The stream waits during a submission, as in an engine, whose loads and stores wait for an event of a step: the
    driver leaves the copies to the copy engine, where an idle stream would have the CPU make small ones. The gate opens
    when the submission returns, not at the end of a step: one swap a step would say nothing about how much can be moved
    at what price. Nor are swaps submitted ahead: a copy engine that is never idle keeps the step's small copies waiting
    for good (H200, driver 580.159.04).
    """

    def __init__(self, device: Device, stream: Stream, workload: Workload, cell: Cell, prepared: PreparedSwap) -> None:
        self._workload, self._cell = workload, cell
        swap = prepared.swap if isinstance(prepared.swap, Swap) else prepared.swap.submit
        contents = [content.reshape(-1) for content in workload.contents()]
        columns = list(zip(workload.arrays(), contents, strict=True))
        gated = prepared.swap.calls <= MOST_GATED_CALLS
        self._loop = SwapLoop(device.driver, stream.handle, swap, columns, gated)

    def run(self, turn: Turn, seconds: float) -> None:
        """Add swaps to a turn for `seconds`, at least one."""
        times = self._loop.run(seconds)
        self._workload.passed(len(times.wall_us))
        turn.caller_us += times.caller_us
        turn.wall_us += times.wall_us
        turn.cpu_us += times.cpu_us

    def gbps(self, turn: Turn) -> float:
        """The GB/s of a turn over its whole time, without what the loop does between two swaps."""
        return gigabytes_per_second(len(turn.wall_us) * self._cell.swap_bytes, sum(turn.wall_us))

    def finish(self) -> None:
        """Run the swap of the list that is written: swaps of one block have copied its first."""
        self._loop.finish()
        self._workload.passed(1)


@dataclass(frozen=True, slots=True)
class Turns:
    """What the turns of a visit need: the swaps and the neighbour.

    The turn of both has `iterations` whole iterations of the neighbour at least.
    """

    flow: Flow
    neighbour: RunningNeighbour
    seconds: float
    iterations: int

    def measure(self) -> tuple[list[FlowSample], Beside]:
        """Run all turns; return the swaps beside the neighbour and the record of the turns.

        Raises NeighbourError, and any error of a swap.
        """
        record, dry = Beside(), self.neighbour.dry
        self._swaps_alone(record)
        with self.neighbour.running():
            self._neighbour_alone(record)
            samples = self._both(record)
            self._neighbour_alone(record)
        self._swaps_alone(record)
        self.flow.finish()
        return samples, msgspec.structs.replace(record, dry=self.neighbour.dry - dry)

    def _swaps_alone(self, record: Beside) -> None:
        turn = Turn()
        self.flow.run(turn, SWAPS_SHARE * self.seconds)
        record.swaps_alone_gbps.append(self.flow.gbps(turn))
        record.swaps_alone_us.append(median(turn.wall_us))

    def _neighbour_alone(self, record: Beside) -> None:
        first, last = self.neighbour.run_for(ALONE_SHARE * self.seconds, LEAST_ALONE)
        record.neighbour_alone_us.extend(self.neighbour.times_us(first, last))
        record.readback_alone_us.extend(self.neighbour.readbacks_us(first, last))

    def _both(self, record: Beside) -> list[FlowSample]:
        """Swap until enough iterations are whole, and the one that ran when they were: a long one is not cut off."""
        flow, neighbour, turn = self.flow, self.neighbour, Turn()
        first = neighbour.begin(BOTH_SHARE * self.seconds, self.iterations)
        flow.run(turn, BOTH_SHARE * self.seconds)
        wanted = neighbour.end_of(first, self.iterations)
        until_s = time.monotonic() + max(LONGEST_S, LONGEST_SLOWDOWN * self.iterations * neighbour.usual_us / 1e6)
        while (last := neighbour.completed()) < wanted:
            flow.run(turn, STEP_S)
            if time.monotonic() > until_s:
                raise NeighbourError(
                    f"the neighbour ended {last - first} iterations beside the swaps, too few to count"
                )
        record.swaps_beside_gbps.append(flow.gbps(turn))
        record.swaps_beside_us.append(median(turn.wall_us))
        record.neighbour_beside_us.extend(neighbour.times_us(first, last))
        record.readback_us.extend(neighbour.readbacks_us(first, last))
        return turn.samples


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
            run_turn(device, [way], ONE_WAY_SHARE * seconds)
            rates.append(way.gbps(way.ended))

    alone()
    cpu_us = run_turn(device, [here, there], BOTH_WAYS_SHARE * seconds)
    own, others = while_all(here.ended, there.ended)
    record.at_once_gbps.append(here.gbps(own))
    record.opposite_at_once_gbps.append(there.gbps(others))
    cpu_us /= len(here.ended)
    alone()
    samples = [_sample_between(before, after, cpu_us) for before, after in pairwise(own)]
    return record, samples[:: -(-len(samples) // MOST_KEPT)]


def _sample_between(before: Ended, after: Ended, cpu_us: float) -> FlowSample:
    """The sample of a swap, which began at the end of the one before it; `cpu_us` is the mean of its turn."""
    wall_us, event_us = after.host_us - before.host_us, after.device_us - before.device_us
    return FlowSample(after.caller_us, wall_us, min(after.caller_us, cpu_us), event_us)


def run_turn(device: Device, ways: Sequence[OneWay], seconds: float) -> float:
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
