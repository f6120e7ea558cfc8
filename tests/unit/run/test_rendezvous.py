"""Turns of several devices: one order, those of one device one by one, and nobody waits for a device that is gone."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.results import Failure
from kvbench.run.protocol import MeasureCells, Start
from kvbench.run.rendezvous import DeviceTurns, TurnSlot
from kvbench.run.worker_process import NotAskedError, WorkerSlot
from kvbench.sweep.spec import Sampling, SweepSpec


def two() -> DeviceTurns:
    turns = DeviceTurns()
    turns.join(0)
    turns.join(1)
    return turns


def test_visits_of_one_device_follow_each_other() -> None:
    turns, inside, most = two(), [0], []

    def visit(device: int) -> None:
        for index in range(20):
            with turns.taken(device, (0, 0, index), together=False) as present:
                inside[0] += 1
                most.append((inside[0], present))
                inside[0] -= 1
        turns.leave(device)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(visit, (0, 1)))
    assert {count for count, _ in most} == {1}
    assert len(most) == 40


def test_visits_of_all_devices_begin_together() -> None:
    turns, meeting = two(), threading.Barrier(2)

    def visit(device: int) -> int:
        with turns.taken(device, (0, 0, 0), together=True) as present:
            meeting.wait()
        turns.leave(device)
        return present

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(visit, (0, 1))) == [2, 2]


def test_nobody_waits_for_a_device_that_skipped_a_visit_or_left() -> None:
    turns = two()

    def skips(device: int) -> None:
        with turns.taken(device, (0, 0, 1), together=False):
            pass
        turns.leave(device)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(skips, 1)
        with turns.taken(0, (0, 0, 0), together=True) as present:
            assert present == 1
        turns.leave(0)
        other.result()
    turns.join(0)
    with turns.taken(0, (1, 0, 0), together=True) as present:
        assert present == 1


def test_swaps_on_all_devices_fail_after_one_device_left(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, turns = Cell("batched", Direction.H2D, 1, 4096, devices=2), DeviceTurns()
    turns.order = {(0, cell.id): 0}
    monkeypatch.setattr(DeviceTurns, "taken", lambda *_, **__: nullcontext(1))
    slot = TurnSlot(SweepSpec("test"), (), turns, Start(path="", place=0, number=0))
    request = MeasureCells(cells=[cell.as_strings()], round=0, seed=0, sampling=Sampling())
    with pytest.raises(NotAskedError, match="only 1 of 2 devices are left for a swap at once"):
        slot.visit(request, 1.0)


def test_later_visits_of_all_devices_have_higher_start_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Visits that are repeated follow the others of their round; at a number that was passed nobody would wait."""
    cells = [Cell("batched", Direction.H2D, blocks, 4096, devices=2) for blocks in (1, 2)]
    turns, numbers = DeviceTurns(), list[int]()
    turns.order = {(number, cell.id): 2 * number + index for number in (0, 1) for index, cell in enumerate(cells)}
    monkeypatch.setattr(DeviceTurns, "taken", lambda *_, **__: nullcontext(2))

    def visit(_slot: WorkerSlot, request: MeasureCells, _deadline_s: float) -> Failure:
        assert request.start is not None
        numbers.append(request.start.number)
        return Failure(cell_text=request.cells[0], round=request.round, kind="error", message="", command="")

    monkeypatch.setattr(WorkerSlot, "visit", visit)
    slot = TurnSlot(SweepSpec("test"), (), turns, Start(path="", place=0, number=0))
    for number in (0, 1):
        for attempt in (0, 1, 2):
            for cell in cells:
                request = MeasureCells(
                    cells=[cell.as_strings()], round=number, attempt=attempt, seed=0, sampling=Sampling()
                )
                slot.visit(request, 1.0)
    assert numbers == sorted(set(numbers))
    assert numbers[0] > 0
    assert numbers[-1] < 2**63
