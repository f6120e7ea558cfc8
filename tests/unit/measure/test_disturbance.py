import contextlib
import os
from collections.abc import Iterator
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import pytest

from kvbench.machine.sources import Sources
from kvbench.measure import disturbance
from kvbench.measure.disturbance import (
    PROBES,
    SEARCHED,
    Clocks,
    GpuClocks,
    SteadyCpu,
    Surroundings,
    Threads,
    disturbances,
)  # fmt: skip
from kvbench.results.schema import Disturbance

LIMITS = ["hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"]


@pytest.mark.parametrize("seed", range(300))
def test_disturbances_are_those_of_their_definition(seed: int) -> None:
    """At their limits and right behind them; a step is between halves that do not overlap, of six samples or more."""
    rng = np.random.default_rng(seed)
    slowdowns, share = rng.choice([1.0, 1.5, 1.51], 2).tolist(), float(rng.choice([0.05, 0.051]))
    limits = [name for name in (*LIMITS, "gpu_idle", "sw_power_cap") if rng.random() < 0.1]
    half, level = int(rng.integers(0, 6)), float(rng.choice([0.0, 7.6, 7.8, 9.0, 10.0, 12.9, 13.0, 13.1]))
    times_us = [*[10.0] * half, *rng.choice([4.0, 99.0], int(rng.integers(0, 2))).tolist(), *[level] * half]
    if half and rng.random() < 0.3:
        times_us[int(rng.integers(half))] = level  # touches the other half
    if rng.random() < 0.3:
        times_us.reverse()
    first, second = times_us[: len(times_us) // 2], times_us[len(times_us) - len(times_us) // 2 :]
    signs = {np.sign(one - other) for one in first for other in second}
    low, high = sorted([median(first or [1.0]), median(second or [1.0])])
    is_step = len(times_us) >= 6 and signs in ({1}, {-1}) and round(high, 6) > round(1.3 * low, 6)
    held = (1.51 in slowdowns, bool({*LIMITS} & {*limits}), share > 0.05, is_step)
    names = (Disturbance.SLOW_CPU, Disturbance.LIMITED_CLOCKS, Disturbance.OTHER_THREAD, Disturbance.STEP)
    expected = [name for name, holds in zip(names, held, strict=True) if holds]
    assert disturbances(Surroundings(0, [1.0], slowdowns, Clocks(1980, limits), share), times_us) == expected


def test_a_probe_is_a_median_and_a_slowdown_the_ratio_to_the_best() -> None:
    steady = SteadyCpu(iter([9.0, 3.0, 5.0, 20.0, 10.0, 30.0]).__next__)
    assert (steady.probe_us(), steady.probe_us(), steady.slowdown(20.0)) == (5.0, 20.0, 4.0)


def test_threads_that_nobody_knows_of_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of the start, 1 and 2, nor kvbench's, 3, nor the backend's own, 4; of the others 7 has ended."""
    monkeypatch.setattr(Threads, "all", lambda _: frozenset(range(1, running + 1)))
    running = 2
    threads = Threads()
    with threads.ours():
        running = 3
    running, spent_ns = 7, dict.fromkeys(range(1, 8), 100)
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
    host.times_us[5] = host.times_us[6] = 135.1
    assert chosen(steady) == 7


def test_where_every_cpu_is_slow_a_visit_does_not_search_them_all(host: Host) -> None:
    host.times_us[6] = 90.0
    assert chosen(steady := SteadyCpu(host.probe)) == 6
    host.probed.clear()
    host.times_us = dict.fromkeys(host.times_us, 200.0) | {0: 190.0}  # the second behind it
    assert chosen(steady) == 0
    assert len(host.probed) == (1 + SEARCHED) * PROBES


def test_a_visit_knows_how_fast_its_cpu_is(host: Host) -> None:
    host.times_us |= {2: 90.0, 3: 300.0}
    steady = SteadyCpu(host.probe)
    for wanted, expected in ((None, (2, 90.0)), (None, (2, 90.0)), (3, (3, 300.0)), (99, (4, 100.0))):
        with steady.held(wanted) as cpu_and_time:
            assert cpu_and_time == expected
