"""What registering host memory costs, and whether a copy may span two registrations."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import median
from typing import Final

import numpy as np

from kvbench.cells.axes import Direction
from kvbench.engine.device import DIRECTIONS, Buffer, EngineError, MemoryKind, copy
from kvbench.probe.common import ProbeFinding, Unanswered
from kvbench.probe.pages import Pages, spare_bytes
from kvbench.probe.probe_bench import ProbeBench, arrays_of
from kvbench.units import MIB, rough_size, size_text

_LARGEST: Final = {"cuda": 8192 * MIB, "cpu": 64 * MIB}
_THREADS: Final = (1, 8, 32)
_BLOCK: Final = 2 * MIB
_COPIES: Final = 5


def probe(bench: ProbeBench) -> ProbeFinding | Unanswered:
    """Register up to 8 GiB, at most a quarter of the available memory; copy across two registrations."""
    kind = bench.device.kind
    largest = min(_LARGEST[kind], 1 << (spare_bytes().bit_length() - 1))
    if largest < _LARGEST["cpu"]:
        return Unanswered(f"only {rough_size(spare_bytes())} of host memory can be pinned without taking others'", True)
    bench.step(f"registering {size_text(largest)}", largest / MIB, "MiB")
    whole_s, refusal = register(bench, largest, 1)
    gib = min(largest, 1024 * MIB) / (1024 * MIB)
    times_s = {threads: register(bench, min(largest, 1024 * MIB), threads)[0] / gib for threads in _THREADS}
    across = {name: _across(bench, name) for name in ("batched", "single")}
    answers = ", ".join(f"{name} {why or 'allowed'}" for name, why in across.items())
    registered = f"refused ({refusal})" if refusal else "registers"
    return ProbeFinding(
        answer=f"{size_text(largest)} in one call: {registered}; a copy across two registrations: {answers}",
        number=times_s[1],
        unit="s a GiB",
        of="registration by one thread",
        expected=not refusal and (kind == "cpu") != bool(across["batched"]),
        figures={
            "whole_s": round(whole_s, 3),
            **{f"threads_{threads}_s_a_gib": round(time_s, 3) for threads, time_s in times_s.items()},
            **{f"{name}_h2d_gbps": round(rate, 2) for name, rate in _rates(bench).items()},
        },
    )


def register(bench: ProbeBench, size_bytes: int, threads: int) -> tuple[float, str]:
    """Return the seconds that registering fresh pages takes in one part a thread, and the driver's refusal or ""."""
    parts = [Pages(size_bytes // threads) for _ in range(threads)]
    with ExitStack() as stack, ThreadPoolExecutor(threads) as pool:
        began_s = time.monotonic()
        try:
            list(pool.map(lambda pages: stack.enter_context(pages.registered(bench.device)), parts))
        except EngineError as error:
            return time.monotonic() - began_s, error.name
        return time.monotonic() - began_s, ""


def _across(bench: ProbeBench, name: str) -> str:
    """Return the error by which a copy across two adjacent registrations is refused, or ""."""
    bench.step(f"a {name} copy across two registrations")
    pages, card = Pages(2 * _BLOCK), Buffer(bench.device.driver, MemoryKind.device, _BLOCK)
    with pages.registered(bench.device, 0, _BLOCK), pages.registered(bench.device, _BLOCK, _BLOCK):
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


def _rates(bench: ProbeBench) -> dict[str, float]:
    """Return GB/s of a single h2d copy from pinned, registered and pageable memory, with its synchronization."""
    size = 64 * MIB
    card, pinned = (Buffer(bench.device.driver, kind, size) for kind in (MemoryKind.device, MemoryKind.allocated))
    pages, pageable = Pages(size), np.ones(size, np.uint8)
    rates = {}
    with pages.registered(bench.device):
        sources = {"pinned": pinned.address, "registered": pages.address, "pageable": pageable.ctypes.data}
        for name, source in sources.items():
            times_s = []
            for _ in range(_COPIES):
                began_s = time.perf_counter()
                copy(bench.device.driver, card.address, source, size, DIRECTIONS[Direction.H2D], bench.stream.handle)
                bench.stream.synchronize()
                times_s.append(time.perf_counter() - began_s)
            rates[name] = size / median(times_s) / 1e9
    return rates
