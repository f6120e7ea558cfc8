"""Looks at pairs: what settles a row, what has to be seen twice, and what something else spoiled."""

import math

import numpy as np
import pytest

from kvbench.analysis.compare import CONFIDENCE, Floats, Verdict
from kvbench.gate.judgement import PLAN, Estimate, look_at
from kvbench.gate.pairs import spoiled, unknown, without_slot_bias

MARGIN = 0.03


def noise(pairs: int, centre: float = 0.0, scatter: float = 0.01) -> Floats:
    return np.random.default_rng(3).normal(centre, scatter, pairs)


def seen(logs: Floats, processes: Floats | None = None) -> Estimate:
    """Look at pairs, which two processes made in turn unless `processes` says otherwise."""
    return look_at(logs, np.arange(logs.size) % 2.0 if processes is None else processes, MARGIN)


def test_all_planned_looks_together_have_the_error_rate_of_one_look() -> None:
    assert sum(look.alpha for look in PLAN) == pytest.approx(1 - CONFIDENCE)
    assert [look.pairs for look in PLAN] == sorted({look.pairs for look in PLAN})


def test_same_is_settled_at_the_first_look_and_more_pairs_change_nothing() -> None:
    calm = noise(PLAN[0].pairs)
    estimate = seen(calm)
    assert (estimate.verdict, estimate.settled, estimate.pairs) == (Verdict.SAME, True, PLAN[0].pairs)
    assert seen(np.append(calm, np.full(50, 0.5))) == estimate


def test_slower_requires_two_looks() -> None:
    slow = noise(PLAN[1].pairs, 0.2)
    once = seen(slow[: PLAN[0].pairs])
    assert (once.verdict, once.settled) == (Verdict.SLOWER, False)
    twice = seen(slow)
    assert (twice.verdict, twice.settled, twice.pairs) == (Verdict.SLOWER, True, PLAN[1].pairs)
    calmed = np.append(slow[: PLAN[0].pairs], noise(PLAN[1].pairs - PLAN[0].pairs))
    assert not seen(calmed).settled


def test_slower_requires_several_processes() -> None:
    slow = noise(PLAN[-1].pairs, 0.2)
    one, two = np.zeros(slow.size), (np.arange(slow.size) >= PLAN[0].pairs).astype(float)
    for look in PLAN:
        estimate = seen(slow[: look.pairs], one[: look.pairs])
        assert (estimate.verdict, estimate.unconfirmed, estimate.settled) == (Verdict.UNDECIDED, Verdict.SLOWER, False)
    estimate = seen(slow, two)
    assert (estimate.verdict, estimate.unconfirmed, estimate.settled) == (Verdict.SLOWER, None, True)
    assert estimate.pairs == PLAN[1].pairs


@pytest.mark.parametrize("first", [True, False], ids=["the first", "the second"])
@pytest.mark.parametrize("cost", [0.05, 0.1, 0.5])
def test_a_slowdown_in_only_one_process_is_not_slower(cost: float, *, first: bool) -> None:
    processes = (np.arange(PLAN[-1].pairs) >= PLAN[0].pairs).astype(float)
    logs = noise(PLAN[-1].pairs) + np.where(processes == (0 if first else 1), cost, 0.0)
    estimates = [seen(logs[: look.pairs], processes[: look.pairs]) for look in PLAN]
    assert estimates[0].unconfirmed == (Verdict.SLOWER if first else None)
    assert Verdict.SLOWER not in {estimate.verdict for estimate in estimates}


def test_processes_of_one_round_each_confirm_a_slowdown_together() -> None:
    slow = noise(PLAN[1].pairs, 0.2, 0.1)
    assert slow.min() < MARGIN
    estimate = seen(slow, np.arange(slow.size, dtype=float))
    assert (estimate.verdict, estimate.settled) == (Verdict.SLOWER, True)
    half = slow - 0.2 * (np.arange(slow.size) >= PLAN[0].pairs)
    assert seen(half, np.arange(slow.size, dtype=float)).verdict is not Verdict.SLOWER


class Machine:
    """The visits of four cells in twenty rounds, and the large copies beside them, on a calm machine."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.visits = unknown(2, 4, 20)
        for name, (usual, scatter) in {
            "probe_us": (300, 3), "caller_us": (500, 5), "unevenness": (1.05, 0.01), "clock_mhz": (1980, 0),
            "fast_us": (600, 3),
        }.items():  # fmt: skip
            self.visits[name] = rng.normal(usual, scatter, (2, 4, 20))
        self.cpu_bound = np.array([True, True, True, False])
        self.copies_us = {direction: rng.normal(5000, 10, (2, 20)) for direction in ("h2d", "d2h")}

    def __getattr__(self, name: str) -> Floats:
        return np.asarray(self.visits[name])

    def spoiled(self) -> dict[str, list[list[int]]]:
        """Return cause -> places of the pairs that it spoiled."""
        marks = spoiled(self.visits, self.cpu_bound, self.copies_us)
        return {cause: np.argwhere(mark).tolist() for cause, mark in marks.items() if mark.any()}


@pytest.mark.parametrize("side", [0, 1])
def test_a_disturbed_visit_spoils_only_its_pair(side: int) -> None:
    machine = Machine()
    machine.disturbed[side, 2, 7] = 1
    assert machine.spoiled() == {"disturbed visit": [[2, 7]]}


@pytest.mark.parametrize("side", [0, 1])
def test_visits_disturbed_mostly_on_one_side_are_due_to_its_build_and_spoil_nothing(side: int) -> None:
    machine = Machine()
    machine.disturbed[side, 2, :12] = 1
    machine.disturbed[1 - side, 2, 15] = 1
    machine.disturbed[:, 1, :9] = 1
    machine.disturbed[side, 0, :4] = 1
    spoiled_pairs = machine.spoiled()["disturbed visit"]
    assert [2, 15] in spoiled_pairs
    assert [2, 3] not in spoiled_pairs
    assert [[1, number] in spoiled_pairs for number in range(9)] == [True] * 9
    assert [[0, number] in spoiled_pairs for number in range(4)] == [True] * 4


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("names", "factor"), [(("probe_us", "caller_us"), 1.3), (("unevenness",), 1.5)], ids=["slow", "changed its speed"]
)
def test_a_cpu_that_was_slow_or_changed_its_speed_on_one_side_spoils_only_that_pair(
    names: tuple[str, ...], factor: float, side: int
) -> None:
    machine = Machine()
    for name in names:
        machine.visits[name][side, 2, 7] *= factor
        machine.visits[name][side, 3, 8] *= factor  # of a cell that waits for no CPU
        machine.visits[name][:, 1, 9] *= 2  # in both visits
    assert machine.spoiled() == {"CPU": [[2, 7]]}


def test_a_slow_submission_on_a_fast_cpu_spoils_no_pair() -> None:
    machine = Machine()
    machine.caller_us[1, 2] *= 1.3
    machine.caller_us[1, 2, ::3] *= 1.3
    machine.probe_us[1, 1, 7] *= 1.3
    assert not machine.spoiled()


def test_submissions_that_are_always_more_uneven_on_one_side_spoil_no_pair() -> None:
    machine = Machine()
    machine.unevenness[1] *= 1.5
    machine.unevenness[:, 1] = math.nan
    assert not machine.spoiled()


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_slow_link_spoils_pairs_of_its_round_that_differ_unusually(direction: str, side: int) -> None:
    machine = Machine()
    machine.copies_us[direction][1, 5] *= 1.07
    machine.copies_us[direction][:, 6] *= 1.07  # slow for both
    machine.fast_us[side, :2, 5:8] *= 1.07
    machine.fast_us[:, 2, 5] *= 1.07
    assert machine.spoiled() == {"link": [[0, 5], [1, 5]]}


@pytest.mark.parametrize("side", [0, 1])
def test_a_cell_that_is_slower_on_one_side_is_not_spoiled_by_a_slow_link(side: int) -> None:
    machine = Machine()
    machine.copies_us["h2d"][1, 5] *= 1.07
    machine.fast_us[side] *= 1.07
    assert not machine.spoiled()


def test_a_limited_clock_spoils_only_its_pair() -> None:
    machine = Machine()
    machine.clock_mhz[:, 1] = 1755  # a cell that always runs at another clock
    machine.clock_mhz[0, 2, 3] = 1755
    assert machine.spoiled() == {"clock": [[2, 3]]}


def test_slot_bias_is_corrected_only_after_two_rounds_of_each_order() -> None:
    ratios = np.array([[0.02, -0.02, 0.02, -0.02], [0.12, 0.08, 0.12, 0.08]])
    corrected, bias = without_slot_bias(ratios, np.array([1.0, -1.0, 1.0, -1.0]))
    assert bias == pytest.approx(0.02)
    assert corrected == pytest.approx(np.array([[0.0] * 4, [0.1] * 4]))
    for order in (np.ones(4), np.array([1.0, -1.0, 1.0, 1.0])):
        corrected, bias = without_slot_bias(ratios, order)
        assert (bias, corrected is ratios) == (0.0, True)
