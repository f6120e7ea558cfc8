"""Swaps of a trace on a GPU: every backend makes them with their own ids, and they are compared."""

from pathlib import Path

import pytest

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.engine.device import Device
from kvbench.measure.replay import ReplaySampler, place
from kvbench.run.protocol import MeasureCells
from kvbench.sweep.spec import Sampling
from kvbench.sweep.swap_file import Header, Swap, choose, selected, write_trace
from tests.visits import bench_of, load_backends, visited

pytestmark = pytest.mark.gpu

TENSORS = 8


@pytest.mark.parametrize("backend", ["per_block", "batched", "merged", "primed", "sm", "triton"])
@pytest.mark.parametrize("direction", Direction)
def test_swaps_of_a_trace_arrive(gpu: Device, backend: str, direction: Direction, tmp_path: Path) -> None:
    sizes = (1, 40, 300)
    swaps = [Swap(0.0, direction.value, size, [*range(size)], [*range(size + 9, 9, -1)]) for size in sizes]
    write_trace(tmp_path / "trace.gz", Header(block_bytes=TENSORS * 4096, descriptors=TENSORS), swaps, {})
    trace = choose(tmp_path / "trace.gz", 10, 0)
    bench = bench_of(64 << 20, 300, gpu)
    pattern = Pattern.parse(f"tensors-{TENSORS}")
    cell = Cell(backend, direction, TENSORS * 40, 4096, pattern=pattern, sms=4, sequence="trace")
    request = MeasureCells(cells=[cell.as_strings()], round=0, seed=0, sampling=Sampling())
    placed = place(selected(trace)[direction.value], trace, bench.pools.pool_bytes)
    ready = ReplaySampler(bench, load_backends()[backend], cell, trace, placed, (0, 0))
    made = visited(bench, ready, request)
    assert made.samples.swap_blocks == [TENSORS * size for size in sizes]
    # the first in full, of the others at least a sample
    assert made.verified_bytes >= 2 * (TENSORS * sizes[0] + 256 + 256) * 4096
