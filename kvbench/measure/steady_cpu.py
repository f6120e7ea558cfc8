"""Keeps the submitting thread on one CPU, and on one that nobody else slows down.

On a shared host a CPU may run at half its speed for a while, when another guest keeps its core's other thread busy.
What is bound by submission then takes as much longer, and two runs differ by whatever CPU each happened to be on.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Final

from kvbench.engine.device import probe_cpu_us

PROBES: Final = 3
# A CPU this much slower than the best one seen is left: a shared core halves its speed. To search all of them for the
# last few per cent takes longer than a visit and was no steadier.
TOLERANCE: Final = 1.5


class SteadyCpu:
    """One of the CPUs that this process may use; `probe` times a fixed piece of work on the current one, in us."""

    def __init__(self, probe: Callable[[], float] = probe_cpu_us) -> None:
        self._probe = probe
        self._allowed = frozenset(os.sched_getaffinity(0))
        self._cpu: int | None = None
        self._best_us = float("inf")

    @contextmanager
    def held(self, cpu: int | None = None) -> Iterator[int]:
        """Keep the calling thread on `cpu`, by default on one of full speed, meanwhile, and return its number."""
        try:
            yield self._settle(cpu)
        finally:
            os.sched_setaffinity(0, self._allowed)

    def probe_us(self) -> float:
        """Return how long the fixed piece of work takes on the current CPU."""
        took_us = median(self._probe() for _ in range(PROBES))
        self._best_us = min(self._best_us, took_us)
        return took_us

    def slowdown(self, took_us: float) -> float:
        """Return how many times as long as on the best CPU seen that is."""
        return took_us / self._best_us

    def _settle(self, wanted: int | None) -> int:
        if wanted is not None and wanted in self._allowed:
            self._cpu = wanted
            os.sched_setaffinity(0, {wanted})
            return wanted
        if self._cpu is not None and self._time_on(self._cpu) <= TOLERANCE * self._best_us:
            return self._cpu
        times_us = {cpu: self._time_on(cpu) for cpu in sorted(self._allowed)}
        self._cpu = min(times_us, key=lambda cpu: times_us[cpu])
        os.sched_setaffinity(0, {self._cpu})
        return self._cpu

    def _time_on(self, cpu: int) -> float:
        os.sched_setaffinity(0, {cpu})
        return self.probe_us()
