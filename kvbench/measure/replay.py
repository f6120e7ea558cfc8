"""Replays swaps of a trace one after the other, with their own block ids and sizes; every byte is verified."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt

from kvbench.backends.base import Backend, SwapRequest
from kvbench.cells.axes import StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import SHUFFLED, Pattern, Tensors
from kvbench.engine.faults import Fault
from kvbench.errors import KvbenchError
from kvbench.measure.bench import Bench, SetUp
from kvbench.measure.disturbance import disturbances
from kvbench.measure.effective_path import effective_path
from kvbench.measure.layers import create_swap
from kvbench.measure.layout import Layout, TensorRows, rows_of
from kvbench.measure.samples import AnySample, alone
from kvbench.measure.visit import columns_of
from kvbench.measure.workload import Workload
from kvbench.results.schema import Visit
from kvbench.run.protocol import MeasureCell
from kvbench.traces.choice import Replay
from kvbench.traces.file import Swap
from kvbench.traces.selection import Numbered

_Ids = npt.NDArray[np.int64]


def capacity(pool_bytes: int, trace: Replay) -> int:
    """Return how many block ids fit into a pool; no swap uses its first row, nor the row behind a tensor."""
    rows = pool_bytes // trace.row_bytes
    return max(0, (rows - 1) // trace.descriptors - 1)


def places(ids: _Ids, room: int) -> _Ids | None:
    """Return distinct places below `room`, where runs of `ids` stay runs; None if the swap does not fit.

    Ids that fit stay as they are. Others wrap around, or are packed with gaps of one place, if two would meet.
    """
    wrapped = ids % room if room else ids
    if room and len(np.unique(wrapped)) == len(ids):
        return wrapped
    ordered, back = np.unique(ids, return_inverse=True)
    packed = np.cumsum(np.minimum(np.diff(ordered, prepend=ordered[0]), 2))
    return packed[back] if packed[-1] < room else None


def that_fit(swaps: Mapping[str, list[Numbered]], trace: Replay, pool_bytes: int) -> dict[str, list[Numbered]]:
    """Return the swaps that fit into pools of this size."""
    room = capacity(pool_bytes, trace)

    def fits(swap: Swap) -> bool:
        return all(places(np.asarray(side), room) is not None for side in (swap.host, swap.gpu))

    return {direction: [one for one in own if fits(one.swap)] for direction, own in swaps.items()}


def replay(
    bench: Bench, backend: Backend, request: MeasureCell, trace: Replay, swaps: Sequence[Numbered], fault: Fault | None
) -> Visit:
    """Make the swaps of one visit and return its record, without its duration.

    Each swap, of those `that_fit`, is made twice: first on blocks half a pool away, then on its own; both are compared
    byte for byte. Raises EngineError, VerificationError, KvbenchError without a swap, and any error of a backend.
    """
    if not swaps:
        raise KvbenchError("no selected swap of the trace fits into the pool; name a larger -a pool")
    cell = Cell.from_strings(request.cell)
    room = capacity(bench.pools.pool_bytes, trace)
    samples: list[AnySample] = []
    found: dict[str, list[int]] = {"swap_blocks": [], "pieces": [], "swap_numbers": []}
    moved, verified_bytes, verify_ms = 0, 0, 0.0
    bench.pools.rest()
    with bench.device.injecting(fault), bench.cpu.held(None) as cpu:
        probes_us = [bench.cpu.probe_us()]
        for one in swaps:
            host, gpu = (places(np.asarray(side), room) for side in (one.swap.host, one.swap.gpu))
            assert host is not None
            assert gpu is not None
            moved += not (np.array_equal(host, one.swap.host) and np.array_equal(gpu, one.swap.gpu))
            sides = (host, gpu) if one.swap.direction == "h2d" else (gpu, host)
            ready = _set_up(bench, backend, _cell_of(cell, len(gpu), trace), sides, trace, room)
            take = alone(bench, ready, StreamState.IDLE)
            take()
            verified_bytes += ready.workload.verify()
            samples.append(take())
            verified_bytes += ready.workload.verify()
            verify_ms += ready.workload.verify_ms
            last = ready.swaps[0]
            pieces = getattr(last.swap, "descriptors", ready.cell.blocks)
            for name, value in zip(found, (ready.cell.blocks, pieces, one.number), strict=True):
                found[name].append(value)
        probes_us.append(bench.cpu.probe_us())
        slowdowns = [bench.cpu.slowdown(probe_us) for probe_us in probes_us]
        clocks = bench.clocks.read()
        busy = alone(bench, ready, StreamState.BUSY)
        busy_cpu_us = busy().cpu_us
        ready.workload.verify()
    closer = f"swaps of the trace that were placed closer together, as the pool is smaller: {moved} of {len(swaps)}"
    return Visit(
        cell_text=request.cell,
        round=request.round,
        attempt=request.attempt,
        samples=msgspec.structs.replace(columns_of(samples, cell), **found),
        stopped_by="max_samples",
        path=effective_path(last.mechanism, [samples[-1].cpu_us], busy_cpu_us),
        calls=last.swap.calls,
        verified_bytes=verified_bytes,
        verify_ms=verify_ms,
        busy_cpu_us=busy_cpu_us,
        cpu=cpu,
        probe_us=max(probes_us),
        slowdown=max(slowdowns),
        sm_clock_mhz=clocks.sm_mhz,
        clock_limits=list(clocks.limits),
        disturbed=disturbances(slowdowns, clocks, []),
        chosen=last.chosen,
        warnings=[closer] if moved else [],
    )


def _cell_of(cell: Cell, ids: int, trace: Replay) -> Cell:
    """Return the cell of one swap, whose sequence is whole."""
    pattern = Pattern.of_tensors(Tensors(trace.descriptors, ids)) if trace.descriptors > 1 else SHUFFLED
    return replace(cell, blocks=ids * trace.descriptors, pattern=pattern, sequence="whole")


def _set_up(bench: Bench, backend: Backend, cell: Cell, sides: tuple[_Ids, _Ids], trace: Replay, room: int) -> SetUp:
    shifts = (room // 2, 0)
    source, destination = sides
    layouts = [_layout((source + by) % room, (destination + by) % room, trace, room) for by in shifts]
    workload = Workload(bench.pools, cell, layouts, np.random.default_rng(0))
    request = SwapRequest(bench.device, cell, workload.memories[0], bench.policy)
    return SetUp(cell, backend, workload, [create_swap(backend, request)])


def _layout(source: _Ids, destination: _Ids, trace: Replay, room: int) -> Layout:
    """Place a tensor of `room` rows, and one that stays free, for every descriptor of a block."""
    starts = np.arange(trace.descriptors, dtype=np.uint64) * np.uint64(room + 1) + np.uint64(1)
    part = TensorRows(starts, starts, source.astype(np.uint64), destination.astype(np.uint64))
    found = rows_of((part,))
    return replace(found, tensors=() if trace.descriptors == 1 else found.tensors)
