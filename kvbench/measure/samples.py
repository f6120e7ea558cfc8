"""How a cell is sampled: set up once, with the sampler that its axes call for."""

import mmap
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np

from kvbench.backends.base import Backend, Mechanism, PreparedSwap, SwapRequest
from kvbench.cells.axes import Neighbour, StreamState
from kvbench.cells.blocks import layer_blocks, most_sets, opposite_of, region_bytes
from kvbench.cells.cell import Cell
from kvbench.cells.faults import Fault
from kvbench.cells.units import gigabytes_per_second
from kvbench.engine.device import STREAM_STATES, Device, Event, Queue, Sample, Swap
from kvbench.measure.bench import Bench
from kvbench.measure.beside import Flow, FlowSample, OneWay, Turns, both_ways
from kvbench.measure.layout import Layout, lay_out
from kvbench.measure.neighbour import LayeredStep, RunningNeighbour
from kvbench.measure.workload import NOT_ORDERED, VerificationError, Workload
from kvbench.results.schema import Beside, Opposite, StopReason
from kvbench.sweep.spec import BUSY_TWINS, CHAIN, LEAD, LEAST_BESIDE_S, WATCHED_SHARE, Sampling, submissions

AnySample = Sample | FlowSample
TakeOne = Callable[[], AnySample]

# Each side alone before and after both together, so that drift cancels.
STEP_TURNS: Final = ("step", "swap", "both", "both", "swap", "step")
# The delay before a busy sample relative to the expected time of the caller, and its maximum: a full channel blocks the
# submitting thread until the delay ends.
DELAY_MARGIN: Final = 2
DELAY_SPARE_US: Final = 1_000
MAX_DELAY_US: Final = 100_000
# The maximum of tuples that are taken again, relative to those that count.
REPEATED_SHARE: Final = 0.25
# The samples behind which bytes inside of the blocks are looked at.
SEEN_SHARE: Final = 0.25
# The memory of a pass of the work between two swaps, and its stride.
_STEP_BYTES: Final = 32 << 20
_LINE_BYTES: Final = 64


@dataclass(frozen=True)
class Taken:
    """What a sampler took.

    `columns` are more columns of the samples. The samples from `first_alike` on are of swaps of one size: all, but
    in a replay. `verified_bytes` were compared between the samples.
    """

    samples: Sequence[AnySample]
    stopped_by: StopReason
    beside: Beside | None = None
    columns: dict[str, list[Any]] = field(default_factory=dict)
    verified_bytes: int = 0
    warnings: Sequence[str] = ()
    first_alike: int = 0
    opposite: Opposite | None = None

    @property
    def alike(self) -> Sequence[AnySample]:
        return self.samples[self.first_alike :]


class Sampler:
    """Takes samples of the cell's swap in its stream state, one at a time."""

    def __init__(self, bench: Bench, cell: Cell, workload: Workload, swaps: Sequence[PreparedSwap]) -> None:
        self.bench, self.cell, self.workload, self.swaps = bench, cell, workload, swaps
        self.copies = swaps[0].mechanism is not Mechanism.NOTHING  # blocks, so that they can be compared
        self.endless = cell.devices > 1  # while other devices swap too, until the time is up
        self.chains = 0  # sustained samples that were taken
        self.threads: frozenset[int] = frozenset()  # of this process, that the backend started for the cell

    @property
    def prepared(self) -> PreparedSwap:
        return self.swaps[0]

    def open(self) -> None:
        """Open what runs beside the swaps; the bench keeps it. Raises NeighbourError, EngineError."""

    def take_idle(self) -> AnySample:
        return self.take(StreamState.IDLE)

    def take_busy(self) -> AnySample:
        return self.take(StreamState.BUSY)

    def take_all(self, sampling: Sampling, begin: Callable[[], None] | None) -> Taken:
        """Warm up, wait for `begin` if other devices swap too, and take the samples of a visit."""
        take = self.taker()
        for _ in range(sampling.warmups):
            take()
        if begin is not None:
            begin()
        return self._collect(take, sampling)

    def _collect(self, take: TakeOne, sampling: Sampling) -> Taken:
        (taken,) = _collect_in_turn([self], [take], sampling, lambda _: (0,))
        return taken

    def taker(self) -> TakeOne:
        state = self.cell.stream_state
        if state is StreamState.SUSTAINED:
            return self._take_chain
        queue = self._behind_a_delay() if state.pending else Queue()
        return lambda: self.take(state, queue, self.cell.pause_us)

    def take(self, state: StreamState, queue: Queue | None = None, pause_us: int = 0) -> AnySample:
        """Take a sample of the swap of the next blocks, by default without a queue and without a pause."""
        workload, region = self.workload, self.bench.region
        workload.advance()
        if self.prepared.stage:
            self.prepared.stage()
        swap, clock = self.prepared.swap, "wall_us" if pause_us and not state.pending else "event_us"
        work = partial(_work_for, pause_us) if pause_us else None
        met = STREAM_STATES[state], queue or Queue(), work
        if workload.watching and state.pending:
            moved: list[bool] = []

            def submit(stream: int) -> None:
                swap.submit(stream)
                moved.append(workload.moved())

            sample = region.measure_python(submit, *met)
            if moved[-1] and sample.pending_after:  # it counts only if the earlier work was still running
                raise VerificationError(NOT_ORDERED)
            return sample
        if isinstance(swap, Swap):
            return region.measure(swap, *met)
        sample = region.measure_python(swap.submit, *met)
        return swap.timed(sample, clock) if isinstance(swap, LayeredSwap) else sample

    def _take_chain(self) -> Sample:
        """Take a sustained sample: a chain of different blocks, each time with other objects first."""
        self.workload.advance(len(self.swaps))
        first = self.chains % len(self.swaps)
        self.chains += 1
        swaps = [prepared.swap for prepared in (*self.swaps[first:], *self.swaps[:first])]
        compiled = [swap for swap in swaps if isinstance(swap, Swap)]
        if len(compiled) == len(swaps):
            return self.bench.region.sustained(compiled, LEAD)
        return self.bench.region.sustained_python([swap.submit for swap in swaps], LEAD)

    def _behind_a_delay(self) -> Queue:
        """Return the queue of the cell after a delay that outlasts its submission, estimated from that of one swap."""
        queued = self.cell.queued
        caller_us = max(self.take_busy().caller_us for _ in range(BUSY_TWINS))
        delay_us = min(DELAY_MARGIN * max(1, queued) * caller_us + DELAY_SPARE_US, MAX_DELAY_US)
        return Queue(queued, self.cell.streams, round(delay_us * 1000))


class BesideNeighbour(Sampler):
    """Swaps beside a neighbour and without it, in turn. The samples are the swaps beside it."""

    _neighbour: RunningNeighbour

    def open(self) -> None:
        several = self.cell.ranks > 1
        self._neighbour = self.bench.joined_step() if several else self.bench.neighbour(self.cell.neighbour)

    def _collect(self, take: TakeOne, sampling: Sampling) -> Taken:
        if not sampling.warmups:
            take()  # loads what a first submission loads, for which it would wait behind the gate
        flow = Flow(self.bench.device, self.bench.stream, self.workload, self.cell, self.prepared)
        seconds = max(LEAST_BESIDE_S, sampling.cell_seconds)
        samples, beside = Turns(flow, self._neighbour, seconds, sampling.min_iterations).measure()
        return Taken(samples, "time", beside)


class BothWays(Sampler):
    """Swaps of both directions: each alone, and both at once. The samples are the cell's swaps beside the others."""

    def __init__(
        self, bench: Bench, cell: Cell, workload: Workload, swaps: Sequence[PreparedSwap], backend: Backend
    ) -> None:
        super().__init__(bench, cell, workload, swaps)
        back = opposite_of(cell)
        self._stream, pools = bench.beside(region_bytes(back, 0))
        rng = np.random.default_rng(0)
        self._other = Workload(pools, back, lay_out(back, most_sets(back), rng), rng)
        self._back = create_swap(backend, bench.request(back, self._other.memories[0]))

    def _collect(self, _take: TakeOne, sampling: Sampling) -> Taken:
        device = self.bench.device
        here = OneWay(device, self.bench.stream, self.workload, self.cell, self.prepared)
        there = OneWay(device, self._stream, self._other, self.cell, self._back)
        try:
            record, samples = both_ways(device, here, there, max(LEAST_BESIDE_S, sampling.cell_seconds))
            return Taken(samples, "time", opposite=record, verified_bytes=self._other.verify())
        except Exception:  # neither pool is as it was, and nothing will compare them
            self.workload.leave()
            self._other.leave()
            raise


class BesideStep(Sampler):
    """Takes turns of a step alone, the swap alone and both, each on an idle device; both end with the step.

    The samples are the swaps alone.
    """

    _step: LayeredStep

    def open(self) -> None:
        self._step = self.bench.step(self.cell)

    def _collect(self, take: TakeOne, sampling: Sampling) -> Taken:
        deadline_s = time.monotonic() + sampling.cell_seconds
        samples: list[AnySample] = []
        beside = Beside()
        while len(samples) < sampling.max_samples:
            for turn in STEP_TURNS:
                self._turn(turn, take, samples, beside)
            if len(samples) >= sampling.min_samples and time.monotonic() >= deadline_s:
                return Taken(samples, "time", beside)
        return Taken(samples, "max_samples", beside)

    def _turn(self, turn: str, take: TakeOne, samples: list[AnySample], beside: Beside) -> None:
        swap, step, swap_bytes = self.prepared.swap, self._step, self.cell.swap_bytes
        assert isinstance(swap, LayeredSwap)
        if turn == "step":
            beside.neighbour_alone_us.append(self._timed_us(lambda stream: step.submit(stream, swap.marks)))
        elif turn == "swap":
            samples.append(take())
            beside.swaps_alone_us.append(samples[-1].wall_us)
            beside.swaps_alone_gbps.append(gigabytes_per_second(swap_bytes, samples[-1].wall_us))
        else:

            def both(stream: int) -> None:
                swap.submit(stream)
                step.submit(stream, swap.marks)

            self.workload.advance()
            both_us = self._timed_us(both)
            beside.neighbour_beside_us.append(both_us)
            beside.swaps_beside_us.append(both_us - step.end.us_since(swap.marks[-1]))
            beside.swaps_beside_gbps.append(gigabytes_per_second(swap_bytes, both_us))

    def _timed_us(self, submit: Callable[[int], object]) -> float:
        return self.bench.region.measure_python(submit, STREAM_STATES[StreamState.IDLE], Queue()).wall_us


class Arms:
    """The arms of a visit, and whose turn it is: `current` is also the arm whose error ended the visit."""

    def __init__(self, device: Device, samplers: Sequence[Sampler], faults: Sequence[Fault | None]) -> None:
        self.current = 0
        self._device, self.samplers, self._faults = device, samplers, faults
        device.arm(faults[0])

    def turn(self, first: int = 0) -> Iterator[int]:
        """Yield the number of each arm once, from one of them on, while it is its turn."""
        for step in range(len(self.samplers)):
            arm = (first + step) % len(self.samplers)
            if arm != self.current:
                self.current = arm
                self._device.arm(self._faults[arm])
            yield arm

    def take_all(self, sampling: Sampling, begin: Callable[[], None] | None) -> list[Taken]:
        """Take the samples of a visit: sample k of all arms before the next of any, each time another arm first."""
        if len(self.samplers) == 1:
            return [self.samplers[0].take_all(sampling, begin)]
        takes = [self.samplers[arm].taker() for arm in self.turn()]
        for number in range(sampling.warmups):
            for arm in self.turn(number):
                takes[arm]()
        return _collect_in_turn(self.samplers, takes, sampling, self.turn)


def _collect_in_turn(
    samplers: Sequence[Sampler], takes: Sequence[TakeOne], sampling: Sampling, turn: Callable[[int], Iterable[int]]
) -> list[Taken]:
    """Sample, one sample an arm and tuple, until there are enough tuples or the time is up.

    Between tuples, at random, a swap that counts for nothing is watched, and the swaps of others have to have arrived.
    A tuple of several arms in which the thread lost its CPU is taken again, up to a share of all: what it lost is the
    difference of one arm. No clock decides.
    """

    def spent_s() -> float:
        return time.monotonic() - sum(sampler.workload.guarded_s for sampler in samplers)

    deadline_s = spent_s() + len(samplers) * sampling.cell_seconds
    left = int(REPEATED_SHARE * sampling.max_samples) if len(samplers) > 1 else 0
    samples: list[list[AnySample]] = [[] for _ in samplers]
    stopped_by: StopReason = "max_samples"
    while samplers[0].endless or len(samples[0]) < sampling.max_samples:
        for arm in turn(0):
            if samplers[arm].copies and samplers[arm].workload.chance(WATCHED_SHARE):
                samplers[arm].workload.watch(takes[arm])
        lost = _lost_cpu()
        taken = {arm: takes[arm]() for arm in turn(len(samples[0]))}
        for arm in turn(0):
            if samplers[arm].workload.chance(SEEN_SHARE):
                samplers[arm].workload.check_arrived()
        if left and _lost_cpu() != lost:
            left -= 1
            continue
        for arm, sample in taken.items():
            samples[arm].append(sample)
        if len(samples[0]) >= sampling.min_samples and spent_s() >= deadline_s:
            stopped_by = "time"
            break
    return [Taken(of_arm, stopped_by) for of_arm in samples]


def _lost_cpu() -> int:
    """Count how often this thread was made to give its CPU to another."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def lay_out_arms(
    cell: Cell, sampling: Sampling, seed: int, arms: int = 1, *, many_visits: bool = False
) -> list[Sequence[Layout]]:
    """Return the sets of blocks of each arm of a visit; `seed` determines their places, and no block is of two arms.

    For `many_visits`, a pool has blocks for as many swaps as caches need to forget the first.
    """
    swaps_ahead = submissions(sampling, cell.stream_state)
    if many_visits and cell.pool_bytes:
        swaps_ahead = max(swaps_ahead, most_sets(cell))
    layouts = lay_out(cell, arms * swaps_ahead, np.random.default_rng(seed), arms)
    return [layouts[number::arms] for number in range(arms)]


def set_up(
    bench: Bench,
    backend: Backend,
    cell: Cell,
    sampling: Sampling,
    seed: int,
    *,
    many_visits: bool = False,
    layouts: Sequence[Layout] | None = None,
) -> Sampler:
    """Prepare `cell` with these sets of blocks, or as the only arm of its visits; `seed` determines what is checked at
    random. Raises EngineError, and any error of a backend.
    """
    before = bench.threads.all()
    if layouts is None:
        (layouts,) = lay_out_arms(cell, sampling, seed, many_visits=many_visits)
    slots = CHAIN if cell.stream_state is StreamState.SUSTAINED else 1
    workload = Workload(bench.pools, cell, layouts, np.random.default_rng(seed), slots)
    requests = [bench.request(cell, memory) for memory in workload.memories]
    swaps = [create_swap(backend, request) for request in requests]
    sampler = _sampler(bench, backend, cell, workload, swaps)
    sampler.threads = bench.threads.all() - before
    return sampler


def _sampler(bench: Bench, backend: Backend, cell: Cell, workload: Workload, swaps: Sequence[PreparedSwap]) -> Sampler:
    if cell.opposite:
        return BothWays(bench, cell, workload, swaps, backend)
    if cell.neighbour == Neighbour.NONE or swaps[0].mechanism is Mechanism.NOTHING:
        return Sampler(bench, cell, workload, swaps)
    if cell.layers:
        return BesideStep(bench, cell, workload, swaps)
    return BesideNeighbour(bench, cell, workload, swaps)


def _work_for(pause_us: int) -> None:
    """Work for `pause_us`, at least one pass, as an engine's step does: other memory, new pages and other code.

    A pass goes over 32 MiB, a cache line at a time. Passes over the same few MB would leave the data of a swap in the
    last-level cache. It maps its pages itself: an allocator may keep those of the pass before it.
    """
    until_s = time.perf_counter() + pause_us / 1e6
    while True:
        with mmap.mmap(-1, _STEP_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
            np.frombuffer(pages, np.uint8)[::_LINE_BYTES] += 1
        if time.perf_counter() >= until_s:
            return


@dataclass(frozen=True, slots=True)
class LayerSample(FlowSample):
    """A swap by layers: when the first has arrived, on the clock of the swap, and the longest time between two."""

    first_layer_us: float = 0.0
    slowest_gap_us: float = 0.0


class LayeredSwap:
    """Submits the swap of every layer, and a mark behind each; an event of the device, with a time stamp."""

    def __init__(self, device: Device, layers: Sequence[PreparedSwap]) -> None:
        self._layers = [(layer.swap, Event(device.driver)) for layer in layers]
        self.marks = [mark for _, mark in self._layers]

    @property
    def calls(self) -> int:
        return sum(swap.calls for swap, _ in self._layers)

    def submit(self, stream: int) -> None:
        for swap, mark in self._layers:
            swap.submit(stream)
            mark.record(stream)

    def timed(self, sample: Sample, clock: str) -> LayerSample:
        """Return the sample of the last submission with the times of its layers; `clock` says when the last arrived."""
        gaps = [later.us_since(mark) for mark, later in pairwise(self.marks)]
        columns = {field.name: getattr(sample, field.name) for field in fields(FlowSample)}
        first_us = getattr(sample, clock) - sum(gaps)
        return LayerSample(**columns, first_layer_us=first_us, slowest_gap_us=max(gaps, default=0.0))


def create_swap(backend: Backend, request: SwapRequest) -> PreparedSwap:
    """Return the swap of a cell, by layers if its sequence says so. Raises any error of the backend."""
    if not request.cell.layers:
        return backend.create(request)
    blocks = layer_blocks(request.cell)
    layers = [
        backend.create(
            replace(
                request,
                cell=replace(request.cell, blocks=end - start, sequence="whole"),
                memory=request.memory.part(start, end),  # what is written to the whole reaches it
            )
        )
        for start, end in pairwise(accumulate(blocks, initial=0))
    ]
    return replace(layers[0], swap=LayeredSwap(request.device, layers))
