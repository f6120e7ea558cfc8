"""Swaps beside a neighbour: each alone and both together, in an order of turns that cancels drift (ABBA)."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Final

import msgspec

from kvbench.backends.base import PreparedSwap
from kvbench.cells.cell import Cell
from kvbench.engine.device import Device, Stream, Swap, SwapLoop
from kvbench.measure.neighbour import RunningNeighbour
from kvbench.measure.workload import Workload
from kvbench.results.schema import Beside
from kvbench.units import gigabytes_per_second

# Each side runs alone before and after both run together.
TURNS: Final = ("neighbour", "swaps", "both", "both", "swaps", "neighbour")
ONE_BLOCK_SWAPS: Final = 8
# Of a turn: a turn of small swaps has tens of thousands.
MOST_KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class FlowSample:
    """One swap of a flow on an idle stream, with the fields of `engine.device.Sample`; cpu_us is at most the mean of a
    turn.
    """

    caller_us: float
    wall_us: float
    cpu_us: float
    gpu_us: float = 0.0
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
    """Run all turns, `seconds` in total; return the swaps beside the neighbour and the record of the turns.

    `one_block_us` swaps one block and returns its wall time. Raises NeighbourError, and any error of a swap.
    """
    together: list[FlowSample] = []
    record = Beside()
    dry = neighbour.dry
    for turn in TURNS:
        both = turn == "both"
        with nullcontext() if turn == "swaps" else neighbour.running():
            first = neighbour.completed()
            if turn == "neighbour":
                time.sleep(seconds / len(TURNS))
            else:
                samples, gbps = flow.run(seconds / len(TURNS))
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
