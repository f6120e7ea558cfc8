"""What this device reaches, independent of the backends: large copies, and SM copies of large and of small blocks.

Small scattered blocks are limited not by the link but by the GPU's address translation: the translation limit, in
blocks per second. Every rate is the slope between a short and a long swap, so that no launch counts, of the faster of
the two kinds of kernels. The dense twin of the scattered blocks is copied by the same kernel.
"""

from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from statistics import median
from typing import Final

import numpy as np

from kvbench.backends.base import SwapRequest, backend_named
from kvbench.backends.sm import BULK_FROM_COMPUTE
from kvbench.backends.triton import load_and_compile
from kvbench.cells.axes import Direction, Memory, Reuse, StreamState
from kvbench.cells.backend_facts import SM, TRITON
from kvbench.cells.cell import Cell
from kvbench.cells.device_facts import CEILING_BYTES
from kvbench.cells.kernel_shape import RULE, KernelShape
from kvbench.engine.device import DIRECTIONS, STREAM_STATES, Device, Queue, Swap, per_block
from kvbench.engine.nvrtc import cached_cubin
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
_LARGE_KERNELS: Final = ("lanes-16x8x4KiB", "bulk-8x6x4KiB")
_SMALL_KERNELS: Final = ("lanes-32x4x4KiB", "bulk-32x6x1KiB")
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
    for kernel in (*_LARGE_KERNELS, *_SMALL_KERNELS):
        threads.submit(cached_cubin, "sm_copy", device.arch, KernelShape.parse(kernel).defines)
    return threads


def measure_ceiling(bench: Bench, direction: Direction, samples: int) -> tuple[int, list[float]]:
    """Time plain large copies in one direction; return the bytes per copy and the event times in microseconds."""
    copy_bytes = min(CEILING_BYTES[bench.device.kind], bench.pools.pool_bytes)
    lists = bench.pools.large_copy(direction, copy_bytes)
    swap = per_block(bench.device.driver, *lists, DIRECTIONS[direction])
    busy = STREAM_STATES[StreamState.BUSY]
    times_us = [bench.region.measure(swap, busy).gpu_us for _ in range(CEILING_WARMUPS + samples)]
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
    scattered, scattered_us = _fastest(bench, small, (fewer, more), _SMALL_KERNELS, samples)
    return Roof(
        direction=direction.value,
        round=number,
        pool_bytes=pool_bytes,
        copy_bytes=(many - few) * large_bytes,
        copy_us=copy_us,
        blocks=more - fewer,
        block_bytes=small_bytes,
        scattered_us=scattered_us,
        dense_us=_slope(bench, replace(scattered, pool_bytes=0), (fewer, more), samples),
    )


def _fastest(
    bench: Bench, cell: Cell, blocks: tuple[int, int], kernels: tuple[str, str], samples: int
) -> tuple[Cell, list[float]]:
    """Return the cell with the kernel for which the slope is least, and that."""
    info = bench.device.driver.info
    has_bulk = 10 * info.compute_major + info.compute_minor >= BULK_FROM_COMPUTE
    cells = [replace(cell, kernel=kernel) for kernel in (kernels if has_bulk else kernels[:1])]
    return min(((one, _slope(bench, one, blocks, samples)) for one in cells), key=lambda timed: median(timed[1]))


def _slope(bench: Bench, cell: Cell, blocks: tuple[int, int], samples: int) -> list[float]:
    """Return how much longer the long swap takes than the short one."""
    few_us, many_us = (_times(bench, replace(cell, blocks=count), samples) for count in blocks)
    return [max(0.0, many - few) for few, many in zip(few_us, many_us, strict=True)]


def _times(bench: Bench, cell: Cell, samples: int) -> list[float]:
    backend = backend_named(cell.backend)
    assert backend is not None
    sets = _sets(replace(cell, kernel=RULE), samples + 1)
    workload = Workload(bench.pools, cell, sets, np.random.default_rng(0))
    prepared = backend.create(SwapRequest(bench.device, cell, workload.memories[0]))
    assert isinstance(prepared.swap, Swap)
    times_us = []
    for _ in range(samples + 1):
        workload.advance()
        times_us.append(bench.region.measure(prepared.swap, STREAM_STATES[StreamState.BUSY], _DELAY).gpu_us)
    workload.verify()
    return times_us[1:]


@cache  # the same in every round and for every kernel; those of a long swap take 10 to 50 ms
def _sets(cell: Cell, submissions: int) -> Sequence[Layout]:
    return lay_out(cell, submissions, np.random.default_rng(0))
