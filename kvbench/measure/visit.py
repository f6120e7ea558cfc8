"""Measures one cell: fill and poison, check one swap, warm up, sample until it is known well enough, check again."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from kvbench.analysis.intervals import relative_half_width
from kvbench.backends.base import Backend, Mechanism, PreparedSwap, SwapRequest
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.facts import CEILING_BYTES
from kvbench.engine.device import DIRECTIONS, STREAM_STATES, Device, Queue, Sample, Stream, Swap, TimedRegion, per_block
from kvbench.engine.faults import Fault
from kvbench.measure.effective_path import EffectivePath, effective_path
from kvbench.measure.steady_cpu import SteadyCpu
from kvbench.measure.workload import Pools, lay_out
from kvbench.results.schema import StopReason
from kvbench.sweep.spec import Sampling
from kvbench.tune.table import Policy

CEILING_WARMUPS: Final = 2
BUSY_TWINS: Final = 3
# How much longer the delay in front of a queue is than its submission should take, and how long at most: a channel
# that is full holds the submitting thread until the delay ends.
QUEUE_MARGIN: Final = 2
MAX_QUEUE_DELAY_US: Final = 100_000


@dataclass(frozen=True)
class Bench:
    """What every measurement shares: the device, its memory, the measured stream and the timed region on it."""

    device: Device
    stream: Stream
    region: TimedRegion
    pools: Pools
    cpu: SteadyCpu
    policy: Policy | None = None


@dataclass(frozen=True)
class Measurement:
    """The samples of one visit and what they rest on; `calls` are driver calls or launches in one sample."""

    samples: Sequence[Sample]
    stopped_by: StopReason
    path: EffectivePath
    calls: int
    verified_bytes: int
    busy_cpu_us: float | None
    cpu: int
    chosen: str | None
    warnings: Sequence[str]


def measure(
    bench: Bench, backend: Backend, cell: Cell, sampling: Sampling, seed: int, fault: Fault | None
) -> Measurement:
    """Measure one visit of `cell`. Raises EngineError, VerificationError, and what a backend raises.

    `seed` decides the blocks' places and the bytes. The first swap is compared byte for byte before anything is timed;
    then the destination is poisoned again, and compared once more behind the last sample.
    """
    layout = lay_out(cell.pattern, cell.blocks, np.random.default_rng(seed))
    prepared = backend.create(SwapRequest(bench.device, cell, bench.pools.addresses(cell, layout), bench.policy))
    take = _sampler(bench.region, prepared, cell.stream_state, Queue(cell.queued, cell.streams))
    take_busy = _sampler(bench.region, prepared, StreamState.BUSY, Queue())
    bench.pools.fill(cell, layout, seed)
    with bench.device.injecting(fault):
        take()
        verified_bytes = bench.pools.verify(cell, layout)
        bench.pools.poison(cell, layout)
        with bench.cpu.held() as cpu:
            if cell.queued:
                take = _sampler(bench.region, prepared, cell.stream_state, _standing_queue(cell, take_busy))
            for _ in range(sampling.warmups):
                take()
            busy_cpu_us = None
            if prepared.mechanism is Mechanism.BATCHED_COPY and cell.stream_state is StreamState.IDLE:
                busy_cpu_us = median(take_busy().cpu_us for _ in range(BUSY_TWINS))
            samples, stopped_by = sample_until_known(take, cell.stream_state, sampling)
        verified_bytes += bench.pools.verify(cell, layout)
    return Measurement(
        samples=samples,
        stopped_by=stopped_by,
        path=effective_path(prepared.mechanism, [sample.cpu_us for sample in samples], busy_cpu_us),
        calls=prepared.swap.calls,
        verified_bytes=verified_bytes,
        busy_cpu_us=busy_cpu_us,
        cpu=cpu,
        chosen=prepared.chosen,
        warnings=[*_warnings(samples, cell), *prepared.warnings],
    )


def measure_ceiling(bench: Bench, direction: Direction, samples: int) -> tuple[int, list[float]]:
    """Time plain large copies one way; return the bytes of one and its event times in microseconds."""
    copy_bytes = CEILING_BYTES[bench.device.kind]
    memory = bench.pools.large_copy(direction, copy_bytes)
    swap = per_block(bench.device.driver, memory.sources, memory.destinations, memory.sizes, DIRECTIONS[direction])
    idle = STREAM_STATES[StreamState.IDLE]
    times_us = [bench.region.measure(swap, idle).gpu_us for _ in range(CEILING_WARMUPS + samples)]
    return copy_bytes, times_us[CEILING_WARMUPS:]


def sample_until_known(
    take: Callable[[], Sample], state: StreamState, sampling: Sampling
) -> tuple[list[Sample], StopReason]:
    """Sample until the median's interval is narrow enough, the cap is reached or the time is up; say which."""
    deadline_s = time.monotonic() + sampling.cell_seconds
    samples: list[Sample] = []
    times_us: list[float] = []
    while len(samples) < sampling.max_samples:
        sample = take()
        samples.append(sample)
        times_us.append(getattr(sample, state.swap_clock))
        if len(samples) < sampling.min_samples:
            continue
        if relative_half_width(times_us) <= sampling.target:
            return samples, "target"
        if time.monotonic() >= deadline_s:
            return samples, "time"
    return samples, "max_samples"


def _sampler(region: TimedRegion, prepared: PreparedSwap, state: StreamState, queue: Queue) -> Callable[[], Sample]:
    swap, engine_state = prepared.swap, STREAM_STATES[state]
    if isinstance(swap, Swap):
        return lambda: region.measure(swap, engine_state, queue)
    return lambda: region.measure_python(swap.prepare, swap.submit, engine_state, queue)


def _standing_queue(cell: Cell, take_busy: Callable[[], Sample]) -> Queue:
    """Return the queue of `cell` behind a delay that outlasts its submission, going by what one swap's takes."""
    submit_us = max(take_busy().submit_us for _ in range(BUSY_TWINS))
    delay_us = min(QUEUE_MARGIN * cell.queued * submit_us, MAX_QUEUE_DELAY_US)
    return Queue(cell.queued, cell.streams, round(delay_us * 1000))


def _warnings(samples: Sequence[Sample], cell: Cell) -> list[str]:
    state = cell.stream_state
    strayed = sum(sample.pending_before is not (state is StreamState.BUSY) for sample in samples)
    if not strayed:
        return []
    why = "the queued swaps had run already" if cell.queued else "busy_delay_us too short?"
    return [f"the stream was not {state} in {strayed} of {len(samples)} samples ({why})"]
