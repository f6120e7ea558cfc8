"""Arms that are measured in turn: tuples of samples, blocks of their own, and failures of their own."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest

from kvbench.cells.axes import Direction, Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.measure import samples
from kvbench.measure.samples import Arms, lay_out_arms, set_up
from kvbench.measure.visit import visit
from kvbench.measure.workload import VerificationError, Workload
from kvbench.results import Visit
from kvbench.run.protocol import MeasureCells
from kvbench.sweep.spec import Sampling
from tests.unit.measure.test_visit import Recorded, every_other_block, honest
from tests.visits import bench_of

SAMPLING = Sampling(warmups=2, min_samples=6, max_samples=6)
CELL = Cell("cheat", Direction.H2D, 16, 4096, reuse=Reuse.FRESH, pool_bytes=1 << 20)


def arms_of(
    backends: Sequence[Recorded], cell: Cell = CELL, sampling: Sampling = SAMPLING
) -> tuple[Arms, MeasureCells]:
    """Return arms of equal cells, and what visits them."""
    own = bench_of(1 << 20)
    blocks = lay_out_arms(cell, sampling, 1, len(backends))
    arms = zip(backends, blocks, strict=True)
    ready = [set_up(own, backend, cell, sampling, 1, layouts=layouts) for backend, layouts in arms]
    for one in ready:
        one.workload.siblings = [other.workload for other in ready if other is not one]
    request = MeasureCells(cells=[cell.as_strings()] * len(ready), group="g", round=0, seed=1, sampling=sampling)
    return Arms(own.device, ready, [None] * len(ready)), request


def visited_in_turn(arms: Arms, request: MeasureCells) -> list[Visit]:
    return visit(arms.samplers[0].bench, arms, request)


@pytest.mark.parametrize("state", StreamState)
@pytest.mark.parametrize("direction", Direction)
def test_every_arm_has_a_sample_of_each_tuple_and_is_verified(direction: Direction, state: StreamState) -> None:
    cell = replace(CELL, direction=direction, stream_state=state)
    made = visited_in_turn(*arms_of([Recorded(honest) for _ in range(3)], cell))
    assert [len(one.samples) for one in made] == [6] * 3
    assert all(one.verified_bytes >= 6 * cell.swap_bytes and one.group == "g" for one in made)


def test_another_arm_is_first_in_every_tuple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "WATCHED_SHARE", 0)
    monkeypatch.setattr(samples, "_lost_cpu", lambda: 0)
    turns: list[int] = []
    backends = [Recorded(lambda request, number, stream, at=at: (turns.append(at), honest(request, number, stream))[1])
                for at in range(3)]  # fmt: skip
    visited_in_turn(*arms_of(backends))
    tuples = [turns[start : start + 3] for start in range(6, 6 + 8 * 3, 3)]  # behind two checks of each arm
    assert [one[0] for one in tuples] == [0, 1, 0, 1, 2, 0, 1, 2]  # two warm-ups, and six samples
    assert all(sorted(one) == [0, 1, 2] for one in tuples)


def test_each_arm_has_its_own_faults_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while its delay is found, and while it warms up, each time another arm first."""
    ready = [mock.Mock() for _ in range(3)]
    arms, turns = Arms(device := mock.Mock(), ready, ["a", "b", "c"]), list[tuple[str, int, int]]()  # type: ignore[list-item]
    assert [[*arms.turn(first)] for first in (1, 0)] == [[1, 2, 0], [0, 1, 2]]
    assert [fault for (fault,), _ in device.arm.call_args_list] == ["a", "b", "c", "a", "b", "c"]

    def taker(number: int) -> Callable[[], None]:
        turns.append(("delay", number, arms.current))
        return lambda: turns.append(("take", number, arms.current))

    for number, one in enumerate(ready):
        one.taker = partial(taker, number)
    monkeypatch.setattr(samples, "_collect_in_turn", lambda *_: [])
    assert arms.take_all(Sampling(warmups=2), None) == []
    order = [("delay", 0), ("delay", 1), ("delay", 2), *(("take", at) for at in (0, 1, 2, 1, 2, 0))]
    assert turns == [(what, at, at) for what, at in order]


@pytest.mark.parametrize("copies", [every_other_block, lambda *_: None], ids=["half", "nothing"])
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("number", [0, 3])
def test_an_arm_that_does_not_copy_is_caught_beside_one_that_does(copies: object, at: int, number: int) -> None:
    backends = [Recorded(honest), Recorded(honest)]
    backends[at] = Recorded(copies)  # type: ignore[arg-type]  # both take what they are called with
    arms, request = arms_of(backends)
    request = MeasureCells(cells=request.cells, group="g", round=number, seed=1, sampling=SAMPLING)
    with pytest.raises(VerificationError):
        visited_in_turn(arms, request)
    assert arms.current == at


def test_a_tuple_in_which_the_thread_lost_its_cpu_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = iter(range(1000))
    monkeypatch.setattr(samples, "_lost_cpu", lambda: next(lost))
    backends = [Recorded(honest), Recorded(honest)]
    sampling = Sampling(warmups=0, min_samples=8, max_samples=8)
    made = visited_in_turn(*arms_of(backends, sampling=sampling))
    assert [len(one.samples) for one in made] == [8, 8]
    assert next(lost) == 2 * 2 + 8 * 1  # twice taken again, and then no more asked for


@pytest.mark.parametrize(("guarded_s", "tuples"), [(0, 6), (250, 11)])
def test_arms_in_turn_have_the_time_of_all_of_them(
    monkeypatch: pytest.MonkeyPatch, guarded_s: int, tuples: int
) -> None:
    """The clock goes on by 1 000 s each time it is read: once before the tuples, and behind each. What the lists of
    each arm are guarded for is taken off it.
    """
    monkeypatch.setattr(samples, "time", mock.Mock(monotonic=mock.Mock(side_effect=range(0, 50_000, 1000))))
    monkeypatch.setattr(samples, "WATCHED_SHARE", 0)
    monkeypatch.setattr(samples, "_lost_cpu", lambda: 0)

    def advance(workload: Workload, *slots: int, usual: Callable[..., None] = Workload.advance) -> None:
        usual(workload, *slots)
        workload.guarded_s = round(workload.guarded_s) + guarded_s

    monkeypatch.setattr(Workload, "advance", advance)
    sampling = Sampling(warmups=0, min_samples=1, max_samples=40, cell_seconds=2750)
    made = visited_in_turn(*arms_of([Recorded(honest), Recorded(honest)], sampling=sampling))
    assert [len(one.samples) for one in made] == [tuples] * 2
