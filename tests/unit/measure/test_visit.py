"""A visit catches backends that do not copy what they are timed for, and treats every backend alike."""

import ctypes
import itertools
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from kvbench.backends.base import Backend, Mechanism, PreparedSwap, SwapRequest
from kvbench.cells.axes import Direction, Reuse, StreamState
from kvbench.cells.blocks import FORGOTTEN_AFTER_BYTES, sets_of
from kvbench.cells.cell import Cell
from kvbench.cells.facts import DeviceFacts
from kvbench.engine.device import DIRECTIONS, Event, SwapMemory, per_block
from kvbench.measure import visit
from kvbench.measure.bench import Bench
from kvbench.measure.samples import Sampler, _work_for, lay_out_arms, set_up
from kvbench.measure.visit import effective_path
from kvbench.measure.workload import VerificationError, Workload
from kvbench.results.schema import EffectivePath
from kvbench.run.protocol import MeasureCells
from kvbench.sweep.spec import CHAIN, Sampling, submissions
from tests.visits import bench_of, measure, visited

# By the comparison of all bytes behind the samples, or of a watched swap.
NOT_COPIED = r"in the block of descriptor|had not arrived"
LATE_OR_EARLY = r"had not arrived when the swap was complete|arrived before the swap was submitted"
SAMPLING = Sampling(warmups=2, min_samples=6, max_samples=6)
CELLS = [Cell("cheat", direction, 16, 4096, state, reuse=reuse, pool_bytes=pool_bytes)
         for direction in Direction for state in StreamState
         for reuse, pool_bytes in ((Reuse.SAME, 0), (Reuse.FRESH, 1 << 20))]  # fmt: skip


@dataclass
class Recorded(Backend):
    """A backend in Python that copies as `copy` says; `copy` gets the request, the number of the submission from 1."""

    copy: Callable[[SwapRequest, int, int], None]
    name: str = "cheat"
    summary: str = "a backend for tests"
    mechanism: Mechanism = Mechanism.HOST_THREAD
    calls: int = 1
    submissions: int = 0
    destinations: list[tuple[int, ...]] = field(default_factory=list)

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        del device
        return frozenset()

    def create(self, request: SwapRequest) -> PreparedSwap:
        return PreparedSwap(RecordedSwap(self, request), self.mechanism)


@dataclass
class RecordedSwap:
    """A swap of `Recorded`."""

    backend: Recorded
    request: SwapRequest

    @property
    def calls(self) -> int:
        return self.backend.calls

    def submit(self, stream: int) -> None:
        self.backend.submissions += 1
        self.backend.destinations.append(tuple(self.request.memory.destinations.tolist()))
        self.backend.copy(self.request, self.backend.submissions, stream)


def copies(request: SwapRequest, stream: int, part: slice | NDArray[np.bool_] = slice(None)) -> None:
    """Copy blocks in the stream."""
    memory = request.memory
    lists = [side[part].copy() for side in (memory.sources, memory.destinations, memory.sizes)]
    if len(lists[0]):
        per_block(request.device.driver, *lists, DIRECTIONS[request.cell.direction]).submit(stream)


def honest(request: SwapRequest, number: int, stream: int) -> None:
    del number
    copies(request, stream)


def stops_after_the_first_sample(request: SwapRequest, number: int, stream: int) -> None:
    if number <= 5:
        honest(request, number, stream)


def every_other_block(request: SwapRequest, number: int, stream: int) -> None:
    del number
    copies(request, stream, slice(None, None, 2))


def on_a_thread_of_its_own(request: SwapRequest, number: int, stream: int) -> None:
    """Copy at once, whatever the stream has to do first."""
    del number, stream

    def copy() -> None:
        for source, to, size in zip(*_lists(request.memory), strict=True):
            ctypes.memmove(int(to), int(source), int(size))

    worker = threading.Thread(target=copy)
    worker.start()
    worker.join()


Lists = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]


def _lists(memory: SwapMemory) -> Lists:
    return memory.sources.copy(), memory.destinations.copy(), memory.sizes.copy()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    yield (bench := bench_of(4 << 20))
    bench.stream.synchronize()


def _at(address: int, size: int) -> bytes:
    return ctypes.string_at(int(address), int(size))


def skips_addresses_that_it_knows(request: SwapRequest, number: int, stream: int) -> None:
    del number
    sources, destinations, _ = _lists(request.memory)
    pairs = list(zip(sources.tolist(), destinations.tolist(), strict=True))
    known = KNOWN.setdefault(request.device.name, set())
    copies(request, stream, np.array([pair not in known for pair in pairs]))
    known.update(pairs)


def skips_the_list_of_before(request: SwapRequest, number: int, stream: int) -> None:
    """Compare the arrays alone. The first three lists are swapped, for those that look at the first ones."""
    now = _at(request.memory.destinations.ctypes.data, request.memory.destinations.nbytes)
    same = LAST.get(request.device.name) == now and number > 3
    LAST[request.device.name] = now
    copies(request, stream, slice(0 if same else None))


def touches_up(request: SwapRequest, number: int, stream: int) -> None:
    """Look at eight bytes in every 256, and copy around those that differ."""
    del number
    lists: list[tuple[int, int, int]] = []
    for source, to, size in zip(*(side.tolist() for side in _lists(request.memory)), strict=True):
        seen, wanted = (np.frombuffer(_at(address, size), np.uint64)[::32] for address in (to, source))
        for at in np.flatnonzero(seen != wanted).tolist():
            begin = 256 * max(0, at - 1)
            lists.append((source + begin, to + begin, 256 * (at + 1) - begin))
    if lists:
        columns = (np.array(column, np.uint64) for column in zip(*lists, strict=True))
        per_block(request.device.driver, *columns, DIRECTIONS[request.cell.direction]).submit(stream)


def copies_what_it_read_before(request: SwapRequest, number: int, stream: int) -> None:
    del number
    sources, destinations, sizes = _lists(request.memory)
    for source, size in zip(sources.tolist(), sizes.tolist(), strict=True):
        READ.setdefault(source, np.frombuffer(_at(source, size), np.uint8))
    kept = np.array([READ[source].ctypes.data for source in sources.tolist()], np.uint64)
    per_block(request.device.driver, kept, destinations, sizes, DIRECTIONS[request.cell.direction]).submit(stream)


KNOWN: dict[str, set[tuple[int, int]]] = {}
LAST: dict[str, bytes] = {}
READ: dict[int, NDArray[np.uint8]] = {}


@dataclass
class Halfway(Recorded):
    """Copies the ends of blocks at once, and what lies between when the next list waits for its submission."""

    left: list[Lists] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.copy = self._ends

    def _ends(self, request: SwapRequest, number: int, stream: int) -> None:
        del number
        self.left.append(_lists(request.memory))
        sources, destinations, sizes = self.left[-1]
        edge, inside = np.full(len(sizes), np.uint64(256)), sizes - np.uint64(256)
        ends = [np.concatenate([side, side + inside]) for side in (sources, destinations)]
        lists = (*ends, np.concatenate([edge, edge]))
        per_block(request.device.driver, *lists, DIRECTIONS[request.cell.direction]).submit(stream)

    def pause(self, _seconds: float) -> None:
        for source, to, size in (block for lists in self.left for block in zip(*lists, strict=True)):
            ctypes.memmove(int(to) + 256, int(source) + 256, int(size) - 512)
        self.left.clear()


# Every state and reuse, the directions in turn.
EVERY_CELL = [cell for number, cell in enumerate(CELLS) if (number + number // 2) % 2 == 0]
every_cell = pytest.mark.parametrize(
    "cell", EVERY_CELL, ids=lambda cell: f"{cell.direction} {cell.stream_state} {cell.reuse}"
)


@pytest.mark.parametrize("cell", [cell for cell in EVERY_CELL if cell.reuse is Reuse.SAME])
@pytest.mark.parametrize(
    "cheat", [skips_addresses_that_it_knows, skips_the_list_of_before, touches_up, copies_what_it_read_before]
)
def test_a_backend_that_skips_what_is_there_already_is_caught(
    bench: Bench, cell: Cell, cheat: Callable[[SwapRequest, int, int], None]
) -> None:
    """In any visit, not only in the one that swaps a row of other blocks."""
    KNOWN.clear()
    LAST.clear()
    READ.clear()
    assert measure(bench, Recorded(honest), cell, SAMPLING, 1, None, number=7).samples
    with mock.patch.object(Workload, "chance", return_value=True), pytest.raises(VerificationError):
        measure(bench, Recorded(cheat), cell, SAMPLING, 1, None, number=7)


@pytest.mark.parametrize("reuse", Reuse)
@pytest.mark.parametrize("state", [StreamState.IDLE, StreamState.SUSTAINED])
def test_a_backend_that_finishes_blocks_later_is_caught(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, state: StreamState, reuse: Reuse
) -> None:
    monkeypatch.setattr(Workload, "chance", lambda *_: True)
    cell = Cell("cheat", Direction.H2D, 16, 4096, state, reuse=reuse, pool_bytes=2 << 20)
    backend = Halfway(honest)
    monkeypatch.setattr("kvbench.measure.workload.time.sleep", backend.pause)
    with pytest.raises(VerificationError, match=LATE_OR_EARLY):
        measure(bench, backend, cell, SAMPLING, 1, None, number=7)


def spoils_its_source(request: SwapRequest, number: int, stream: int) -> None:
    """Copy, and write into the first source, the first time."""
    honest(request, number, stream)
    if number == 1:
        request.device.driver.synchronize(stream)
        ctypes.memset(int(request.memory.sources[0]), 0x5A, 64)


def test_a_backend_that_spoils_its_source_is_caught(bench: Bench) -> None:
    fresh = replace(CELLS[1], pool_bytes=2 << 20)  # no block is swapped twice
    with pytest.raises(VerificationError, match="source"):
        measure(bench, Recorded(spoils_its_source), fresh, SAMPLING, 1, None)


@pytest.mark.parametrize("state", StreamState)
@pytest.mark.parametrize(("kind", "most"), [("cuda", 1.05), ("cpu", 16.0)])
@pytest.mark.parametrize("blocks", [15, 16, 4096])
@pytest.mark.parametrize(("figure", "mean"), [(0.99, 0.99), (1.01, 0.99), (0.99, 1.01)])
def test_neither_the_figure_nor_the_mean_of_a_chain_is_faster_than_the_link(
    monkeypatch: pytest.MonkeyPatch, state: StreamState, kind: str, most: float, blocks: int, figure: float, mean: float
) -> None:
    """Of swaps of 1 MiB or more; a link that seems too slow, or was not measured yet, is measured again first."""
    bench, cell, rates = mock.Mock(best_gbps={}), Cell("cheat", Direction.H2D, blocks, 65_536, state), [10.0, 50.0]
    bench.device.kind, bench.device.is_cuda = kind, kind == "cuda"

    def copied(_bench: Bench, direction: Direction, count: int, least: int) -> None:
        assert (count, least) == (visit.CHECK_COPIES, max(cell.swap_bytes, 32 << 20))
        bench.best_gbps[direction] = rates[min(len(bench.best_gbps), 1)]

    monkeypatch.setattr(visit, "measure_ceiling", copied)
    us = {name: cell.swap_bytes / (most * 50e3 * share) for name, share in (("event_us", figure), ("chain_us", mean))}
    held = (
        {"event_us"}
        if state is not StreamState.SUSTAINED
        else {"event_us", "chain_us"}
        if kind == "cuda"
        else {"chain_us"}
    )
    too_fast = blocks >= 16 and any(us[name] < cell.swap_bytes / (most * 50e3) for name in held)
    with pytest.raises(VerificationError, match="large copies reach only 50") if too_fast else nullcontext():
        for clock in visit._clocks(bench, cell):
            visit._check_speed(bench, cell, [0.9 * us[clock], us[clock], 9 * us[clock]])


class NotReached(Event):
    """Is not complete as long as a swap before it is looked for, however late the host looks."""

    left = 100_000  # ends a search for what never comes

    def completed(self) -> bool:
        self.left -= 1
        return self.left < 0


@every_cell
def test_a_backend_that_does_not_keep_to_its_stream_is_caught(
    bench: Bench, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit, "Event", NotReached)
    with pytest.raises(VerificationError, match="it is not ordered in its stream"):
        measure(bench, Recorded(on_a_thread_of_its_own), cell, SAMPLING, 1, None)


@pytest.mark.parametrize("state", StreamState)
def test_a_backend_that_keeps_to_its_stream_in_its_first_visit_alone_is_caught(
    bench: Bench, state: StreamState, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = replace(CELLS[1], stream_state=state)
    sampling = msgspec.structs.replace(SAMPLING, warmups=0, min_samples=1, max_samples=1)
    backend = Recorded(lambda *given: (honest if given[1] <= 30 else on_a_thread_of_its_own)(*given))
    ready = set_up(bench, backend, cell, sampling, 1)

    def visits(rounds: range) -> None:
        for number in rounds:
            # with this seed, a choice among all visits would be the first
            visited(bench, ready, MeasureCells(cells=[cell.as_strings()], round=number, seed=645, sampling=sampling))

    visits(range(1))
    monkeypatch.setattr(visit, "Event", NotReached)
    backend.submissions = 30
    with pytest.raises(VerificationError, match="it is not ordered in its stream"):
        visits(range(1, sampling.rounds))


@pytest.mark.parametrize("reuse", Reuse)
@pytest.mark.parametrize("state", [StreamState.BUSY, StreamState.GATED])
def test_a_watched_swap_does_not_come_before_the_work_that_its_stream_waits_for(
    state: StreamState, reuse: Reuse
) -> None:
    cell = Cell("cheat", Direction.H2D, 16, 4096, state, reuse=reuse, pool_bytes=1 << 20)
    bench = bench_of(2 << 20)
    ready = set_up(bench, Recorded(honest), cell, SAMPLING, 1)
    ready.workload.watch(ready.taker())
    ready.workload.verify()

    def still_pending(*given: Any) -> Any:
        taken = bench.region.measure_python(*given)
        return SimpleNamespace(caller_us=taken.caller_us, pending_after=True)

    patient = replace(bench, region=SimpleNamespace(measure_python=still_pending))  # type: ignore[arg-type]
    ready = set_up(patient, Recorded(on_a_thread_of_its_own), cell, SAMPLING, 1)
    with pytest.raises(VerificationError, match="it is not ordered in its stream"):
        ready.workload.watch(ready.taker())


@pytest.mark.parametrize("reuse", Reuse)
@pytest.mark.parametrize("state", [state for state in StreamState if state is not StreamState.SUSTAINED])
def test_no_pause_before_its_submission_tells_that_a_swap_is_watched(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, state: StreamState, reuse: Reuse
) -> None:
    """A backend that copies only where it was given the time to look around copies every time."""
    pauses: list[float] = []
    monkeypatch.setattr("kvbench.measure.workload.time.sleep", pauses.append)
    cell = Cell("cheat", Direction.H2D, 16, 4096, state, reuse=reuse, pool_bytes=2 << 20)
    before: list[int] = []

    def noted(request: SwapRequest, number: int, stream: int) -> None:
        before.append(len(pauses))
        honest(request, number, stream)

    sampling = msgspec.structs.replace(SAMPLING, min_samples=30, max_samples=30)
    measure(bench, Recorded(noted), cell, sampling, 1, None)
    assert before == sorted(set(before))
    assert min(pauses) > 0
    assert len(set(pauses)) == len(pauses)


@pytest.mark.parametrize("state", StreamState)
def test_a_backend_that_skips_all_but_watched_swaps_is_caught(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, state: StreamState
) -> None:
    """Of the same blocks, once they were all swapped."""
    monkeypatch.setattr(Workload, "chance", lambda *_: True)
    cell = Cell("cheat", Direction.H2D, 16, 4096, state, reuse=Reuse.SAME)
    ready = set_up(bench, Recorded(honest), cell, SAMPLING, 1)
    setups: list[Sampler] = []

    def unless_watched(request: SwapRequest, number: int, stream: int) -> None:
        if number <= 3 or setups[0].workload.watching:
            honest(request, number, stream)

    setups.append(set_up(bench, Recorded(unless_watched), cell, SAMPLING, 1))
    request = MeasureCells(cells=[cell.as_strings()], round=7, seed=1, sampling=SAMPLING)
    assert visited(bench, ready, request).samples
    with pytest.raises(VerificationError, match="had not arrived"):
        visited(bench, setups[0], request)


@dataclass
class Ahead(Recorded):
    """Copies `part` of the blocks while their list waits for its submission, from submission `first` on."""

    first: int = 1
    part: slice = field(default_factory=lambda: slice(None))

    def create(self, request: SwapRequest) -> PreparedSwap:
        self.request = request
        return super().create(request)

    def pause(self, _seconds: float) -> None:
        if self.submissions + 1 >= self.first:
            self.ahead(self.request)

    def ahead(self, request: SwapRequest) -> None:
        for source, to, size in zip(*(part[self.part] for part in _lists(request.memory)), strict=True):
            ctypes.memmove(int(to), int(source), int(size))


@dataclass
class Gathering(Ahead):
    """Gathers the blocks in a buffer instead, and copies them out of it when the swap is submitted."""

    staged: int = 0  # the last destination of the list that was gathered

    def __post_init__(self) -> None:
        self.buffer = np.empty(1 << 20, dtype=np.uint8)
        self.copy = self._out_of_buffer

    def _places(self, memory: SwapMemory) -> NDArray[np.uint64]:
        return np.uint64(self.buffer.ctypes.data) + np.cumsum(memory.sizes) - memory.sizes

    def ahead(self, request: SwapRequest) -> None:
        sources, destinations, sizes = _lists(request.memory)
        for source, to, size in zip(sources, self._places(request.memory), sizes, strict=True):
            ctypes.memmove(int(to), int(source), int(size))
        self.staged = int(destinations[-1])

    def _out_of_buffer(self, request: SwapRequest, number: int, stream: int) -> None:
        memory = request.memory
        if self.staged != int(memory.destinations[-1]):  # not from here on
            honest(request, number, stream)
            return
        lists = (self._places(memory), memory.destinations, memory.sizes)
        per_block(request.device.driver, *lists, DIRECTIONS[request.cell.direction]).submit(stream)


@pytest.mark.parametrize("first", [1, 10])
@pytest.mark.parametrize(
    ("cheat", "blocks", "part"),
    # of the third neither the first nor the last ones
    [(Ahead, 16, slice(None)), (Ahead, 16, slice(None, None, 2)), (Ahead, 600, slice(256, 344)),
     (Gathering, 16, slice(None))], ids=["all", "half", "middle", "gathered"],
)  # fmt: skip
def test_a_backend_that_works_ahead_of_its_submission_is_caught(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, cheat: type[Ahead], blocks: int, part: slice, first: int
) -> None:
    sampling = msgspec.structs.replace(SAMPLING, min_samples=60, max_samples=60, rounds=1, cell_seconds=5)
    cell = Cell("cheat", Direction.H2D, blocks, 512, reuse=Reuse.FRESH, pool_bytes=4 << 20)
    backend = cheat(honest, first=first, part=part)
    monkeypatch.setattr("kvbench.measure.workload.time.sleep", backend.pause)
    with pytest.raises(VerificationError):
        measure(bench, backend, cell, sampling, 1, None)


def now_and_then(request: SwapRequest, number: int, stream: int) -> None:
    """Spoil one byte of every twentieth swap."""
    honest(request, number, stream)
    if number % 20 == 0:
        request.device.driver.synchronize(stream)
        ctypes.memset(int(request.memory.destinations[number % 16]) + number % 4096, 0x5A, 1)


@every_cell
def test_a_wrong_byte_in_every_twentieth_swap_is_found_in_one_of_the_visits(bench: Bench, cell: Cell) -> None:
    sampling = msgspec.structs.replace(SAMPLING, min_samples=25, max_samples=25, rounds=2, cell_seconds=5)
    with pytest.raises(VerificationError, match=r"wrong|had not arrived"):  # noqa: PT012
        for number in range(sampling.rounds):
            measure(bench, Recorded(now_and_then), cell, sampling, 1, None, number)


@every_cell
def test_an_honest_backend_passes_behind_every_cheat(bench: Bench, cell: Cell) -> None:
    """Whatever a cheat has left behind is put right before the next visit."""
    for cheat in (stops_after_the_first_sample, every_other_block):
        with pytest.raises(VerificationError, match=NOT_COPIED):
            measure(bench, Recorded(cheat), cell, SAMPLING, 1, None)
        measurement = measure(bench, Recorded(honest), cell, SAMPLING, 1, None)
        assert len(measurement.samples) == 6
        assert measurement.verified_bytes >= 3 * cell.swap_bytes  # the first swap, those of the samples, the audit's


def test_in_a_gate_a_small_swap_comes_again_when_caches_have_forgotten_it() -> None:
    cell = Cell("cheat", Direction.H2D, 16, 4096, reuse=Reuse.FRESH, pool_bytes=16 << 30)
    on_gpu = mock.Mock()  # with a pool that no test machine has
    on_gpu.request = partial(SwapRequest, on_gpu.device)
    on_gpu.threads.all.side_effect = [frozenset({1}), frozenset({1, 7})]
    side = mock.Mock(places=lambda offsets: offsets)
    side.buffer.address = side.buffer.device_address = 0
    on_gpu.pools.sides.return_value = (side, side)
    ready = set_up(on_gpu, Recorded(honest), cell, SAMPLING, 1, many_visits=True)
    assert (ready.workload.sets - 1) * cell.swap_bytes >= FORGOTTEN_AFTER_BYTES
    assert ready.threads == {7}  # the backend started it
    for other, many_visits in ((cell, False), (replace(cell, pool_bytes=0), True)):
        (layouts,) = lay_out_arms(other, SAMPLING, 1, many_visits=many_visits)
        assert len(layouts) == sets_of(other, submissions(SAMPLING, StreamState.IDLE))
    arms = lay_out_arms(replace(cell, pool_bytes=64 << 20), SAMPLING, 1, 3)
    assert [len(sets) for sets in arms] == [submissions(SAMPLING, StreamState.IDLE)] * 3


@pytest.mark.parametrize(("number", "attempt"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("verifies", [False, True])
def test_every_attempt_in_the_first_round_is_compared_first(
    monkeypatch: pytest.MonkeyPatch, number: int, attempt: int, *, verifies: bool
) -> None:
    """After a resumed sweep, the first visit on one of several devices may be a repeated one."""
    monkeypatch.setattr(visit, "_check_order", check := mock.Mock())
    request = MeasureCells(cells=[], round=number, attempt=attempt, seed=1, sampling=SAMPLING)
    sampler = mock.Mock(**{"workload.verify.return_value": 7})
    assert visit._check_before(sampler, request, verifies=verifies) == 7 * (is_first := number == 0 and verifies)
    assert check.mock_calls == [mock.call(sampler, sampler.take_idle.return_value.caller_us)] * is_first


@pytest.mark.parametrize("state", StreamState)
def test_a_visit_makes_as_many_swaps_as_the_plan_has_sets_of_blocks_for(
    bench: Bench, state: StreamState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In round 0, by a backend whose twins on a busy stream tell what the CPU copies; without watched swaps."""
    monkeypatch.setattr("kvbench.measure.samples.WATCHED_SHARE", 0.0)
    monkeypatch.setattr("kvbench.sweep.spec.WATCHED_SHARE", 0.0)
    cell = Cell("cheat", Direction.H2D, 2, 512, state, reuse=Reuse.FRESH, pool_bytes=4 << 20)
    ready = set_up(bench, Recorded(honest, mechanism=Mechanism.BATCHED_COPY), cell, SAMPLING, 1)
    advance = mock.Mock(side_effect=ready.workload._note_next)
    monkeypatch.setattr(ready.workload, "_note_next", advance)
    visited(bench, ready, MeasureCells(cells=[cell.as_strings()], round=0, seed=1, sampling=SAMPLING))
    spare = CHAIN if state is StreamState.SUSTAINED else 1  # the plan has one watched swap at least
    assert advance.call_count == submissions(SAMPLING, state) - spare


def test_a_pause_works_in_new_pages_until_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that a pass before it left are in the caches, and so is what an engine's step would have pushed out."""
    now_s, largest_page_bytes = iter([0.0, 0.02, 0.06]), 2 << 20
    monkeypatch.setattr("kvbench.measure.samples.time.perf_counter", lambda: next(now_s))
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    _work_for(50_000)
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    assert not [*now_s]
    assert faults >= 2 * (32 << 20) // largest_page_bytes


@pytest.mark.parametrize(
    ("devices", "least", "most", "taken"), [(1, 1, 6, 6), (1, 1, 50, 9), (1, 12, 50, 20), (2, 1, 6, 9), (2, 6, 6, 14)]
)
def test_a_visit_ends_with_its_samples_or_when_its_time_is_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, devices: int, least: int, most: int, taken: int
) -> None:
    """Beside other devices only with its time. The clock goes on by a second each time it is read: once before the
    samples, and when there are enough.
    """
    monkeypatch.setattr("kvbench.measure.samples.time", mock.Mock(monotonic=mock.Mock(side_effect=itertools.count())))
    sampling = msgspec.structs.replace(SAMPLING, min_samples=least, max_samples=most, cell_seconds=8.5)
    made = measure(bench, Recorded(honest), replace(CELLS[0], devices=devices), sampling, 1, None)
    assert (len(made.samples), made.stopped_by) == (taken, "max_samples" if most == taken else "time")


@pytest.mark.parametrize(
    ("mechanism", "cpu_us", "busy_cpu_us", "path"),
    [
        (Mechanism.BATCHED_COPY, [1900.0, 2100.0, 2000.0], 450.0, EffectivePath.CPU_INLINE),
        (Mechanism.BATCHED_COPY, [440.0, 460.0, 450.0], 450.0, EffectivePath.COPY_ENGINE),
        # a CPU at half its speed for all samples but one has not copied
        (Mechanism.BATCHED_COPY, [795.0, 802.0, 445.0, 795.0, 769.0], 436.0, EffectivePath.COPY_ENGINE),
        # on a busy stream there is nothing to compare with, and nothing that the driver would copy itself
        (Mechanism.BATCHED_COPY, [2000.0], None, EffectivePath.COPY_ENGINE),
        (Mechanism.SINGLE_COPIES, [2000.0], None, EffectivePath.COPY_ENGINE),
        (Mechanism.FALLBACK, [2000.0], None, EffectivePath.FALLBACK),
        (Mechanism.SM_KERNEL, [2000.0], None, EffectivePath.SM_KERNEL),
        (Mechanism.HOST_THREAD, [2000.0], None, EffectivePath.HOST_THREAD),
    ],
)
def test_a_batched_call_copied_inside_when_no_sample_was_as_short_as_a_mere_submission(
    mechanism: Mechanism, cpu_us: list[float], busy_cpu_us: float | None, path: EffectivePath
) -> None:
    """Else it is of the copy engine, or, by newer drivers, of SMs unless it is asked to leave them to others."""
    for version, newer in ((13_000, False), (13_010, True)):
        may_use_sms = newer and (mechanism, path) == (Mechanism.BATCHED_COPY, EffectivePath.COPY_ENGINE)
        with mock.patch.object(visit, "driver_version", return_value=version):
            assert effective_path(mechanism, cpu_us, busy_cpu_us, prefer_overlap=True) is path
            path_of_version = effective_path(mechanism, cpu_us, busy_cpu_us)
        assert path_of_version is (EffectivePath.ENGINE_OR_SMS if may_use_sms else path)
