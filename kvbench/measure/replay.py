"""Replays swaps of a trace with their own block ids and sizes, one after the other; each is verified."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from kvbench.backends.base import Backend, SwapRequest
from kvbench.cells.axes import StreamState
from kvbench.cells.cell import Cell
from kvbench.engine.faults import Fault
from kvbench.errors import KvbenchError
from kvbench.measure.bench import Bench, SetUp
from kvbench.measure.disturbance import disturbances
from kvbench.measure.layers import create_swap
from kvbench.measure.layout import Layout, TensorRows, rows_of
from kvbench.measure.samples import AnySample, alone
from kvbench.measure.visit import Sampled, effective_path, record_of
from kvbench.measure.workload import Workload
from kvbench.results.schema import Visit
from kvbench.run.protocol import MeasureCell
from kvbench.sweep.replay_spec import Replay
from kvbench.sweep.replay_swaps import Numbered

_Ids = npt.NDArray[np.int64]

# The share of swaps that are compared in full, beside the first of a visit, and the blocks compared of the others: to
# compare all takes several times as long as to swap.
_COMPARED_IN_FULL: Final = 1 / 20
_COMPARED_BLOCKS: Final = 256


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


class Placed(NamedTuple):
    """A swap of a trace in a pool: number, time, and the ids of both sides; `moved` where they are not the trace's."""

    number: int
    at_s: float
    source: _Ids
    destination: _Ids
    moved: bool


def place(swaps: Iterable[Numbered], trace: Replay, pool_bytes: int) -> list[Placed]:
    """Return the swaps that fit into pools of this size."""
    room = trace.capacity(pool_bytes)
    placed = []
    for number, swap in swaps:
        sides = (swap.host, swap.gpu) if swap.direction == "h2d" else (swap.gpu, swap.host)
        source, destination = (places(np.asarray(side), room) for side in sides)
        if source is not None and destination is not None:
            moved = not all(map(np.array_equal, (source, destination), sides))
            placed.append(Placed(number, swap.at_s, source, destination, moved))
    return placed


class Pace:
    """The times of a trace, `speed` times as fast; without a speed, none.

    What kvbench does between swaps takes from the pauses. Where it takes longer, the time of the replay stands still:
    only swaps make others late.
    """

    def __init__(self, speed: float | None, begin_s: float) -> None:
        self._speed, self._begin_s = speed, begin_s
        self._due_s = self._free_s = 0.0  # of this swap, and when the last one completed, in time of the replay
        self._freed_s = time.monotonic()

    def wait(self, at_s: float) -> float:
        """Wait until the swap of this time of the trace may begin; return by how many microseconds it is late."""
        if self._speed is None:
            return 0.0
        self._due_s = (at_s - self._begin_s) / self._speed
        pause_s = self._due_s - self._free_s
        time.sleep(max(0.0, pause_s - (time.monotonic() - self._freed_s)))
        return max(0.0, -pause_s) * 1e6

    def note(self, wall_us: float) -> None:
        """Note that the swap that was waited for has completed, after this time."""
        if self._speed is not None:
            self._free_s = max(self._free_s, self._due_s) + wall_us / 1e6
            self._freed_s = time.monotonic()


def replay(
    bench: Bench, backend: Backend, request: MeasureCell, trace: Replay, swaps: Sequence[Placed], fault: Fault | None
) -> Visit:
    """Make the swaps of one visit and return its record, without its duration.

    Each swap is made twice: first on blocks half a pool away, then on its own. Both are compared: of some swaps, chosen
    at random, every byte, of the others a sample of blocks. Raises EngineError, VerificationError, KvbenchError without
    a swap, and any error of a backend.
    """
    cell = Cell.from_strings(request.cell)
    if not swaps:
        enough = trace.enough_for(trace.of(cell.direction).blocks)
        raise KvbenchError(f"no selected swap of the trace fits into the pool; -a pool={enough} holds most of them")
    samples: list[AnySample] = []
    columns: dict[str, list[int]] = {"swap_blocks": [], "pieces": [], "swap_numbers": []}
    late_us: list[float] = []
    pace = Pace(trace.speed, swaps[0].at_s)
    verified_bytes, verify_ms = 0, 0.0
    rng = np.random.default_rng((request.seed, request.round))
    bench.pools.rest()
    with bench.device.injecting(fault), bench.cpu.held() as (cpu, before_us):
        for swap in swaps:
            ready = _set_up(bench, backend, cell, swap, trace, rng)
            most = None if not samples or rng.random() < _COMPARED_IN_FULL else _COMPARED_BLOCKS
            take = alone(bench, ready, StreamState.IDLE)
            take()
            verified_bytes += ready.workload.verify(most)
            late_us.append(pace.wait(swap.at_s))
            samples.append(take())
            pace.note(samples[-1].wall_us)
            verified_bytes += ready.workload.verify(most)
            verify_ms += ready.workload.verify_ms
            pieces = getattr(ready.swaps[0].swap, "descriptors", ready.cell.blocks)
            for name, value in zip(columns, (ready.cell.blocks, pieces, swap.number), strict=True):
                columns[name].append(value)
        probes_us = [before_us, bench.cpu.probe_us()]
        slowdowns = [bench.cpu.slowdown(probe_us) for probe_us in probes_us]
        clocks = bench.clocks.read()
        same = ready.swaps[0].same_when_busy
        busy_cpu_us = alone(bench, ready, StreamState.BUSY)().cpu_us if same else None
        ready.workload.verify()
    calls = ready.swaps[0].swap.calls
    sampled = Sampled(samples, "max_samples", None, calls, busy_cpu_us, None, cpu, max(probes_us), slowdowns, clocks)
    made = record_of(request, replace(ready, cell=cell), sampled, verified_bytes)
    moved = sum(swap.moved for swap in swaps)
    closer = f"{moved} of {len(swaps)} swaps of the trace placed closer together to fit the smaller pool"
    return msgspec.structs.replace(
        made,
        samples=msgspec.structs.replace(made.samples, **columns, late_us=late_us if trace.speed else None),
        # swaps of several sizes: only the last has its twin on a busy stream, and slow ones are not disturbed ones
        path=effective_path(ready.swaps[0].mechanism, [samples[-1].cpu_us], busy_cpu_us),
        disturbed=disturbances(slowdowns, clocks, []),
        verify_ms=verify_ms,
        warnings=[*made.warnings, *([closer] if moved else [])],
    )


def _set_up(bench: Bench, backend: Backend, cell: Cell, swap: Placed, trace: Replay, rng: np.random.Generator) -> SetUp:
    room, blocks = trace.capacity(bench.pools.pool_bytes), len(swap.source) * trace.descriptors
    cell = replace(cell, blocks=blocks, pattern=trace.pattern, sequence="whole")
    shifted = (((swap.source + by) % room, (swap.destination + by) % room) for by in (room // 2, 0))
    layouts = [_layout(source, destination, trace, room) for source, destination in shifted]
    workload = Workload(bench.pools, cell, layouts, rng)
    request = SwapRequest(bench.device, cell, workload.memories[0], bench.policy)
    return SetUp(cell, backend, workload, [create_swap(backend, request)])


def _layout(source: _Ids, destination: _Ids, trace: Replay, room: int) -> Layout:
    """Place a tensor of `room` rows, and one that stays free, for every descriptor of a block."""
    starts = np.arange(trace.descriptors, dtype=np.uint64) * np.uint64(room + 1) + np.uint64(1)
    part = TensorRows(starts, starts, source.astype(np.uint64), destination.astype(np.uint64))
    layout = rows_of((part,))
    return replace(layout, tensors=() if trace.descriptors == 1 else layout.tensors)
