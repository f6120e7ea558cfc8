import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from kvbench.machine.sources import Sources
from kvbench.measure.disturbance import PROBES, SEARCHED, Clocks, GpuClocks, SteadyCpu, Surroundings, disturbances
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


# Which CPU the submitting thread samples on


ALLOWED = sorted(os.sched_getaffinity(0))


class Host:
    """Eight CPUs whose speed the test decides: microseconds that the probe takes on each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times_us = dict.fromkeys(range(8), 100.0)
        self.probed: list[int] = []
        self._pinned = frozenset(self.times_us)
        monkeypatch.setattr("os.sched_getaffinity", lambda _: self._pinned)
        monkeypatch.setattr("os.sched_setaffinity", self._pin)

    def _pin(self, _: int, cpus: Iterable[int]) -> None:
        self._pinned = frozenset(cpus)

    def probe(self) -> float:
        (cpu,) = self._pinned
        self.probed.append(cpu)
        return self.times_us[cpu]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def chosen(steady: SteadyCpu) -> int:
    with steady.held() as (cpu, _):
        return cpu


def test_a_visit_stays_on_one_cpu_and_gives_it_back() -> None:
    with SteadyCpu().held() as (cpu, _):
        assert os.sched_getaffinity(0) == {cpu}
    assert os.sched_getaffinity(0) == set(ALLOWED)
    with pytest.raises(RuntimeError), SteadyCpu().held():
        raise RuntimeError
    assert os.sched_getaffinity(0) == set(ALLOWED)


def test_a_cpu_is_kept_while_it_is_fast_and_left_when_it_is_at_half_its_speed(host: Host) -> None:
    host.times_us[5] = 90.0
    steady = SteadyCpu(host.probe)
    assert chosen(steady) == 5
    host.probed.clear()
    host.times_us[5] = 120.0
    assert chosen(steady) == 5
    assert host.probed == [5] * PROBES  # no search
    host.times_us[5] = host.times_us[6] = 180.0
    assert chosen(steady) == 7


def test_where_every_cpu_is_slow_a_visit_does_not_search_them_all(host: Host) -> None:
    steady = SteadyCpu(host.probe)
    first = chosen(steady)
    host.probed.clear()
    host.times_us = dict.fromkeys(host.times_us, 200.0)
    host.times_us[first + 2] = 190.0
    assert chosen(steady) == first + 2
    assert len(host.probed) == (1 + SEARCHED) * PROBES


def test_a_visit_knows_how_fast_its_cpu_is(host: Host) -> None:
    host.times_us |= {2: 90.0, 3: 300.0}
    steady = SteadyCpu(host.probe)
    for wanted, expected in ((None, (2, 90.0)), (None, (2, 90.0)), (3, (3, 300.0)), (99, (4, 100.0))):
        with steady.held(wanted) as cpu_and_time:
            assert cpu_and_time == expected
