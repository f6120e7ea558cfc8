"""Detects disturbed visits: a slow CPU, a GPU with limited clocks, or a step in the times."""

import math
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from statistics import median
from typing import Final

from kvbench.analysis.margins import SLOW_CPU
from kvbench.machine.probes import clock_limits, sm_clock_mhz
from kvbench.machine.sources import Sources, open_machine
from kvbench.results.schema import Disturbance

# Ratio between the halves of a visit; on a quiet machine the samples of one visit differ by less.
STEP: Final = 1.3
_MIN_STEPPING: Final = 6
# Limits that lower the SM clock under another load; a GPU that only swaps reports "gpu_idle".
_LIMITS: Final = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"})


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


def disturbances(slowdowns: Sequence[float], clocks: Clocks, times_us: Sequence[float]) -> list[Disturbance]:
    """Return what disturbed a visit.

    `slowdowns` are those of the CPU before and after the samples; `times_us` are the samples in their order.
    """
    detected = []
    if max(slowdowns) > 1 + SLOW_CPU.fraction:
        detected.append(Disturbance.SLOW_CPU)
    if _LIMITS.intersection(clocks.limits):
        detected.append(Disturbance.LIMITED_CLOCKS)
    half = len(times_us) // 2
    if len(times_us) >= _MIN_STEPPING:
        first, second = times_us[:half], times_us[-half:]
        apart = max(first) < min(second) or max(second) < min(first)
        before = median(first)
        step = median(second) / before if before else math.inf
        if apart and not 1 / STEP <= step <= STEP:
            detected.append(Disturbance.STEP)
    return detected
