"""`kvbench.copy.BlockCopier` as an engine calls it, on the device cpu, with bytes compared."""

import ctypes
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from kvbench.backends.auto import DEFAULTS, TABLES_OF, copier_for
from kvbench.cells.axes import Direction, Situation, StreamState
from kvbench.cells.faults import Fault, FaultPlan
from kvbench.cells.policy import Policy, Table
from kvbench.copy import BlockCopier
from kvbench.engine.device import DIRECTIONS, Buffer, Device, EngineError, MemoryKind, Stream, copier_swap, open_device
from kvbench.ground.errors import UsageError
from tests.gates import Gate, in_threads
from tests.swaps import MixedSwap, always, mixed_swap

Words = NDArray[np.int64]
# A stream that every driver has.
PER_THREAD_STREAM = 2
SIZES = [1, 7, 16, 24, 64, 100, 4096, 65_536]


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("cpu", FaultPlan())


class Lists:
    """A list of mixed sizes and alignments in pinned and in device memory, with random bytes in its source."""

    def __init__(self, device: Device, direction: Direction, swap: MixedSwap) -> None:
        kinds = (MemoryKind.allocated, MemoryKind.device)
        ends = [Buffer(device.driver, kind, swap.span_bytes) for kind in kinds]
        self.source, self.destination = ends if direction is Direction.H2D else reversed(ends)
        self._swap = swap
        source = np.frombuffer(np.random.default_rng(1).bytes(swap.span_bytes), np.uint8)
        self.memory(self.source)[:] = source
        self.memory(self.destination)[:] = 0
        self.expected = np.zeros(swap.span_bytes, np.uint8)
        for at, to, size in zip(swap.source_offsets, swap.destination_offsets, swap.sizes, strict=True):
            self.expected[int(to) : int(to + size)] = source[int(at) : int(at + size)]

    def arguments(self) -> tuple[Words, Words, Words]:
        sources = self._swap.source_offsets + np.uint64(self.source.address)
        destinations = self._swap.destination_offsets + np.uint64(self.destination.address)
        return sources.astype(np.int64), destinations.astype(np.int64), self._swap.sizes.astype(np.int64)

    def arrived(self) -> bool:
        return bool((self.memory(self.destination) == self.expected).all())

    def memory(self, buffer: Buffer) -> NDArray[np.uint8]:
        """Return the bytes of a buffer: on the device cpu also device memory is ordinary memory."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * self._swap.span_bytes).from_address(buffer.address))


@pytest.mark.parametrize("direction", Direction)
def test_a_list_of_mixed_sizes_arrives_though_its_arrays_change_right_after_the_call(
    device: Device, direction: Direction
) -> None:
    copier, stream = copier_for(device, [DEFAULTS]).engine, Stream(device.driver)
    lists = Lists(device, direction, mixed_swap(SIZES * 20, seed=3))
    sources, destinations, sizes = lists.arguments()
    device.driver.delay(20_000_000, stream.handle)
    copier.copy(sources, destinations, sizes, stream.handle)
    for array in (sources, destinations, sizes):
        array[:] = 1
    stream.synchronize()
    assert lists.arrived()


def test_the_block_copier_takes_a_device_a_policy_and_streams_of_torch(device: Device, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    here = structs.replace(DEFAULTS, device=device.driver.info.title)
    policy.write_text(here.to_toml())
    lists = Lists(device, Direction.H2D, mixed_swap([64], 1)).arguments()
    with mock.patch("kvbench.copy.copier_for", wraps=copier_for) as made:
        copiers = BlockCopier("cpu"), BlockCopier("cpu", policy), BlockCopier("cpu", max_entries=10_000)
    assert [call.args[2] for call in made.call_args_list][1:] == [0, 10_000]  # the room that they take
    for copier in copiers:
        with pytest.raises(ValueError, match=r"entry 0: source 0x[0-9a-f]+ is pageable memory"):  # of another driver
            copier.copy(*lists, SimpleNamespace(cuda_stream=PER_THREAD_STREAM))
    with pytest.raises(UsageError, match="not found"):
        BlockCopier("cuda:99")
    for name in ("cuda:x", "cuda:-1", "gpu"):
        with pytest.raises(UsageError, match="not a device"):
            BlockCopier(name)
    with pytest.raises(UsageError, match=r"missing\.toml"):
        BlockCopier("cpu", tmp_path / "missing.toml")
    policy.write_text(structs.replace(here, driver="1.2").to_toml())
    with pytest.warns(UserWarning, match=r"measured with driver 1\.2, this is none") as warned:
        BlockCopier("cpu", policy)
    assert warned[0].filename == __file__, "the line that made the copier"
    policy.write_text(structs.replace(here, device="NVIDIA Other").to_toml())
    with pytest.raises(UsageError, match='measured on "NVIDIA Other", this is '):
        BlockCopier("cpu", policy)


@pytest.mark.parametrize("entries", [-1, 10**12, 10**19, 10**30, True, 2.0, "8", None])
def test_a_number_of_entries_that_is_none_is_refused_by_its_name(entries: object) -> None:
    with pytest.raises(UsageError, match=r"max_entries: must be a whole number from 0 to 16777216, not "):
        BlockCopier("cpu", max_entries=entries)  # type: ignore[arg-type]
    with mock.patch("kvbench.copy.MOST_ENTRIES", 16):
        BlockCopier("cpu", max_entries=16)


@pytest.mark.parametrize("pace", [0, -1, 0.05, 1000.5, float("nan"), float("inf"), True, "46", "85%"])
def test_a_rate_that_is_none_is_refused_by_its_name(pace: object) -> None:
    with pytest.raises(UsageError, match=r"^pace: must be a rate from 0\.1 to 1000 in GB/s, not "):
        BlockCopier("cpu", pace=pace)  # type: ignore[arg-type]


@pytest.mark.parametrize("pace", [0.1, 46, 1000])
def test_a_device_without_kernels_holds_no_rate(pace: float) -> None:
    with pytest.raises(UsageError, match=rf"^pace={pace:g}: the device cpu has no copy kernel to hold at a rate"):
        BlockCopier("cpu", pace=pace)


@pytest.mark.parametrize("pool", [(0, 4096), (4096, 0), (4096, -1), (1 << 63, 1 << 63 | 1), 4096, "pool", (1, 2, 3)])
def test_what_is_no_pool_is_refused_by_its_number(pool: object) -> None:
    with pytest.raises(UsageError, match="pools: entry 1 must be"):
        BlockCopier("cpu", pools=[(4096, 4096), pool])


@pytest.mark.parametrize(("contiguous", "size"), [(False, 4096), (True, 0)])
def test_a_tensor_with_gaps_or_without_elements_is_no_pool(*, contiguous: bool, size: int) -> None:
    tensor = SimpleNamespace(data_ptr=lambda: 4096, is_contiguous=lambda: contiguous, nbytes=size)
    with pytest.raises(UsageError, match="pools: entry 0 must be a contiguous tensor"):
        BlockCopier("cpu", pools=[tensor])


def test_memory_that_cannot_be_copied_is_no_pool(device: Device) -> None:
    host = Buffer(device.driver, MemoryKind.allocated, 4096)
    for pool in ((4096, 64), (host.address, 1 << 40)):
        with pytest.raises(ValueError, match=r"^pools: entry 1 begins in p\w+ .* and ends in pageable memory"):
            copier_for(device, [DEFAULTS], pools=[(host.address, 4096), pool])
    tensor = pytest.importorskip("torch").zeros(64)
    for pool in (tensor, (1 << 63, 4096), ((1 << 64) - 4096, 4096)):  # of another driver, and of none
        with pytest.raises(ValueError, match=r"^pools: entry 0 begins in pageable memory"):
            BlockCopier("cpu", pools=[pool])
    with pytest.raises(UsageError, match="pools: entry 0 must be a contiguous tensor"):
        BlockCopier("cpu", pools=[tensor[::2]])


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 8])
def test_an_array_at_an_odd_address_is_refused(device: Device, which: int, count: int) -> None:
    copier, stream = copier_for(device, [DEFAULTS]).engine, Stream(device.driver)
    arguments = list(Lists(device, Direction.H2D, mixed_swap([64] * count, seed=4)).arguments())
    odd = np.ndarray(count, np.int64, buffer=np.zeros(8 * count + 8, np.uint8).data, offset=1)
    odd[:] = arguments[which]
    arguments[which] = odd
    with pytest.raises(TypeError, match="aligned to 8 bytes"):
        copier.copy(*arguments, stream.handle)


class Looks:
    """What an attribute of a tensor would say, without being one."""

    ndim, is_cuda, is_cpu, dtype = 1, False, True, "int64"

    def __init__(self, words: Words) -> None:
        self._words = words

    def data_ptr(self) -> int:
        return int(self._words.ctypes.data)

    def numel(self) -> int:
        return len(self._words)


def _changed(kind: str, words: Words) -> object:
    """Return a list in an array that a copier refuses."""
    if kind == "looks":
        return Looks(words)
    if kind == "ctypes":
        return (ctypes.c_int64 * len(words))(*words.tolist())
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(words)
    match kind:
        case "fake":
            from torch._subclasses.fake_tensor import FakeTensorMode

            with FakeTensorMode():
                return torch.zeros(len(words), dtype=torch.int64)
        case "strided":
            return tensor.repeat_interleave(2)[::2]
        case "2D":
            return tensor.reshape(-1, 1)
        case "sparse":
            return tensor.to_sparse()
        case "subclass":
            return tensor.double().as_subclass(torch.nn.Parameter)
        case "meta":
            return torch.zeros(len(words), dtype=torch.int64, device="meta")
    return tensor.to(getattr(torch, kind))


@pytest.mark.parametrize(
    ("which", "kind"),
    [(0, "looks"), (1, "ctypes"), (2, "fake"), (0, "strided"), (1, "2D"), (2, "sparse"), (0, "subclass"), (1, "meta"),
     (2, "complex64"), (0, "float64"), (1, "int32")],
)  # fmt: skip
def test_what_is_no_tensor_of_64_bit_integers_is_refused(device: Device, which: int, kind: str) -> None:
    copier, stream = copier_for(device, [DEFAULTS]).engine, Stream(device.driver)
    lists = Lists(device, Direction.H2D, mixed_swap(SIZES, seed=4))
    arguments: list[object] = list(lists.arguments())
    arguments[which] = _changed(kind, lists.arguments()[which])
    name = ("sources", "destinations", "sizes")[which]
    with pytest.raises(TypeError, match=f"{name} must be a contiguous CPU array or tensor of 64-bit integers"):
        copier.copy(*arguments, stream.handle)
    copier.copy(*lists.arguments(), stream.handle)
    stream.synchronize()
    assert lists.arrived()


def test_an_array_that_was_exported_for_the_call_lives_until_it_returns(device: Device) -> None:
    class Exporter:
        """Exports an array that nobody else keeps; large enough to be unmapped when it is freed."""

        def __init__(self, words: Words) -> None:
            self._words = words

        def __dlpack__(self, **_: object) -> object:
            return self._words.copy().__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    copier, stream = copier_for(device, [DEFAULTS]).engine, Stream(device.driver)
    lists = Lists(device, Direction.H2D, mixed_swap([64] * 50_000, seed=4))
    copier.copy(*map(Exporter, lists.arguments()), stream.handle)
    stream.synchronize()
    assert lists.arrived()


@pytest.mark.parametrize(
    ("stream", "error"),
    [(-1, ValueError), (2**64, ValueError), (12_345, ValueError), (0, EngineError), (None, TypeError),
     (True, TypeError), (1.5, TypeError), ("stream", TypeError), (SimpleNamespace(cuda_stream=None), TypeError)],
    ids=str,
)  # fmt: skip
def test_what_is_no_stream_is_refused(device: Device, stream: object, error: type[Exception]) -> None:
    lists = Lists(device, Direction.H2D, mixed_swap([64], seed=6))
    with pytest.raises(error, match="stream"):
        copier_for(device, [DEFAULTS]).engine.copy(*lists.arguments(), stream)


def test_an_interrupt_while_the_arguments_are_read_is_none_of_their_faults(device: Device) -> None:
    class Interrupted:
        @property
        def cuda_stream(self) -> int:
            raise KeyboardInterrupt

    lists = Lists(device, Direction.H2D, mixed_swap([64], seed=6))
    with pytest.raises(KeyboardInterrupt):
        copier_for(device, [DEFAULTS]).engine.copy(*lists.arguments(), Interrupted())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda s, d, n: (s, d, n[:-1]), ValueError, "the same length"),
        (lambda s, d, n: (s, d, np.append(n[:-1], -n[-1:])), ValueError, "entry 7: sizes must not be negative"),
        (lambda s, d, n: (s * 0, d, np.append(n[:-1], -n[-1:])), ValueError, "entry 7: sizes must not be negative"),
        (lambda s, d, n: (s, d, np.full_like(n, 2**62)), ValueError, "entry 0: .* fewer than the block's"),
        (lambda _, d, n: (d, d, n), ValueError, "pinned host memory"),
        (lambda _, d, n: (n, d, n), ValueError, "pinned host memory"),
        (lambda s, d, _: (s, d, None), TypeError, "sizes must be"),
    ],
)
def test_an_invalid_list_is_refused(
    device: Device, change: Callable[[Words, Words, Words], tuple[object, ...]], error: type[Exception], message: str
) -> None:
    lists = Lists(device, Direction.H2D, mixed_swap([64] * 8, seed=6))
    with pytest.raises(error, match=message):
        copier_for(device, [DEFAULTS]).engine.copy(*change(*lists.arguments()), PER_THREAD_STREAM)


def test_an_entry_is_named_by_its_number_in_the_list(device: Device) -> None:
    lists = Lists(device, Direction.H2D, mixed_swap([64] * 8, seed=6))
    sources, destinations, sizes = lists.arguments()
    sizes[[0, 2]], sizes[5] = 0, lists.memory(lists.source).nbytes + 1
    with pytest.raises(ValueError, match=r"^entry 5: .* bytes left in its"):
        copier_for(device, [DEFAULTS]).engine.copy(sources, destinations, sizes, PER_THREAD_STREAM)
    device.arm(Fault("error@descriptor", 3))
    sizes[5] = 64
    with pytest.raises(EngineError) as failed:
        copier_for(device, [DEFAULTS]).engine.copy(sources, destinations, sizes, PER_THREAD_STREAM)
    device.arm(None)
    assert failed.value.descriptor == 5


def test_many_calls_do_not_make_the_process_larger(device: Device) -> None:
    copier, stream = copier_for(device, [DEFAULTS]).engine, Stream(device.driver)
    lists = Lists(device, Direction.H2D, mixed_swap([64] * 16, seed=7))
    arguments = lists.arguments()

    def copies(count: int) -> None:
        for number in range(count):
            copier.copy(*arguments, stream.handle)
            if number % 64 == 0:
                stream.synchronize()
        stream.synchronize()

    copies(2_000)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    copies(100_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 4096
    assert lists.arrived()


def test_threads_in_one_copier_are_refused_or_served_but_never_mixed(device: Device) -> None:
    copier = copier_for(device, [always("merged")]).engine
    every = [Lists(device, direction, mixed_swap(SIZES * 100, seed=8)) for direction in Direction for _ in range(2)]
    served = [0] * len(every)

    def work(number: int) -> None:
        stream, arguments = Stream(device.driver), every[number].arguments()
        while served[number] < 50:
            with suppress(RuntimeError):
                copier.copy(*arguments, stream.handle)
                served[number] += 1
        stream.synchronize()

    in_threads(work, range(len(every)))
    assert all(lists.arrived() for lists in every)


def test_the_policy_decides_by_what_is_pending_on_the_stream(device: Device) -> None:
    """A policy that merges on an idle stream alone: a list of adjacent blocks becomes one descriptor there."""
    tables = [
        Table(direction=way, stream_state=state, block_bytes=(4096,), blocks=(16,), choices=((choice,),))
        for way in Direction
        for state, choice in (
            (StreamState.IDLE, "merged"), (StreamState.BUSY, "merged"), (StreamState.GATED, "batched")
        )
    ]  # fmt: skip
    copier, stream = copier_for(device, [Policy(device="any", tables=tuple(tables))]).engine, Stream(device.driver)
    block_bytes = 524_288  # small lists do not ask the stream
    host, card = (Buffer(device.driver, kind, 16 * block_bytes) for kind in (MemoryKind.allocated, MemoryKind.device))
    steps = np.arange(16, dtype=np.uint64) * np.uint64(block_bytes)
    lists = steps + np.uint64(host.address), steps + np.uint64(card.address), np.full(16, block_bytes, np.uint64)
    swap = copier_swap(copier, *lists, source_order_any=False)
    swap.submit(stream.handle)
    assert swap.descriptors == 1
    stream.synchronize()
    with Gate(device, stream.handle):
        swap.submit(stream.handle)
        assert swap.descriptors == 16
    stream.synchronize()


def test_between_two_points_of_a_policy_the_nearest_in_ratio_serves(device: Device) -> None:
    table = Table(
        direction=Direction.H2D,
        stream_state=StreamState.IDLE,
        block_bytes=(65_536, 1_048_576),
        blocks=(1024, 16_384),
        choices=(("batched", "merged"), ("primed", "per_block")),
    )
    copier = copier_for(device, [Policy(device="any", tables=(table,)), DEFAULTS])

    def served(blocks: int, block_bytes: int) -> str:
        way = copier.engine.way_of(blocks, blocks * block_bytes, DIRECTIONS[Direction.H2D], idle=True)
        return str(copier.ways[way].choice)

    by_count = [served(blocks, 65_536) for blocks in (1024, 4000, 4200, 16_384)]
    by_size = [served(1024, size) for size in (65_536, 250_000, 280_000, 1_048_576)]
    assert (by_count, by_size) == (["batched"] * 2 + ["merged"] * 2, ["batched"] * 2 + ["primed"] * 2)


def test_a_policy_of_one_direction_leaves_the_other_to_the_defaults(tmp_path: Path, device: Device) -> None:
    policy = always("merged")
    only = [table for table in policy.tables if table.direction is Direction.H2D]
    path = tmp_path / "policy.toml"
    path.write_text(structs.replace(policy, device=device.driver.info.title, tables=tuple(only)).to_toml())
    with pytest.raises(ValueError, match="entry 0"):  # so it serves lists
        BlockCopier("cpu", path).copy(*Lists(device, Direction.D2H, mixed_swap([64], 1)).arguments(), PER_THREAD_STREAM)


def beside_decode(device: Device) -> Policy:
    """A policy by which lists go one by one beside decode, and in batches alone."""
    points: dict[str, Any] = {"block_bytes": (4096,), "blocks": (64,)}
    alone = [
        Table(direction=way, stream_state=StreamState.IDLE, choices=(("batched",),), **points) for way in Direction
    ]
    beside = [Table(direction=way, beside=Situation.DECODE, choices=(("per_block",),), **points) for way in Direction]
    return Policy(device=device.driver.info.title, tables=(*alone, *beside))


@pytest.mark.parametrize(("told", "default"), [(Situation.ALONE, "batched"), (Situation.DECODE, "per_block")])
def test_a_list_goes_by_what_it_runs_beside(device: Device, told: Situation, default: str) -> None:
    copier = copier_for(device, [beside_decode(device), DEFAULTS], beside=told)

    def choice(number: int) -> str:
        way = copier.engine.way_of(64, 1 << 18, DIRECTIONS[Direction.H2D], idle=True, beside=number)
        return copier.ways[way].choice.backend

    tables = (0, TABLES_OF[Situation.ALONE], TABLES_OF[Situation.DECODE])
    assert [choice(number) for number in tables] == [default, "batched", "per_block"]
    with pytest.raises(ValueError, match="there is no table"):
        choice(TABLES_OF[Situation.PREFILL])
    stream = Stream(device.driver)
    for beside in (None, "nothing", "decode"):
        lists = Lists(device, Direction.H2D, mixed_swap([64] * 4, 1))
        copier.engine.copy(*lists.arguments(), stream.handle, beside=beside)
        stream.synchronize()
        assert lists.arrived()
    for beside, message in (("prefill", "has no table for it"), ("gemm", 'must be "nothing", "decode" or "prefill"')):
        with pytest.raises(ValueError, match=message):
            copier.engine.copy(*lists.arguments(), stream.handle, beside=beside)
    with pytest.raises(TypeError):
        copier.engine.copy(*lists.arguments(), stream.handle, beside=3)


def test_a_copier_is_told_of_a_step_that_its_policy_was_measured_beside(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(beside_decode(device).to_toml())
    BlockCopier("cpu", path, beside="decode")
    with pytest.raises(UsageError, match="beside=prefill: the policy has no table for swaps beside it"):
        BlockCopier("cpu", path, beside="prefill")
    with pytest.raises(UsageError, match="beside=decode: the policy has no table"):
        BlockCopier("cpu", beside="decode")
    with pytest.raises(UsageError, match="beside: must be one of nothing, decode, prefill, not 'gemm'"):
        BlockCopier("cpu", path, beside="gemm")
