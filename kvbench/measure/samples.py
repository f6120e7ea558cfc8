"""Samples of a cell: functions that take one in its stream state, and how many are taken."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kvbench.backends.base import PreparedSwap, SwapRequest
from kvbench.cells.axes import StreamState
from kvbench.cells.cell import Cell
from kvbench.engine.device import STREAM_STATES, Queue, Sample, Swap, TimedRegion
from kvbench.measure.bench import Bench, SetUp
from kvbench.measure.beside import Flow, FlowSample, measure_beside
from kvbench.measure.layers import LayeredStep, LayeredSwap
from kvbench.measure.neighbour import RunningNeighbour
from kvbench.measure.workload import Workload
from kvbench.results.schema import Beside, StopReason
from kvbench.sweep.estimate import BUSY_TWINS, LEAST_BESIDE_S, SHORT_CHAIN, WATCHED_SHARE
from kvbench.sweep.spec import Sampling
from kvbench.units import gigabytes_per_second

AnySample = Sample | FlowSample
TakeOne = Callable[[], AnySample]

# Each side alone before and after both together, so that drift cancels.
STEP_TURNS: Final = ("step", "swap", "both", "both", "swap", "step")
# The delay before a busy sample relative to the expected time of the caller, and its maximum: a full channel blocks the
# submitting thread until the delay ends.
DELAY_MARGIN: Final = 2
DELAY_SPARE_US: Final = 1_000
MAX_DELAY_US: Final = 100_000


def take_samples(
    take: TakeOne, workload: Workload, sampling: Sampling, *, to_the_end: bool = False
) -> tuple[list[AnySample], StopReason]:
    """Sample until the maximum (none with `to_the_end`) or the time limit is reached; return the samples and which.

    Between samples, at random, a swap that counts for nothing is watched: nothing of it may arrive before it is
    submitted.
    """
    deadline_s = time.monotonic() + sampling.cell_seconds
    samples: list[AnySample] = []
    while to_the_end or len(samples) < sampling.max_samples:
        if workload.chance(WATCHED_SHARE):
            with workload.watched():
                take()
        samples.append(take())
        if len(samples) >= sampling.min_samples and time.monotonic() >= deadline_s:
            return samples, "time"
    return samples, "max_samples"


def alone(bench: Bench, ready: SetUp, state: StreamState) -> TakeOne:
    """Return a function that takes a sample of the swap in this stream state, without a queue and without a pause."""
    return _sampler(bench, ready, state, Queue(), pause_us=0)


def taker(bench: Bench, ready: SetUp, take_busy: TakeOne) -> TakeOne:
    """Return a function that takes a sample in the stream state of the cell."""
    state = ready.cell.stream_state
    if state is StreamState.SUSTAINED:
        return _chain_sampler(bench.region, ready.swaps, ready.workload)
    queue = _behind_a_delay(ready.cell, take_busy) if state.pending else Queue()
    return _sampler(bench, ready, state, queue, ready.cell.pause_us)


def sample_beside(
    bench: Bench, ready: SetUp, neighbour: RunningNeighbour, sampling: Sampling
) -> tuple[Sequence[FlowSample], Beside]:
    """Swap beside the neighbour and without it, in turn; return the swaps beside it, and the record of the turns."""
    request = SwapRequest(bench.device, ready.cell, ready.workload.memories[0], bench.policy)
    flow = Flow(bench.device, bench.stream, ready.workload, ready.cell, ready.backend.create(request))
    seconds = max(LEAST_BESIDE_S, sampling.cell_seconds)
    first = ready.backend.create(replace(request, memory=request.memory.part(0, 1)))
    return measure_beside(
        flow, neighbour, lambda: _timed(bench.region, first, StreamState.IDLE, Queue()).wall_us, seconds
    )


def sample_beside_step(
    bench: Bench, ready: SetUp, step: LayeredStep, take: TakeOne, sampling: Sampling
) -> tuple[list[AnySample], StopReason, Beside]:
    """Take turns of the step alone, the swap alone and both, each on an idle device; both end with the step.

    Return the swaps alone, which samples ended, and the record of the turns. Raises NeighbourError.
    """
    swap, bytes_ = ready.swaps[0].swap, ready.cell.swap_bytes
    assert isinstance(swap, LayeredSwap)
    deadline_s = time.monotonic() + sampling.cell_seconds
    samples: list[AnySample] = []
    beside = Beside()

    def timed_us(submit: Callable[[int], object]) -> float:
        return bench.region.measure_python(submit, STREAM_STATES[StreamState.IDLE], Queue()).wall_us

    def both(stream: int) -> None:
        swap.submit(stream)
        step.submit(stream, swap.marks)

    while len(samples) < sampling.max_samples:
        for turn in STEP_TURNS:
            if turn == "step":
                beside.neighbour_alone_us.append(timed_us(lambda stream: step.submit(stream, swap.marks)))
            elif turn == "swap":
                samples.append(take())
                beside.swaps_alone_us.append(samples[-1].wall_us)
                beside.swaps_alone_gbps.append(gigabytes_per_second(bytes_, samples[-1].wall_us))
            else:
                ready.workload.advance()
                both_us = timed_us(both)
                beside.neighbour_beside_us.append(both_us)
                beside.swaps_beside_us.append(both_us - step.end.us_since(swap.marks[-1]))
                beside.swaps_beside_gbps.append(gigabytes_per_second(bytes_, both_us))
        if len(samples) >= sampling.min_samples and time.monotonic() >= deadline_s:
            return samples, "time", beside
    return samples, "max_samples", beside


def _sampler(bench: Bench, ready: SetUp, state: StreamState, queue: Queue, pause_us: int) -> TakeOne:
    prepared = ready.swaps[0]

    def take() -> AnySample:
        ready.workload.advance()
        if pause_us:
            _work_for(pause_us)
        sample = _timed(bench.region, prepared, state, queue)
        swap = prepared.swap
        return swap.timed(sample, state.swap_clock) if isinstance(swap, LayeredSwap) else sample

    return take


def _timed(region: TimedRegion, prepared: PreparedSwap, state: StreamState, queue: Queue) -> Sample:
    swap = prepared.swap
    if isinstance(swap, Swap):
        return region.measure(swap, STREAM_STATES[state], queue)
    return region.measure_python(swap.submit, STREAM_STATES[state], queue)


def _chain_sampler(region: TimedRegion, swaps: Sequence[PreparedSwap], workload: Workload) -> Callable[[], Sample]:
    """Return a function that takes a sustained sample: a short and a long chain of different blocks."""
    compiled = [one.swap for one in swaps if isinstance(one.swap, Swap)]

    def take() -> Sample:
        for slot in range(len(swaps)):
            workload.advance(slot)
        if len(compiled) == len(swaps):
            return region.sustained(compiled, SHORT_CHAIN)
        return region.sustained_python([one.swap.submit for one in swaps], SHORT_CHAIN)

    return take


def _work_for(pause_us: int) -> None:
    """Do other CPU work for `pause_us`, which evicts the data of a swap from the CPU's caches."""
    scratch = np.zeros(1 << 20, dtype=np.uint64)
    until_s = time.perf_counter() + pause_us / 1e6
    while time.perf_counter() < until_s:
        scratch += 1


def _behind_a_delay(cell: Cell, take_busy: TakeOne) -> Queue:
    """Return the queue of `cell` after a delay that outlasts its submission, estimated from that of one swap."""
    caller_us = max(take_busy().caller_us for _ in range(BUSY_TWINS))
    delay_us = min(DELAY_MARGIN * max(1, cell.queued) * caller_us + DELAY_SPARE_US, MAX_DELAY_US)
    return Queue(cell.queued, cell.streams, round(delay_us * 1000))
