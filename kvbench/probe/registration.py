"""Registering host memory: its cost, its limits, copies across two registrations, and whether it stalls swaps."""

import mmap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Final

import numpy as np

from kvbench.cells.axes import Direction
from kvbench.cells.units import KIB, MIB, rough_size, size_text
from kvbench.engine.device import DIRECTIONS, Buffer, EngineError, MemoryKind, copy, register_pages, unregister_pages
from kvbench.machine.sources import Sources
from kvbench.probe import ZERO, ProbeFinding, Unanswered, run_probe
from kvbench.probe.probe_bench import Arrays, Blocks, ProbeBench, arrays_of

_LARGEST: Final = {"cuda": 8192 * MIB, "cpu": 64 * MIB}
_THREADS: Final = (1, 8, 32)
# Tries of the largest registration, each also beside memory of the GPU that is in use: one success is no promise.
_TRIES: Final = 2
# The share of the GPU's free memory that is in use meanwhile, and its bytes on the device cpu.
_USED_SHARE: Final = 0.5
_USED_CPU_BYTES: Final = 16 * MIB
_BLOCK: Final = 2 * MIB


def registration(bench: ProbeBench) -> ProbeFinding | Unanswered:
    """Register up to 8 GiB, at most a quarter of the available memory; copy across two registrations."""
    kind = bench.device.kind
    largest = min(_LARGEST[kind], 1 << (spare_bytes().bit_length() - 1))
    if largest < _LARGEST["cpu"]:
        return Unanswered(f"only {rough_size(spare_bytes())} of host memory can be pinned without taking others'", True)
    whole_s, refusals = _tried(bench, largest)
    gib = min(largest, 1024 * MIB) / (1024 * MIB)
    times_s = {threads: register(bench, min(largest, 1024 * MIB), threads)[0] / gib for threads in _THREADS}
    across = {name: _across(bench, name) for name in ("batched", "single")}
    answers = ", ".join(f"{name} {why or 'allowed'}" for name, why in across.items())
    none = run_probe(ZERO, bench.device.name).found  # a driver may abort
    of_none = none.answer if isinstance(none, ProbeFinding) else none.reason
    registered = ", ".join(refusals) or "registers"
    return ProbeFinding(
        answer=f"{size_text(largest)} in one call: {registered}; a copy across two registrations: {answers}; "
        f"0 bytes: {of_none}",
        number=times_s[1],
        unit="s a GiB",
        of="registration by one thread",
        expected=not refusals and (kind == "cpu") != bool(across["batched"]),
        figures={
            "whole_s": round(whole_s, 3),
            **{f"threads_{threads}_s_a_gib": round(time_s, 3) for threads, time_s in times_s.items()},
        },
    )


def zero(bench: ProbeBench) -> ProbeFinding:
    bench.step("registering 0 bytes")
    refused = ""
    try:
        with Pages(_BLOCK).registered(bench, size_bytes=0):
            pass
    except RegistrationRefusedError as error:
        refused = error.name
    return ProbeFinding(
        answer=f"refused ({refused})" if refused else "registers", number=0, unit="B", of="", expected=True
    )


def _tried(bench: ProbeBench, size_bytes: int) -> tuple[float, list[str]]:
    """The median seconds of a registration, and its refusals with the GPU's memory free and in use."""
    times_s, refusals = [], []
    free_bytes, _ = bench.device.driver.free_memory()
    used_bytes = int(free_bytes * _USED_SHARE) if bench.device.is_cuda else _USED_CPU_BYTES
    for state, in_use_bytes in (("free", MIB), ("in use", used_bytes)):
        used = Buffer(bench.device.driver, MemoryKind.device, in_use_bytes)
        bench.device.driver.fill(used.address, 1, used.size_bytes, bench.stream.handle)
        bench.stream.synchronize()
        errors = []
        for number in range(_TRIES):
            doing = f"registering {size_text(size_bytes)}, memory of the device {state}, try {number + 1}"
            bench.step(doing, size_bytes / MIB, "MiB")
            took_s, error = register(bench, size_bytes, 1)
            times_s.append(took_s)
            errors += [error] if error else []
        if errors:
            how_often = f"refused {len(errors)} of {_TRIES} times with memory of the device {state}"
            refusals.append(f"{how_often} ({errors[-1]})")
    return median(times_s), refusals


def register(bench: ProbeBench, size_bytes: int, threads: int) -> tuple[float, str]:
    """The seconds that registering fresh pages takes in one part a thread, and the driver's refusal or ""."""
    parts = [Pages(size_bytes // threads) for _ in range(threads)]
    with ExitStack() as stack, ThreadPoolExecutor(threads) as pool:
        began_s = time.monotonic()
        try:
            list(pool.map(lambda pages: stack.enter_context(pages.registered(bench)), parts))
        except RegistrationRefusedError as refused:
            return time.monotonic() - began_s, refused.name
        return time.monotonic() - began_s, ""


def _across(bench: ProbeBench, name: str) -> str:
    """The error by which a copy across two adjacent registrations is refused, or ""."""
    bench.step(f"a {name} copy across two registrations")
    pages, card = Pages(2 * _BLOCK), Buffer(bench.device.driver, MemoryKind.device, _BLOCK)
    with pages.registered(bench, 0, _BLOCK), pages.registered(bench, _BLOCK, _BLOCK):
        source = pages.address + _BLOCK // 2
        try:
            if name == "single":
                copy(bench.device.driver, card.address, source, _BLOCK, DIRECTIONS[Direction.H2D], bench.stream.handle)
            else:
                to, start, size = (np.array([number], np.uint64) for number in (card.address, source, _BLOCK))
                bench.submit(arrays_of(to, start, size), Direction.H2D)
            bench.stream.synchronize()
        except EngineError as error:
            return f"refused ({error.name})"
    return ""


class RegistrationRefusedError(Exception):
    """The driver refused to register host memory; `name` is its error."""

    def __init__(self, size_bytes: int, name: str) -> None:
        super().__init__(f"register {size_text(size_bytes)} {name}")
        self.size_bytes, self.name = size_bytes, name


class Pages:
    """Fresh private pages, not yet in memory; `size_bytes` is rounded by the kernel."""

    def __init__(self, size_bytes: int) -> None:
        self._map = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.size_bytes = size_bytes
        self.address = np.frombuffer(self._map, np.uint8).ctypes.data

    @contextmanager
    def registered(self, bench: ProbeBench, start: int = 0, size_bytes: int | None = None) -> Iterator[None]:
        """Pin a part of the pages (default: all) within the context. Raises RegistrationRefusedError."""
        size_bytes = self.size_bytes if size_bytes is None else size_bytes
        try:
            register_pages(bench.device.driver, self.address + start, size_bytes)
        except EngineError as error:
            raise RegistrationRefusedError(size_bytes, error.name) from None
        try:
            yield
        finally:
            unregister_pages(bench.device.driver, self.address + start)


def spare_bytes() -> int:
    """A quarter of the available memory, which a probe may pin without others missing it."""
    return Sources().available_bytes() // 4


_PINNED: Final = {"cuda": 4096 * MIB, "cpu": 16 * MIB}
_ROUNDS: Final = 3
_LEAST_SWAPS: Final = 100
# A stall: in every round the longest swap takes twice as long as the longest of all alone, and 10 ms more, which is
# longer than a busy CPU keeps a thread from running. One swap that waits is a stall, but among hundreds not their 99th
# percentile.
_TIMES: Final = 2
_STALL_US: Final = 10_000


def stalls(bench: ProbeBench) -> ProbeFinding | Unanswered:
    """Pin 4 GiB in another thread three times while swaps of 64 blocks run.

    Raises RegistrationRefusedError if nothing could be pinned.
    """
    size = _PINNED[bench.device.kind]
    if size > spare_bytes():
        return Unanswered(f"pinning {rough_size(size)} would take more than a quarter of the available memory", True)
    blocks = Blocks(bench, [64 * KIB] * 64)
    arrays = blocks.arrays(Direction.H2D)
    alone_us, beside_us = [], []
    for number in range(_ROUNDS):
        bench.step(f"round {number + 1}, {rough_size(size)}", size / MIB, "MiB")
        alone_us.append(_times_us(bench, arrays, lambda: True))
        with ThreadPoolExecutor(1) as thread:
            pinning = thread.submit(_pin, bench, size)
            beside_us.append(_times_us(bench, arrays, pinning.done))
        pinning.result()  # without pinning nothing was beside the swaps
    worst_us = max(map(max, alone_us))
    longest_us = min(map(max, beside_us))
    is_stalled = longest_us > max(_TIMES * worst_us, worst_us + _STALL_US)
    p99_alone_us, p99_beside_us = (
        median(float(np.percentile(of_round, 99)) for of_round in rounds) for rounds in (alone_us, beside_us)
    )
    return ProbeFinding(
        answer="yes" if is_stalled else "no",
        number=longest_us / worst_us,
        unit="times the longest alone",
        of="what the longest swap beside the pinning takes at least, in every round",
        expected=not is_stalled,
        figures={
            "p99_alone_us": round(p99_alone_us, 1),
            "p99_beside_us": round(p99_beside_us, 1),
            "worst_alone_us": round(worst_us, 1),
            "worst_beside_every_round_us": round(longest_us, 1),
        },
    )


def _times_us(bench: ProbeBench, arrays: Arrays, has_ended: Callable[[], bool]) -> list[float]:
    """The wall times of swaps, at least a hundred and until `has_ended`."""
    times_us: list[float] = []
    while len(times_us) < _LEAST_SWAPS or not has_ended():
        began_ns = time.perf_counter_ns()
        bench.submit(arrays, Direction.H2D)
        bench.stream.synchronize()
        times_us.append((time.perf_counter_ns() - began_ns) / 1e3)
    return times_us


def _pin(bench: ProbeBench, size_bytes: int) -> None:
    with Pages(size_bytes).registered(bench):
        pass
