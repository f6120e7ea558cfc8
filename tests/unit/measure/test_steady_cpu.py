"""Which CPU the submitting thread samples on."""

import os

import pytest

from kvbench.measure.steady_cpu import PROBES, SteadyCpu

ALLOWED = sorted(os.sched_getaffinity(0))


class Cpus:
    """CPUs whose speed the test decides: microseconds that the probe takes on each."""

    def __init__(self) -> None:
        self.times_us = dict.fromkeys(ALLOWED, 100.0)
        self.probed: list[int] = []

    def probe(self) -> float:
        (cpu,) = os.sched_getaffinity(0)
        self.probed.append(cpu)
        return self.times_us[cpu]


def test_a_visit_stays_on_one_cpu_and_gives_it_back() -> None:
    with SteadyCpu(Cpus().probe).held() as cpu:
        assert os.sched_getaffinity(0) == {cpu}
    assert os.sched_getaffinity(0) == set(ALLOWED)
    with pytest.raises(RuntimeError), SteadyCpu(Cpus().probe).held():
        raise RuntimeError
    assert os.sched_getaffinity(0) == set(ALLOWED)


@pytest.mark.skipif(len(ALLOWED) < 2, reason="needs two CPUs")
def test_a_cpu_is_kept_while_it_is_fast_and_left_when_it_is_at_half_its_speed() -> None:
    cpus = Cpus()
    cpus.times_us[ALLOWED[1]] = 90.0
    steady = SteadyCpu(cpus.probe)
    with steady.held() as first:
        assert first == ALLOWED[1]
    cpus.probed.clear()
    cpus.times_us[first] = 120.0
    with steady.held() as again:
        assert again == first
    assert cpus.probed == [first] * PROBES  # no search
    cpus.times_us[first] = 180.0
    with steady.held() as other:
        assert other != first
