"""Swaps beside a neighbour on the cpu device: both sides are timed, swaps are verified, a death is an error."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from kvbench.backends.base import PreparedSwap, SwapRequest
from kvbench.backends.batched import Batched
from kvbench.backends.per_block import PerBlock
from kvbench.cells.axes import Direction, Neighbour, Reuse
from kvbench.cells.cell import Cell
from kvbench.engine.device import Stream
from kvbench.measure.bench import Bench
from kvbench.measure.neighbour import IdleWork, NeighbourError, RunningNeighbour
from kvbench.measure.samples import set_up
from kvbench.measure.workload import VerificationError
from kvbench.results import Visit
from kvbench.run.protocol import InTurn, MeasureCells
from kvbench.sweep.spec import Sampling
from tests.unit.measure.test_visit import NOT_COPIED, Recorded, every_other_block, honest
from tests.visits import bench_of, measure, visited

SAMPLING = Sampling(warmups=1, cell_seconds=0.3)
CELL = Cell("batched", Direction.H2D, 16, 4096, reuse=Reuse.FRESH, pool_bytes=1 << 20, neighbour=Neighbour.IDLE)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    yield (made := bench_of(32 << 20))
    for neighbour in made.neighbours.values():
        neighbour.close()


def measured(bench: Bench, **axes: object) -> Visit:
    return measure(bench, Batched(), replace(CELL, **axes), SAMPLING, 1, None)  # type: ignore[arg-type]


class Mortal:
    """Works some iterations long."""

    def __init__(self, iterations: int) -> None:
        self.left = iterations

    def thread(self) -> AbstractContextManager[object]:
        return nullcontext()

    def submit(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("out of breath")


class Tiring(PerBlock):
    """Swaps that leave blocks out from their fourth submission on."""

    def create(self, request: SwapRequest) -> PreparedSwap:
        return Recorded(
            lambda swap, number, stream: (honest, every_other_block)[number > 3](swap, number, stream)
        ).create(request)


@pytest.mark.parametrize("direction", Direction)
def test_both_sides_are_timed_alone_and_beside_the_other(bench: Bench, direction: Direction) -> None:
    cell = replace(CELL, direction=direction)
    measurement = measure(bench, Batched(), cell, Sampling(warmups=1, cell_seconds=0.6), 1, None)
    beside = measurement.beside
    assert beside is not None
    assert min(len(beside.neighbour_alone_us), len(beside.neighbour_beside_us)) > 5
    assert (len(beside.swaps_alone_gbps), len(beside.swaps_beside_gbps)) == (2, 1)
    assert min(*beside.swaps_alone_gbps, *beside.swaps_beside_gbps) > 0
    assert min(*beside.swaps_alone_us, *beside.swaps_beside_us) > 0
    assert min(*beside.one_block_alone_us, *beside.one_block_beside_us) > 0
    assert len(measurement.samples) > 5
    times = (getattr(measurement.samples, name) for name in ("wall_us", "caller_us", "cpu_us"))
    assert all(wall_us >= caller_us >= cpu_us > 0 for wall_us, caller_us, cpu_us in zip(*times, strict=True))
    assert measurement.verified_bytes >= 3 * CELL.swap_bytes


def test_a_neighbour_runs_only_while_it_is_wanted(bench: Bench) -> None:
    neighbour = RunningNeighbour(bench.device, stream := Stream(bench.device.driver), IdleWork(bench.device, stream))
    before = neighbour.completed()
    with neighbour.running():
        pass
    after = neighbour.completed()
    assert neighbour.times_us(before, after) == neighbour._times_us[before + 1 : after]  # the first began before
    threading.Event().wait(0.01)
    assert before < after == neighbour.completed()
    neighbour.close()


@pytest.mark.parametrize(("usual_us", "ahead"), [(0.1, 200), (300.0, 100), (9e3, 3), (1e6, 3)])
def test_30_ms_of_a_neighbour_s_work_is_ahead(usual_us: float, ahead: int) -> None:
    neighbour: Any = mock.Mock(_times_us=[1.0, usual_us, usual_us, usual_us, 1e9])
    RunningNeighbour._calibrate(neighbour)
    assert (neighbour.usual_us, neighbour._ahead) == (max(1.0, usual_us), ahead)


@pytest.mark.parametrize("iterations", [2, 8])
def test_the_death_of_a_neighbour_is_an_error(bench: Bench, iterations: int) -> None:
    with pytest.raises(NeighbourError, match="the neighbour died: RuntimeError: out of breath"):  # noqa: PT012
        neighbour = RunningNeighbour(bench.device, Stream(bench.device.driver), Mortal(iterations))
        with neighbour.running():
            threading.Event().wait(1.0)


def test_a_backend_that_leaves_blocks_out_beside_a_neighbour_is_caught(bench: Bench) -> None:
    with pytest.raises(VerificationError, match=NOT_COPIED):
        measure(bench, Tiring(), CELL, SAMPLING, 1, None)
    assert measured(bench).beside is not None


def test_a_cell_that_stays_set_up_is_visited_again_beside_its_neighbour(bench: Bench) -> None:
    ready = set_up(bench, Batched(), CELL, SAMPLING, 1)
    for verify in (True, False, True):
        in_turn = InTurn(verify=verify)
        request = MeasureCells(cells=[CELL.as_strings()], round=1, seed=1, sampling=SAMPLING, in_turn=in_turn)
        measurement = visited(bench, ready, request)
        assert measurement.beside is not None
        assert len(measurement.samples) > 5
        assert (measurement.verified_bytes > 0) is verify
