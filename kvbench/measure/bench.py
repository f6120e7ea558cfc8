"""The bench: what all measurements share, the ceiling measured on it, and a cell set up on it."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kvbench.backends.base import Backend, PreparedSwap, SwapRequest
from kvbench.cells.axes import Direction, Memory, Neighbour, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.device_facts import CEILING_BYTES
from kvbench.cells.locality import most_sets
from kvbench.engine.device import DIRECTIONS, STREAM_STATES, Device, Stream, TimedRegion, per_block
from kvbench.measure.disturbance import GpuClocks
from kvbench.measure.layers import LayeredStep, create_swap
from kvbench.measure.layout import lay_out
from kvbench.measure.neighbour import RunningNeighbour, open_neighbour
from kvbench.measure.steady_cpu import SteadyCpu
from kvbench.measure.workload import Pools, Workload
from kvbench.policy import Policy
from kvbench.sweep.estimate import CHAIN, SHORT_CHAIN, submissions
from kvbench.sweep.spec import Sampling
from kvbench.units import gigabytes_per_second

CEILING_WARMUPS: Final = 2


@dataclass(frozen=True)
class Bench:
    """Shared by all measurements: device, memory, the measured stream, its timed region, the best large copies.

    `neighbours` and `steps` are kept for later visits.
    """

    device: Device
    stream: Stream
    region: TimedRegion
    pools: Pools
    cpu: SteadyCpu
    clocks: GpuClocks
    policy: Policy | None = None
    best_gbps: dict[Direction, float] = field(default_factory=dict)
    neighbours: dict[Neighbour, RunningNeighbour] = field(default_factory=dict)
    steps: dict[tuple[Neighbour, int], LayeredStep] = field(default_factory=dict)

    def note_best(self, direction: Direction, copy_bytes: int, copy_us: float) -> None:
        """Keep the rate of the best large copies, by copy engine or SMs: on a coherent link SMs can be faster."""
        gbps = gigabytes_per_second(copy_bytes, copy_us)
        self.best_gbps[direction] = max(gbps, self.best_gbps.get(direction, 0.0))

    @contextmanager
    def neighbour(self, backend: Backend, cell: Cell) -> Iterator[RunningNeighbour | LayeredStep | None]:
        """Yield the neighbour of `cell`, or None if it has none. Raises NeighbourError, EngineError."""
        kind = cell.neighbour
        if kind is Neighbour.NONE:
            yield None
        elif cell.layers:
            if (kind, cell.layers) not in self.steps:
                self.steps[kind, cell.layers] = LayeredStep(self.device, cell)
            yield self.steps[kind, cell.layers]
        elif kind is Neighbour.SWAP:  # its work depends on the cell
            with closing(open_neighbour(self.device, backend, cell, self.policy)) as neighbour:
                yield neighbour
        else:
            if kind not in self.neighbours:
                self.neighbours[kind] = open_neighbour(self.device, backend, cell, self.policy)
            yield self.neighbours[kind]


def measure_ceiling(bench: Bench, direction: Direction, samples: int) -> tuple[int, list[float]]:
    """Time plain large copies in one direction; return the bytes per copy and the event times in microseconds."""
    copy_bytes = min(CEILING_BYTES[bench.device.kind], bench.pools.pool_bytes)
    lists = bench.pools.large_copy(direction, copy_bytes)
    swap = per_block(bench.device.driver, *lists, DIRECTIONS[direction])
    busy = STREAM_STATES[StreamState.BUSY]
    times_us = [bench.region.measure(swap, busy).gpu_us for _ in range(CEILING_WARMUPS + samples)]
    bench.pools.put_back(direction, Memory.ALLOCATED, np.zeros(1, dtype=np.uint64), lists[-1])
    bench.note_best(direction, copy_bytes, min(times_us))
    return copy_bytes, times_us[CEILING_WARMUPS:]


@dataclass(frozen=True)
class SetUp:
    """A cell ready to be visited: its blocks, and the backend's swaps of them (one, unless the cell is sustained)."""

    cell: Cell
    backend: Backend
    workload: Workload
    swaps: Sequence[PreparedSwap]


def set_up(
    bench: Bench, backend: Backend, cell: Cell, sampling: Sampling, seed: int, *, many_visits: bool = False
) -> SetUp:
    """Prepare `cell`; `seed` determines the places of the blocks. Raises EngineError, and any error of a backend.

    For `many_visits`, a pool has blocks for as many swaps as caches need to forget the first.
    """
    rng = np.random.default_rng(seed)
    state = cell.stream_state
    swaps_ahead = submissions(sampling, state)
    if many_visits and cell.pool_bytes:
        swaps_ahead = max(swaps_ahead, most_sets(cell))
    slots = CHAIN + SHORT_CHAIN if state is StreamState.SUSTAINED else 1
    workload = Workload(bench.pools, cell, lay_out(cell, swaps_ahead, rng), rng, slots)
    requests = [SwapRequest(bench.device, cell, memory, bench.policy) for memory in workload.memories]
    swaps = [create_swap(backend, request) for request in requests]
    return SetUp(cell, backend, workload, swaps)
