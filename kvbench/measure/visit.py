"""Measure one visit of a cell: check a swap, sample, check again, and record."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import numpy as np

from kvbench.backends.base import Mechanism
from kvbench.cells.axes import Reuse, StreamState
from kvbench.cells.blocks import TRACE
from kvbench.cells.cell import Cell
from kvbench.cells.facts import BATCH_MAY_USE_SMS_FROM
from kvbench.cells.units import gigabytes_per_second
from kvbench.engine.device import Event, Stream
from kvbench.machine.sources import driver_version
from kvbench.measure.bench import Bench
from kvbench.measure.disturbance import Surroundings, disturbances
from kvbench.measure.layout import lay_out
from kvbench.measure.roof import measure_ceiling
from kvbench.measure.samples import AnySample, Arms, Sampler, Taken
from kvbench.measure.workload import NOT_ORDERED, VerificationError
from kvbench.results.schema import Beside, EffectivePath, Samples, Visit
from kvbench.run.protocol import MeasureCells
from kvbench.sweep.spec import BUSY_TWINS

# The work before a swap whose order is checked outlasts two submissions by this: a busy host is slow to look.
ORDER_DELAY_US: Final = {"cuda": 5_000, "cpu": 20_000}
# How much faster than the best large copies a swap may be. Copies of the device cpu can stay in its caches, and a
# backend may use several threads.
FASTER_THAN_THE_LINK: Final = {"cuda": 1.05, "cpu": 16.0}
# Where a visit has fewer sets of blocks, later samples overwrite what earlier ones did. In one visit of the cell, this
# many consecutive swaps, each of blocks of its own, are verified; of the largest fewer, which take as long.
VERIFIED_IN_A_ROW: Final = 20
LEAST_IN_A_ROW: Final = 4
IN_A_ROW_BYTES: Final = 8 << 30
CHECK_COPIES: Final = 4
# One of these copies finds the link as free as the swap did, where other work uses it in turns.
CHECKS: Final = 8
CHECK_BYTES: Final = 32 << 20
# The times of smaller swaps are too short for the resolution of events.
SPEED_CHECKED_FROM_BYTES: Final = 1 << 20
# On an idle stream cuMemcpyBatchAsync can copy inside the call. While work is pending, the same submission only hands
# over to the copy engine: additional CPU time of the idle call is spent on copying. The fastest sample of a visit
# decides, because a CPU can run at half its speed for some samples. Observed on an H200: a ratio of 1.5 to 8 if the CPU
# copied and of 0.9 to 1.4 if it did not; fewer than one visit in a hundred is misclassified.
CPU_INLINE_RATIO: Final = 1.5
# A call of this many descriptors takes 20 ms or more of CPU time: one on a busy stream shows it.
LONG_CALL_BLOCKS: Final = 50_000


@dataclass(frozen=True)
class Sampled:
    """The samples of an arm, what the same swap took on a busy stream, and the machine around them."""

    taken: Taken
    calls: int
    busy_cpu_us: float | None
    surroundings: Surroundings


def visit(bench: Bench, arms: Arms, request: MeasureCells, begin: Callable[[], None] | None = None) -> list[Visit]:
    """Measure one visit of a cell, or of several in turn, and return the record of each arm, without its duration.

    The visits of a cell in round 0 compare one swap byte for byte before they time any, and check that a swap is
    ordered in its stream; so does, at its end, that of one other round. After the last sample, every set of blocks that
    the samples used is compared, and one more swap, to detect a backend that stopped copying; in one visit of the cell
    also a row of swaps, to detect one that fails now and then. If the request is not to verify, nothing is compared,
    and the pools stay as the swaps left them. The record of a launch that copies nothing says so, and has no verified
    bytes.

    `begin` waits until other devices are ready to swap too. Raises EngineError, NeighbourError, VerificationError, and
    any error of a backend: of the arm `arms.current`.
    """
    samplers = arms.samplers
    verified = [sampler.copies and (request.in_turn is None or request.in_turn.verify) for sampler in samplers]
    verified_bytes = [0] * len(samplers)
    try:
        for arm in arms.turn():
            samplers[arm].workload.guarded = verified[arm]
            samplers[arm].open()
        if any(verified):
            bench.pools.rest()
        for arm in arms.turn():
            verified_bytes[arm] += _check_before(samplers[arm], request, verifies=verified[arm])
        sampled = _sample(bench, arms, request, begin)
        for arm in arms.turn():
            verified_bytes[arm] += _check_sampled(samplers[arm]) if verified[arm] else 0
        for arm in arms.turn():  # on blocks anywhere in the pools: no other arm has used them since it was compared
            verified_bytes[arm] += sampled[arm].taken.verified_bytes
            if verified[arm]:
                verified_bytes[arm] += _check_in_a_row(samplers[arm], request)
                if request.round and _is_chosen(request, samplers[arm].cell, "order", request.sampling.rounds - 1):
                    _check_order(samplers[arm], sampled[arm].taken.samples[-1].caller_us)
            else:
                samplers[arm].workload.leave()
            for clock in _clocks(bench, samplers[arm].cell) if samplers[arm].copies else ():
                times_us = [getattr(sample, clock) for sample in sampled[arm].taken.alike]
                _check_speed(bench, samplers[arm].cell, times_us)
        return [_record(request, arm, samplers[arm], sampled[arm], verified_bytes[arm]) for arm in arms.turn()]
    finally:
        bench.device.arm(None)


def _check_before(sampler: Sampler, request: MeasureCells, *, verifies: bool) -> int:
    """Check a swap in the first round, with any attempt: a device may have lost the others. Return compared bytes."""
    if request.round or not verifies:
        return 0
    sample = sampler.take_idle()
    verified_bytes = sampler.workload.verify()
    _check_order(sampler, sample.caller_us)
    return verified_bytes


def _check_sampled(sampler: Sampler) -> int:
    """Compare what the samples swapped; return the number of compared bytes.

    Where a swap overwrote the blocks of an earlier one, the comparison cannot tell who copied them: one more swap is
    watched, and one more compared.
    """
    workload, take = sampler.workload, sampler.take_idle
    overwrote = workload.overwrote
    if overwrote:
        workload.watch(take)
    verified_bytes = workload.verify()
    if overwrote:
        take()
        verified_bytes += workload.verify()
    return verified_bytes


def _sample(bench: Bench, arms: Arms, request: MeasureCells, begin: Callable[[], None] | None) -> list[Sampled]:
    """Warm up and sample, pinned to the CPU of the request, by default to a CPU of full speed."""
    with bench.cpu.held(None if request.in_turn is None else request.in_turn.cpu) as (cpu, before_us):
        others_share = bench.threads.watch(frozenset().union(*(sampler.threads for sampler in arms.samplers)))
        taken = arms.take_all(request.sampling, begin)
        calls = [sampler.prepared.swap.calls for sampler in arms.samplers]  # in the stream state of the cell
        probes_us = (before_us, bench.cpu.probe_us())
        slowdowns = [bench.cpu.slowdown(probe_us) for probe_us in probes_us]
        surroundings = Surroundings(cpu, probes_us, slowdowns, bench.clocks.read(), others_share())
        busy_cpu_us = [_busy_cpu_us(arms.samplers[arm]) for arm in arms.turn()]
    return [Sampled(*of_arm, surroundings) for of_arm in zip(taken, calls, busy_cpu_us, strict=True)]


def _busy_cpu_us(sampler: Sampler) -> float | None:
    """Return the CPU time of the submission on a busy stream, if it is a batched copy on a stream that is not."""
    prepared = sampler.prepared
    batched = prepared.mechanism is Mechanism.BATCHED_COPY and prepared.same_when_busy
    if not batched or sampler.cell.stream_state.pending:
        return None
    twins = 1 if sampler.cell.blocks >= LONG_CALL_BLOCKS else BUSY_TWINS
    return median(sampler.take_busy().cpu_us for _ in range(twins))


def _clocks(bench: Bench, cell: Cell) -> list[str]:
    """Return the times that are held against the link.

    Of chains both their mean, which hides nothing, and the figure, which leaves out their first swaps. On the device
    cpu, other work holds up chains too often for the second.
    """
    if cell.stream_state is not StreamState.SUSTAINED:
        return [cell.swap_clock]
    return ["chain_us", cell.swap_clock] if bench.device.is_cuda else ["chain_us"]


def _record(request: MeasureCells, arm: int, sampler: Sampler, sampled: Sampled, verified_bytes: int) -> Visit:
    cell, prepared, taken, surroundings = sampler.cell, sampler.prepared, sampled.taken, sampled.surroundings
    samples = taken.samples
    held = [sample for sample in taken.alike if sample.pending_after or not cell.stream_state.pending]
    times_us = [getattr(sample, cell.swap_clock) for sample in held]
    return Visit(
        cell_text=request.cells[arm],
        group=request.group,
        round=request.round,
        attempt=request.attempt,
        samples=_columns(taken, cell),
        stopped_by=taken.stopped_by,
        path=effective_path(
            prepared.mechanism,
            [sample.cpu_us for sample in taken.alike],
            sampled.busy_cpu_us,
            prefer_overlap=bool(cell.overlap),
        ),
        calls=sampled.calls,
        verified_bytes=verified_bytes,
        busy_cpu_us=sampled.busy_cpu_us,
        cpu=surroundings.cpu,
        probe_us=max(surroundings.probes_us),
        slowdown=max(surroundings.slowdowns),
        sm_clock_mhz=surroundings.clocks.sm_mhz,
        clock_limits=list(surroundings.clocks.limits),
        disturbed=disturbances(surroundings, times_us),
        chosen=prepared.chosen,
        pace_gbps=prepared.pace_gbps,
        warnings=[*_warnings(samples, cell), *_warnings_beside(taken.beside), *prepared.warnings, *taken.warnings],
        beside=taken.beside,
        opposite=taken.opposite,
    )


def effective_path(
    mechanism: Mechanism, cpu_us: Sequence[float], busy_cpu_us: float | None, *, prefer_overlap: bool = False
) -> EffectivePath:
    """Return the effective path of a visit, from the CPU time of each submission.

    `busy_cpu_us` is the CPU time of the same submission on a busy stream, if measured. With `prefer_overlap` the driver
    is asked to leave the SMs to others.
    """
    if mechanism is Mechanism.BATCHED_COPY:
        if busy_cpu_us is not None and min(cpu_us) >= CPU_INLINE_RATIO * busy_cpu_us:
            return EffectivePath.CPU_INLINE
        if driver_version() >= BATCH_MAY_USE_SMS_FROM and not prefer_overlap:
            return EffectivePath.ENGINE_OR_SMS
    copies = mechanism in (Mechanism.BATCHED_COPY, Mechanism.SINGLE_COPIES)
    return EffectivePath.COPY_ENGINE if copies else EffectivePath[mechanism.name]


_FLAGS: Final = {"pending_before", "pending_after", "depth_held"}  # a record keeps them as 0 or 1


def _columns(taken: Taken, cell: Cell) -> Samples:
    names = ["caller_us", "wall_us", "cpu_us", "pending_before", "pending_after"]
    names += ["event_us"] if cell.swap_clock == "event_us" else []
    names += ["chain_us"] if cell.stream_state is StreamState.SUSTAINED else []
    names += ["depth_held"] if cell.queued else []
    names += ["first_layer_us", "slowest_gap_us"] if cell.layers else []
    columns = {name: [getattr(sample, name) for sample in taken.samples] for name in names}
    flags = {name: [int(is_so) for is_so in columns[name]] for name in _FLAGS & columns.keys()}
    return Samples(**columns | flags, **taken.columns)


def _check_in_a_row(sampler: Sampler, request: MeasureCells) -> int:
    """Verify consecutive swaps of blocks of their own, watched, if this is the visit for it; return compared bytes."""
    cell, workload = sampler.cell, sampler.workload
    enough = workload.sets >= VERIFIED_IN_A_ROW or not workload.overwrote or cell.sequence == TRACE
    if enough or not _is_chosen(request, cell, "row", request.sampling.rounds, once=True):
        return 0
    swaps = min(VERIFIED_IN_A_ROW, max(LEAST_IN_A_ROW, IN_A_ROW_BYTES // cell.swap_bytes))
    fresh = replace(cell, reuse=Reuse.FRESH, pool_bytes=cell.pool_bytes or sampler.bench.pools.pool_bytes)
    layouts = lay_out(fresh, swaps, np.random.default_rng(request.round))
    verified_bytes = 0
    with workload.on_other_blocks(layouts):
        for number in range(swaps):
            workload.watch(sampler.take_idle)
            if (number + 1) % len(layouts) == 0 or number + 1 == swaps:
                verified_bytes += workload.verify()
    return verified_bytes


def _is_chosen(request: MeasureCells, cell: Cell, check: str, rounds: int, *, once: bool = False) -> bool:
    """Whether this is the visit, one in `rounds`, that makes a check of its cell; if `once`, in the first `rounds`."""
    rounds = max(1, rounds)
    number = request.round if once else request.round % rounds
    return zlib.crc32(f"{request.seed}/{cell.id}/{check}".encode()) % rounds == number


def _check_order(sampler: Sampler, caller_us: float) -> None:
    """Raise VerificationError if a swap that was submitted after other work arrives before that work completes.

    The work is on the stream, or, of a gated one, on another that the stream waits for. A submission takes `caller_us`.
    """
    bench, workload = sampler.bench, sampler.workload
    stream, delayed = bench.stream, Event(bench.device.driver)
    before = Stream(bench.device.driver) if sampler.cell.stream_state is StreamState.GATED else stream
    workload.advance()
    if sampler.prepared.stage:
        sampler.prepared.stage()
    delay_us = ORDER_DELAY_US[bench.device.kind] + 2 * caller_us
    bench.device.driver.delay(round(1000 * delay_us), before.handle)
    delayed.record(before.handle)
    delayed.hold(stream.handle)
    sampler.prepared.swap.submit(stream.handle)
    early = False
    while not early and not delayed.completed():
        # The observation counts only if the earlier work was still running.
        early = workload.arrived_early() and not delayed.completed()
    stream.synchronize()
    workload.verify()
    if early:
        raise VerificationError(NOT_ORDERED)


def _check_speed(bench: Bench, cell: Cell, times_us: Sequence[float]) -> None:
    """Raise VerificationError for a visit faster than the link: what it timed cannot be the swap."""
    if cell.swap_bytes < SPEED_CHECKED_FROM_BYTES:
        return
    gbps, allowed = gigabytes_per_second(cell.swap_bytes, median(times_us)), FASTER_THAN_THE_LINK[bench.device.kind]
    for _ in range(CHECKS):
        if gbps <= allowed * bench.best_gbps.get(cell.direction, 0.0):
            return
        # A new worker has not measured large copies yet; other work may have slowed the link when they were measured.
        measure_ceiling(bench, cell.direction, CHECK_COPIES, max(cell.swap_bytes, CHECK_BYTES))
    if gbps > allowed * (best_gbps := bench.best_gbps[cell.direction]):
        raise VerificationError(
            f"{gbps:.0f} GB/s is faster than the link: large copies reach only {best_gbps:.1f} GB/s"
        )


def _warnings_beside(beside: Beside | None) -> list[str]:
    if beside is None:
        return []
    short = not beside.neighbour_alone_us or not beside.neighbour_beside_us
    warnings = ["a turn without a whole iteration of the neighbour (cell_seconds too short?)"] if short else []
    return warnings + ([f"the neighbour's stream ran out of work {beside.dry} times"] if beside.dry else [])


def _warnings(samples: Sequence[AnySample], cell: Cell) -> list[str]:
    state = cell.stream_state
    if state is StreamState.SUSTAINED:
        slope_us, mean_us = (median(getattr(sample, name) for sample in samples) for name in ("event_us", "chain_us"))
        text = f"one more swap takes {slope_us:.1f} us, less than half of {mean_us:.1f} us, the mean of its chain"
        return [text] if slope_us < mean_us / 2 else []
    strayed = sum(sample.pending_before is not state.pending for sample in samples)
    if not strayed:
        return []
    why = "the queued swaps had already run" if cell.queued else "busy_delay_us too short?"
    return [f"the stream was not {state} in {strayed} of {len(samples)} samples ({why})"]
