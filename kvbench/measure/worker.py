"""The process that owns the GPU: it opens the device and measures what the parent requests; it can crash doing so."""

import hashlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median
from types import CodeType
from typing import Any, Final

import msgspec

from kvbench.backends.base import Backend, backend_named, facts_of, is_own
from kvbench.cells.axes import NO_PACE, Direction, Memory, Priority
from kvbench.cells.blocks import TRACE
from kvbench.cells.cell import Cell
from kvbench.cells.facts import CEILING_SAMPLES
from kvbench.cells.faults import FaultPlan, parse_faults
from kvbench.cells.units import gigabytes_per_second, rough_size
from kvbench.engine.device import (
    PRIORITIES,
    SOURCE_HASH,
    Device,
    EngineError,
    Stream,
    TimedRegion,
    die_with_parent,
    open_device,
    resolve_device,
)
from kvbench.engine.nvrtc import kernel_texts
from kvbench.ground.errors import KvbenchError
from kvbench.machine.sources import far_pages, stay_near
from kvbench.measure.bench import Bench
from kvbench.measure.disturbance import GpuClocks, SteadyCpu
from kvbench.measure.layout import Layout
from kvbench.measure.pools import Pools
from kvbench.measure.replay import Placed, ReplaySampler, place
from kvbench.measure.roof import ControlCopies, compiling, measure_ceiling, measure_roof, open_control, time_copies
from kvbench.measure.samples import Arms, Sampler, lay_out_arms, set_up
from kvbench.measure.visit import visit
from kvbench.measure.workload import VerificationError
from kvbench.models.steps import USUAL
from kvbench.results.schema import CLAIMED, Ceiling, Control, Failure, FailureKind, Visit
from kvbench.run import protocol
from kvbench.run.rendezvous import Meeting
from kvbench.sweep.spec import Replay
from kvbench.sweep.swap_file import chunk, selected

# Delays measured when a device is opened: none, the one of `primed`, and a long one.
DELAYS_US: Final = (0, 2, 200)
# Descriptors, in all sets of blocks, of cells that stay set up: about 300 MB.
MOST_KEPT: Final = 1 << 24
# The code that shapes a measurement; outside of the wings: lengths of chains, defaults of sampling, the environment of
# workers, repeats of visits.
_WINGS: Final = ("backends", "cells", "engine", "engines", "measure")
_FILES: Final = ("sweep/spec.py", "run/worker_process.py", "run/execution.py", "run/schedule.py")


class Worker:
    """Answers requests. The first request opens the device; Reserve allocates its memory pools."""

    _device: Device
    _bench: Bench
    _benches: dict[Priority, Bench]
    _delay_ns: int

    def __init__(self) -> None:
        self._faults = FaultPlan()
        self._control: ControlCopies | None = None
        self._kept: dict[Cell, Sampler] = {}
        self._trace: tuple[Replay, dict[str, list[Placed]]] | None = None
        self._node = -1  # the NUMA node of the GPU, -1 if unknown or without a GPU

    def answer(self, request: protocol.Request) -> protocol.Answer:
        """Carry out `request`; a failure is an answer too."""
        try:
            match request:
                case protocol.Open():
                    return self._open(request)
                case protocol.Describe():
                    return protocol.Described(backend=facts_of(request.backend, self._device.facts()))
                case protocol.Reserve():
                    return self._reserve(request)
                case protocol.MeasureCeiling():
                    return self._measure_ceiling(Direction(request.direction), request.samples, request.round)
                case protocol.MeasureRoof():
                    return measure_roof(self._bench, Direction(request.direction), request.samples, request.round)
                case protocol.MeasureControl():
                    return self._measure_control(request)
                case protocol.MeasureCells():
                    return self._measure_cells(request)
        except (KvbenchError, EngineError) as error:
            return protocol.Refused(message=str(error), usage=isinstance(error, KvbenchError))

    def _open(self, request: protocol.Open) -> protocol.Opened:
        self._faults = parse_faults(request.fault)
        self._device = device = open_device(resolve_device(request.device), self._faults)
        device.driver.bind_thread()
        self._clocks = GpuClocks(device.name, device.driver.info.pci_bus_id or None)
        info = device.driver.info
        self._node, notes = stay_near(info.numa_node, info.pci_bus_id) if device.is_cuda else (-1, [])
        return protocol.Opened(
            device=device.facts(),
            backends=[],
            engine_hash=hash_of_what_runs(),
            delay_us=_real_delays(device),
            pci_bus_id=device.driver.info.pci_bus_id or None,
            notes=notes,
        )

    def _reserve(self, request: protocol.Reserve) -> protocol.Reserved:
        driver, self._delay_ns = self._device.driver, request.busy_delay_us * 1000
        stream = Stream(driver)
        region = TimedRegion(driver, stream.handle, self._delay_ns)
        try:
            with compiling(self._device, request.backends):
                pools = Pools(self._device, stream, request.pool_bytes, request.host_pools)
                host = pools.host_pool(None)
        except EngineError as error:
            size = rough_size(request.pool_bytes)
            raise KvbenchError(
                f"not enough memory for a pool of {size} on each side ({error}); "
                "use smaller swaps, or a smaller pool (-a pool=1GiB)"
            ) from None
        self._bench = Bench(
            *(self._device, stream, region, pools, SteadyCpu(), self._clocks),
            policy=request.policy,
            step_model=request.step_model or USUAL,
        )
        self._benches = {Priority.NONE: self._bench}
        notes = far_pages(host.buffer.address, request.pool_bytes, self._node)
        notes += self._pinned(pools, request.memories) if len(request.memories) > 1 else []
        return protocol.Reserved(notes=notes + self._read_trace(request))

    def _bench_of(self, cell: Cell) -> Bench:
        """Return the bench with a stream of the cell's priority."""
        if cell.priority not in self._benches:
            stream = Stream(self._device.driver, PRIORITIES[cell.priority])
            region = TimedRegion(self._device.driver, stream.handle, self._delay_ns)
            self._benches[cell.priority] = replace(self._bench, stream=stream, region=region)
        return self._benches[cell.priority]

    def _pinned(self, pools: Pools, memories: Sequence[str]) -> list[str]:
        """Make the host pool of each kind, and return how long that took, and which pages lie on another node."""
        times, far = [], list[str]()
        for memory in memories:
            try:
                pool = pools.host_pool(memory)
            except EngineError as error:
                times.append(f"{memory} refused ({error})")
                continue
            registered = f" and {pool.register_s:.3g} s to register" if pool.register_s else ""
            after = "" if memory == Memory.ALLOCATED else f" to populate{registered}"
            times.append(f"{memory} {pool.buffer.populate_s:.3g} s{after}")
            far += far_pages(pool.buffer.address, pools.pool_bytes, self._node)
        return [f"host pools of {rough_size(pools.pool_bytes)}: {', '.join(times)}", *far]

    def _read_trace(self, request: protocol.Reserve) -> list[str]:
        """Keep the swaps to replay, and return how many of them do not fit into the pools."""
        trace = request.trace
        if trace is None:
            return []
        chosen = selected(trace)
        placed = {direction: place(swaps, trace, request.pool_bytes) for direction, swaps in chosen.items()}
        self._trace = trace, placed
        pool, notes = rough_size(request.pool_bytes), list[str]()
        for direction, swaps in chosen.items():
            if left := len(swaps) - len(placed[direction]):
                swaps_left = f"{left} of {len(swaps)} selected swaps do not fit into a pool of {pool} and are left out"
                notes.append(f"trace, {direction}: {swaps_left}")
        return notes

    def _measure_ceiling(self, direction: Direction, samples: int, number: int) -> Ceiling:
        swap_bytes, event_us = measure_ceiling(self._bench, direction, samples)
        self._bench.ceiling_gbps[direction] = gigabytes_per_second(swap_bytes, median(event_us))
        return Ceiling(direction=direction.value, round=number, swap_bytes=swap_bytes, event_us=event_us)

    def _measure_control(self, request: protocol.MeasureControl) -> Control:
        self._control = self._control or open_control(self._device.name)
        with self._bench.cpu.held():
            event_us = time_copies(self._control, Direction(request.direction), request.samples)
        copy_bytes = self._control.copy_bytes
        return Control(direction=request.direction, round=request.round, copy_bytes=copy_bytes, event_us=event_us)

    def _measure_cells(self, request: protocol.MeasureCells) -> protocol.MeasuredCells:
        cells, pools = [Cell.from_strings(cell) for cell in request.cells], self._bench.pools
        memory = cells[0].memory
        is_sampled = pools.holds(memory)  # a pool of other memory is made with its first cell
        began, start_ns, samplers = int(time.time()), time.monotonic_ns(), list[Sampler]()
        arms = None
        try:
            self._meeting = meeting = None if request.start is None else Meeting(request.start)
            with self._bench.threads.ours() if all(is_own(cell.backend) for cell in cells) else nullcontext():
                arms_layouts: Sequence[Sequence[Layout] | None] = [None]  # of a cell that is alone in its visit
                if len(cells) > 1:
                    arms_layouts = lay_out_arms(cells[0], request.sampling, _seed(request, cells[0]), len(cells))
                for cell, layouts in zip(cells, arms_layouts, strict=True):
                    samplers.append(self._set_up(cell, request, layouts))
                for sampler in samplers:
                    sampler.workload.siblings = [other.workload for other in samplers if other is not sampler]
                arms = Arms(self._device, samplers, [self._faults.for_cell(cell) for cell in cells])
                made = visit(self._bench, arms, request, None if meeting is None else meeting.begin)
        except Exception as error:  # a plug-in can raise anything; it costs its cell, not the sweep
            return protocol.MeasuredCells(
                records=[_failure(request, len(samplers) if arms is None else arms.current, error)]
            )
        end_ns = time.monotonic_ns()
        is_new = pools.holds(memory) and not is_sampled  # to measure the ceiling can free it again
        far = far_pages(pools.host_pool(memory).buffer.address, pools.pool_bytes, self._node) if is_new else []
        took_ms, span_ns = (end_ns - start_ns) / 1e6, (start_ns, end_ns)
        records: list[Visit | Failure] = []
        for cell, record in zip(cells, made, strict=True):
            path = record.path if is_own(cell.backend) else f"{record.path}{CLAIMED}"
            warnings, times = [*record.warnings, *far], {"began": began, "took_ms": took_ms, "span_ns": span_ns}
            records.append(msgspec.structs.replace(record, path=path, warnings=warnings, **times))
        return protocol.MeasuredCells(records=records)

    def _set_up_replay(self, cell: Cell, backend: Backend, request: protocol.MeasureCells) -> Sampler:
        if self._trace is None:
            raise KvbenchError("sequence=trace needs a trace: kvbench sweep --trace FILE")
        trace, placed = self._trace
        swaps = chunk(placed[cell.direction.value], request.round, request.sampling.rounds)
        return ReplaySampler(self._bench_of(cell), backend, cell, trace, swaps, (request.seed, request.round))

    def _set_up(self, cell: Cell, request: protocol.MeasureCells, layouts: Sequence[Layout] | None) -> Sampler:
        """Return the cell set up; one that is visited in turn with another worker stays so, while there is room."""
        directions = Direction if cell.opposite else (cell.direction,)
        for direction in directions if cell.pace != NO_PACE else ():
            if direction not in self._bench.ceiling_gbps:  # the round began in another worker
                self._measure_ceiling(direction, CEILING_SAMPLES, request.round)
        backend = backend_named(cell.backend)
        assert backend is not None  # the plan has only described backends
        if cell.sequence == TRACE:
            return self._set_up_replay(cell, backend, request)
        if not self._bench.pools.holds(cell.memory):
            self._kept.clear()  # their pool is released
        if cell in self._kept:
            return self._kept[cell]
        in_turn, seed = request.in_turn is not None, _seed(request, cell)
        bench = replace(self._bench_of(cell), meeting=self._meeting)
        sampler = set_up(bench, backend, cell, request.sampling, seed, many_visits=in_turn, layouts=layouts)
        if in_turn:
            self._kept[cell] = sampler
            while len(self._kept) > 1 and sum(kept.workload.descriptors for kept in self._kept.values()) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return sampler


def hash_of_what_runs() -> str:
    """Return a hash, as 16 hex digits, of the compiled engine's sources, the kernel texts and the Python files, without
    their comments and docstrings.
    """
    package = Path(__file__).parents[1]
    files = sorted(chain.from_iterable((package / wing).rglob("*.py") for wing in _WINGS))
    files += [package / name for name in _FILES]
    parts = [SOURCE_HASH, *kernel_texts(), *(_statements(file.read_text()) for file in files)]
    return hashlib.blake2s("\0".join(parts).encode(), digest_size=8).hexdigest()


def _statements(text: str) -> str:
    """Return what a Python file does, as text; compiled, since that takes a third of the time of a tree in Python."""
    return "\0".join(_parts(compile(text, "", "exec", dont_inherit=True, optimize=2)))


def _parts(code: CodeType) -> Iterator[str]:
    """Yield the parts of compiled code but for docstrings, asserts and the places in its file."""
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    yield repr((code.co_code, code.co_exceptiontable, *counts, *names))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)
        else:  # a set has another order in each process
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def _seed(request: protocol.MeasureCells, cell: Cell) -> int:
    """The seed of the places of the blocks of a visit."""
    text = f"{request.seed}/{request.group or cell.id}/{request.round}" + "/again" * request.attempt
    return int.from_bytes(hashlib.blake2s(text.encode(), digest_size=8).digest())


def _rounded(answer: Any) -> Any:
    """Return an answer with every time in it rounded to nanoseconds."""
    if isinstance(answer, float):
        return round(answer, 3)
    if isinstance(answer, list):
        return list(map(_rounded, answer))
    if isinstance(answer, msgspec.Struct):
        return type(answer)(**{name: _rounded(value) for name, value in msgspec.structs.asdict(answer).items()})
    return answer


def _failure(request: protocol.MeasureCells, arm: int, error: Exception) -> Failure:
    """Return the record of the failure of an arm; the parent, which knows the sweep, adds the command."""
    kind: FailureKind = "mismatch" if isinstance(error, VerificationError) else "error"
    expected = isinstance(error, KvbenchError | EngineError)
    message = str(error) if expected else f"{type(error).__name__}: {error}"
    return Failure(cell_text=request.cells[arm], round=request.round, kind=kind, message=message, command="")


def _real_delays(device: Device) -> dict[str, float]:
    """Return requested delay in microseconds -> how long the stream is really busy, in microseconds."""
    stream = Stream(device.driver)
    region = TimedRegion(device.driver, stream.handle, 0)
    return {str(asked_us): round(region.measure_delay_us(asked_us * 1000), 3) for asked_us in DELAYS_US}


def main() -> None:
    """Answer the parent's lines on stdin until they end; the stdout output of libraries goes to stderr."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin.buffer:
        answers.write(protocol.encode(_rounded(worker.answer(protocol.REQUESTS.decode(line)))))
        answers.flush()


if __name__ == "__main__":
    main()
