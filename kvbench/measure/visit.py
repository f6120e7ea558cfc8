"""Measure one visit of a cell: verify one swap, warm up, sample, verify again."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

import numpy as np

from kvbench.backends.base import Mechanism, PreparedSwap
from kvbench.cells.axes import Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.engine.device import Event
from kvbench.engine.faults import Fault
from kvbench.engine.nvrtc import driver_version
from kvbench.measure.bench import Bench, SetUp, measure_ceiling
from kvbench.measure.disturbance import Clocks, disturbances
from kvbench.measure.layers import LayeredStep
from kvbench.measure.layout import lay_out
from kvbench.measure.neighbour import RunningNeighbour
from kvbench.measure.samples import (
    AnySample,
    TakeOne,
    alone,
    sample_beside,
    sample_beside_step,
    take_samples,
    taker,
)
from kvbench.measure.workload import VerificationError, Workload
from kvbench.results.schema import Beside, EffectivePath, Samples, StopReason, Visit
from kvbench.run.protocol import MeasureCell
from kvbench.sweep.estimate import BUSY_TWINS
from kvbench.sweep.spec import Sampling
from kvbench.units import gigabytes_per_second

ORDER_DELAY_US: Final = 20_000
# How much faster than the best large copies a swap may be. Copies of the device cpu can stay in its caches, and a
# backend may use several threads.
FASTER_THAN_THE_LINK: Final = {"cuda": 1.05, "cpu": 16.0}
# Where a visit has fewer sets of blocks, later samples overwrite what earlier ones did. In one visit of the cell, this
# many consecutive swaps, each of blocks of its own, are verified.
VERIFIED_IN_A_ROW: Final = 20
CHECK_COPIES: Final = 4
# The times of smaller swaps are too short for the resolution of events.
SPEED_CHECKED_FROM_BYTES: Final = 1 << 20
# On an idle stream cuMemcpyBatchAsync can copy inside the call. While work is pending, the same submission only hands
# over to the copy engine: additional CPU time of the idle call is spent on copying. The fastest sample of a visit
# decides, because a CPU can run at half its speed for some samples. Observed on an H200: a ratio of 1.5 to 8 if the CPU
# copied and of 0.9 to 1.4 if it did not; fewer than one visit in a hundred is misclassified.
CPU_INLINE_RATIO: Final = 1.5


@dataclass(frozen=True)
class Sampled:
    """The samples of a visit, and the state of the machine around them."""

    samples: Sequence[AnySample]
    stopped_by: StopReason
    beside: Beside | None
    calls: int
    busy_cpu_us: float | None
    sm_us: float | None
    cpu: int | None
    probe_us: float
    slowdowns: Sequence[float]
    clocks: Clocks


def visit(
    bench: Bench, ready: SetUp, request: MeasureCell, fault: Fault | None, begin: Callable[[], None] | None = None
) -> Visit:
    """Measure one visit of a cell beside its neighbour, if it has one, and return its record, without its duration.

    The visits of a cell in round 0 compare one swap byte for byte before they time any, and check that a swap is
    ordered in its stream. After the last sample, every set of blocks that the samples used is compared, and one more
    swap, to detect a backend that stopped copying; in one visit of the cell also a row of swaps, to detect one that
    fails now and then. If the request is not to verify, nothing is compared, and the pools stay as the swaps left them.

    `begin` waits until other devices are ready to swap too; samples are then taken until the time is up. Raises
    EngineError, NeighbourError, VerificationError, and any error of a backend.
    """
    workload, verifies = ready.workload, request.in_turn is None or request.in_turn.verify
    with bench.device.injecting(fault), bench.neighbour(ready.backend, ready.cell) as neighbour:
        workload.verify_ms = 0.0
        if verifies:
            bench.pools.rest()
        take = alone(bench, ready, StreamState.IDLE)
        verified_bytes = 0
        if request.round == 0:  # with any attempt: a device may have lost the others
            verified_bytes = _check_one(workload, take) if verifies else 0
            _check_order(bench, ready.swaps[0], workload)
        sampled = _sample(bench, ready, request, neighbour, begin)
        if verifies:
            verified_bytes += workload.verify() + _check_one(workload, take)
            verified_bytes += _check_in_a_row(bench, ready, request, take)
        else:
            workload.leave()
        _check_speed(bench, ready.cell, _full_times_us(sampled.samples, ready.cell))
        return record_of(request, ready, sampled, verified_bytes)


def _sample(
    bench: Bench,
    ready: SetUp,
    request: MeasureCell,
    neighbour: RunningNeighbour | LayeredStep | None,
    begin: Callable[[], None] | None,
) -> Sampled:
    """Warm up and sample, pinned to the CPU of the request, by default to a CPU of full speed."""
    take_busy = alone(bench, ready, StreamState.BUSY)
    with bench.cpu.held(None if request.in_turn is None else request.in_turn.cpu) as (cpu, before_us):
        samples, stopped_by, beside = _take_all(bench, ready, request.sampling, take_busy, neighbour, begin)
        calls = ready.swaps[0].swap.calls  # of a swap in the stream state of the cell
        probes_us = [before_us, bench.cpu.probe_us()]
        slowdowns = [bench.cpu.slowdown(probe_us) for probe_us in probes_us]
        clocks = bench.clocks.read()
        batched = ready.swaps[0].mechanism is Mechanism.BATCHED_COPY
        with_twins = batched and ready.swaps[0].same_when_busy and not ready.cell.stream_state.pending
        busy_cpu_us = median(take_busy().cpu_us for _ in range(BUSY_TWINS)) if with_twins else None
        time_kernels = ready.swaps[0].sm_us
        sm_us = time_kernels(bench.stream.handle) if time_kernels else None
    return Sampled(samples, stopped_by, beside, calls, busy_cpu_us, sm_us, cpu, max(probes_us), slowdowns, clocks)


def _full_times_us(samples: Sequence[AnySample], cell: Cell) -> list[float]:
    """Return times that hide nothing: the difference of two chains is too small where the short one was held up."""
    state = cell.stream_state
    clock = "chain_us" if state is StreamState.SUSTAINED else state.swap_clock
    return [getattr(sample, clock) for sample in samples]


def record_of(request: MeasureCell, ready: SetUp, sampled: Sampled, verified_bytes: int) -> Visit:
    """Return the record of a visit, without its duration."""
    cell, prepared, samples = ready.cell, ready.swaps[0], sampled.samples
    held = [sample for sample in samples if sample.pending_after or not cell.stream_state.pending]
    times_us = [getattr(sample, cell.stream_state.swap_clock) for sample in held]
    return Visit(
        cell_text=request.cell,
        round=request.round,
        attempt=request.attempt,
        samples=_columns(samples, cell),
        stopped_by=sampled.stopped_by,
        path=effective_path(prepared.mechanism, [sample.cpu_us for sample in samples], sampled.busy_cpu_us),
        calls=sampled.calls,
        verified_bytes=verified_bytes,
        verify_ms=ready.workload.verify_ms,
        busy_cpu_us=sampled.busy_cpu_us,
        cpu=sampled.cpu,
        probe_us=sampled.probe_us,
        slowdown=max(sampled.slowdowns),
        sm_clock_mhz=sampled.clocks.sm_mhz,
        clock_limits=list(sampled.clocks.limits),
        disturbed=disturbances(sampled.slowdowns, sampled.clocks, times_us),
        chosen=prepared.chosen,
        warnings=[*_warnings(samples, cell), *_warnings_beside(sampled.beside), *prepared.warnings],
        beside=sampled.beside,
        staging_bytes=prepared.staging_bytes,
        sm_us=sampled.sm_us,
    )


# From this CUDA version on a driver may copy a batch with SMs; `kvbench probe engine` tells which it does.
MAY_USE_SMS_FROM: Final = 13_010


def effective_path(mechanism: Mechanism, cpu_us: Sequence[float], busy_cpu_us: float | None) -> EffectivePath:
    """Return the effective path of a visit, from the CPU time of each submission.

    `busy_cpu_us` is the CPU time of the same submission on a busy stream, if measured.
    """
    match mechanism:
        case Mechanism.BATCHED_COPY if busy_cpu_us is not None and min(cpu_us) >= CPU_INLINE_RATIO * busy_cpu_us:
            return EffectivePath.CPU_INLINE
        case Mechanism.BATCHED_COPY if driver_version() >= MAY_USE_SMS_FROM:
            return EffectivePath.ENGINE_OR_SMS
        case Mechanism.BATCHED_COPY | Mechanism.SINGLE_COPIES:
            return EffectivePath.COPY_ENGINE
        case Mechanism.FALLBACK:
            return EffectivePath.FALLBACK
        case Mechanism.SM_KERNEL:
            return EffectivePath.SM_KERNEL
        case Mechanism.STAGED:
            return EffectivePath.STAGED
        case Mechanism.HOST_THREAD:
            return EffectivePath.HOST_THREAD


def _columns(samples: Sequence[AnySample], cell: Cell) -> Samples:
    def column(name: str) -> list[Any]:
        return [getattr(sample, name) for sample in samples]

    def flags(name: str) -> list[int]:
        return list(map(int, column(name)))

    return Samples(
        caller_us=column("caller_us"),
        wall_us=column("wall_us"),
        cpu_us=column("cpu_us"),
        gpu_us=None if cell.stream_state.ungated is StreamState.IDLE else column("gpu_us"),
        pending_before=flags("pending_before"),
        pending_after=flags("pending_after"),
        depth_held=flags("depth_held") if cell.queued else None,
        first_layer_us=column("first_layer_us") if cell.layers else None,
        slowest_gap_us=column("slowest_gap_us") if cell.layers else None,
    )


def _check_one(workload: Workload, take: TakeOne) -> int:
    """Make one swap over memory at rest and verify it; return the number of compared bytes."""
    take()
    return workload.verify()


def _check_in_a_row(bench: Bench, ready: SetUp, request: MeasureCell, take: TakeOne) -> int:
    """Verify consecutive swaps of blocks of their own, watched, if this is the visit for it; return compared bytes."""
    cell, workload = ready.cell, ready.workload
    chosen = zlib.crc32(f"{request.seed}/{cell.id}".encode()) % request.sampling.rounds
    if (
        not workload.overwrote
        or workload.sets >= VERIFIED_IN_A_ROW
        or request.round % request.sampling.rounds != chosen
    ):
        return 0
    fresh = replace(cell, reuse=Reuse.FRESH, pool_bytes=cell.pool_bytes or bench.pools.pool_bytes)
    layouts = lay_out(fresh, VERIFIED_IN_A_ROW, np.random.default_rng(chosen))
    verified_bytes = 0
    with workload.on_other_blocks(layouts), workload.watched():
        for number in range(VERIFIED_IN_A_ROW):
            take()
            if (number + 1) % len(layouts) == 0 or number + 1 == VERIFIED_IN_A_ROW:
                verified_bytes += workload.verify()
    return verified_bytes


def _take_all(
    bench: Bench,
    ready: SetUp,
    sampling: Sampling,
    take_busy: TakeOne,
    neighbour: RunningNeighbour | LayeredStep | None,
    begin: Callable[[], None] | None,
) -> tuple[Sequence[AnySample], StopReason, Beside | None]:
    take = taker(bench, ready, take_busy)
    for _ in range(sampling.warmups):
        take()
    if begin is not None:
        begin()
    if neighbour is None:
        return *take_samples(take, ready.workload, sampling, to_the_end=begin is not None), None
    if isinstance(neighbour, LayeredStep):
        return sample_beside_step(bench, ready, neighbour, take, sampling)
    flow, beside = sample_beside(bench, ready, neighbour, sampling)
    return flow, "time", beside


def _check_order(bench: Bench, prepared: PreparedSwap, workload: Workload) -> None:
    """Raise VerificationError if a swap that was submitted after other work arrives before that work completes."""
    stream, delayed = bench.stream, Event(bench.device.driver)
    workload.advance()
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
    if cell.swap_bytes < SPEED_CHECKED_FROM_BYTES:
        return
    gbps, allowed = gigabytes_per_second(cell.swap_bytes, median(times_us)), FASTER_THAN_THE_LINK[bench.device.kind]
    if gbps > allowed * bench.best_gbps.get(cell.direction, 0.0):
        # A new worker has not measured large copies yet; other work may have slowed the link when they were measured.
        measure_ceiling(bench, cell.direction, CHECK_COPIES)
    if gbps > allowed * (best_gbps := bench.best_gbps[cell.direction]):
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


def _warnings(samples: Sequence[AnySample], cell: Cell) -> list[str]:
    state = cell.stream_state
    if state is StreamState.SUSTAINED:
        return []
    strayed = sum(sample.pending_before is not state.pending for sample in samples)
    if not strayed:
        return []
    why = "the queued swaps had already run" if cell.queued else "busy_delay_us too short?"
    return [f"the stream was not {state} in {strayed} of {len(samples)} samples ({why})"]
