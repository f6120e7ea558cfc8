"""The bench: what all measurements of a worker share."""

from dataclasses import dataclass, field

from kvbench.backends.base import SwapRequest
from kvbench.cells.axes import Direction, Neighbour, pace_of
from kvbench.cells.cell import Cell
from kvbench.cells.policy import Policy
from kvbench.cells.units import gigabytes_per_second
from kvbench.engine.device import Device, Stream, SwapMemory, TimedRegion
from kvbench.measure.disturbance import GpuClocks, SteadyCpu, Threads
from kvbench.measure.neighbour import JoinedNeighbour, LayeredStep, RunningNeighbour, open_neighbour
from kvbench.measure.pools import Pools
from kvbench.models.steps import USUAL, StepSizes
from kvbench.run.rendezvous import Meeting


@dataclass(frozen=True)
class Bench:
    """Shared by all measurements: device, memory, the measured stream, its timed region, the best large copies.

    `neighbours`, which are of `step_model`, and `steps` are kept for later visits. `joined` has the step that was
    joined last with those of other devices, by the number of that joining. `ceiling_gbps` is the rate of the round's
    large copies, `meeting` is where the devices of a joint visit meet.
    """

    device: Device
    stream: Stream
    region: TimedRegion
    pools: Pools
    cpu: SteadyCpu
    clocks: GpuClocks
    policy: Policy | None = None
    meeting: Meeting | None = None
    step_model: StepSizes = USUAL
    threads: Threads = field(default_factory=Threads)
    best_gbps: dict[Direction, float] = field(default_factory=dict)
    ceiling_gbps: dict[Direction, float] = field(default_factory=dict)
    neighbours: dict[Neighbour, RunningNeighbour] = field(default_factory=dict)
    steps: dict[tuple[Neighbour, int], LayeredStep] = field(default_factory=dict)
    joined: dict[int, JoinedNeighbour] = field(default_factory=dict)
    pools_beside: dict[int, tuple[Stream, Pools]] = field(default_factory=dict)

    def note_best(self, direction: Direction, copy_bytes: int, copy_us: float) -> None:
        """Keep the rate of the best large copies, by copy engine or SMs: on a coherent link SMs can be faster."""
        gbps = gigabytes_per_second(copy_bytes, copy_us)
        self.best_gbps[direction] = max(gbps, self.best_gbps.get(direction, 0.0))

    def request(self, cell: Cell, memory: SwapMemory) -> SwapRequest:
        """Return what a backend is asked for; a pace that is a share of the ceiling is in GB/s there."""
        pace = pace_of(cell.pace)
        gbps = pace and (pace.gbps or round(pace.share * self.ceiling_gbps[cell.direction], 2))
        return SwapRequest(self.device, cell, memory, self.policy, gbps)

    def neighbour(self, kind: Neighbour) -> RunningNeighbour:
        """Return the work of this kind. Raises NeighbourError, EngineError."""
        if kind not in self.neighbours:
            with self.threads.ours():
                self.neighbours[kind] = open_neighbour(self.device, kind, self.step_model)
        return self.neighbours[kind]

    def joined_step(self) -> JoinedNeighbour:
        """Return the decode step that is joined with those of the other devices of the visit; raises as `neighbour`."""
        meeting, number = self.meeting, next(iter(self.joined), 0)
        assert meeting is not None  # the plan has such a cell on several devices only
        meeting.begin()
        of_ranks = meeting.exchange(number)
        if not number or set(of_ranks) != {number}:  # the first visit, or the worker of a rank is a new one
            while self.joined:
                self.joined.popitem()[1].close()
            number = 1 + max(of_ranks)
            with self.threads.ours():
                self.joined[number] = JoinedNeighbour(self.device, self.step_model, meeting)
        self.joined[number].meeting = meeting
        return self.joined[number]

    def beside(self, pool_bytes: int) -> tuple[Stream, Pools]:
        """Return another stream, and pools of this size for swaps on it; those of another size are released.

        Raises EngineError.
        """
        if pool_bytes not in self.pools_beside:
            self.pools_beside.clear()
            stream = Stream(self.device.driver)
            self.pools_beside[pool_bytes] = stream, Pools(self.device, stream, pool_bytes)
        stream, pools = self.pools_beside[pool_bytes]
        pools.rest()
        return stream, pools

    def step(self, cell: Cell) -> LayeredStep:
        """Return the step whose layers wait for the swaps of `cell`. Raises EngineError."""
        key = cell.neighbour, cell.layers
        if key not in self.steps:
            with self.threads.ours():
                self.steps[key] = LayeredStep(self.device, cell)
        return self.steps[key]
