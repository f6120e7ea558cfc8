"""What SM copies reach on this device, independent of the backend: large blocks, and small scattered blocks.

Small scattered blocks are limited not by the link but by the GPU's address translation: the translation limit, in
blocks per second.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from kvbench.backends.base import SwapRequest, backend_named
from kvbench.cells.axes import Direction, Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.engine.device import STREAM_STATES, Queue, Swap
from kvbench.measure.bench import Bench
from kvbench.measure.layout import lay_out
from kvbench.measure.workload import Workload
from kvbench.results.schema import Roof

# Blocks and their size in bytes. Neither must be exact: with large blocks 16 SMs fill the link, and with small blocks
# all SMs wait for translations.
_LARGE: Final = (1024, 1 << 16)
_SMALL: Final = (32_768, 512)
_LARGE_SMS: Final = 16
_DELAY: Final = Queue(delay_ns=200_000)


def measure_roof(bench: Bench, direction: Direction, samples: int, number: int) -> Roof:
    """Time SM copies in one direction, verified like any swap; raises EngineError, VerificationError."""
    pool_bytes, all_sms = bench.pools.pool_bytes, bench.device.driver.info.sm_count
    large = Cell("sm", direction, *_LARGE, StreamState.BUSY, sms=_LARGE_SMS, pool_bytes=pool_bytes, reuse=Reuse.FRESH)
    small = Cell("sm", direction, *_SMALL, StreamState.BUSY, sms=all_sms, pool_bytes=pool_bytes, reuse=Reuse.FRESH)
    dense = replace(small, pool_bytes=0, reuse=Reuse.SAME)
    copy_us = _times(bench, large, samples)
    bench.note_best(direction, large.swap_bytes, min(copy_us))
    return Roof(
        direction=direction.value,
        round=number,
        pool_bytes=pool_bytes,
        copy_bytes=large.swap_bytes,
        copy_us=copy_us,
        blocks=small.blocks,
        block_bytes=small.block_bytes,
        scattered_us=_times(bench, small, samples),
        dense_us=_times(bench, dense, samples),
    )


def _times(bench: Bench, cell: Cell, samples: int) -> list[float]:
    backend = backend_named(cell.backend)
    assert backend is not None
    rng = np.random.default_rng(0)
    workload = Workload(bench.pools, cell, lay_out(cell, samples + 1, rng), rng)
    prepared = backend.create(SwapRequest(bench.device, cell, workload.memories[0]))
    assert isinstance(prepared.swap, Swap)
    times_us = []
    for _ in range(samples + 1):
        workload.advance()
        times_us.append(bench.region.measure(prepared.swap, STREAM_STATES[StreamState.BUSY], _DELAY).gpu_us)
    workload.verify()
    return times_us[1:]
