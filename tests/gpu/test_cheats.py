"""Backends that do not do what they are timed for are caught on a GPU too, in every state of the stream."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest

from kvbench.backends.base import Mechanism, PreparedSwap, SwapRequest
from kvbench.cells.axes import Direction, Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.engine.device import DIRECTIONS, Addresses, Buffer, Device, Event, MemoryKind, Stream, per_block
from kvbench.measure import visit
from kvbench.measure.bench import Bench
from kvbench.measure.roof import measure_ceiling
from kvbench.measure.samples import Sampler, set_up
from kvbench.measure.workload import VerificationError
from kvbench.run.protocol import MeasureCells
from kvbench.sweep.spec import Sampling
from tests.gates import in_threads
from tests.unit.measure import test_visit
from tests.unit.measure.test_visit import Ahead as AheadOnHost
from tests.unit.measure.test_visit import NotReached, Recorded, copies, every_other_block, honest
from tests.visits import bench_of, measure, visited

pytestmark = pytest.mark.gpu

SAMPLING = Sampling(warmups=2, min_samples=3, max_samples=3)
FIRST_VISIT = 1000  # submissions, or fewer
Copy = Callable[[SwapRequest, int, int], None]


def on_a_stream_of_its_own(request: SwapRequest, _number: int, _stream: int) -> None:
    stream = Stream(request.device.driver)
    copies(request, stream.handle)
    stream.synchronize()


def on_a_thread_of_its_own(request: SwapRequest, number: int, stream: int) -> None:
    in_threads(lambda number: on_a_stream_of_its_own(request, number, stream), [number])


def a_wrong_block_now_and_then(request: SwapRequest, number: int, stream: int) -> None:
    copies(request, stream)
    if number % 20 == 0:
        memory = request.memory
        lists = (memory.sources[1:2].copy(), memory.destinations[:1].copy(), memory.sizes[:1].copy())
        per_block(request.device.driver, *lists, DIRECTIONS[request.cell.direction]).submit(stream)


def in_order_at_first(request: SwapRequest, number: int, stream: int) -> None:
    """Keep to the stream in the first visit of a cell."""
    (honest if number <= FIRST_VISIT else on_a_stream_of_its_own)(request, number, stream)


@dataclass
class Ahead(AheadOnHost):
    """Copies on a stream of its own."""

    def ahead(self, request: SwapRequest) -> None:
        stream = Stream(request.device.driver)
        copies(request, stream.handle, self.part)
        stream.synchronize()


@dataclass
class Gathering(Ahead):
    """Gathers the blocks in a buffer on the host instead, and copies them out of it when the swap is submitted."""

    staged: int = 0  # the last destination of the list that was gathered

    def __post_init__(self) -> None:
        self.copy = self._out_of_buffer

    def create(self, request: SwapRequest) -> PreparedSwap:
        self.buffer = Buffer(request.device.driver, MemoryKind.allocated, request.cell.swap_bytes)
        return super().create(request)

    def _places(self, request: SwapRequest) -> Addresses:
        stride = np.uint64(request.cell.block_bytes)
        return np.uint64(self.buffer.address) + np.arange(request.cell.blocks, dtype=np.uint64) * stride

    def ahead(self, request: SwapRequest) -> None:
        memory = request.memory
        sources, last, sizes = memory.sources.copy(), int(memory.destinations[-1]), memory.sizes.copy()
        if request.cell.direction is Direction.H2D:
            moved(sources, self._places(request), sizes)
        else:
            stream = Stream(request.device.driver)
            lists = (sources, self._places(request), sizes)
            per_block(request.device.driver, *lists, DIRECTIONS[Direction.D2H]).submit(stream.handle)
            stream.synchronize()
        self.staged = last

    def _out_of_buffer(self, request: SwapRequest, _number: int, stream: int) -> None:
        memory, places = request.memory, self._places(request)
        if self.staged != int(memory.destinations[-1]):  # not from here on
            copies(request, stream)
        elif request.cell.direction is Direction.H2D:
            lists = (places, memory.destinations, memory.sizes)
            per_block(request.device.driver, *lists, DIRECTIONS[Direction.H2D]).submit(stream)
        else:
            request.device.driver.synchronize(stream)
            moved(places, memory.destinations, memory.sizes)


def moved(sources: Addresses, destinations: Addresses, sizes: Addresses) -> None:
    """Copy host memory."""
    for source, to, size in zip(sources, destinations, sizes, strict=True):
        ctypes.memmove(int(to), int(source), int(size))


def cheating(copy: Copy) -> Recorded:
    return Recorded(copy, mechanism=Mechanism.SINGLE_COPIES)


@pytest.fixture(scope="module")
def bench(gpu: Device) -> Bench:
    made = bench_of(1 << 30, 300, gpu)
    for direction in Direction:
        measure_ceiling(made, direction, 3)
    return made


@pytest.mark.parametrize("state", StreamState)
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("cheat", [test_visit.stops_after_the_first_sample, every_other_block, on_a_stream_of_its_own,
                                   on_a_thread_of_its_own])  # fmt: skip
def test_a_cheat_is_caught(bench: Bench, cheat: Copy, direction: Direction, state: StreamState) -> None:
    cell = Cell("cheat", direction, 512, 16_384, state, pool_bytes=1 << 30, reuse=Reuse.FRESH)
    # However late the host looks at a copy that was not in order.
    event = NotReached if cheat in (on_a_stream_of_its_own, on_a_thread_of_its_own) else Event
    with mock.patch.object(visit, "Event", event), pytest.raises(VerificationError):
        measure(bench, cheating(cheat), cell, SAMPLING, 1, None)
    assert len(measure(bench, cheating(honest), cell, SAMPLING, 1, None).samples) == 3


@pytest.mark.parametrize("state", [state for state in StreamState if state is not StreamState.SUSTAINED])
def test_order_is_checked_after_the_first_visit_too(bench: Bench, state: StreamState) -> None:
    cell = Cell("cheat", Direction.H2D, 512, 16_384, state, pool_bytes=1 << 30, reuse=Reuse.FRESH)

    def visits(ready: Sampler, rounds: range) -> None:
        for number in rounds:
            visited(bench, ready, MeasureCells(cells=[cell.as_strings()], round=number, seed=1, sampling=SAMPLING))

    visits(set_up(bench, cheating(honest), cell, SAMPLING, 1), range(SAMPLING.rounds))
    backend = cheating(in_order_at_first)
    visits(ready := set_up(bench, backend, cell, SAMPLING, 1), range(1))
    backend.submissions = FIRST_VISIT
    with mock.patch.object(visit, "Event", NotReached), pytest.raises(VerificationError):
        visits(ready, range(1, SAMPLING.rounds))


@pytest.mark.parametrize("reuse", Reuse)
@pytest.mark.parametrize("state", [StreamState.IDLE, StreamState.BUSY])
def test_a_backend_that_copies_only_where_it_is_watched_is_caught(
    bench: Bench, state: StreamState, reuse: Reuse
) -> None:
    """It knows without a look at the clock; what it skips is found behind the samples that are timed."""
    sampling = Sampling(warmups=2, min_samples=30, max_samples=30, cell_seconds=5)
    cell = Cell(
        "cheat", Direction.H2D, 64, 16_384, state, pool_bytes=1 << 30 if reuse is Reuse.FRESH else 0, reuse=reuse
    )
    ready: list[Sampler] = []

    def unless_watched(request: SwapRequest, number: int, stream: int) -> None:
        if number <= 6 or ready[0].workload.watching:
            copies(request, stream)

    ready.append(set_up(bench, cheating(unless_watched), cell, sampling, 1))
    request = MeasureCells(cells=[cell.as_strings()], round=0, seed=1, sampling=sampling)
    with pytest.raises(VerificationError):
        visited(bench, ready[0], request)


@pytest.mark.parametrize("first", [1, 10])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(
    ("cheat", "part"),
    [(Ahead, slice(None)), (Ahead, slice(None, None, 2)), (Gathering, slice(None))],
    ids=["all", "half", "gathered"],
)
def test_a_backend_that_works_ahead_of_its_submission_is_caught(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, cheat: type[Ahead], part: slice, direction: Direction, first: int
) -> None:
    sampling = Sampling(warmups=2, min_samples=60, max_samples=60, rounds=1, cell_seconds=5)
    cell = Cell("cheat", direction, 64, 16_384, pool_bytes=1 << 30, reuse=Reuse.FRESH)
    backend = cheat(honest, mechanism=Mechanism.SINGLE_COPIES, first=first, part=part)
    monkeypatch.setattr("kvbench.measure.workload.time.sleep", backend.pause)
    with pytest.raises(VerificationError):
        measure(bench, backend, cell, sampling, 1, None)
    monkeypatch.undo()
    assert len(measure(bench, cheating(honest), cell, sampling, 1, None).samples) == 60


@pytest.mark.parametrize("reuse", Reuse)
@pytest.mark.parametrize("direction", Direction)
def test_a_swap_that_sometimes_fails_is_detected_in_one_of_the_visits(
    bench: Bench, direction: Direction, reuse: Reuse
) -> None:
    cell = Cell("cheat", direction, 64, 16_384, pool_bytes=1 << 30 if reuse is Reuse.FRESH else 0, reuse=reuse)
    sampling = Sampling(warmups=2, min_samples=25, max_samples=25, rounds=2)

    def visits(copy: Copy) -> None:
        for number in range(sampling.rounds):
            request = MeasureCells(cells=[cell.as_strings()], round=number, seed=1, sampling=sampling)
            visited(bench, set_up(bench, cheating(copy), cell, sampling, 1), request)

    visits(honest)
    with pytest.raises(VerificationError):
        visits(a_wrong_block_now_and_then)
