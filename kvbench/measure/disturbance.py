"""What disturbs a visit, and what keeps it steady: the CPU, the GPU's clocks, other threads, a step in the times.

On a shared host a CPU can run at half its speed for some time, while another guest keeps the sibling thread of its core
busy. Submission-bound swaps then take twice as long, and two runs differ by the CPU that each happened to run on.
"""

import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from statistics import median
from typing import Final

from kvbench.engine.device import probe_cpu_us
from kvbench.machine.probes import clock_limits, sm_clock_mhz
from kvbench.machine.sources import Sources, open_machine
from kvbench.results.schema import Disturbance

# Ratio between the halves of a visit; on a quiet machine the samples of one visit differ by less.
STEP: Final = 1.3
_MIN_STEPPING: Final = 6
# Limits that lower the SM clock under another load; a GPU that only swaps reports "gpu_idle".
_LIMITS: Final = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"})

PROBES: Final = 3
# The thread leaves a CPU this much slower than the best one seen, and a visit on it is disturbed: a fixed piece of work
# takes up to 1.2 times its best time on a quiet host, and twice on a core with a busy sibling thread. A search of all
# CPUs for the last few percent takes longer than a visit and was not steadier. On a host where all are slow, so does a
# search of all CPUs for one of full speed.
TOLERANCE: Final = 1.5
SEARCHED: Final = 4

# The share of a visit's time that threads may compute that kvbench does not know, and the kernel's number for the clock
# of one thread.
OTHERS_SHARE: Final = 0.05
_THREAD_CPU_CLOCK: Final = 6


@dataclass(frozen=True, slots=True)
class Clocks:
    """A GPU's SM clock in MHz and the reasons that limit it; None and empty if the machine does not report them."""

    sm_mhz: int | None = None
    limits: Sequence[str] = ()


class GpuClocks:
    """Reads the clocks of one GPU through NVML, opened once; the device "cpu" has none."""

    def __init__(self, device: str, pci_bus_id: str | None, sources: Sources | None = None) -> None:
        self._open = ExitStack()
        self._machine = self._open.enter_context(open_machine(device, pci_bus_id, sources or Sources()))

    def read(self) -> Clocks:
        limits: tuple[str, ...] = ()
        sm_mhz = None
        with suppress(Exception):  # a probe can fail in any way: no NVML, an unsupported query
            limits = tuple(map(str, clock_limits(self._machine)))
        with suppress(Exception):
            sm_mhz = sm_clock_mhz(self._machine)
        return Clocks(sm_mhz, limits)


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


class Threads:
    """The threads of this process: those known, from the start or started by kvbench, and all others.

    A library or another backend can leave a thread behind, which then works beside swaps of backends that have none.
    """

    def __init__(self) -> None:
        self._known = self.all()

    def all(self) -> frozenset[int]:
        return frozenset(int(entry.name) for entry in os.scandir("/proc/self/task"))

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Within the context, threads that start become known."""
        before = self.all()
        try:
            yield
        finally:
            self._known |= self.all() - before

    def watch(self, own: Collection[int]) -> Callable[[], float]:
        """Return a function that returns the CPU time that the others took since, as a share of that time.

        `own` are threads that the measured backend has started for its cell.
        """
        others = self.all() - self._known - frozenset(own)
        began_ns, before_ns = time.monotonic_ns(), {thread: _cpu_ns(thread) for thread in others}

        def share() -> float:
            took_ns = sum(max(0, _cpu_ns(thread) - ns) for thread, ns in before_ns.items())
            return took_ns / max(1, time.monotonic_ns() - began_ns)

        return share


def _cpu_ns(thread: int) -> int:
    """Return the CPU time of a thread of this process, 0 of one that has ended."""
    try:
        return time.clock_gettime_ns(~thread << 3 | _THREAD_CPU_CLOCK)
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The machine around the samples of a visit: the CPU, what its probes took before and after in us, and as ratios to
    the best CPU seen; the GPU's clocks; and the share of the time that unknown threads computed.
    """

    cpu: int
    probes_us: Sequence[float]
    slowdowns: Sequence[float]
    clocks: Clocks
    others_share: float = 0.0


def disturbances(surroundings: Surroundings, times_us: Sequence[float]) -> list[Disturbance]:
    """The disturbances of a visit; `times_us` are its samples in their order."""
    detected = []
    if max(surroundings.slowdowns) > TOLERANCE:
        detected.append(Disturbance.SLOW_CPU)
    if _LIMITS.intersection(surroundings.clocks.limits):
        detected.append(Disturbance.LIMITED_CLOCKS)
    if surroundings.others_share > OTHERS_SHARE:
        detected.append(Disturbance.OTHER_THREAD)
    half = len(times_us) // 2
    if len(times_us) >= _MIN_STEPPING:
        first, second = times_us[:half], times_us[-half:]
        apart = max(first) < min(second) or max(second) < min(first)
        before = median(first)
        step = median(second) / before if before else math.inf
        if apart and not 1 / STEP <= step <= STEP:
            detected.append(Disturbance.STEP)
    return detected
