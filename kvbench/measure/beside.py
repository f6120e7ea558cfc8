"""Swaps beside a neighbour: each is measured alone and both together, in an order of turns that cancels drift."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import msgspec

from kvbench.backends.base import PreparedSwap
from kvbench.cells.cell import Cell
from kvbench.cells.units import gigabytes_per_second
from kvbench.engine.device import Device, LoopTimes, Stream, Swap, SwapLoop
from kvbench.measure.neighbour import RunningNeighbour
from kvbench.measure.workload import Workload
from kvbench.results.schema import Beside

# The shares of a visit's time: of each of two turns of the swaps alone, of each of two of the neighbour alone, and of
# the turn of both, whose slow iterations are what is looked for.
SWAPS_SHARE, ALONE_SHARE, BOTH_SHARE = 0.07, 0.14, 0.58
# The least of whole iterations of the neighbour in a turn alone: they differ by a thousandth.
LEAST_ALONE: Final = 5
# While an iteration is waited for, swaps go on for this long at a time.
STEP_S: Final = 0.001
ONE_BLOCK_SWAPS: Final = 8
# Of a turn: a turn of small swaps has tens of thousands.
MOST_KEPT: Final = 1000


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
    """Consecutive swaps by the compiled loop, without gaps: each is submitted while the one before it runs.

    So no call meets an idle stream, where the driver may let the CPU copy, but the first of a turn. That one waits for
    the end of the neighbour's iteration that runs, as a load waits for a step and a store for what it stores, and is
    not among the swaps of the turn. To wait for a step each time would leave the link idle until its end: an engine
    submits a swap a step, which says nothing about how much could be moved.
    """

    def __init__(self, device: Device, stream: Stream, workload: Workload, cell: Cell, prepared: PreparedSwap) -> None:
        self._stream, self._workload, self._cell = stream, workload, cell
        swap = prepared.swap if isinstance(prepared.swap, Swap) else prepared.swap.submit
        contents = [content.reshape(-1) for content in workload.contents()]
        columns = list(zip(workload.arrays(), contents, strict=True))
        self._loop = SwapLoop(device.driver, stream.handle, swap, columns)

    def begin(self, neighbour: RunningNeighbour | None = None) -> Turn:
        """Begin a turn, behind the iteration of the neighbour that runs; returns when its first swap has ended."""
        if neighbour is not None:
            neighbour.hold(self._stream.handle)
        self._go_on(0.0)
        return Turn()

    def run(self, turn: Turn, seconds: float) -> None:
        """Add swaps to a turn for `seconds`, at least one. Another is running when this returns."""
        times = self._go_on(seconds)
        turn.caller_us += times.caller_us
        turn.wall_us += times.wall_us
        turn.cpu_us += times.cpu_us

    def end(self, turn: Turn) -> float:
        """Wait for the swap that runs; return the GB/s of the turn, over its whole time."""
        self._workload.passed(len(self._loop.drain().wall_us))
        return gigabytes_per_second(len(turn.wall_us) * self._cell.swap_bytes, sum(turn.wall_us))

    def finish(self) -> None:
        """Run the swap of the list that is written: swaps of one block have copied its first."""
        self._loop.finish()
        self._workload.passed(1)

    def _go_on(self, seconds: float) -> LoopTimes:
        times = self._loop.run(seconds)
        self._workload.passed(len(times.wall_us))
        return times


@dataclass(frozen=True, slots=True)
class Turns:
    """What the turns of a visit need: the swaps, the neighbour, and a swap of one block, which returns its wall time.

    The turn of both has `iterations` whole iterations of the neighbour at least.
    """

    flow: Flow
    neighbour: RunningNeighbour
    one_block_us: Callable[[], float]
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
        turn = self.flow.begin()
        self.flow.run(turn, SWAPS_SHARE * self.seconds)
        record.swaps_alone_gbps.append(self.flow.end(turn))
        record.swaps_alone_us.append(median(turn.wall_us))
        record.one_block_alone_us.extend(self.one_block_us() for _ in range(ONE_BLOCK_SWAPS))

    def _neighbour_alone(self, record: Beside) -> None:
        first, last = self.neighbour.run_for(ALONE_SHARE * self.seconds, LEAST_ALONE)
        record.neighbour_alone_us.extend(self.neighbour.times_us(first, last))
        record.readback_alone_us.extend(self.neighbour.readbacks_us(first, last))

    def _both(self, record: Beside) -> list[FlowSample]:
        """Swap until enough iterations are whole, and the one that ran when they were: a long one is not cut off."""
        flow, neighbour = self.flow, self.neighbour
        turn = flow.begin(neighbour)
        first = neighbour.completed()
        flow.run(turn, BOTH_SHARE * self.seconds)
        wanted = max(neighbour.completed() + 1, first + 1 + self.iterations)
        while (last := neighbour.completed()) < wanted:
            flow.run(turn, STEP_S)
        record.swaps_beside_gbps.append(flow.end(turn))
        record.swaps_beside_us.append(median(turn.wall_us))
        record.neighbour_beside_us.extend(neighbour.times_us(first, last))
        record.readback_us.extend(neighbour.readbacks_us(first, last))
        record.one_block_beside_us.extend(self.one_block_us() for _ in range(ONE_BLOCK_SWAPS))
        return turn.samples
