"""Measures one cell: check one swap, warm up, sample, check again."""

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
# How much longer the delay in front of a busy sample is than its submission should take, and how long at most: a
# channel that is full holds the submitting thread until the delay ends.
DELAY_MARGIN: Final = 2
DELAY_SPARE_US: Final = 1_000
MAX_DELAY_US: Final = 100_000
ORDER_DELAY_US: Final = 20_000
FASTER_THAN_THE_LINK: Final = 1.05
# Times of smaller swaps are too short for the events' resolution.
SPEED_CHECKED_FROM_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Bench:
    """What every measurement shares: device, memory, the measured stream, its timed region, the best large copies.

    `urgent` are a stream of high priority and its region; `neighbours` those that later visits take again.
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
        """Have the neighbour of `cell` ready meanwhile, if it has one. Raises NeighbourError, EngineError."""
        if cell.neighbour is Neighbour.NONE:
            yield None
        elif cell.neighbour is Neighbour.SWAP:  # depends on the cell
            with closing(open_neighbour(self.device, backend, cell)) as own:
                yield own
        else:
            key = cell.neighbour, cell.priority is Priority.LOW
            if key not in self.neighbours:
                self.neighbours[key] = open_neighbour(self.device, backend, cell)
            yield self.neighbours[key]


@dataclass(frozen=True)
class Measurement:
    """The samples of one visit and what they rest on; `calls` are driver calls or launches in one swap.

    `probe_us` is what a fixed piece of work took on the CPU at worst, `slowdown` how many times its best that is.
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
    """A cell ready to be visited: its blocks, and the backend's swaps over them, one unless they are sustained.

    `requests` are what the backend made the swaps of.
    """

    cell: Cell
    backend: Backend
    workload: Workload
    requests: Sequence[SwapRequest]
    swaps: Sequence[PreparedSwap]


def set_up(bench: Bench, backend: Backend, cell: Cell, sampling: Sampling, seed: int) -> SetUp:
    """Make `cell` ready; `seed` decides the blocks' places. Raises EngineError, and what a backend raises."""
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
    """Measure one visit of a cell. Raises EngineError, VerificationError, and what a backend raises.

    The submitting thread is kept on `cpu`, by default on one of full speed. The first swap is compared byte for byte
    before anything is timed, and in the first visit of a cell a swap must keep to its stream. Every set of blocks that
    the samples used is compared behind the last of them, and one more swap is made and compared, so that one that
    stopped copying is found. Without `verify` nothing is compared, and the pools are left as the swaps leave them.
    `begin` returns once other devices are ready to swap too: then samples are taken until the time is up.
    """
    bench = bench.at(ready.cell.priority)
    cell, workload, prepared = ready.cell, ready.workload, ready.swaps[0]
    state = cell.stream_state
    workload.verify_ms = 0.0
    take_alone = _sampler(bench.region, prepared, workload, _on_its_own(cell, StreamState.IDLE), Queue())
    take_busy = _sampler(bench.region, prepared, workload, _on_its_own(cell, StreamState.BUSY), Queue())
    with bench.device.injecting(fault), bench.neighbour(ready.backend, cell) as neighbour:
        verified_bytes = _check_one(bench, workload, take_alone) if verify else 0
        if is_first:
            _check_order(bench, prepared, workload)
        with bench.cpu.held(cpu) as held_cpu:
            probes_us = [bench.cpu.probe_us()]
            samples, stopped_by, beside = _take_all(bench, ready, sampling, take_busy, neighbour, begin)
            probes_us.append(bench.cpu.probe_us())
            slowdowns = [bench.cpu.slowdown(probe_us) for probe_us in probes_us]
            clocks = bench.clocks.read()
            busy_cpu_us = None
            if prepared.mechanism is Mechanism.BATCHED_COPY and state is not StreamState.BUSY:
                busy_cpu_us = median(take_busy().cpu_us for _ in range(BUSY_TWINS))
        if verify:
            verified_bytes += workload.verify() + _check_one(bench, workload, take_alone)
        else:
            workload.leave()
    times_us = [getattr(sample, state.swap_clock) for sample in samples]
    _check_speed(bench, cell, times_us)
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


def _check_one(bench: Bench, workload: Workload, take: Callable[[], Sample]) -> int:
    """Make one swap over memory at rest and compare it; return the bytes compared."""
    bench.pools.rest()
    take()
    return workload.verify()


def measure_ceiling(bench: Bench, direction: Direction, samples: int) -> tuple[int, list[float]]:
    """Time plain large copies one way; return the bytes of one and its event times in microseconds."""
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
    """Sample until the cap is reached (`to_the_end`: there is none) or the time is up, and say which."""
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
    """Return what takes a sample: other blocks, a pause, one timed swap."""
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
    """Warm up, wait for the other devices and take the samples, beside the neighbour where there is one."""
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
    """Return what swaps the first block of the current swap once more and returns its wall time in microseconds."""
    swap, idle = backend.create(replace(request, memory=request.memory.part(0, 1))), STREAM_STATES[StreamState.IDLE]

    def take_us() -> float:
        swap.retarget()
        if isinstance(swap.swap, Swap):
            return region.measure(swap.swap, idle).wall_us
        return region.measure_python(swap.swap.prepare, swap.swap.submit, idle).wall_us

    return take_us


def _taker(bench: Bench, ready: SetUp, take_busy: Callable[[], Sample]) -> Callable[[], Sample]:
    """Return what takes a sample in the stream state of the cell."""
    cell, workload = ready.cell, ready.workload
    if cell.stream_state is StreamState.SUSTAINED:
        return _chain_sampler(bench.region, ready.swaps, workload)
    queue = _behind_a_delay(cell, take_busy) if cell.stream_state is StreamState.BUSY else Queue()
    return _sampler(bench.region, ready.swaps[0], workload, cell, queue)


def _chain_sampler(region: TimedRegion, swaps: Sequence[PreparedSwap], workload: Workload) -> Callable[[], Sample]:
    """Return what takes a sustained sample: a short and a long chain of other blocks."""
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
    """Keep the CPU at other work for a while, which evicts what a swap has left in its caches."""
    scratch = np.zeros(1 << 20, dtype=np.uint64)
    until_s = time.perf_counter() + pause_us / 1e6
    while time.perf_counter() < until_s:
        scratch += 1


def _behind_a_delay(cell: Cell, take_busy: Callable[[], Sample]) -> Queue:
    """Return the queue of `cell` behind a delay that outlasts its submission, going by what one swap's takes."""
    submit_us = max(take_busy().submit_us for _ in range(BUSY_TWINS))
    delay_us = min(DELAY_MARGIN * max(1, cell.queued) * submit_us + DELAY_SPARE_US, MAX_DELAY_US)
    return Queue(cell.queued, cell.streams, round(delay_us * 1000))


def _check_order(bench: Bench, prepared: PreparedSwap, workload: Workload) -> None:
    """Raise VerificationError if a swap that was submitted behind other work arrives before that work is done."""
    stream, delayed = bench.stream, Event(bench.device.driver)
    workload.advance()
    prepared.retarget()
    prepared.swap.prepare()
    bench.device.driver.delay(ORDER_DELAY_US * 1000, stream.handle)
    delayed.record(stream.handle)
    prepared.swap.submit(stream.handle)
    early = False
    while not early and not delayed.completed():
        # What was seen counts only if the work in front was not done by then.
        early = workload.arrived_early() and not delayed.completed()
    stream.synchronize()
    workload.verify()
    if early:
        raise VerificationError("the swap did not wait for the work in front of it: it is not ordered in its stream")


def _check_speed(bench: Bench, cell: Cell, times_us: Sequence[float]) -> None:
    """Raise VerificationError for a visit that is faster than the link: whatever it timed was not a swap."""
    best_gbps = bench.best_gbps.get(cell.direction)
    if best_gbps is None or not bench.device.is_cuda or cell.swap_bytes < SPEED_CHECKED_FROM_BYTES:
        return
    gbps = gigabytes_per_second(cell.swap_bytes, median(times_us))
    if gbps > FASTER_THAN_THE_LINK * best_gbps:
        raise VerificationError(f"{gbps:.0f} GB/s, and large copies reach {best_gbps:.1f}: a swap cannot be as fast")


def _warnings_beside(beside: Beside | None) -> list[str]:
    if beside is None:
        return []
    short = not beside.neighbour_alone_us or not beside.neighbour_beside_us
    return [
        *(["no whole iteration of the neighbour in a turn (cell_seconds too short?)"] if short else []),
        *([f"the neighbour's stream ran out of work {beside.dry} times"] if beside.dry else []),
    ]


def _warnings(samples: Sequence[Sample | FlowSample], cell: Cell) -> list[str]:
    state = cell.stream_state
    if state is StreamState.SUSTAINED:
        return []
    strayed = sum(sample.pending_before is not (state is StreamState.BUSY) for sample in samples)
    if not strayed:
        return []
    why = "the queued swaps had run already" if cell.queued else "busy_delay_us too short?"
    return [f"the stream was not {state} in {strayed} of {len(samples)} samples ({why})"]
