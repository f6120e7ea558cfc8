"""What this device reaches, independent of the backends: large copies, and SM copies of large and of small blocks.

Small scattered blocks are limited not by the link but by the GPU's address translation: the translation limit, in
blocks per second. Every rate is the slope between a short and a long swap, so that no launch counts, of the faster of
the two kinds of kernels. The dense twin of the scattered blocks is copied by the same kernel.

Controls are large plain copies without the engine, in every round of cells. A change of the engine changes what the
engine measures, but not these copies. If they are slower in one of two runs, the machine is the cause. On a GPU they
use NVIDIA's Python bindings, on the device cpu numpy.
"""

import sys
import time
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from statistics import median
from typing import Any, Final

import numpy as np

from kvbench.backends.base import SwapRequest
from kvbench.backends.sm import BULK_FROM_COMPUTE, KernelShape, Sm
from kvbench.backends.triton import load_and_compile
from kvbench.cells.axes import Direction, Memory, Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.facts import CEILING_BYTES, SM, TRITON
from kvbench.cells.units import KIB
from kvbench.engine.device import DIRECTIONS, STREAM_STATES, Device, Queue, Swap, per_block
from kvbench.engine.nvrtc import cached_cubin
from kvbench.ground.errors import KvbenchError
from kvbench.measure.bench import Bench
from kvbench.measure.layout import Layout, lay_out
from kvbench.measure.workload import Workload
from kvbench.results.schema import Roof

CEILING_WARMUPS: Final = 2
# Blocks of the short and of the long swap, which takes at least 5 ms more, and their size in bytes. With large blocks
# 16 SMs fill the link, and with small blocks all SMs wait for translations.
_LARGE: Final = ((1024, 6144), 1 << 16)
_SMALL: Final = ((32_768, 196_608), 512)
_LARGE_SMS: Final = 16
_LARGE_KERNELS: Final = (KernelShape("lanes", 16, 8, 4 * KIB), KernelShape("bulk", 8, 6, 4 * KIB))
_SMALL_KERNELS: Final = (KernelShape("lanes", 32, 4, 4 * KIB), KernelShape("bulk", 32, 6, 1 * KIB))
_DELAY: Final = Queue(delay_ns=200_000)


def compiling(device: Device, backends: Container[str]) -> ThreadPoolExecutor:
    """Return threads that compile the kernels of the roof and load the Triton kernel for `backends`, while the caller
    does something else.

    What fails there fails again, with its error, where it is needed.
    """
    threads = ThreadPoolExecutor()
    if not device.is_cuda:
        return threads
    if TRITON in backends:
        threads.submit(load_and_compile, device)
    for shape in (*_LARGE_KERNELS, *_SMALL_KERNELS):
        threads.submit(cached_cubin, "sm_copy", device.arch, shape.defines)
    return threads


def measure_ceiling(
    bench: Bench, direction: Direction, samples: int, most_bytes: int = sys.maxsize
) -> tuple[int, list[float]]:
    """Time plain large copies in one direction; return the bytes per copy and the event times in microseconds."""
    copy_bytes = min(CEILING_BYTES[bench.device.kind], bench.pools.pool_bytes, most_bytes)
    lists = bench.pools.large_copy(direction, copy_bytes)
    swap = per_block(bench.device.driver, *lists, DIRECTIONS[direction])
    busy = STREAM_STATES[StreamState.BUSY]
    times_us = [bench.region.measure(swap, busy).event_us for _ in range(CEILING_WARMUPS + samples)]
    bench.pools.put_back(direction, Memory.ALLOCATED, np.zeros(1, dtype=np.uint64), lists[-1])
    bench.note_best(direction, copy_bytes, min(times_us))
    return copy_bytes, times_us[CEILING_WARMUPS:]


def measure_roof(bench: Bench, direction: Direction, samples: int, number: int) -> Roof:
    """Time SM copies in one direction, verified like any swap; raises EngineError, VerificationError."""
    pool_bytes, all_sms = bench.pools.pool_bytes, bench.device.driver.info.sm_count
    cell = Cell(SM, direction, 1, 1, StreamState.BUSY, pool_bytes=pool_bytes, reuse=Reuse.FRESH)
    (few, many), large_bytes = _LARGE
    large = replace(cell, sms=_LARGE_SMS, block_bytes=large_bytes)
    _, copy_us = _fastest(bench, large, (few, many), _LARGE_KERNELS, samples)
    bench.note_best(direction, (many - few) * large_bytes, median(copy_us))
    (fewer, more), small_bytes = _SMALL
    small = replace(cell, sms=all_sms, block_bytes=small_bytes)
    shape, scattered_us = _fastest(bench, small, (fewer, more), _SMALL_KERNELS, samples)
    return Roof(
        direction=direction.value,
        round=number,
        pool_bytes=pool_bytes,
        copy_bytes=(many - few) * large_bytes,
        copy_us=copy_us,
        blocks=more - fewer,
        block_bytes=small_bytes,
        scattered_us=scattered_us,
        dense_us=_slope(bench, replace(small, pool_bytes=0), shape, (fewer, more), samples),
    )


def _fastest(
    bench: Bench, cell: Cell, blocks: tuple[int, int], shapes: Sequence[KernelShape], samples: int
) -> tuple[KernelShape, list[float]]:
    """Return the shape of the kernel for which the slope is least, and that."""
    info = bench.device.driver.info
    has_bulk = 10 * info.compute_major + info.compute_minor >= BULK_FROM_COMPUTE
    candidates = shapes if has_bulk else shapes[:1]
    times_us = {shape: _slope(bench, cell, shape, blocks, samples) for shape in candidates}
    return min(times_us.items(), key=lambda timed: median(timed[1]))


def _slope(bench: Bench, cell: Cell, shape: KernelShape, blocks: tuple[int, int], samples: int) -> list[float]:
    """The times of the long swap beyond those of the short one."""
    few_us, many_us = (_times(bench, replace(cell, blocks=count), shape, samples) for count in blocks)
    return [max(0.0, many - few) for few, many in zip(few_us, many_us, strict=True)]


def _times(bench: Bench, cell: Cell, shape: KernelShape, samples: int) -> list[float]:
    sets = _sets(cell, samples + 1)
    workload = Workload(bench.pools, cell, sets, np.random.default_rng(0))
    prepared = _backend(shape).create(SwapRequest(bench.device, cell, workload.memories[0]))
    assert isinstance(prepared.swap, Swap)
    times_us = []
    for _ in range(samples + 1):
        workload.advance()
        times_us.append(bench.region.measure(prepared.swap, STREAM_STATES[StreamState.BUSY], _DELAY).event_us)
    workload.verify()
    return times_us[1:]


@cache
def _backend(shape: KernelShape) -> Sm:
    """The backend that copies by the kernel of this shape, which it keeps loaded."""
    return Sm(shape)


@cache  # the same in every round and for every kernel; those of a long swap take 10 to 50 ms
def _sets(cell: Cell, submissions: int) -> Sequence[Layout]:
    return lay_out(cell, submissions, np.random.default_rng(0))


CONTROL_WARMUPS: Final = 2


class ControlError(KvbenchError):
    """The control copies cannot be made; the message says which call failed."""


class HostControl:
    """Copies between two numpy arrays, on the calling thread."""

    copy_bytes = 1 << 22  # short: of many such copies, other work on the host leaves some alone

    def __init__(self) -> None:
        # Written, so that the pages are mapped before anything is timed.
        self.host = np.ones(self.copy_bytes, dtype=np.uint8)
        self.device = np.ones(self.copy_bytes, dtype=np.uint8)

    def copy_us(self, direction: Direction) -> float:
        """Make one copy and return its time in microseconds."""
        to, source = (self.device, self.host) if direction is Direction.H2D else (self.host, self.device)
        start_ns = time.perf_counter_ns()
        np.copyto(to, source)
        return (time.perf_counter_ns() - start_ns) / 1e3


class CudaControl:
    """`cuMemcpyHtoDAsync` and `cuMemcpyDtoHAsync` between events, on a stream of its own.

    It shares the primary context of the device with the engine, so that the GPU has only one context. Its resources are
    released when the worker ends.
    """

    copy_bytes = 1 << 26

    def __init__(self, ordinal: int) -> None:
        self._cuda = cuda = _bindings()
        self._context = _call(cuda.cuDevicePrimaryCtxRetain, _call(cuda.cuDeviceGet, ordinal))
        _call(cuda.cuCtxSetCurrent, self._context)
        self._host = _call(cuda.cuMemHostAlloc, self.copy_bytes, 0)
        self._device = _call(cuda.cuMemAlloc, self.copy_bytes)
        self._stream = _call(cuda.cuStreamCreate, int(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self._start, self._end = _call(cuda.cuEventCreate, 0), _call(cuda.cuEventCreate, 0)

    def copy_us(self, direction: Direction) -> float:
        """Make one copy and return its time in microseconds; raises ControlError."""
        cuda = self._cuda
        _call(cuda.cuCtxSetCurrent, self._context)
        _call(cuda.cuEventRecord, self._start, self._stream)
        if direction is Direction.H2D:
            _call(cuda.cuMemcpyHtoDAsync, self._device, self._host, self.copy_bytes, self._stream)
        else:
            _call(cuda.cuMemcpyDtoHAsync, self._host, self._device, self.copy_bytes, self._stream)
        _call(cuda.cuEventRecord, self._end, self._stream)
        _call(cuda.cuEventSynchronize, self._end)
        return float(_call(cuda.cuEventElapsedTime, self._start, self._end)) * 1e3


# Two buffers of `copy_bytes`, one on each side, and a function that times a copy between them.
ControlCopies = HostControl | CudaControl


def open_control(device_name: str) -> ControlCopies:
    """Return the control of "cpu" or "cuda:N"; raises ControlError."""
    kind, _, ordinal = device_name.partition(":")
    return HostControl() if kind == "cpu" else CudaControl(int(ordinal))


def time_copies(control: ControlCopies, direction: Direction, samples: int) -> list[float]:
    """Return the times of `samples` copies in one direction in microseconds, without warm-ups; raises ControlError."""
    return [control.copy_us(direction) for _ in range(CONTROL_WARMUPS + samples)][CONTROL_WARMUPS:]


def _bindings() -> Any:  # the bindings have no types
    try:
        from cuda.bindings import driver

        _call(driver.cuInit, 0)
    except (ImportError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise ControlError(f"control copies: NVIDIA's bindings do not load ({why}); install kvbench[cuda]") from None
    return driver


def _call(function: Any, *arguments: Any) -> Any:
    status, *results = function(*arguments)
    if int(status) != 0:
        raise ControlError(f"control copies: {function.__name__} returned {status.name}")
    return results[0] if results else None
