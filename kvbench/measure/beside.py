"""Swaps beside a neighbour: each alone and both together, in an order of turns that cancels drift (ABBA)."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Final

import msgspec

from kvbench.backends.base import PreparedSwap
from kvbench.cells.axis import burst_of
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
    """One swap of a flow on an idle stream, with the fields of `engine.device.Sample`; caller_us and wall_us include
    pacing, cpu_us is at most the mean of its turn.
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
    """Consecutive swaps by the compiled loop, without gaps or paced by the cell's `burst` and `rate_cap`.

    `launches` are the swap in parts of at most launch_bytes.
    """

    def __init__(
        self, device: Device, stream: Stream, workload: Workload, cell: Cell, launches: Sequence[PreparedSwap]
    ) -> None:
        self._workload, self._cell = workload, cell
        burst_bytes, self._period_us = burst_of(cell.burst) if cell.burst != "none" else (0, 0)
        swaps = [launch.swap if isinstance(launch.swap, Swap) else launch.swap.submit for launch in launches]
        parts = zip(swaps, _least_us(cell, len(launches)), strict=True)
        burst_swaps = -(-burst_bytes // cell.swap_bytes)
        contents = [content.reshape(-1) for content in workload.contents()]
        columns = list(zip(workload.arrays(), contents, strict=True))
        self._loop = SwapLoop(device.driver, stream.handle, list(parts), columns, burst_swaps, self._period_us)

    def run(self, seconds: float) -> tuple[list[FlowSample], float]:
        """Swap for `seconds`, at least once; return MOST_KEPT of the swaps at most, evenly spaced, and the GB/s of all
        over the whole time: with bursts including the gaps, otherwise without what the loop does between two swaps.

        Bursts come for the nearest number of whole periods, since a burst without the pause behind it would add to the
        GB/s; for `seconds` if that number is 0.
        """
        if self._period_us and (periods := round(seconds * 1e6 / self._period_us)):
            seconds = periods * self._period_us / 1e6
        times = self._loop.run(seconds)
        rows = list(zip(times.caller_us, times.wall_us, strict=True))
        cpu_us = times.cpu_us / len(rows)
        self._workload.passed(len(rows))
        gbps = gigabytes_per_second(len(rows) * self._cell.swap_bytes, times.total_us)
        kept = rows[:: -(-len(rows) // MOST_KEPT)]
        return [FlowSample(caller_us, wall_us, min(caller_us, cpu_us)) for caller_us, wall_us in kept], gbps

    def finish(self) -> None:
        """Run the swap of the list that is written: swaps of one block have copied its first."""
        self._loop.finish()
        self._workload.passed(1)


def _least_us(cell: Cell, launches: int) -> list[float]:
    """Return the least time of each launch under the cell's rate cap; 0 without one."""
    if not cell.rate_cap:
        return [0.0] * launches
    step = max(1, cell.launch_bytes // cell.block_bytes) if cell.launch_bytes else cell.blocks
    blocks = (min(step, cell.blocks - start) for start in range(0, cell.blocks, step))
    return [count * cell.swap_bytes / cell.blocks / (cell.rate_cap * 1e3) for count in blocks]


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
