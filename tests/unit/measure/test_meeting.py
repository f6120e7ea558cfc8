"""Where the workers of several devices meet, and steps of which each waits for those of the other devices."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kvbench.backends.driver_copies import Batched
from kvbench.cells.axes import Direction, Neighbour
from kvbench.cells.cell import Cell
from kvbench.ground.errors import KvbenchError
from kvbench.measure.bench import Bench
from kvbench.measure.neighbour import IdleWork
from kvbench.measure.samples import set_up
from kvbench.measure.torch_work import join
from kvbench.run.protocol import START_ROWS, MeasureCells, Start
from kvbench.run.rendezvous import Meeting
from kvbench.sweep.spec import Sampling
from tests.visits import bench_of, visited

SAMPLING = Sampling(warmups=1, cell_seconds=0.1, min_iterations=3)
CELL = Cell("batched", Direction.D2H, 16, 4096, neighbour=Neighbour.DECODE, devices=2, ranks=2)


def meetings(file: Path, visit: int, devices: int = 2) -> list[Meeting]:
    if not file.exists():
        file.write_bytes(bytes(8 * START_ROWS * devices))
    return [Meeting(Start(path=str(file), place=place, number=visit)) for place in range(devices)]


@pytest.mark.parametrize("others", [(6, 6), (7, 6), (5, 6)])
def test_a_visit_begins_when_every_device_is_ready_for_it_or_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, others: tuple[int, int]
) -> None:
    """A device that has failed in the visit is ready for a later one."""
    _, meeting, _ = meetings(tmp_path / "start", 6, devices=3)
    meeting._ready[::2] = others
    monkeypatch.setattr("kvbench.measure.neighbour.time", mock.Mock(monotonic=count(step=5).__next__))
    with pytest.raises(KvbenchError, match="within 20 s") if min(others) < 6 else nullcontext():
        meeting.begin()
    assert meeting._ready[1] == 6
    with pytest.raises(KvbenchError, match="another device was not ready within 20 s"):
        meeting.exchange(7)


def test_each_device_gets_the_numbers_of_all_at_every_meeting_of_every_visit(tmp_path: Path) -> None:
    def meet(meeting: Meeting) -> list[list[int]]:
        meeting.begin()
        return [meeting.exchange(10 * number + meeting.place) for number in range(50)]

    for visit in (1, 2):
        with ThreadPoolExecutor(3) as pool:
            given = [*pool.map(meet, meetings(tmp_path / "start", visit, devices=3))]
        assert given == [[[10 * number, 10 * number + 1, 10 * number + 2] for number in range(50)]] * 3


def test_ranks_run_as_many_steps_as_each_other_and_join_again_when_the_worker_of_one_is_new(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On the cpu device a step is a wait; on a GPU a rank that ran one more would wait for good."""
    joins = mock.Mock(side_effect=lambda device, stream, *_: IdleWork(device, stream))
    monkeypatch.setattr("kvbench.measure.neighbour.DecodeWork", joins)
    monkeypatch.setattr("kvbench.measure.neighbour.IDLE_US", 2_000)

    def visit(bench: Bench, number: int, meeting: Meeting) -> tuple[int, int, int]:
        object.__setattr__(bench, "meeting", meeting)
        request = MeasureCells(cells=[CELL.as_strings()], round=number, seed=1, sampling=SAMPLING)
        beside = visited(bench, set_up(bench, Batched(), CELL, SAMPLING, number), request).beside
        assert beside is not None
        (step,) = bench.joined.values()
        return len(beside.neighbour_alone_us), len(beside.neighbour_beside_us), step.completed()

    benches, made = [bench_of(32 << 20), bench_of(32 << 20)], []
    with ThreadPoolExecutor(2) as pool:
        for number in (1, 2, 3):
            benches = [benches[0], bench_of(32 << 20)] if number == 3 else benches
            first, second = pool.map(visit, benches, [number] * 2, meetings(tmp_path / "start", number))
            assert first == second
            assert min(first) >= SAMPLING.min_iterations
            made.append(joins.call_count)
    assert made == [2, 2, 4]
    for bench in benches:
        bench.joined.popitem()[1].close()


def test_all_reduces_add_up_over_the_ranks_also_after_they_joined_again(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    for visit in (1, 2):
        (meeting,) = meetings(tmp_path / "start", visit, devices=1)
        assert join(torch.distributed, meeting, None, "gloo")(torch.ones(2, 3)).tolist() == [[1.0] * 3] * 2
    torch.distributed.destroy_process_group()
