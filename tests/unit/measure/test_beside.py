"""Swaps beside a neighbour on the cpu device: both sides are timed, swaps are verified, a death is an error."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, cycle
from typing import Any
from unittest import mock

import pytest

from kvbench.backends.base import SwapRequest
from kvbench.backends.batched import Batched
from kvbench.cells.axes import Direction, Neighbour, Reuse
from kvbench.cells.cell import Cell
from kvbench.engine.device import Stream
from kvbench.measure.bench import Bench
from kvbench.measure.neighbour import (
    IDLE_US,
    Flow,
    FlowSample,
    IdleWork,
    NeighbourError,
    NeighbourWork,
    RunningNeighbour,
    measure_beside,
)  # fmt: skip
from kvbench.measure.samples import set_up
from kvbench.measure.workload import VerificationError
from kvbench.results import Beside
from kvbench.run.protocol import InTurn, MeasureCells
from kvbench.sweep.spec import LEAST_BESIDE_S, Sampling
from tests.unit.measure.test_visit import NOT_COPIED, Recorded, every_other_block, honest
from tests.visits import bench_of, measure, visited

SAMPLING = Sampling(warmups=1, cell_seconds=0.3)
CELL = Cell("batched", Direction.H2D, 16, 4096, reuse=Reuse.FRESH, pool_bytes=1 << 20, neighbour=Neighbour.IDLE)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    yield (made := bench_of(32 << 20))
    for neighbour in made.neighbours.values():
        neighbour.close()


class Mortal(NeighbourWork):
    """Works some iterations long."""

    def __init__(self, iterations: int) -> None:
        self.left = iterations

    def submit(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("out of breath")


def tiring(request: SwapRequest, number: int, stream: int) -> None:
    """Leave blocks out from the fourth submission on."""
    (honest if number <= 3 else every_other_block)(request, number, stream)


def test_a_neighbour_runs_only_while_it_is_wanted(bench: Bench) -> None:
    neighbour = RunningNeighbour(bench.device, stream := Stream(bench.device.driver), IdleWork(bench.device, stream))
    before = neighbour.completed()
    assert neighbour.usual_us >= IDLE_US
    with neighbour.running():
        pass
    after = neighbour.completed()
    threading.Event().wait(0.01)
    assert before < after == neighbour.completed()
    neighbour.close()


@pytest.mark.parametrize("first_s", [0.001, 0.05])
def test_a_neighbour_runs_20_ms_and_an_iteration_before_it_counts(
    monkeypatch: pytest.MonkeyPatch, first_s: float
) -> None:
    now_s = [7.0]
    monkeypatch.setattr("kvbench.measure.neighbour.time.perf_counter", lambda: now_s[0])
    monkeypatch.setattr("kvbench.measure.neighbour.time.sleep", lambda s: now_s.append(now_s.pop() + s))
    neighbour = mock.MagicMock(completed=lambda: 3 + (now_s[0] >= 7 + first_s))
    with RunningNeighbour.running(neighbour):
        assert now_s == [pytest.approx(7 + max(0.02, first_s), abs=0.001)]


@pytest.mark.parametrize(("usual_us", "ahead"), [(0.1, 200), (300.0, 100), (9e3, 3), (1e6, 3)])
def test_30_ms_of_a_neighbour_s_work_is_ahead(usual_us: float, ahead: int) -> None:
    neighbour: Any = mock.Mock(_times_us=[1.0, usual_us, usual_us, usual_us, 1e9])
    RunningNeighbour._calibrate(neighbour)
    assert (neighbour.usual_us, neighbour._ahead) == (max(1.0, usual_us), ahead)
    begins, call = mock.call._last.record(neighbour._stream.handle), mock.call
    assert neighbour.mock_calls == [begins, *[call._submit()] * 5, call._drain()]


@pytest.mark.parametrize("submitted", [0, 1])
@pytest.mark.parametrize("waiting", range(5))
def test_a_neighbour_is_supplied_up_to_what_is_ahead(
    monkeypatch: pytest.MonkeyPatch, waiting: int, submitted: int
) -> None:
    """Of the iterations that were on the stream, one ends before they are counted."""
    monkeypatch.setattr("kvbench.measure.neighbour.time.sleep", naps := mock.Mock())
    neighbour: Any = mock.MagicMock(_flying=[0] * (waiting + 1), _ahead=3, dry=7)
    neighbour._reap = lambda: neighbour._flying.pop()
    assert RunningNeighbour._supply(neighbour, submitted) is neighbour._submit.called is (waiting < 3)
    assert naps.called is (waiting >= 3)
    assert neighbour.dry == 7 + (waiting == 0 and submitted == 1)


def test_an_iteration_takes_from_the_end_of_the_one_before_it() -> None:
    start, *ends = (mock.Mock(us_since=lambda last, at=at: (at, last)) for at in range(4))
    ends[2].completed.return_value = False
    neighbour: Any = mock.Mock(_flying=deque(ends), _last=start, _times_us=[], _free=[])
    RunningNeighbour._reap(neighbour)
    assert neighbour._times_us == [(1, start), (2, ends[0])]
    assert (neighbour._free, neighbour._last, [*neighbour._flying]) == ([start, ends[0]], ends[1], [ends[2]])


@pytest.mark.parametrize(("seconds", "usual_us"), [(4.2, 1000.0), (4.2, 1e5), (0.0, 1.0)])
def test_turns_record_what_they_took(monkeypatch: pytest.MonkeyPatch, seconds: float, usual_us: float) -> None:
    number, unit_s, events = count(1), max(seconds / 7, usual_us / 1e5), list[Any]()
    monkeypatch.setattr("kvbench.measure.neighbour.time.sleep", events.append)

    @contextmanager
    def running() -> Iterator[None]:
        events.append("on")
        yield
        events.append("off")

    def run(for_s: float) -> tuple[list[FlowSample], float]:
        events.append(for_s)
        gbps = float(next(number))
        return [FlowSample(1.0, times * gbps, 1.0) for times in (1, 9, 2)], gbps

    neighbour = mock.Mock(dry=3, usual_us=usual_us, running=running, times_us=lambda *ends: [*ends])
    flow = mock.Mock(run=run, finish=lambda: setattr(neighbour, "dry", 5))
    neighbour.completed = number.__next__
    made = measure_beside(flow, neighbour, number.__next__, seconds)
    alone, both = ["on", unit_s, "off"], ["on", 4 * unit_s, "off"]
    assert events == [*alone, unit_s / 2, *both, unit_s / 2, *alone]
    assert made == ([FlowSample(1.0, wall_us, 1.0) for wall_us in (15.0, 135.0, 30.0)], Beside(
        neighbour_alone_us=[1, 2, 36, 37], neighbour_beside_us=[14, 16], swaps_alone_gbps=[4, 26],
        swaps_beside_gbps=[15], swaps_alone_us=[8, 52], swaps_beside_us=[30], dry=2,
        one_block_alone_us=[*range(6, 14), *range(28, 36)], one_block_beside_us=[*range(17, 25)]))  # fmt: skip


@pytest.mark.parametrize("swaps", [1, 999, 1000, 1001, 2000, 2001])
def test_a_flow_keeps_a_thousand_swaps_and_the_rate_of_all(monkeypatch: pytest.MonkeyPatch, swaps: int) -> None:
    rows = [(50.0 + at % 7, 90.0 + at % 11) for at in range(swaps)]
    times = mock.Mock(caller_us=[row[0] for row in rows], wall_us=[row[1] for row in rows], cpu_us=53.0 * swaps)
    monkeypatch.setattr("kvbench.measure.neighbour.SwapLoop", lambda *_: loop)
    workload, loop = mock.Mock(contents=list, arrays=list), mock.Mock(run=lambda _: times)
    kept, gbps = (flow := Flow(mock.Mock(), mock.Mock(), workload, CELL, mock.Mock())).run(1.0)
    assert kept == [FlowSample(*row, min(row[0], 53.0)) for row in rows[:: (swaps + 999) // 1000]]
    assert gbps == pytest.approx(swaps * CELL.swap_bytes / sum(times.wall_us) / 1e3)
    flow.finish()
    loop.finish.assert_called_once_with()
    assert workload.passed.mock_calls == [mock.call(swaps), mock.call(1)]


@pytest.mark.parametrize(("cell_seconds", "seconds"), [(0.01, LEAST_BESIDE_S), (3.0, 3.0)])
def test_a_visit_beside_a_neighbour_is_long_enough_and_swaps_single_blocks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, cell_seconds: float, seconds: float
) -> None:
    monkeypatch.setattr("kvbench.measure.samples.measure_beside", asked := mock.Mock(return_value=([], None)))
    sampler = set_up(bench, backend := Recorded(honest), CELL, SAMPLING, 1).sampler
    with sampler.opened():
        sampler.take_all(Sampling(warmups=0, cell_seconds=cell_seconds), None)
    _, _, one_block_us, given = asked.call_args.args
    assert (given, one_block_us() > 0) == (seconds, True)
    assert backend.destinations == [(int(sampler.workload.memories[0].destinations[0]),)]


@pytest.mark.parametrize("iterations", [2, 8, 10**9])
def test_the_death_of_a_neighbour_is_an_error(bench: Bench, iterations: int) -> None:
    """While it is calibrated, while it warms up, and while swaps run beside it."""
    work = Mortal(iterations)
    with pytest.raises(NeighbourError, match="the neighbour died: RuntimeError: out of breath"):  # noqa: PT012
        neighbour = RunningNeighbour(bench.device, Stream(bench.device.driver), work)
        with neighbour.running():
            work.left = 0
            neighbour._thread.join()


def test_a_backend_that_leaves_blocks_out_beside_a_neighbour_is_caught(bench: Bench) -> None:
    with pytest.raises(VerificationError, match=NOT_COPIED):
        measure(bench, Recorded(tiring), CELL, SAMPLING, 1, None)
    assert measure(bench, Batched(), CELL, SAMPLING, 1, None).beside is not None


def test_a_cell_that_stays_set_up_is_visited_again_beside_its_neighbour(bench: Bench) -> None:
    ready = set_up(bench, Batched(), CELL, SAMPLING, 1)
    for verify, cpu in zip((True, False, True), cycle(bench.cpu._allowed), strict=False):
        in_turn = InTurn(verify=verify, cpu=cpu)
        request = MeasureCells(cells=[CELL.as_strings()], round=1, seed=1, sampling=SAMPLING, in_turn=in_turn)
        measurement = visited(bench, ready, request)
        assert measurement.beside is not None
        assert len(measurement.samples) > 0
        assert (measurement.verified_bytes > 0, measurement.cpu) == (verify, cpu)
