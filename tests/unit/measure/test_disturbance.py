import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kvbench.machine.sources import Sources
from kvbench.measure.disturbance import Clocks, GpuClocks, Surroundings, disturbances
from kvbench.results.schema import Disturbance

UNLIMITED = Clocks()
QUIET = [10.0, 10.2, 9.9, 10.1, 10.0, 10.3]


def machine(slowdowns: Sequence[float] = (1.0,), clocks: Clocks = UNLIMITED, others_share: float = 0.0) -> Surroundings:
    return Surroundings(0, [1.0], slowdowns, clocks, others_share)


def test_a_quiet_visit_is_not_marked() -> None:
    assert disturbances(machine([1.0, 1.1], Clocks(1980, ["gpu_idle"]), 0.04), QUIET) == []


@pytest.mark.parametrize(
    ("slowdowns", "clocks", "times_us", "cause"),
    [
        ([1.0, 1.9], Clocks(), QUIET, Disturbance.SLOW_CPU),
        ([1.7, 1.0], Clocks(), QUIET, Disturbance.SLOW_CPU),
        ([1.0], Clocks(1200, ["hw_thermal_slowdown"]), QUIET, Disturbance.LIMITED_CLOCKS),
        ([1.0], Clocks(), [10.0, 10.1, 10.2, 15.0, 15.1, 15.2], Disturbance.STEP),
        ([1.0], Clocks(), [0.0, 0.0, 0.0, 10.0, 10.1, 10.2], Disturbance.STEP),
        ([1.0], Clocks(), [15.0, 15.1, 15.2, 10.0, 10.1, 10.2], Disturbance.STEP),
    ],
)
def test_each_disturbance_is_named(
    slowdowns: list[float], clocks: Clocks, times_us: list[float], cause: Disturbance
) -> None:
    assert disturbances(machine(slowdowns, clocks), times_us) == [cause]


def test_scatter_is_not_a_step() -> None:
    assert disturbances(machine(), [10.0, 30.0, 10.0, 30.0, 10.0, 30.0]) == []
    assert disturbances(machine(), [10.0, 20.0]) == []  # too few to tell
    assert disturbances(machine(), [0.0] * 6) == []


def test_clocks_are_read_where_there_are_any() -> None:
    def answer(function: str, *_: Any) -> Any:
        known = {"nvmlDeviceGetClockInfo": 1980, "nvmlDeviceGetCurrentClocksEventReasons": 0x008}
        return known.get(function, 0)

    @contextlib.contextmanager
    def nvml() -> Iterator[Any]:
        yield answer

    assert GpuClocks("cuda:0", "0000:1b:00.0", Sources(nvml=nvml)).read() == Clocks(1980, ("hw_slowdown",))
    assert GpuClocks("cpu", None).read() == Clocks()
