"""Hostile calls of a copier on a GPU, each for a process of its own: `python -m tests.gpu.trust_cases NAME`.

A case ends with exit code 0 if the call was refused, nothing was touched, and the copier works on; with SKIPPED, and
the reason as its last line, if this machine lacks what it is about.
"""

import ctypes
import gc
import inspect
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import product
from types import FunctionType
from typing import Any, Final, NoReturn

import numpy as np
import torch
from cuda.bindings import driver as bindings
from numpy.typing import NDArray
from torch import multiprocessing

from kvbench.backends.auto import copier_for
from kvbench.cells.axes import Direction
from kvbench.cells.faults import FaultPlan
from kvbench.copy import BlockCopier
from kvbench.engine.device import DIRECTIONS, Buffer, EngineError, MemoryKind, Stream, open_device, register_pages
from kvbench.machine.sources import Sources
from tests.gates import Gate, in_threads
from tests.swaps import always

Words = NDArray[np.int64]
BLOCK: Final = 4096
ROOM: Final = 64 * BLOCK
BACKENDS: Final = ("sm", "sm pace=20GB/s", "batched", "merged", "per_block", "staged")
SKIPPED: Final = 77


@contextmanager
def refused(error: type[Exception], *words: str) -> Iterator[None]:
    """Pass if the block raises `error` with these words."""
    try:
        yield
    except error as raised:
        missing = [word for word in words if word not in str(raised)]
        if missing:
            raise SystemExit(f"{raised!r} does not say {missing}") from raised
    else:
        raise SystemExit(f"no {error.__name__}")


def expect(holds: object, what: str) -> None:
    if not holds:
        raise SystemExit(f"not so: {what}")


def skip(reason: str) -> NoReturn:
    print(reason)
    raise SystemExit(SKIPPED)


class Pools:
    """Pools of 64 blocks on both sides, the host's with known bytes, and a copier by one backend."""

    def __init__(self, backend: str = "sm") -> None:
        self.backend, self.device = backend, open_device("cuda:0", FaultPlan())
        self.blocks = 64 if backend == "staged" else 8  # as many as lie together in a page
        self.copier = copier_for(self.device, [always(backend)]).engine
        self.stream = torch.cuda.Stream()
        self.host = Buffer(self.device.driver, MemoryKind.allocated, ROOM)
        self.card = Buffer(self.device.driver, MemoryKind.device, ROOM)
        self.behind = Buffer(self.device.driver, MemoryKind.device, ROOM)
        self.device.driver.fill(self.behind.address, 0xEE, ROOM, self.stream.cuda_stream)
        self.device.driver.fill(self.card.address, 0, ROOM, self.stream.cuda_stream)
        self.host.array()[:] = np.random.default_rng(1).integers(0, 256, ROOM, np.uint8)

    def lists(self, blocks: int = 0, size: int = BLOCK) -> tuple[Words, Words, Words]:
        starts = np.arange(blocks or self.blocks, dtype=np.int64) * BLOCK
        return self.host.address + starts, self.card.address + starts, np.full(len(starts), size, np.int64)

    def copy(self, *lists: object) -> None:
        self.copier.copy(*lists, self.stream)

    def refuse(self, entry: int, side: int, value: int, *words: str) -> None:
        """Expect that a list with this value of its source (side 0), destination (1) or size (2) is refused."""
        lists = self.lists()
        lists[side][entry] = value
        with refused(ValueError, f"entry {entry}: ", *words):
            self.copy(*lists)

    def check(self) -> None:
        """Check that the copier works on, and that what lies behind the pool is as it was."""
        self.copy(*self.lists())
        arrived = self.bytes_at(self.card.address, 8 * BLOCK) == self.host.array()[: 8 * BLOCK]
        expect(arrived.all(), "the next list arrives")
        expect((self.bytes_at(self.behind.address, ROOM) == 0xEE).all(), "the memory of others is as it was")

    def bytes_at(self, address: int, count: int) -> NDArray[np.uint8]:
        """Return what stands on the GPU behind the work of the stream."""
        seen = Buffer(self.device.driver, MemoryKind.allocated, count)
        d2h = DIRECTIONS[Direction.D2H]
        self.device.driver.transfer(seen.address, address, count, d2h, self.stream.cuda_stream)
        self.stream.synchronize()
        return seen.array()[:count].copy()


def _by_every_backend() -> Iterator[Pools]:
    """Yield pools for a case, and check them behind it."""
    for backend in BACKENDS:
        yield (pools := Pools(backend))
        pools.check()


def a_block_that_leaves_its_pool() -> None:
    for pools in _by_every_backend():
        for entry in (0, 3, 7):
            for side in (0, 1):
                begin = (pools.host.address, pools.card.address)[side]
                for beyond in (16, BLOCK - 16):
                    pools.refuse(entry, side, begin + ROOM - BLOCK + beyond)
            for size in (ROOM + 1, 1 << 40, (1 << 62) - 1, 1 << 62):
                pools.refuse(entry, 2, size)


def a_list_of_both_directions() -> None:
    for pools in _by_every_backend():
        sources, destinations, sizes = pools.lists()
        sources[2], destinations[2] = destinations[2], sources[2]
        with refused(ValueError, "entry 2"):
            pools.copy(sources, destinations, sizes)
        sizes[5] = -BLOCK
        with refused(ValueError, "entry 5", "negative"):
            pools.copy(sources, destinations, sizes)


def a_block_that_leaves_its_pool_is_named_as_the_caller_counts() -> None:
    pools = Pools()
    lists = pools.lists()
    lists[2][:] = 0, BLOCK, 0, 0, BLOCK, 0, ROOM + 1, 0
    with refused(ValueError, "entry 6: "):
        pools.copy(*lists)
    pools.check()


def adjacent_blocks_of_two_registrations() -> None:
    pools = Pools("merged")
    host = np.frombuffer(mmap.mmap(-1, ROOM), np.uint8)
    host[:] = pools.host.array()[:ROOM]
    for half in range(2):
        register_pages(pools.device.driver, host.ctypes.data + half * ROOM // 2, ROOM // 2)
    _, destinations, sizes = pools.lists(64)
    starts = np.arange(64, dtype=np.int64) * BLOCK + host.ctypes.data
    pools.copy(starts, destinations, sizes)
    expect((pools.bytes_at(pools.card.address, ROOM) == host).all(), "all blocks arrive")
    starts[31] += 64
    with refused(ValueError, "entry 31: "):
        pools.copy(starts, destinations, sizes)
    pools.check()


def memory_of_another_gpu() -> None:
    other = torch.zeros(ROOM, dtype=torch.uint8, device="cuda:1")
    for pools in _by_every_backend():
        for entry in (0, 5):
            pools.refuse(entry, 1, other.data_ptr(), "cuda:1")
    expect(not other.any().item(), "the other GPU's memory is as it was")


def managed_memory() -> None:
    pools = Pools()
    managed = ctypes.c_uint64()
    with_global = 1
    pools.device.driver.bind_thread()
    status = ctypes.CDLL("libcuda.so.1").cuMemAllocManaged(ctypes.byref(managed), ctypes.c_size_t(ROOM), with_global)
    expect(status == 0, "managed memory is there")
    for entry in (0, 5):
        for side in (0, 1):
            pools.refuse(entry, side, managed.value, "managed memory of cuda:0")
    pools.check()


def memory_that_is_mapped_in_pieces() -> None:
    """With torch's expandable segments, which pieces of 20 MiB make, and a part that is unmapped again."""
    for backend in BACKENDS:
        copier = copier_for(open_device("cuda:0", FaultPlan()), [always(backend)]).engine
        stream = torch.cuda.Stream()
        blocks, size = 40, 3 << 20
        card, gone = (torch.zeros(blocks * size, dtype=torch.uint8, device="cuda") for _ in range(2))
        host = torch.randint(0, 256, (blocks * size,), dtype=torch.uint8).pin_memory()
        torch.cuda.synchronize()
        starts, sizes, unmapped = torch.arange(blocks) * size, torch.full((blocks,), size), gone.data_ptr() + 20 * size
        copier.copy(starts + host.data_ptr(), starts + gone.data_ptr(), sizes, stream)
        stream.synchronize()
        del gone
        torch.cuda.empty_cache()
        copier.forget()
        copier.copy(starts + host.data_ptr(), starts + card.data_ptr(), sizes, stream)
        stream.synchronize()
        expect(torch.equal(card.cpu(), host), f"{backend}: blocks across pieces arrive")
        for entry in (0, 5):
            destinations = starts + card.data_ptr()
            destinations[entry] = unmapped
            with refused(ValueError, f"entry {entry}: "):
                copier.copy(starts + host.data_ptr(), destinations, sizes, stream)


def threads_in_one_copier() -> None:
    pools = Pools()
    wrong: list[str] = []

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        cards = torch.zeros(700 * BLOCK, dtype=torch.uint8, device="cuda")
        hosts = torch.full((700 * BLOCK,), number + 1, dtype=torch.uint8).pin_memory()
        torch.cuda.synchronize()
        starts = torch.arange(700) * BLOCK
        lists = starts + hosts.data_ptr(), starts + cards.data_ptr(), torch.full((700,), BLOCK)
        served = 0
        while served < 100:
            try:
                pools.copier.copy(*lists, stream)
                served += 1
            except RuntimeError as error:
                if "another thread" not in str(error):
                    wrong.append(repr(error))
                    return
        stream.synchronize()
        if not (cards == number + 1).all().item():
            wrong.append(f"bytes of thread {number}")

    in_threads(work, range(4))
    expect(not wrong, f"no thread meets another: {wrong}")
    pools.check()


def a_stream_that_is_captured() -> None:
    pools = Pools()
    pools.check()
    counted, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=pools.stream):
        for blocks in (0, 4, 64, 1000):
            with refused(EngineError, "captured"):
                pools.copy(*(np.resize(array, blocks) for array in pools.lists(64)))
        counted.add_(1)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    expect(counted.item() == 3, "the graph replays what was captured")
    pools.check()


def _current() -> int | None:
    """Return the context that is current in this thread."""
    context = ctypes.c_void_p()
    ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context))
    return context.value


def _leaves_no_trace(device: str) -> None:
    before = _current()
    copier = BlockCopier(device)
    expect(_current() == before, "current after the constructor")
    with refused(ValueError):
        copier.copy(*(np.ones(1, np.int64),) * 3, 2)
    expect(_current() == before, "current after a call")
    opened = open_device(device, FaultPlan())
    stream = Stream(opened.driver)
    pools = [Buffer(opened.driver, kind, ROOM) for kind in (MemoryKind.allocated, MemoryKind.device)]
    for blocks in (4, 4000):
        copier.copy(*(np.full(blocks, pool.address, np.int64) for pool in pools), np.full(blocks, 64), stream.handle)
        expect(_current() == before, "current after a list")
    opened.driver.bind_thread()
    stream.synchronize()
    ctypes.CDLL("libcuda.so.1").cuCtxSetCurrent(ctypes.c_void_p(before))
    del copier, pools, stream, opened
    expect(_current() == before, "current after the end")


def a_thread_without_a_context() -> None:
    wrong: list[BaseException] = []

    def work(device: str) -> None:
        try:
            expect(_current() is None, "nothing is current")
            _leaves_no_trace(device)
        except BaseException as error:  # also SystemExit, which would end the thread alone
            wrong.append(error)

    in_threads(work, ["cuda:0"])
    expect(not wrong, f"no trace: {wrong}")


def a_copier_of_another_gpu() -> None:
    torch.zeros(1, device="cuda:0")
    _leaves_no_trace("cuda:1")
    expect(torch.cuda.current_device() == 0, "torch's device")
    expect(torch.empty(1, device="cuda").device.index == 0, "where torch allocates")


def arguments_that_are_no_lists() -> None:
    pools = Pools()
    tensors = [torch.from_numpy(array) for array in pools.lists()]
    for changed in (
        tensors[0].cuda(),
        tensors[0].to("meta"),
        tensors[0].to(torch.complex64),
        tensors[0].double(),
        tensors[0].int(),
    ):
        with refused(TypeError, "sources must be"):
            pools.copier.copy(changed, *tensors[1:], pools.stream)
    for stream, error in ((-1, ValueError), (12_345, ValueError), (None, TypeError), (0, EngineError)):
        with refused(error, "stream"):
            pools.copier.copy(*tensors, stream)
    pools.copier.copy(*(tensor.pin_memory() for tensor in tensors), pools.stream)
    pools.stream.synchronize()
    pools.check()


def a_long_list_after_many_in_flight() -> None:
    pools = Pools()
    held = [np.tile(array, 20) for array in pools.lists(64)]
    with Gate(pools.device, pools.stream.cuda_stream):
        for _ in range(64):
            pools.copy(*held)
        expect(not pools.stream.query(), "the calls return while the gate is closed")
    pools.stream.synchronize()
    million = [np.resize(array, 1_000_000) for array in pools.lists(64)]
    before = Sources().available_bytes()
    pools.copy(*million)
    pools.stream.synchronize()
    taken = before - Sources().available_bytes()
    expect(taken < 128 << 20, f"one slot of 10 MB is pinned, not {taken >> 20} MiB")
    pools.check()


def a_pool_that_was_freed() -> None:
    pools = Pools()
    pools.check()
    lists = pools.lists()
    other = Buffer(pools.device.driver, MemoryKind.allocated, ROOM)
    pools.copy(other.address + np.arange(8) * BLOCK, *lists[1:])
    pools.stream.synchronize()
    gone = other.address
    del other
    pools.copier.forget()
    with refused(ValueError, "entry 0: ", "pageable"):
        pools.copy(gone + np.arange(8) * BLOCK, *lists[1:])
    pools.check()


def a_process_that_was_forked() -> None:
    pools = Pools()
    pools.check()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with refused(EngineError, "forked"):
                pools.copy(*pools.lists())
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    expect(status == 0, "the child's call is an error")
    pools.check()


def a_first_call_behind_a_closed_gate() -> None:
    for pools in _by_every_backend():
        pools.stream.synchronize()
        with Gate(pools.device, pools.stream.cuda_stream):
            for size in (BLOCK, BLOCK - 1):
                # The longest take a slot of pinned memory. Longer lists of other backends can fill the driver's queue.
                for blocks in (4, 64, 1000) if pools.backend == "sm" else (4, 64):
                    pools.copy(*(np.resize(array, blocks) for array in pools.lists(min(blocks, 64), size)))
            expect(not pools.stream.query(), f"{pools.backend}: the calls return while the gate is closed")
        pools.stream.synchronize()


def a_first_call_with_kernels_loaded_early() -> None:
    a_first_call_behind_a_closed_gate()


def cuda(call: str, *arguments: object) -> None:
    """Call the driver's function, which has to succeed; whole numbers are 64 bits wide."""
    wide = [ctypes.c_uint64(value) if isinstance(value, int) else value for value in arguments]
    status = getattr(ctypes.CDLL("libcuda.so.1"), call)(*wide)
    expect(status == 0, f"{call} succeeds, not CUresult {status}")


def a_copier_that_is_dropped_behind_a_gate_of_its_thread() -> None:
    pools, opened = Pools(), Buffer(open_device("cuda:0", FaultPlan()).driver, MemoryKind.allocated, BLOCK)
    opened.array()[:] = 0
    lists = [np.resize(array, 2000) for array in pools.lists(64)]
    pools.copy(*lists)  # so that there is a slot that no launch reads, too
    pools.stream.synchronize()
    pools.device.driver.fill(pools.card.address, 0, ROOM, pools.stream.cuda_stream)
    cuda("cuStreamWaitValue32_v2", ctypes.c_void_p(pools.stream.cuda_stream), opened.device_address, 1, 0)
    pools.copy(*lists)
    pools.copy(*pools.lists())
    del pools.copier
    gc.collect()
    expect(not pools.stream.query(), "the copier ended while the gate was closed")
    again = copier_for(pools.device, [always("sm")]).engine
    again.copy(*lists, pools.stream)
    opened.array()[:4] = np.frombuffer(np.uint32(1).tobytes(), np.uint8)
    expect((pools.bytes_at(pools.card.address, ROOM) == pools.host.array()[:ROOM]).all(), "all blocks arrive")
    pools.copier = again
    pools.check()


def a_process_that_ends_with_lists_in_flight() -> None:
    pools = Pools()
    pools.device.driver.delay(200_000_000, pools.stream.cuda_stream)
    pools.copy(*(np.resize(array, 2000) for array in pools.lists(64)))


def beside_a_capture(mode: str, act: Callable[[], None]) -> None:
    """Act while another thread captures a graph, which then has to replay."""
    counted = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    captures, acted = threading.Event(), threading.Event()
    wrong: list[Exception] = []

    def capture() -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode=mode):
                counted.add_(1)
                captures.set()
                acted.wait(60)
            graph.replay()
            torch.cuda.synchronize()
        except Exception as error:
            wrong.append(error)
        captures.set()

    thread = threading.Thread(target=capture)
    thread.start()
    captures.wait(60)
    try:
        act()
    finally:
        acted.set()
        thread.join()
    expect(not wrong and counted.item() == 1, f"the capture goes on: {wrong}")


def a_capture_in_another_thread() -> None:
    for pools in _by_every_backend():

        def act(pools: Pools = pools) -> None:
            for blocks in (8, 600, 4000):
                pools.copy(*(np.resize(array, blocks) for array in pools.lists(64)))
            BlockCopier("cuda:0")

        for mode in ("global", "thread_local", "relaxed"):
            beside_a_capture(mode, act)


def reserved(pieces: int, mapped: tuple[int, ...], location: tuple[int, int]) -> tuple[int, int]:
    """Reserve addresses for pieces and map some; return where they begin, and the bytes of a piece."""
    piece, begin = 2 << 20, ctypes.c_uint64()
    cuda("cuMemAddressReserve", ctypes.byref(begin), pieces * piece, 0, 0, 0)
    pinned, read_and_write = 1, 3
    for index in mapped:
        handle, at = ctypes.c_uint64(), begin.value + index * piece
        properties = (ctypes.c_int * 14)(pinned, 0, *location)
        cuda("cuMemCreate", ctypes.byref(handle), piece, properties, 0)
        cuda("cuMemMap", at, piece, 0, handle, 0)
        for kind, number in {(1, 0), location}:
            cuda("cuMemSetAccess", at, piece, (ctypes.c_int * 3)(kind, number, read_and_write), 1)
    return begin.value, piece


def mapped_memory_with_a_hole() -> None:
    for pools in _by_every_backend():
        begin, piece = reserved(4, (0, 1, 3), (1, 0))
        half = BLOCK // 2
        for offset in (0, piece - half, 3 * piece, 2 * piece - BLOCK):
            pools.device.driver.fill(begin, 0, 2 * piece, pools.stream.cuda_stream)
            pools.copy(np.array([pools.host.address]), np.array([begin + offset]), np.array([BLOCK]))
            arrived = pools.bytes_at(begin + offset, BLOCK) == pools.host.array()[:BLOCK]
            expect(arrived.all(), f"{pools.backend}: a block at {offset} arrives")
        for offset in (2 * piece - half, 2 * piece, 3 * piece - half, 4 * piece - half):
            with refused(ValueError, "entry 0: "):
                pools.copy(np.array([pools.host.address]), np.array([begin + offset]), np.array([BLOCK]))


def pages_that_are_registered_read_only() -> None:
    for pools in _by_every_backend():
        host, read_only = np.frombuffer(mmap.mmap(-1, ROOM), np.uint8), 8
        host[:] = 7
        cuda("cuMemHostRegister_v2", ctypes.c_void_p(host.ctypes.data), ROOM, read_only)
        sources, destinations, sizes = pools.lists()
        starts = sources - pools.host.address + host.ctypes.data
        for entry in (0, 5):
            into = sources.copy()
            into[entry] = starts[entry]
            with refused(ValueError, f"entry {entry}: ", "read-only"):
                pools.copy(destinations, into, sizes)
        pools.copy(starts, destinations, sizes)
        expect((pools.bytes_at(pools.card.address, 8 * BLOCK) == 7).all(), f"{pools.backend}: such pages can be read")
        cuda("cuMemHostUnregister", ctypes.c_void_p(host.ctypes.data))
        pools.copier.forget()


def pinned_memory_of_every_kind() -> None:
    for flags in (0, 1, 2, 4, 7):
        for backend in BACKENDS:
            pools, memory = Pools(backend), ctypes.c_void_p()
            cuda("cuMemHostAlloc", ctypes.byref(memory), ROOM, flags)
            ctypes.memset(memory, flags + 1, ROOM)
            assert memory.value
            sources, destinations, sizes = pools.lists()
            pools.copy(sources - pools.host.address + memory.value, destinations, sizes)
            arrived = pools.bytes_at(pools.card.address, 8 * BLOCK)
            expect((arrived == flags + 1).all(), f"{backend}: blocks of memory with flags {flags} arrive")


def allocations_of_a_stream_ordered_pool() -> None:
    """With PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync."""
    pools = Pools()
    tensors = [torch.zeros(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(64)]
    torch.cuda.synchronize()
    for at in (tensors[0].data_ptr(), tensors[40].data_ptr()):
        pools.copy(np.array([pools.host.address]), np.array([at + (1 << 20) - BLOCK]), np.array([BLOCK]))
        with refused(ValueError, "entry 0: "):
            pools.copy(np.array([pools.host.address]), np.array([at + (1 << 20) - 64]), np.array([BLOCK]))
    pools.check()


def copied_or_refused(pools: Pools, stream: int) -> None:
    for blocks in (8, 1000):
        pools.device.driver.fill(pools.card.address, 0, ROOM, pools.stream.cuda_stream)
        pools.stream.synchronize()
        try:
            pools.copier.copy(*(np.resize(array, blocks) for array in pools.lists(8)), stream)
        except EngineError as error:
            cuda("cuStreamSynchronize", ctypes.c_void_p(stream))
            expect(not pools.bytes_at(pools.card.address, ROOM).any(), f"after an error nothing was copied: {error}")
        else:
            cuda("cuStreamSynchronize", ctypes.c_void_p(stream))
            arrived = pools.bytes_at(pools.card.address, 8 * BLOCK)
            expect((arrived == pools.host.array()[: 8 * BLOCK]).all(), "what was accepted is copied")


def a_stream_of_a_green_context() -> None:
    torch.zeros(1, device="cuda")  # makes the context current that a green one is a part of

    def made(call: str, *arguments: object) -> Any:
        status, *results = getattr(bindings, call)(*arguments)
        if status == bindings.CUresult.CUDA_ERROR_NOT_SUPPORTED:
            skip(f"no green contexts: {call} is not supported")
        expect(status == bindings.CUresult.CUDA_SUCCESS, f"{call} succeeds, not {status!r}")
        return results[0]

    all_sms = made("cuDeviceGetDevResource", 0, bindings.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
    description = made("cuDevResourceGenerateDesc", made("cuDevSmResourceSplitByCount", 1, all_sms, 0, 16), 1)
    default_stream, non_blocking = 1, 1  # both flags are required
    green = made("cuGreenCtxCreate", description, 0, default_stream)
    stream = int(made("cuGreenCtxStreamCreate", green, non_blocking, 0))
    for pools in _by_every_backend():
        copied_or_refused(pools, stream)


def a_slice_of_a_card() -> None:
    pools = Pools("sm sms=132")
    if "MIG" not in pools.device.driver.info.title:
        skip("needs a MIG slice")
    sources, destinations, sizes = pools.lists(64)
    pools.copy(sources, destinations, sizes)
    back = Buffer(pools.device.driver, MemoryKind.allocated, ROOM)
    pools.copy(destinations, sources - pools.host.address + back.address, sizes)
    pools.stream.synchronize()
    expect((back.array()[:ROOM] == pools.host.array()[:ROOM]).all(), "a grid larger than the slice copies every block")


def streams_of_other_contexts() -> None:
    pools, context, before = Pools(), ctypes.c_void_p(), ctypes.c_void_p(_current())
    foreign = ctypes.c_void_p()
    cuda("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
    cuda("cuStreamCreate", ctypes.byref(foreign), 1)
    cuda("cuCtxSetCurrent", before)
    assert foreign.value
    copied_or_refused(pools, foreign.value)
    pools.copier.copy(*pools.lists(), 2)  # the default stream of the thread
    cuda("cuStreamSynchronize", ctypes.c_void_p(2))
    pools.check()


def a_copy_after_a_fault_of_somebody_else() -> None:
    pools = Pools()
    pools.check()
    with suppress(RuntimeError):
        few, far = torch.zeros(4, device="cuda"), torch.tensor([1 << 30], device="cuda")
        torch.index_select(few, 0, far)
        torch.cuda.synchronize()
    with refused(EngineError):
        pools.copy(*pools.lists())
    os._exit(0)  # what else there is cannot be cleaned up


def a_pool_of_slots_that_are_registered_one_by_one() -> None:
    slot, count = 4 * BLOCK, 4096
    host = np.frombuffer(mmap.mmap(-1, 2 * slot * count), np.uint8)
    host[:] = np.random.default_rng(2).integers(0, 256, len(host), np.uint8)
    slots = np.array([index for index in range(count) if index % 7 != 5]) * 2 * slot
    for number, (backend, every) in enumerate(product(BACKENDS, (1, 6))):  # 6: with equal distances, and all known
        pools, known = Pools(backend), slots[::every]
        for start in slots.tolist() if number == 0 else ():
            register_pages(pools.device.driver, host.ctypes.data + start, slot)
        sources, _, sizes = pools.lists(64)
        chosen = np.random.default_rng(3).permutation(len(known) * 4)[: 64 * 36].reshape(36, 64)
        for part in (*chosen, *chosen):
            sources = known[part // 4] + part % 4 * BLOCK
            pools.copy(sources + host.ctypes.data, pools.lists(64)[1], sizes)
            wanted = np.concatenate([host[start : start + BLOCK] for start in sources.tolist()])
            expect((pools.bytes_at(pools.card.address, ROOM) == wanted).all(), f"{backend}: blocks of slots arrive")
        for wrong in (slot - 64, slot, 10 * slot, 2 * slot - BLOCK):  # over an end, between slots, of slot 5
            bad = sources + host.ctypes.data
            bad[40] = host.ctypes.data + wrong
            with refused(ValueError, "entry 40: "):
                pools.copy(bad, pools.lists(64)[1], sizes)
        pools.check()


def a_pool_that_its_caller_vouches_for() -> None:
    pools, host = Pools(), np.frombuffer(mmap.mmap(-1, ROOM), np.uint8)
    host[:] = 9
    for half in range(2):
        register_pages(pools.device.driver, host.ctypes.data + half * ROOM // 2, ROOM // 2)
    tensor = torch.zeros(ROOM, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    copier = BlockCopier("cuda:0", pools=[(host.ctypes.data, ROOM), tensor])
    starts = np.arange(64, dtype=np.int64) * BLOCK
    lists = [starts + host.ctypes.data, starts + tensor.data_ptr(), np.full(64, BLOCK)]
    copier.copy(*lists, pools.stream)
    pools.stream.synchronize()
    expect((tensor == 9).all().item(), "all blocks arrive")
    lists[0][63] += 64
    with refused(ValueError, "entry 63: "):
        copier.copy(*lists, pools.stream)
    with refused(ValueError, "pools: entry 0 "):
        BlockCopier("cuda:0", pools=[torch.zeros(64)])


def a_pool_that_is_mapped_on_a_host_node() -> None:
    pools, host_node = Pools(), (3, 0)
    try:
        begin, piece = reserved(2, (0, 1), host_node)
    except SystemExit as error:
        skip(f"no memory of a host node here: {error}")
    ctypes.memset(begin, 7, 2 * piece)
    _, destinations, sizes = pools.lists(1)
    for at in (begin, begin + piece - BLOCK // 2):
        try:
            pools.copy(np.array([at]), destinations, sizes)
        except ValueError:
            continue
        expect((pools.bytes_at(pools.card.address, BLOCK) == 7).all(), "what was accepted is copied")
    pools.check()


def _importable(name: str) -> Callable[..., None]:
    """Return a function of this module, which runs as another one, as a new process finds it."""
    function: Callable[..., None] = getattr(import_module("tests.gpu.trust_cases"), name)
    return function


def memory_of_another_process() -> None:
    context = multiprocessing.get_context("spawn")
    tensor = torch.zeros(ROOM, dtype=torch.uint8, device="cuda")
    given, taken = context.Queue(), context.Queue()
    child = context.Process(target=_importable("_fill_of_another"), args=(given, taken))
    child.start()
    given.put(tensor)
    answer = taken.get(timeout=120)
    expect(answer == "copied" and (tensor == 9).all().item(), f"all blocks arrive: {answer}")
    given.put(None)
    child.join(60)


def _fill_of_another(given: Any, taken: Any) -> None:
    pools, tensor = Pools(), given.get(timeout=60)
    pools.host.array()[:] = 9
    sources, _, sizes = pools.lists(64)
    try:
        pools.copy(sources, sources - pools.host.address + tensor.data_ptr(), sizes)
        pools.stream.synchronize()
        taken.put("copied")
    except Exception as error:
        taken.put(repr(error))
    given.get(timeout=60)  # the tensor stays until the other has looked


def a_pool_that_two_processes_register() -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(2 * ROOM)
        context = multiprocessing.get_context("spawn")
        children = [context.Process(target=_importable("_load_its_half"), args=(file.name, half)) for half in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join(120)
        expect([child.exitcode for child in children] == [0, 0], "both load their halves")


def _load_its_half(path: str, half: int) -> None:
    pools = Pools()
    with open(path, "r+b") as file:  # noqa: PTH123
        host = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
    register_pages(pools.device.driver, host.ctypes.data, len(host))
    host[half * ROOM : (half + 1) * ROOM] = 1 + half
    sources, destinations, sizes = pools.lists(64)
    for _ in range(200):
        pools.copy(sources - pools.host.address + host.ctypes.data + half * ROOM, destinations, sizes)
    expect((pools.bytes_at(pools.card.address, ROOM) == 1 + half).all(), "its own bytes arrive")


def copiers_side_by_side() -> None:
    wrong: list[str] = []

    def work(number: int) -> None:
        pools, random = Pools(), np.random.default_rng(number)
        for call in range(100):
            chosen = random.permutation(64)[: random.integers(1, 64)] * BLOCK + random.integers(0, 2) * 3
            sizes = np.full(len(chosen), BLOCK - 64) if call % 2 else random.integers(0, BLOCK - 8, len(chosen))
            pools.copy(pools.host.address + chosen, pools.card.address + chosen, sizes)
            have = pools.bytes_at(pools.card.address, ROOM)
            for at, size in zip(chosen, sizes, strict=True):
                if not (have[at : at + size] == pools.host.array()[at : at + size]).all():
                    wrong.append(f"bytes of thread {number}, call {call}")
                    return

    in_threads(work, range(4))
    expect(not wrong, f"all blocks arrive: {wrong}")


# What a case needs in its environment, which torch and the driver read when they start.
ENVIRONMENT: Final = {
    memory_that_is_mapped_in_pieces: {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    allocations_of_a_stream_ordered_pool: {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    a_first_call_behind_a_closed_gate: {"CUDA_MODULE_LOADING": "LAZY"},
    a_first_call_with_kernels_loaded_early: {"CUDA_MODULE_LOADING": "EAGER"},
}
ON_TWO: Final[tuple[Callable[[], None], ...]] = (memory_of_another_gpu, a_copier_of_another_gpu)
# Every other function of this file that takes no arguments.
ON_ONE: Final[tuple[Callable[[], None], ...]] = tuple(
    value
    for name, value in list(vars().items())
    if isinstance(value, FunctionType) and value.__module__ == __name__ and name[0] != "_"
    if not inspect.signature(value).parameters and value not in ON_TWO
)

if __name__ == "__main__":
    next(case for case in ON_ONE + ON_TWO if case.__name__ == sys.argv[1])()
