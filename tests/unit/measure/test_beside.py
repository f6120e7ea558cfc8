"""Swaps beside a neighbour, or beside swaps of the other direction, on the cpu device: both sides are timed, swaps are
verified, a death is an error.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count, cycle
from typing import Any
from unittest import mock

import pytest

from kvbench.backends.base import SwapRequest
from kvbench.backends.driver_copies import Batched
from kvbench.cells.axes import Direction, Neighbour, Order, Reuse
from kvbench.cells.blocks import opposite_of
from kvbench.cells.cell import Cell
from kvbench.engine.device import DIRECTIONS, Event, MemoryKind, Stream
from kvbench.measure.bench import Bench
from kvbench.measure.beside import AHEAD, LEAST_SWAPS, Ended, Flow, FlowSample, OneWay, Turn, Turns, run_turn, while_all
from kvbench.measure.neighbour import DecodeWork, IdleWork, Iteration, NeighbourError, NeighbourWork, RunningNeighbour
from kvbench.measure.samples import set_up
from kvbench.measure.workload import VerificationError
from kvbench.models.steps import USUAL
from kvbench.run.protocol import InTurn, MeasureCells
from kvbench.sweep.spec import LEAST_BESIDE_S, Sampling
from tests.unit.measure.test_visit import NOT_COPIED, Recorded, every_other_block, honest
from tests.visits import bench_of, measure, visited

SAMPLING = Sampling(warmups=1, cell_seconds=0.3)
CELL = Cell("batched", Direction.H2D, 16, 4096, reuse=Reuse.FRESH, pool_bytes=1 << 20, neighbour=Neighbour.IDLE)
BOTH_WAYS = replace(CELL, neighbour=Neighbour.NONE, opposite=True)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    yield (made := bench_of(32 << 20))
    for neighbour in made.neighbours.values():
        neighbour.close()


class Mortal(NeighbourWork):
    """Works some iterations long."""

    def __init__(self, iterations: int) -> None:
        self.left = iterations

    def submit(self, computed: Event) -> None:
        del computed
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("out of breath")


def tiring(request: SwapRequest, number: int, stream: int) -> None:
    """Leave blocks out from the fourth submission on."""
    (honest if number <= 3 else every_other_block)(request, number, stream)


def test_a_neighbour_runs_only_while_it_is_wanted(bench: Bench) -> None:
    neighbour = RunningNeighbour(bench.device, stream := Stream(bench.device.driver), IdleWork(bench.device, stream))
    before = neighbour.completed()
    assert neighbour.usual_us >= 10_000
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
    begins, call = mock.call._last.end.record(neighbour._stream.handle), mock.call
    assert neighbour.mock_calls == [begins, *[call._submit()] * 5, call._drain()]


def test_an_iteration_that_ran_as_a_turn_began_is_not_of_the_turn() -> None:
    """Two had ended then: the third began before the swaps, and the last of five ended beside them."""
    neighbour: Any = mock.Mock(_times_us=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], _readbacks_us=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert RunningNeighbour.times_us(neighbour, 2, 5) == [4.0, 5.0]
    assert RunningNeighbour.readbacks_us(neighbour, 2, 5) == [0.4, 0.5]


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


@pytest.mark.parametrize("reads_back", [False, True])
def test_an_iteration_takes_from_the_end_of_the_one_before_it_and_its_readback_from_its_own_computation(
    reads_back: bool,
) -> None:
    start, *made = (Iteration(mock.Mock(), mock.Mock(us_since=lambda since, at=at: (at, since))) for at in range(4))
    made[2].end.completed.return_value = False  # type: ignore[attr-defined]
    neighbour: Any = mock.Mock(_flying=deque(made), _last=start, _times_us=[], _readbacks_us=[], _free=[])
    neighbour._work.reads_back = reads_back
    RunningNeighbour._reap(neighbour)
    assert neighbour._times_us == [(1, start.end), (2, made[0].end)]
    assert neighbour._readbacks_us == [(1, made[0].computed), (2, made[1].computed)] * reads_back
    assert (neighbour._free, neighbour._last, [*neighbour._flying]) == ([start, made[0]], made[1], [made[2]])


def test_a_decode_step_waits_for_its_inputs_and_its_readback_for_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the device alone: two copies in, the step behind them, one copy out behind the step, all copies in order."""
    calls = mock.Mock()
    monkeypatch.setattr("kvbench.measure.neighbour.TorchWork", mock.Mock(return_value=calls.work))
    monkeypatch.setattr("kvbench.measure.neighbour.Stream", mock.Mock(return_value=mock.Mock(handle="step")))
    monkeypatch.setattr("kvbench.measure.neighbour.Event", mock.Mock(side_effect=[calls.arrived, calls.stepped]))
    buffer = lambda _, kind, size_bytes: mock.Mock(address=kind, size_bytes=size_bytes)  # noqa: E731
    monkeypatch.setattr("kvbench.measure.neighbour.Buffer", buffer)
    device = mock.Mock(driver=calls.driver)
    device.name = "cuda:3"
    DecodeWork(device, mock.Mock(handle="copies"), USUAL).submit(calls.computed)
    host, gpu = MemoryKind.allocated, MemoryKind.device
    into, out = DIRECTIONS[Direction.H2D], DIRECTIONS[Direction.D2H]
    call = mock.call
    assert calls.mock_calls == [
        call.driver.transfer(gpu, host, 256, into, "copies"), call.driver.transfer(gpu, host, 8192, into, "copies"),
        call.arrived.record("copies"), call.arrived.hold("step"), call.work.submit(),
        call.stepped.record("step"), call.stepped.hold("copies"), call.computed.record("copies"),
        call.driver.transfer(host, gpu, 128, out, "copies"),
    ]  # fmt: skip


@pytest.mark.parametrize(("seconds", "least"), [(0.0, 3), (0.004, 1)])
def test_a_neighbour_runs_for_whole_iterations_and_is_not_cut_off(
    monkeypatch: pytest.MonkeyPatch, seconds: float, least: int
) -> None:
    """An iteration lasts a millisecond; the clock goes on by half of one at each look at it."""
    now_s = [0.0]
    monkeypatch.setattr("kvbench.measure.neighbour.time.perf_counter", lambda: now_s[0])
    monkeypatch.setattr("kvbench.measure.neighbour.time.sleep", lambda s: now_s.append(now_s.pop() + s))
    neighbour: Any = mock.Mock(completed=lambda: 5 + int(1000 * now_s[0] + 1e-6), begin=lambda *_: 5)
    neighbour.end_of = partial(RunningNeighbour.end_of, neighbour)
    first, last = RunningNeighbour.run_for(neighbour, seconds, least)
    assert first == 5
    assert now_s[0] == pytest.approx(max(seconds, least / 1000) + 0.001, abs=1e-6)
    assert last - first - 1 == max(least, round(1000 * seconds))


def between(first: int, last: int) -> float:
    return first + last / 1000


class Scripted:
    """A flow and a neighbour that note what is asked of them; a run of swaps takes two iterations of the neighbour."""

    def __init__(self) -> None:
        self.done, self.on, self.asked, self.number = 0, False, list[Any](), count(1)
        self.neighbour = mock.Mock(
            dry=3, usual_us=1.0, completed=lambda: self.done, begin=lambda *_: self.done, running=self._running,
            run_for=self._run_for, times_us=lambda *at: [between(*at)], readbacks_us=lambda *at: [-between(*at)],
        )  # fmt: skip
        self.neighbour.end_of = partial(RunningNeighbour.end_of, self.neighbour)
        self.flow = mock.Mock(run=self._run, gbps=lambda _: float(next(self.number)), finish=self._finish)

    @contextmanager
    def _running(self) -> Iterator[None]:
        self.asked.append("on")
        self.on = True
        yield
        self.on = False
        self.asked.append("off")

    def _run_for(self, seconds: float, iterations: int) -> tuple[int, int]:
        self.asked.append(("neighbour", seconds, iterations))
        first, self.done = self.done, self.done + iterations + 1
        return first, self.done

    def _run(self, turn: Turn, seconds: float) -> None:
        self.asked.append(seconds)
        self.done += 2 * self.on
        turn.wall_us.append(float(next(self.number)))
        turn.caller_us.append(1.0)

    def _finish(self) -> None:
        self.asked.append("finish")
        self.neighbour.dry = 5


@pytest.mark.parametrize(("iterations", "more"), [(1, 1), (3, 1), (4, 2), (9, 4)])
def test_turns_record_what_they_took_and_cut_no_iteration_off(iterations: int, more: int) -> None:
    """In the turn of both, two iterations end at first; the one that runs then is waited for, and as many as wanted."""
    script = Scripted()
    samples, made = Turns(script.flow, script.neighbour, 100.0, iterations).measure()
    swaps, alone = pytest.approx(7.0), ("neighbour", pytest.approx(14.0), 5)
    both = [pytest.approx(58.0), *[0.001] * more]
    assert script.asked == [swaps, "on", alone, *both, alone, "off", swaps, "finish"]
    last = 6 + 2 * (1 + more)
    assert last - 6 - 1 >= iterations
    alone_us = [between(0, 6), between(last, last + 6)]
    assert (made.neighbour_alone_us, made.readback_alone_us) == (alone_us, [-us for us in alone_us])
    assert (made.neighbour_beside_us, made.readback_us) == ([between(6, last)], [-between(6, last)])
    assert (len(samples), made.dry) == (1 + more, 2)
    turns = made.swaps_alone_gbps, made.swaps_beside_gbps, made.swaps_alone_us, made.swaps_beside_us
    assert [len(values) for values in turns] == [2, 1, 2, 1]


def test_a_neighbour_that_never_ends_an_iteration_beside_the_swaps_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose small copies a copy engine that is never idle leaves waiting."""
    monkeypatch.setattr("kvbench.measure.beside.time", mock.Mock(monotonic=count(step=4.0).__next__))
    script = Scripted()
    script.flow.run = lambda turn, _: turn.wall_us.append(1.0) or turn.caller_us.append(1.0)
    with pytest.raises(NeighbourError, match="ended 0 iterations beside the swaps"):
        Turns(script.flow, script.neighbour, 1.0, 7).measure()


def test_a_neighbour_of_slow_iterations_is_waited_for_as_long_as_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration alone takes 1 s; beside the swaps each takes 20 s, of which seven are wanted."""
    monkeypatch.setattr("kvbench.measure.beside.time", mock.Mock(monotonic=count(step=4.0).__next__))
    script, runs = Scripted(), count(1)
    script.neighbour.usual_us = 1e6

    def run(turn: Turn, seconds: float) -> None:
        done = script.done
        script._run(turn, seconds)
        script.done = done + (script.on and next(runs) % 5 == 0)

    script.flow.run = run
    samples, made = Turns(script.flow, script.neighbour, 1.0, 7).measure()
    assert made.neighbour_beside_us == [between(6, 6 + 8)]
    assert len(samples) == 8 * 5


@pytest.mark.parametrize("swaps", [1, 999, 1000, 1001, 2000, 2001])
def test_a_flow_keeps_a_thousand_swaps_and_the_rate_of_all(monkeypatch: pytest.MonkeyPatch, swaps: int) -> None:
    rows = [(50.0 + at % 7, 90.0 + at % 11) for at in range(swaps)]
    columns = {"caller_us": [row[0] for row in rows], "wall_us": [row[1] for row in rows]}
    workload, loop = mock.Mock(contents=list, arrays=list), mock.Mock()
    loop.run.return_value = mock.Mock(**columns, cpu_us=53.0 * swaps)
    monkeypatch.setattr("kvbench.measure.beside.SwapLoop", lambda *_: loop)
    flow, turn = Flow(mock.Mock(), mock.Mock(), workload, CELL, mock.Mock(swap=mock.Mock(calls=1))), Turn()
    flow.run(turn, 1.0)
    assert flow.gbps(turn) == pytest.approx(swaps * CELL.swap_bytes / sum(columns["wall_us"]) / 1e3)
    assert turn.samples == [FlowSample(*row, min(row[0], 53.0)) for row in rows[:: (swaps + 999) // 1000]]
    flow.finish()
    loop.finish.assert_called_once_with()
    assert workload.passed.mock_calls == [mock.call(swaps), mock.call(1)]


@pytest.mark.parametrize(("calls", "gated"), [(1, True), (256, True), (257, False), (4096, False)])
def test_a_submission_waits_behind_a_gate_if_it_fits_into_a_queue(
    monkeypatch: pytest.MonkeyPatch, calls: int, gated: bool
) -> None:
    monkeypatch.setattr("kvbench.measure.beside.SwapLoop", loop := mock.Mock())
    workload = mock.Mock(contents=list, arrays=list)
    Flow(mock.Mock(), mock.Mock(), workload, CELL, mock.Mock(swap=mock.Mock(calls=calls)))
    assert loop.call_args.args[-1] is gated


@pytest.mark.parametrize(("cell_seconds", "seconds"), [(0.01, LEAST_BESIDE_S), (3.0, 3.0)])
def test_a_visit_beside_a_neighbour_is_long_enough_and_loads_before_its_turns_what_a_first_swap_loads(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, cell_seconds: float, seconds: float
) -> None:
    monkeypatch.setattr("kvbench.measure.samples.Turns", asked := mock.Mock())
    asked.return_value.measure.return_value = ([], None)
    sampler = set_up(bench, backend := Recorded(honest), CELL, SAMPLING, 1)
    sampler.open()
    sampler.take_all(Sampling(warmups=0, cell_seconds=cell_seconds, min_iterations=9), None)
    _, _, given, iterations = asked.call_args.args
    assert (given, iterations) == (seconds, 9)
    assert len(backend.destinations) == 1
    bench.pools.refill()


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


# Swaps of both directions at once


def ended(*times_us: float) -> list[Ended]:
    return [Ended(at, at + 5, 1.0) for at in times_us]


@pytest.mark.parametrize("reuse", Reuse)
@pytest.mark.parametrize("direction", Direction)
def test_both_directions_are_timed_alone_and_at_once(bench: Bench, direction: Direction, reuse: Reuse) -> None:
    pool_bytes = 1 << 20 if reuse is Reuse.FRESH else 0
    cell = replace(BOTH_WAYS, direction=direction, reuse=reuse, pool_bytes=pool_bytes)
    made = measure(bench, Batched(), cell, SAMPLING, 1, None)
    assert made.opposite is not None
    turns = made.opposite.alone_gbps, made.opposite.opposite_alone_gbps
    both = made.opposite.at_once_gbps, made.opposite.opposite_at_once_gbps
    assert [len(rates) for rates in (*turns, *both)] == [2, 2, 1, 1]
    assert all(rate > 0 for rates in (*turns, *both) for rate in rates)
    assert made.beside is None
    assert len(made.samples) >= LEAST_SWAPS - 3
    assert min(made.samples.event_us or [0]) > 0


@pytest.mark.parametrize("wrong", Direction)
def test_a_backend_that_leaves_blocks_out_in_either_direction_is_caught(bench: Bench, wrong: Direction) -> None:
    def copy(request: SwapRequest, number: int, stream: int) -> None:
        (every_other_block if request.cell.direction is wrong else honest)(request, number, stream)

    with pytest.raises(VerificationError, match=NOT_COPIED):
        measure(bench, Recorded(copy), BOTH_WAYS, SAMPLING, 1, None)
    assert measure(bench, Recorded(honest), BOTH_WAYS, SAMPLING, 1, None).opposite is not None


def test_the_other_direction_has_the_same_blocks_in_a_pool_of_its_own() -> None:
    loads = Cell("batched", Direction.H2D, 64, 4096, order=Order.ANY, pool_bytes=16 << 30, reuse=Reuse.FRESH)
    stores = opposite_of(loads)
    assert (stores.direction, stores.order, stores.pool_bytes) == (Direction.D2H, Order.STREAM, 1 << 30)
    assert (stores.swap_bytes, stores.reuse) == (loads.swap_bytes, loads.reuse)
    hot = Cell("sm", Direction.D2H, 64, 4096, sms=4)
    assert opposite_of(hot) == Cell("sm", Direction.H2D, 64, 4096, sms=4)
    large = Cell("sm", Direction.D2H, 1 << 16, 1 << 16, sms=4, pool_bytes=16 << 30)
    assert opposite_of(large).pool_bytes == large.dense_bytes


def test_only_swaps_that_end_while_both_directions_swap_count() -> None:
    own, other = while_all(ended(10, 20, 30, 40, 50), ended(18, 31, 44))
    assert [one.device_us for one in own] == [20, 30, 40]
    assert [one.device_us for one in other] == [18, 31, 44]
    assert OneWay.gbps(mock.Mock(swap_bytes=3000), own) == 2 * 3000 / (40 - 20) / 1e3
    # so few that none is left: all of them
    assert [len(of) for of in while_all(ended(10, 11), ended(30, 31))] == [2, 2]


def test_two_swaps_of_each_direction_are_on_their_stream_and_no_more(bench: Bench) -> None:
    made, submitted, done = [], {"here": 0, "there": 0}, {"here": 0, "there": 0}
    for name in submitted:
        events = [mock.Mock(spec=Event) for _ in range(AHEAD)]
        with mock.patch("kvbench.measure.beside.Event", side_effect=events):
            workload = mock.Mock(sets=1, contents=list, arrays=list)
            way = OneWay(bench.device, mock.Mock(spec=Stream), workload, BOTH_WAYS, mock.Mock())
        for event in events:
            event.completed.side_effect = lambda name=name: submitted[name] - done[name] >= AHEAD
            event.wait.side_effect = lambda name=name: done.update({name: done[name] + 1})
            event.us_since.return_value = 1.0
        made.append(way)

        def submit(_: int, name: str = name) -> None:
            submitted[name] += 1
            assert submitted[name] - done[name] <= AHEAD

        way._swap.submit = submit  # type: ignore[method-assign]
    with mock.patch("kvbench.measure.beside.Event"):
        run_turn(bench.device, made, 0.0)
    assert submitted == done
    assert [len(way.ended) for way in made] == list(submitted.values())
    assert min(submitted.values()) >= LEAST_SWAPS
