"""Whether pinning memory in another thread stalls swaps: the longest swap and the 99th percentile, alone and beside."""

import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Final

import numpy as np

from kvbench.cells.axes import Direction
from kvbench.cells.units import KIB, MIB, rough_size
from kvbench.probe.common import ProbeFinding, Unanswered
from kvbench.probe.probe_bench import Arrays, Blocks, ProbeBench
from kvbench.probe.registration import Pages, RegistrationRefusedError, spare_bytes

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
    refusals: list[RegistrationRefusedError] = []
    for number in range(_ROUNDS):
        bench.step(f"round {number + 1}, {rough_size(size)}", size / MIB, "MiB")
        alone_us.append(_times_us(bench, arrays, lambda: False))
        thread = threading.Thread(target=_pin, args=(bench, size, refusals))
        thread.start()
        beside_us.append(_times_us(bench, arrays, thread.is_alive))
        thread.join()
    if refusals:  # without pinning nothing was beside the swaps
        raise refusals[0]
    worst_us = max(map(max, alone_us))
    longest_us = min(map(max, beside_us))
    is_stalled = longest_us > max(_TIMES * worst_us, worst_us + _STALL_US)
    p99_alone_us, p99_beside_us = (
        median(float(np.percentile(one, 99)) for one in times) for times in (alone_us, beside_us)
    )
    return ProbeFinding(
        answer="yes" if is_stalled else "no",
        number=longest_us / worst_us,
        unit="times the longest alone",
        of="longest swap beside the pinning",
        expected=not is_stalled,
        figures={
            "p99_alone_us": round(p99_alone_us, 1),
            "p99_beside_us": round(p99_beside_us, 1),
            "worst_alone_us": round(worst_us, 1),
            "worst_beside_us": round(longest_us, 1),
        },
    )


def _times_us(bench: ProbeBench, arrays: Arrays, goes_on: Callable[[], bool]) -> list[float]:
    """Return the wall times of swaps, at least a hundred and as long as `goes_on`."""
    times_us: list[float] = []
    while len(times_us) < _LEAST_SWAPS or goes_on():
        began_ns = time.perf_counter_ns()
        bench.submit(arrays, Direction.H2D)
        bench.stream.synchronize()
        times_us.append((time.perf_counter_ns() - began_ns) / 1e3)
    return times_us


def _pin(bench: ProbeBench, size_bytes: int, refusals: list[RegistrationRefusedError]) -> None:
    try:
        with Pages(size_bytes).registered(bench.device):
            pass
    except RegistrationRefusedError as refused:
        refusals.append(refused)
