"""The swap engine on the cpu device: real copies, compared byte for byte, and errors that say where they come from."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from kvbench.backends.base import Backend, Mechanism, SwapRequest
from kvbench.backends.driver_copies import Batched, PerBlock
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.faults import Fault, FaultPlan, parse_faults
from kvbench.engine.device import (
    ACCESS_ORDERS,
    DIRECTIONS,
    STREAM_STATES,
    BatchOptions,
    Buffer,
    Device,
    EngineError,
    Event,
    MemoryKind,
    Queue,
    Sample,
    Stream,
    Swap,
    SwapMemory,
    TimedRegion,
    batched,
    open_device,
    per_block,
)
from kvbench.ground.errors import UsageError
from tests.gates import Gate, let_another_work, work_for
from tests.swaps import POISON, mixed_swap, run_and_compare

MIXED_SIZES = [*range(1, 130), 255, 576, 656, 1000, 4095, 4096, 4097, 24_576, 25_088, 65_537, 1 << 20, (1 << 20) - 3]
RIGHT = (0, 0, None)
BACKENDS: list[Backend] = [PerBlock(), Batched()]
IDLE, BUSY = STREAM_STATES[StreamState.IDLE], STREAM_STATES[StreamState.BUSY]
H2D, D2H = (DIRECTIONS[direction] for direction in Direction)
ORDER = next(iter(ACCESS_ORDERS.values()))
ROOM = 1 << 16

Words = NDArray[np.uint64]


@pytest.fixture(scope="module")
def cpu() -> Device:
    return open_device("cpu", FaultPlan())


@pytest.fixture
def faulty(cpu: Device) -> Iterator[Device]:
    """The device, to inject faults; the next test finds it sound."""
    yield cpu
    cpu.arm(None)


class Bench:
    """Two buffers that the test can read, a stream, and a timed region."""

    def __init__(self, device: Device) -> None:
        self.device, self.stream = device, Stream(device.driver)
        self.region = TimedRegion(device.driver, self.stream.handle, 1000)
        self.source = Buffer(device.driver, MemoryKind.allocated, ROOM)
        self.destination = Buffer(device.driver, MemoryKind.registered, ROOM)
        self.source.fill_random(ROOM, 5)
        self.destination.fill_value(ROOM, POISON)

    def lists(self, *descriptors: tuple[int, int, int]) -> tuple[Words, Words, Words]:
        """Return (source offset, destination offset, size) triples as the engine takes them."""
        sources, destinations, sizes = np.array(descriptors, dtype=np.uint64).T.copy()
        return sources + np.uint64(self.source.address), destinations + np.uint64(self.destination.address), sizes

    def per_block(self, *descriptors: tuple[int, int, int]) -> Swap:
        return per_block(self.device.driver, *self.lists(*descriptors), H2D)

    def batched(self, *descriptors: tuple[int, int, int], per_call: int = 0, coalesce: bool = False) -> Swap:
        options = BatchOptions(order=ORDER, descriptors_per_call=per_call, merge=coalesce)
        return batched(self.device.driver, *self.lists(*descriptors), H2D, options)

    def run(self, swap: Swap) -> None:
        swap.submit(self.stream.handle)
        self.stream.synchronize()

    def moved(self, *descriptors: tuple[int, int, int]) -> bool:
        """Whether exactly these descriptors were copied: the whole destination is compared."""
        expected = np.full(ROOM, POISON, dtype=np.uint8)
        source = self.source.array()
        for start, to, size in descriptors:
            expected[to : to + size] = source[start : start + size]
        return np.array_equal(self.destination.array(), expected)


@pytest.fixture
def bench(faulty: Device) -> Bench:
    return Bench(faulty)


def row(count: int) -> list[tuple[int, int, int]]:
    """Descriptors of 64 bytes that ascend on both sides."""
    return [(index * 64, index * 64, 64) for index in range(count)]


# What arrives


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("state", STREAM_STATES)
def test_mixed_sizes_at_any_alignment_arrive(
    cpu: Device, backend: Backend, direction: Direction, state: StreamState
) -> None:
    swap = mixed_swap(MIXED_SIZES * 2, seed=11)
    for offsets in (swap.source_offsets, swap.destination_offsets):
        assert set((offsets % 16).tolist()) == set(range(16))
    assert run_and_compare(cpu, backend, direction, swap, state=state, times=3) == RIGHT


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(
    ("kind", "at", "owner"),
    [("corrupt@descriptor", 99, 13), ("stray@descriptor", 100, None)],  # with at least one byte between any two
    ids=["wrong byte", "stray byte"],
)
def test_a_byte_is_attributed_to_its_descriptor_or_to_none(
    faulty: Device, backend: Backend, direction: Direction, kind: str, at: int, owner: int | None
) -> None:
    swap = mixed_swap([100] * 20, seed=2)
    faulty.arm(Fault(kind, 13))
    assert run_and_compare(faulty, backend, direction, swap) == (1, int(swap.destination_offsets[13]) + at, owner)


# How it is submitted


def test_a_submission_does_not_wait_and_copies_run_in_the_stream_s_order(bench: Bench) -> None:
    with Gate(bench.device, bench.stream.handle):
        bench.batched((0, 0, 8), (8, 100, 8)).submit(bench.stream.handle)
        assert bench.moved()
    done = Event(bench.device.driver)
    done.record(bench.stream.handle)
    done.wait()
    assert bench.moved((0, 0, 8), (8, 100, 8))


def test_a_device_without_batch_runs_single_copies_and_says_so() -> None:
    old = open_device("cpu", FaultPlan(with_batch=False))
    assert old.batch_entry is old.facts().batch_entry is None
    bench = Bench(old)
    swap = bench.batched(*row(10), per_call=5, coalesce=True)
    assert swap.fell_back
    bench.run(swap)
    assert swap.calls == 10
    assert bench.moved(*row(10))
    assert run_and_compare(old, Batched(), Direction.D2H, mixed_swap(MIXED_SIZES, seed=1)) == RIGHT
    sources, destinations, sizes = bench.lists(*row(4))
    memory = SwapMemory(sources, destinations, sources, destinations, sizes)
    request = SwapRequest(old, Cell("batched", Direction.H2D, 4, 64, descriptors_per_call=0), memory)
    assert Batched().create(request).mechanism is Mechanism.FALLBACK


# What is refused


@pytest.mark.parametrize(
    ("how", "fault", "call", "descriptor"),
    [
        ("batched", Fault("error@descriptor", 7), "copy_batch", 7),
        ("batched", Fault("error@call", 1), "copy_batch", None),
        ("per_block", Fault("error@descriptor", 4), "copy", 4),
        ("per_block", Fault("error@call", 4), "copy", 4),
    ],
    ids=["of a batch", "of a whole call", "of a single copy", "of a single call"],
)
def test_an_error_names_call_error_and_descriptor(
    bench: Bench, how: str, fault: Fault, call: str, descriptor: int | None
) -> None:
    bench.device.arm(fault)
    swap = bench.batched(*row(10), per_call=4) if how == "batched" else bench.per_block(*row(10))
    with pytest.raises(EngineError) as caught:
        bench.region.measure(swap, IDLE)
    assert (caught.value.call, caught.value.name, caught.value.descriptor) == (call, "INJECTED_ERROR", descriptor)
    where = "" if descriptor is None else f" (descriptor {descriptor})"
    assert str(caught.value) == f"{call}: INJECTED_ERROR{where}"


def test_faults_on_a_gpu_are_refused() -> None:
    with pytest.raises(UsageError, match="not supported on cuda:0; use --device cpu"):
        open_device("cuda:0", FaultPlan((Fault("slow", 1),)))


# What a sample says


def test_a_chain_from_python_is_timed_like_one_from_the_engine(bench: Bench) -> None:
    made: list[int] = []
    swaps = [lambda stream: (work_for(1000), made.append(stream))] * 4
    chain = bench.region.sustained_python(swaps, 1)
    assert made == [bench.stream.handle] * 4
    assert chain.caller_us >= chain.cpu_us >= 1000


def test_the_time_of_a_swap_from_python_includes_its_whole_submission(bench: Bench) -> None:
    worked = bench.region.measure_python(lambda _: work_for(20_000), IDLE)
    assert worked.wall_us >= worked.caller_us >= worked.cpu_us >= 20_000
    waited = bench.region.measure_python(lambda _: let_another_work(20_000), IDLE)
    assert waited.caller_us >= 20_000
    assert waited.cpu_us < 20_000


def test_an_error_of_the_work_before_a_swap_is_raised(bench: Bench) -> None:
    def refuse() -> None:
        raise LookupError("no step")

    with pytest.raises(LookupError, match="no step"):
        bench.region.measure(bench.per_block(*row(2)), IDLE, Queue(), refuse)
    assert isinstance(bench.region.measure(bench.per_block(*row(2)), IDLE), Sample)


@pytest.mark.parametrize("made", [Bench.per_block, Bench.batched])
def test_slow_copies_take_longer_by_the_requested_time(bench: Bench, made: Callable[..., Swap]) -> None:
    swap = made(bench, *row(4))
    bench.device.arm(Fault("slow", 5000))
    assert bench.region.measure(swap, IDLE).wall_us >= 4 * 5000
    assert bench.moved(*row(4))


def test_a_slowdown_can_be_fractional_and_the_first_fault_of_a_cell_counts() -> None:
    plan = parse_faults("slow=0.25 when blocks=16; slow=2")
    near, far = (plan.for_cell(Cell("batched", Direction.H2D, blocks, 4096)) for blocks in (16, 64))
    assert isinstance(near, Fault)
    assert near.number == 0.25
    assert far == Fault("slow", 2)
