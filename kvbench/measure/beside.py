"""Swaps beside a neighbour: each alone and both together, in an order of turns that cancels drift (ABBA)."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final

import msgspec

from kvbench.backends.base import PreparedSwap
from kvbench.cells.axis import burst_of
from kvbench.cells.cell import Cell
from kvbench.engine.device import Device, Event, Stream
from kvbench.measure.neighbour import RunningNeighbour
from kvbench.measure.workload import Workload
from kvbench.results.schema import Beside
from kvbench.units import gigabytes_per_second

# Each side runs alone before and after both run together.
TURNS: Final = ("neighbour", "swaps", "both", "both", "swaps", "neighbour")
ONE_BLOCK_SWAPS: Final = 8
# A swap that takes at least this many times as long as writing the next list hides that.
HIDES: Final = 2.0
# A sleep can overrun by this much, so the last part of a wait spins on the clock.
_COARSE_S: Final = 0.0002


@dataclass(frozen=True, slots=True)
class FlowSample:
    """One swap of a flow on an idle stream, with the fields of `engine.device.Sample`; caller_us and wall_us include
    pacing.
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
    """Consecutive swaps, without gaps or paced by the cell's `burst` and `rate_cap`.

    `launches` are the swap in parts of at most launch_bytes. Where a swap is long enough, the next list is written
    while it runs.
    """

    def __init__(
        self, device: Device, stream: Stream, workload: Workload, cell: Cell, launches: Sequence[PreparedSwap]
    ) -> None:
        self._driver, self._stream = device.driver, stream
        self._workload, self._cell, self._launches = workload, cell, launches
        self._end = Event(device.driver)
        self._hides = False
        self._advance_us = self._advance()  # one list is always written, at the end for `finish`
        self._burst_bytes, self._period_us = burst_of(cell.burst) if cell.burst != "none" else (0, 0)
        self._blocks_a_launch = max(1, cell.launch_bytes // cell.block_bytes) if cell.launch_bytes else cell.blocks

    def run(self, seconds: float) -> tuple[list[FlowSample], float]:
        """Swap for `seconds`, at least once; return the swaps and the GB/s over the whole time, including gaps.

        Bursts come for the nearest number of whole periods, since a burst without the pause behind it would add to the
        GB/s; for `seconds` if that number is 0.
        """
        if self._period_us and (periods := round(seconds * 1e6 / self._period_us)):
            seconds = periods * self._period_us / 1e6
        samples: list[FlowSample] = []
        began_s = burst_s = time.perf_counter()
        until_s, burst_bytes = began_s + seconds, 0
        while not samples or time.perf_counter() < until_s:
            if self._burst_bytes and burst_bytes >= self._burst_bytes:
                burst_s, burst_bytes = max(burst_s + self._period_us / 1e6, time.perf_counter()), 0
                _wait_until(min(burst_s, until_s))
                continue
            samples.append(self._swap())
            burst_bytes += self._cell.swap_bytes
        wall_us = (time.perf_counter() - began_s) * 1e6
        return samples, gigabytes_per_second(len(samples) * self._cell.swap_bytes, wall_us)

    def finish(self) -> None:
        """Run the swap of the list that is written, so that all blocks chosen by the workload are swapped."""
        self._submit()
        self._stream.synchronize()

    def _swap(self) -> FlowSample:
        """Swap the current list and write the next."""
        cpu_ns, start_ns = time.thread_time_ns(), time.perf_counter_ns()
        self._submit()
        caller_us = _us_since(start_ns)
        cpu_us = min(caller_us, (time.thread_time_ns() - cpu_ns) / 1e3)
        self._end.record(self._stream.handle)
        if self._hides:
            self._advance_us = self._advance()
        self._end.wait()
        wall_us = _us_since(start_ns)
        if not self._hides:
            self._advance_us = self._advance()
        self._hides = wall_us > HIDES * self._advance_us
        return FlowSample(caller_us, wall_us, cpu_us)

    def _advance(self) -> float:
        began_ns = time.perf_counter_ns()
        self._workload.advance()
        self._driver.bind_thread()  # the last submission can have made another device current
        return _us_since(began_ns)

    def _submit(self) -> None:
        due_s, left = time.perf_counter(), self._cell.blocks
        for launch in self._launches:
            launch.swap.submit(self._stream.handle)
            if self._cell.rate_cap:
                blocks = min(left, self._blocks_a_launch)
                left -= blocks
                due_s += blocks * self._cell.block_bytes / (self._cell.rate_cap * 1e9)
                _wait_until(due_s)


def measure_beside(
    flow: Flow, neighbour: RunningNeighbour, one_block_us: Callable[[], float], seconds: float
) -> tuple[list[FlowSample], Beside]:
    """Run all turns, `seconds` in total; return the swaps beside the neighbour and the record of the turns.

    `one_block_us` swaps one block and returns its wall time. Raises NeighbourError, and any error of a swap.
    """
    together: list[FlowSample] = []
    found = Beside()
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
                (found.swaps_beside_gbps if both else found.swaps_alone_gbps).append(gbps)
            last = neighbour.completed()
            if turn != "swaps":
                times_us = found.neighbour_beside_us if both else found.neighbour_alone_us
                times_us += neighbour.times_us(first, last)
            if turn != "neighbour":
                blocks_us = found.one_block_beside_us if both else found.one_block_alone_us
                blocks_us += [one_block_us() for _ in range(ONE_BLOCK_SWAPS)]
    flow.finish()
    return together, msgspec.structs.replace(found, dry=neighbour.dry - dry)


def _us_since(began_ns: int) -> float:
    return (time.perf_counter_ns() - began_ns) / 1e3


def _wait_until(due_s: float) -> None:
    if (left_s := due_s - time.perf_counter()) > _COARSE_S:
        time.sleep(left_s - _COARSE_S)
    while time.perf_counter() < due_s:
        pass
