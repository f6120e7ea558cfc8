"""Pins the submitting thread to one CPU of full speed.

On a shared host a CPU can run at half its speed for some time, while another guest keeps the sibling thread of its core
busy. Submission-bound swaps then take twice as long, and two runs differ by the CPU that each happened to run on.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Final

from kvbench.engine.device import probe_cpu_us

PROBES: Final = 3
# The thread leaves a CPU this much slower than the best one seen: a shared core halves its speed. A search of all CPUs
# for the last few percent takes longer than a visit and was not steadier. On a host where all are slow, so does a
# search of all CPUs for one of full speed.
TOLERANCE: Final = 1.5
SEARCHED: Final = 4


class SteadyCpu:
    """Chooses among the CPUs of this process; `probe` times a fixed piece of work on the current CPU, in us."""

    def __init__(self, probe: Callable[[], float] = probe_cpu_us) -> None:
        self._probe = probe
        self._allowed = frozenset(os.sched_getaffinity(0))
        self._cpu: int | None = None
        self._best_us = float("inf")

    @contextmanager
    def held(self, cpu: int | None = None) -> Iterator[tuple[int, float]]:
        """Pin the calling thread to `cpu`, by default to one of full speed, within the context.

        Yield its number, and how long the fixed piece of work takes on it, in microseconds.
        """
        try:
            yield self._settle(cpu)
        finally:
            os.sched_setaffinity(0, self._allowed)

    def probe_us(self) -> float:
        """Return how long the fixed piece of work takes on the current CPU, in microseconds."""
        took_us = median(self._probe() for _ in range(PROBES))
        self._best_us = min(self._best_us, took_us)
        return took_us

    def slowdown(self, took_us: float) -> float:
        """Return the ratio of `took_us` to the time on the best CPU seen."""
        return took_us / self._best_us

    def _settle(self, wanted: int | None) -> tuple[int, float]:
        cpus = sorted(self._allowed)
        if wanted in self._allowed:
            cpus = [wanted]
        elif self._cpu is not None:
            took_us = self._time_on(self._cpu)
            if took_us <= TOLERANCE * self._best_us:
                return self._cpu, took_us
            after = cpus.index(self._cpu) + 1
            cpus = (cpus[after:] + cpus[:after])[:SEARCHED]
        times_us: dict[int, float] = {}
        for cpu in cpus:
            times_us[cpu] = self._time_on(cpu)
            if self._cpu is not None and times_us[cpu] <= TOLERANCE * self._best_us:
                break
        self._cpu = min(times_us, key=lambda cpu: times_us[cpu])
        os.sched_setaffinity(0, {self._cpu})
        return self._cpu, times_us[self._cpu]

    def _time_on(self, cpu: int) -> float:
        os.sched_setaffinity(0, {cpu})
        return self.probe_us()
