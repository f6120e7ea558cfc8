"""Measure one visit of a cell: verify one swap, warm up, sample, verify again."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

import numpy as np

from kvbench.backends.base import Backend, Mechanism, PreparedSwap, SwapRequest
from kvbench.backends.split import create_launches, joined
from kvbench.cells.axes import Direction, Memory, Neighbour, Priority, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.facts import CEILING_BYTES, LEAST_BESIDE_S
from kvbench.engine.device import (
    DIRECTIONS,
    STREAM_STATES,
    Device,
    Event,
    Queue,
    Sample,
    Stream,
    Swap,
    TimedRegion,
    per_block,
)
from kvbench.engine.faults import Fault
from kvbench.measure.beside import Flow, FlowSample, measure_beside
from kvbench.measure.disturbance import Clocks, GpuClocks, disturbances
from kvbench.measure.effective_path import effective_path
from kvbench.measure.layout import lay_out
from kvbench.measure.neighbour import RunningNeighbour, open_neighbour
from kvbench.measure.steady_cpu import SteadyCpu
from kvbench.measure.workload import Pools, VerificationError, Workload
from kvbench.results.schema import Beside, EffectivePath, StopReason
from kvbench.sweep.plan import CHAIN, SHORT_CHAIN, submissions
from kvbench.sweep.spec import Sampling
from kvbench.tune.table import Policy
from kvbench.units import gigabytes_per_second

CEILING_WARMUPS: Final = 2
BUSY_TWINS: Final = 3
# The delay before a busy sample relative to the expected submission time, and its maximum: a full channel blocks the
# submitting thread until the delay ends.
DELAY_MARGIN: Final = 2
DELAY_SPARE_US: Final = 1_000
MAX_DELAY_US: Final = 100_000
ORDER_DELAY_US: Final = 20_000
FASTER_THAN_THE_LINK: Final = 1.05
# The times of smaller swaps are too short for the resolution of events.
SPEED_CHECKED_FROM_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Bench:
    """Shared by all measurements: device, memory, the measured stream, its timed region, the best large copies.

    `urgent` is a stream of high priority and its region; `neighbours` are kept for later visits.
    """

    device: Device
    stream: Stream
    region: TimedRegion
    pools: Pools
    cpu: SteadyCpu
    clocks: GpuClocks
    policy: Policy | None = None
    best_gbps: dict[Direction, float] = field(default_factory=dict)
    urgent: tuple[Stream, TimedRegion] | None = None
    neighbours: dict[tuple[Neighbour, bool], RunningNeighbour] = field(default_factory=dict)

    def at(self, priority: Priority) -> "Bench":
        """Return the bench with the measured stream at `priority`."""
        if priority is not Priority.HIGH or self.urgent is None:
            return self
        return replace(self, stream=self.urgent[0], region=self.urgent[1])

    @contextmanager
    def neighbour(self, backend: Backend, cell: Cell) -> Iterator[RunningNeighbour | None]:
        """Yield the neighbour of `cell`, or None if it has none. Raises NeighbourError, EngineError."""
        if cell.neighbour is Neighbour.NONE:
            yield None
        elif cell.neighbour is Neighbour.SWAP:  # its work depends on the cell
            with closing(open_neighbour(self.device, backend, cell)) as own:
                yield own
        else:
            key = cell.neighbour, cell.priority is Priority.LOW
            if key not in self.neighbours:
                self.neighbours[key] = open_neighbour(self.device, backend, cell)
            yield self.neighbours[key]


@dataclass(frozen=True)
class Measurement:
    """The samples of one visit and their evidence; `calls` is the number of driver calls or launches per swap.

    `probe_us` is the longest time of a fixed piece of work on the CPU, `slowdown` its ratio to the best time.
    """

    samples: Sequence[Sample | FlowSample]
    stopped_by: StopReason
    path: EffectivePath
    calls: int
    verified_bytes: int
    verify_ms: float
    busy_cpu_us: float | None
    cpu: int
    probe_us: float
    slowdown: float
    clocks: Clocks
    disturbed: Sequence[str]
    chosen: str | None
    warnings: Sequence[str]
    beside: Beside | None = None


@dataclass(frozen=True)
class SetUp:
    """A cell ready to be visited: its blocks, and the backend's swaps of them (one, unless the cell is sustained).

    `requests` are the requests of these swaps.
    """

    cell: Cell
    backend: Backend
    workload: Workload
    requests: Sequence[SwapRequest]
    swaps: Sequence[PreparedSwap]


def set_up(bench: Bench, backend: Backend, cell: Cell, sampling: Sampling, seed: int) -> SetUp:
    """Prepare `cell`; `seed` determines the places of the blocks. Raises EngineError, and any error of a backend."""
    rng = np.random.default_rng(seed)
    state = cell.stream_state
    slots = CHAIN + SHORT_CHAIN if state is StreamState.SUSTAINED else 1
    workload = Workload(bench.pools, cell, lay_out(cell, submissions(sampling, state), rng), rng, slots)
    requests = [SwapRequest(bench.device, cell, memory, bench.policy) for memory in workload.memories]
    swaps = [joined(create_launches(backend, request)) for request in requests]
    return SetUp(cell, backend, workload, requests, swaps)


def visit(
    bench: Bench,
    ready: SetUp,
    sampling: Sampling,
    fault: Fault | None,
    *,
    is_first: bool = True,
    verify: bool = True,
    cpu: int | None = None,
    begin: Callable[[], None] | None = None,
) -> Measurement:
    """Measure one visit of a cell. Raises EngineError, VerificationError, and any error of a backend.

    The submitting thread is pinned to `cpu`, by default to a CPU of full speed. The first visit of a cell compares one
    swap byte for byte before it times any, and checks that a swap is ordered in its stream. After the last sample,
    every set of blocks that the samples used is compared, and one more swap, to detect a backend that stopped copying.
    Without `verify` nothing is compared, and the pools stay as the swaps left them. `begin` waits until other devices
    are ready to swap too; samples are then taken until the time is up.
    """
    bench = bench.at(ready.cell.priority)
    cell, workload, prepared = ready.cell, ready.workload, ready.swaps[0]
    state = cell.stream_state
    workload.verify_ms = 0.0
    take_alone = _sampler(bench.region, prepared, workload, _on_its_own(cell, StreamState.IDLE), Queue())
    take_busy = _sampler(bench.region, prepared, workload, _on_its_own(cell, StreamState.BUSY), Queue())
    with bench.device.injecting(fault), bench.neighbour(ready.backend, cell) as neighbour:
        if verify:
            bench.pools.rest()
        verified_bytes = _check_first(bench, prepared, workload, take_alone, verify=verify) if is_first else 0
        with bench.cpu.held(cpu) as held_cpu:
            probes_us = [bench.cpu.probe_us()]
            samples, stopped_by, beside = _take_all(bench, ready, sampling, take_busy, neighbour, begin)
            probes_us.append(bench.cpu.probe_us())
            slowdowns = [bench.cpu.slowdown(probe_us) for probe_us in probes_us]
            clocks = bench.clocks.read()
            with_twins = prepared.mechanism is Mechanism.BATCHED_COPY and state is not StreamState.BUSY
            busy_cpu_us = median(take_busy().cpu_us for _ in range(BUSY_TWINS)) if with_twins else None
        if verify:
            verified_bytes += workload.verify() + _check_one(workload, take_alone)
        else:
            workload.leave()
    times_us = [getattr(sample, state.swap_clock) for sample in samples]
    # The difference of two chains is too small where the short one was held up; the long one hides nothing.
    _check_speed(bench, cell, [sample.chain_us for sample in samples] if state is StreamState.SUSTAINED else times_us)
    return Measurement(
        samples=samples,
        stopped_by=stopped_by,
        path=effective_path(prepared.mechanism, [sample.cpu_us for sample in samples], busy_cpu_us),
        calls=prepared.swap.calls,
        verified_bytes=verified_bytes,
        verify_ms=workload.verify_ms,
        busy_cpu_us=busy_cpu_us,
        cpu=held_cpu,
        probe_us=max(probes_us),
        slowdown=max(slowdowns),
        clocks=clocks,
        disturbed=disturbances(slowdowns, clocks, times_us),
        chosen=prepared.chosen,
        warnings=[*_warnings(samples, cell), *_warnings_beside(beside), *prepared.warnings],
        beside=beside,
    )


def _check_first(
    bench: Bench, prepared: PreparedSwap, workload: Workload, take: Callable[[], Sample], *, verify: bool
) -> int:
    """Check one swap, if wanted, and the order in its stream; return the number of compared bytes."""
    verified_bytes = _check_one(workload, take) if verify else 0
    _check_order(bench, prepared, workload)
    return verified_bytes


def _check_one(workload: Workload, take: Callable[[], Sample]) -> int:
    """Make one swap over memory at rest and verify it; return the number of compared bytes."""
    take()
    return workload.verify()


def measure_ceiling(bench: Bench, direction: Direction, samples: int) -> tuple[int, list[float]]:
    """Time plain large copies in one direction; return the bytes per copy and the event times in microseconds."""
    copy_bytes = CEILING_BYTES[bench.device.kind]
    memory = bench.pools.large_copy(direction, copy_bytes)
    swap = per_block(bench.device.driver, memory.sources, memory.destinations, memory.sizes, DIRECTIONS[direction])
    idle = STREAM_STATES[StreamState.IDLE]
    times_us = [bench.region.measure(swap, idle).gpu_us for _ in range(CEILING_WARMUPS + samples)]
    bench.pools.put_back(direction, Memory.ALLOCATED, np.zeros(1, dtype=np.uint64), memory.sizes)
    best_gbps = gigabytes_per_second(copy_bytes, min(times_us))
    bench.best_gbps[direction] = max(best_gbps, bench.best_gbps.get(direction, 0.0))
    return copy_bytes, times_us[CEILING_WARMUPS:]


def take_samples(
    take: Callable[[], Sample], sampling: Sampling, *, to_the_end: bool = False
) -> tuple[list[Sample], StopReason]:
    """Sample until the maximum (none with `to_the_end`) or the time limit is reached; return the samples and which."""
    deadline_s = time.monotonic() + sampling.cell_seconds
    samples: list[Sample] = []
    while to_the_end or len(samples) < sampling.max_samples:
        samples.append(take())
        if len(samples) >= sampling.min_samples and time.monotonic() >= deadline_s:
            return samples, "time"
    return samples, "max_samples"


def _sampler(
    region: TimedRegion, prepared: PreparedSwap, workload: Workload, cell: Cell, queue: Queue
) -> Callable[[], Sample]:
    """Return a function that takes a sample: choose the next blocks, pause, time one swap."""
    swap, state = prepared.swap, STREAM_STATES[cell.stream_state]

    def take() -> Sample:
        workload.advance()
        prepared.retarget()
        if cell.pause_us:
            _work_for(cell.pause_us)
        if isinstance(swap, Swap):
            return region.measure(swap, state, queue)
        return region.measure_python(swap.prepare, swap.submit, state, queue)

    return take


def _take_all(
    bench: Bench,
    ready: SetUp,
    sampling: Sampling,
    take_busy: Callable[[], Sample],
    neighbour: RunningNeighbour | None,
    begin: Callable[[], None] | None,
) -> tuple[Sequence[Sample | FlowSample], StopReason, Beside | None]:
    """Warm up, wait for the other devices and take the samples, beside the neighbour if there is one."""
    take = _taker(bench, ready, take_busy)
    for _ in range(sampling.warmups):
        take()
    if begin is not None:
        begin()
    if neighbour is None:
        return *take_samples(take, sampling, to_the_end=begin is not None), None
    flow, beside = _sample_beside(bench, ready, neighbour, sampling)
    return flow, "time", beside


def _sample_beside(
    bench: Bench, ready: SetUp, neighbour: RunningNeighbour, sampling: Sampling
) -> tuple[Sequence[FlowSample], Beside]:
    request = ready.requests[0]
    twins = [create_launches(ready.backend, request) for _ in range(2)]
    flow = Flow(bench.device, bench.stream, ready.workload, ready.cell, twins)
    seconds = max(LEAST_BESIDE_S, sampling.cell_seconds)
    return measure_beside(flow, neighbour, _one_block(bench.region, ready.backend, request), seconds)


def _one_block(region: TimedRegion, backend: Backend, request: SwapRequest) -> Callable[[], float]:
    """Return a function that swaps the first block of the current swap again and returns its wall time in us."""
    swap, idle = backend.create(replace(request, memory=request.memory.part(0, 1))), STREAM_STATES[StreamState.IDLE]

    def take_us() -> float:
        swap.retarget()
        if isinstance(swap.swap, Swap):
            return region.measure(swap.swap, idle).wall_us
        return region.measure_python(swap.swap.prepare, swap.swap.submit, idle).wall_us

    return take_us


def _taker(bench: Bench, ready: SetUp, take_busy: Callable[[], Sample]) -> Callable[[], Sample]:
    """Return a function that takes a sample in the stream state of the cell."""
    cell, workload = ready.cell, ready.workload
    if cell.stream_state is StreamState.SUSTAINED:
        return _chain_sampler(bench.region, ready.swaps, workload)
    queue = _behind_a_delay(cell, take_busy) if cell.stream_state is StreamState.BUSY else Queue()
    return _sampler(bench.region, ready.swaps[0], workload, cell, queue)


def _chain_sampler(region: TimedRegion, swaps: Sequence[PreparedSwap], workload: Workload) -> Callable[[], Sample]:
    """Return a function that takes a sustained sample: a short and a long chain of different blocks."""
    compiled = [one.swap for one in swaps if isinstance(one.swap, Swap)]

    def take() -> Sample:
        for slot, prepared in enumerate(swaps):
            workload.advance(slot)
            prepared.retarget()
        if len(compiled) == len(swaps):
            return region.sustained(compiled, SHORT_CHAIN)
        return region.sustained_python([(one.swap.prepare, one.swap.submit) for one in swaps], SHORT_CHAIN)

    return take


def _on_its_own(cell: Cell, state: StreamState) -> Cell:
    return replace(cell, stream_state=state, queued=0, streams=1, pause_us=0)


def _work_for(pause_us: int) -> None:
    """Do other CPU work for `pause_us`, which evicts the data of a swap from the CPU's caches."""
    scratch = np.zeros(1 << 20, dtype=np.uint64)
    until_s = time.perf_counter() + pause_us / 1e6
    while time.perf_counter() < until_s:
        scratch += 1


def _behind_a_delay(cell: Cell, take_busy: Callable[[], Sample]) -> Queue:
    """Return the queue of `cell` after a delay that outlasts its submission, estimated from that of one swap."""
    submit_us = max(take_busy().submit_us for _ in range(BUSY_TWINS))
    delay_us = min(DELAY_MARGIN * max(1, cell.queued) * submit_us + DELAY_SPARE_US, MAX_DELAY_US)
    return Queue(cell.queued, cell.streams, round(delay_us * 1000))


def _check_order(bench: Bench, prepared: PreparedSwap, workload: Workload) -> None:
    """Raise VerificationError if a swap that was submitted after other work arrives before that work completes."""
    stream, delayed = bench.stream, Event(bench.device.driver)
    workload.advance()
    prepared.retarget()
    prepared.swap.prepare()
    bench.device.driver.delay(ORDER_DELAY_US * 1000, stream.handle)
    delayed.record(stream.handle)
    prepared.swap.submit(stream.handle)
    early = False
    while not early and not delayed.completed():
        # The observation counts only if the earlier work was still running.
        early = workload.arrived_early() and not delayed.completed()
    stream.synchronize()
    workload.verify()
    if early:
        raise VerificationError("the swap did not wait for earlier work: it is not ordered in its stream")


def _check_speed(bench: Bench, cell: Cell, times_us: Sequence[float]) -> None:
    """Raise VerificationError for a visit faster than the link: what it timed cannot be the swap."""
    best_gbps = bench.best_gbps.get(cell.direction)
    if best_gbps is None or not bench.device.is_cuda or cell.swap_bytes < SPEED_CHECKED_FROM_BYTES:
        return
    gbps = gigabytes_per_second(cell.swap_bytes, median(times_us))
    if gbps > FASTER_THAN_THE_LINK * best_gbps:
        raise VerificationError(
            f"{gbps:.0f} GB/s is faster than the link: large copies reach only {best_gbps:.1f} GB/s"
        )


def _warnings_beside(beside: Beside | None) -> list[str]:
    if beside is None:
        return []
    short = not beside.neighbour_alone_us or not beside.neighbour_beside_us
    return [
        *(["a turn without a whole iteration of the neighbour (cell_seconds too short?)"] if short else []),
        *([f"the neighbour's stream ran out of work {beside.dry} times"] if beside.dry else []),
    ]


def _warnings(samples: Sequence[Sample | FlowSample], cell: Cell) -> list[str]:
    state = cell.stream_state
    if state is StreamState.SUSTAINED:
        return []
    strayed = sum(sample.pending_before is not (state is StreamState.BUSY) for sample in samples)
    if not strayed:
        return []
    why = "the queued swaps had already run" if cell.queued else "busy_delay_us too short?"
    return [f"the stream was not {state} in {strayed} of {len(samples)} samples ({why})"]
