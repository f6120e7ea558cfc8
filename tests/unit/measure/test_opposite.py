"""Swaps of both directions at once on the cpu device: both are timed while both run, and both are verified."""

from unittest import mock

import pytest

from kvbench.backends.base import SwapRequest
from kvbench.backends.driver_copies import Batched
from kvbench.cells.axes import Direction, Order, Reuse
from kvbench.cells.blocks import opposite_of
from kvbench.cells.cell import Cell
from kvbench.engine.device import Event, Stream
from kvbench.measure.bench import Bench
from kvbench.measure.opposite import AHEAD, LEAST_SWAPS, Ended, OneWay, turn, while_all
from kvbench.measure.workload import VerificationError
from kvbench.sweep.spec import Sampling
from tests.unit.measure.test_visit import NOT_COPIED, Recorded, every_other_block, honest
from tests.visits import bench_of, measure

SAMPLING = Sampling(warmups=1, cell_seconds=0.1)
CELL = Cell("batched", Direction.H2D, 16, 4096, reuse=Reuse.FRESH, pool_bytes=1 << 20, opposite=True)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return bench_of(32 << 20)


def ended(*times_us: float) -> list[Ended]:
    return [Ended(at, at + 5, 1.0) for at in times_us]


@pytest.mark.parametrize("reuse", Reuse)
@pytest.mark.parametrize("direction", Direction)
def test_both_directions_are_timed_alone_and_at_once(bench: Bench, direction: Direction, reuse: Reuse) -> None:
    pool_bytes = 1 << 20 if reuse is Reuse.FRESH else 0
    cell = Cell("batched", direction, 16, 4096, reuse=reuse, pool_bytes=pool_bytes, opposite=True)
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
        measure(bench, Recorded(copy), CELL, SAMPLING, 1, None)
    assert measure(bench, Recorded(honest), CELL, SAMPLING, 1, None).opposite is not None


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
        with mock.patch("kvbench.measure.opposite.Event", side_effect=events):
            workload = mock.Mock(sets=1, contents=list, arrays=list)
            way = OneWay(bench.device, mock.Mock(spec=Stream), workload, CELL, mock.Mock())
        for event in events:
            event.completed.side_effect = lambda name=name: submitted[name] - done[name] >= AHEAD
            event.wait.side_effect = lambda name=name: done.update({name: done[name] + 1})
            event.us_since.return_value = 1.0
        made.append(way)

        def submit(_: int, name: str = name) -> None:
            submitted[name] += 1
            assert submitted[name] - done[name] <= AHEAD

        way._swap.submit = submit  # type: ignore[method-assign]
    with mock.patch("kvbench.measure.opposite.Event"):
        turn(bench.device, made, 0.0)
    assert submitted == done
    assert [len(way.ended) for way in made] == list(submitted.values())
    assert min(submitted.values()) >= LEAST_SWAPS
