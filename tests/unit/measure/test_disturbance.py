import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from kvbench.machine.sources import Sources
from kvbench.measure import disturbance
from kvbench.measure.disturbance import PROBES, Clocks, GpuClocks, SteadyCpu, Surroundings, Threads, disturbances
from kvbench.results.schema import Disturbance

LIMITS = ["hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"]


QUIET = Surroundings(0, [1.0], [1.0, 1.5], Clocks(1980, ["gpu_idle", "sw_power_cap"]), 0.05)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"slowdowns": [1.51, 1.0]}, [Disturbance.SLOW_CPU]),
        *(({"clocks": Clocks(1980, ["gpu_idle", limit])}, [Disturbance.LIMITED_CLOCKS]) for limit in LIMITS),
        ({"others_share": 0.051}, [Disturbance.OTHER_THREAD]),
    ],
)
def test_a_machine_that_leaves_its_limits_disturbs_a_visit(
    changes: dict[str, Any], expected: list[Disturbance]
) -> None:
    assert disturbances(replace(QUIET, **changes), [10.0] * 6) == expected


@pytest.mark.parametrize(
    ("times_us", "is_step"),
    [
        ([10.0] * 3 + [13.1] * 3, True),
        ([13.1] * 3 + [10.0] * 3, True),
        ([10.0] * 3 + [13.0] * 3, False),  # no more than usual
        ([13.0] * 3 + [10.0] * 3, False),
        ([10.0] * 3 + [4.0] + [13.1] * 3, True),  # the one between belongs to neither half
        ([10.0, 13.1, 10.0] + [13.1] * 3, False),  # the halves overlap
        ([10.0, 11.0, 10.0, 10.5, 15.0, 15.0], False),
        ([10.5, 15.0, 15.0, 10.0, 11.0, 10.0], False),
        ([10.0] * 2 + [99.0] * 3, False),  # too few
        ([0.0] * 3 + [9.0] * 3, True),
        ([0.0] * 6, False),
    ],
)
def test_times_that_change_at_once_are_a_step(times_us: list[float], *, is_step: bool) -> None:
    assert disturbances(QUIET, times_us) == [Disturbance.STEP] * is_step


def test_a_probe_is_a_median_and_a_slowdown_the_ratio_to_the_best() -> None:
    steady = SteadyCpu(iter([9.0, 3.0, 5.0, 20.0, 10.0, 30.0]).__next__)
    assert (steady.probe_us(), steady.probe_us(), steady.slowdown(20.0)) == (5.0, 20.0, 4.0)


def test_threads_that_nobody_knows_of_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of the start, 1 and 2, nor kvbench's, 3, nor the backend's own, 4; of the others 7 has ended."""
    monkeypatch.setattr(Threads, "all", lambda _: frozenset(running))
    running = [1, 2]
    threads = Threads()
    running = [1, 2, 5]
    with threads.ours():
        running = [1, 2, 5, 3]
    running, spent_ns = [*range(1, 8)], dict.fromkeys(range(1, 8), 100)
    monkeypatch.setattr(disturbance, "_cpu_ns", spent_ns.__getitem__)
    monkeypatch.setattr(disturbance, "time", mock.Mock(monotonic_ns=iter([1000, 1800, 2000]).__next__))
    share = threads.watch([4])
    spent_ns |= {1: 900, 2: 900, 3: 900, 4: 900, 5: 260, 6: 140, 7: 0}
    assert (share(), share()) == (0.25, 0.2)


def test_clocks_are_read_where_there_are_any() -> None:
    def answer(function: str, *_: Any) -> Any:
        known = {"nvmlDeviceGetClockInfo": 1980, "nvmlDeviceGetCurrentClocksEventReasons": 0x008}
        return known.get(function, 0)

    @contextlib.contextmanager
    def nvml() -> Iterator[Any]:
        yield answer

    assert GpuClocks("cuda:0", "0000:1b:00.0", Sources(nvml=nvml)).read() == Clocks(1980, ("hw_slowdown",))
    assert GpuClocks("cpu", None).read() == Clocks()


ALLOWED = sorted(os.sched_getaffinity(0))


class Host:
    """Eight CPUs whose speed the test decides: microseconds that the probe takes on each."""

    def __init__(self) -> None:
        self.times_us = dict.fromkeys(range(8), 100.0)
        self.probed: list[int] = []
        self.pinned = frozenset(self.times_us)

    def probe(self) -> float:
        (cpu,) = self.pinned
        self.probed.append(cpu)
        return self.times_us[cpu]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host()
    monkeypatch.setattr("os.sched_getaffinity", lambda _: made.pinned)
    monkeypatch.setattr("os.sched_setaffinity", lambda _, cpus: setattr(made, "pinned", frozenset(cpus)))
    return made


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
    host.times_us[5] = 135.0
    assert chosen(steady) == 5
    assert host.probed == [5] * PROBES  # no search
    host.probed.clear()
    host.times_us[5] = host.times_us[6] = 135.1
    assert chosen(steady) == 7
    assert host.probed == [5] * PROBES + [6] * PROBES + [7] * PROBES, "and no further"


def test_where_every_cpu_is_slow_a_visit_does_not_search_them_all(host: Host) -> None:
    host.times_us[6] = 90.0
    assert chosen(steady := SteadyCpu(host.probe)) == 6
    host.probed.clear()
    host.times_us = dict.fromkeys(host.times_us, 200.0) | {0: 190.0}  # the second behind it
    assert chosen(steady) == 0
    assert len(host.probed) == (1 + disturbance.SEARCHED) * PROBES
    assert host.probed[PROBES] == 7  # the first behind it


def test_a_visit_knows_how_fast_its_cpu_is(host: Host) -> None:
    host.times_us |= {2: 90.0, 3: 300.0}
    steady = SteadyCpu(host.probe)
    for wanted, expected in ((None, (2, 90.0)), (None, (2, 90.0)), (3, (3, 300.0)), (99, (4, 100.0))):
        with steady.held(wanted) as cpu_and_time:
            assert cpu_and_time == expected
