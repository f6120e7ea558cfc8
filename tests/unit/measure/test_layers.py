"""Swaps by layers on the cpu device: each layer is marked, every byte is right, and a step waits for its layers."""

from dataclasses import replace
from itertools import count
from typing import Any
from unittest import mock

import pytest

from kvbench.backends.base import PreparedSwap, SwapRequest
from kvbench.backends.batched import Batched, Merged
from kvbench.backends.per_block import PerBlock
from kvbench.cells.axes import Direction, Neighbour, Reuse
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.engine.device import Event, Stream
from kvbench.measure.bench import Bench
from kvbench.measure.neighbour import IDLE_LAYER_US, LayeredStep, NeighbourError
from kvbench.measure.samples import LayeredSwap, set_up
from kvbench.measure.workload import VerificationError
from kvbench.results import Visit
from kvbench.results.outcomes import hidden_share
from kvbench.results.schema import Beside
from kvbench.sweep.spec import Sampling
from tests.gates import Gate
from tests.visits import bench_of, measure

LAYERS = 4
SAMPLING = Sampling(warmups=1, min_samples=4, max_samples=8, cell_seconds=0.05)
CELL = Cell("batched", Direction.H2D, 64, 4096, reuse=Reuse.FRESH, pool_bytes=4 << 20, sequence=f"layers-{LAYERS}")
BESIDE = replace(CELL, neighbour=Neighbour.IDLE)


@pytest.fixture
def bench() -> Bench:
    return bench_of(16 << 20)


def measured(bench: Bench, cell: Cell, backend: Any = None) -> Visit:
    return measure(bench, backend or Batched(), cell, SAMPLING, 1, None)


class Layerless(PerBlock):
    """Leaves out the last block of every list."""

    def create(self, request: SwapRequest) -> PreparedSwap:
        return super().create(replace(request, memory=request.memory.part(0, len(request.memory.sizes) - 1)))


@pytest.mark.parametrize("backend", [PerBlock(), Batched(), Merged()])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("pattern", ["shuffled", "tensors-8", "tensors-4x12+4x4"])
def test_every_layer_is_swapped_verified_and_marked(
    bench: Bench, backend: Any, direction: Direction, pattern: str
) -> None:
    cell = replace(CELL, backend=backend.name, direction=direction, pattern=Pattern.parse(pattern))
    measurement = measured(bench, cell, backend)
    assert measurement.verified_bytes >= 5 * cell.swap_bytes
    first, gaps = measurement.samples.first_layer_us, measurement.samples.slowest_gap_us
    assert first is not None
    assert gaps is not None
    ends = measurement.samples.event_us
    assert ends is not None
    for first_us, gap_us, end_us in zip(first, gaps, ends, strict=True):
        assert 0 < first_us < end_us
        assert (end_us - first_us) / (LAYERS - 1) <= gap_us + 0.01 < end_us - first_us  # the other gaps are longer


def test_each_layer_is_a_call_of_its_own(bench: Bench) -> None:
    assert measured(bench, CELL).calls == LAYERS
    assert measured(bench, replace(CELL, sequence="at-once-4")).calls == 1
    assert measured(bench, replace(CELL, sequence="whole")).samples.first_layer_us is None


def test_a_backend_that_leaves_a_block_of_a_layer_out_is_caught(bench: Bench) -> None:
    with pytest.raises(VerificationError, match="in the block of descriptor 15"):
        measured(bench, CELL, Layerless())


@pytest.mark.parametrize("sequence", ["layers-4", "at-once-4"])
def test_beside_a_step_each_side_is_timed_alone_and_both_together(bench: Bench, sequence: str) -> None:
    measurement = measured(bench, replace(BESIDE, sequence=sequence))
    beside = measurement.beside
    assert beside is not None
    assert len(beside.neighbour_alone_us) == len(beside.neighbour_beside_us) == len(beside.swaps_alone_us) >= 4
    assert beside.swaps_alone_us == measurement.samples.wall_us
    assert min(beside.neighbour_alone_us) >= LAYERS * IDLE_LAYER_US
    for both_us, arrived_us in zip(beside.neighbour_beside_us, beside.swaps_beside_us, strict=True):
        assert both_us >= arrived_us + IDLE_LAYER_US  # the last layer is computed after it has arrived
    assert hidden_share(beside) is not None


def test_swaps_beside_a_step_end_where_their_last_layer_has_arrived(bench: Bench) -> None:
    sampler: Any = set_up(bench, Batched(), BESIDE, SAMPLING, 1).sampler
    sampler._step, sampler._timed_us = mock.Mock(), lambda _: 4.0
    sampler._step.end.us_since.return_value = 1.0
    sampler._turn("both", sampler.taker(), [], beside := Beside())
    sampler._step.end.us_since.assert_called_once_with(sampler.prepared.swap.marks[-1])
    assert (beside.swaps_beside_us, beside.swaps_beside_gbps) == ([3.0], [CELL.swap_bytes / 4e3])


@pytest.mark.parametrize(
    ("most", "least", "end"), [(5, 1, (4, "time")), (2, 1, (2, "max_samples")), (9, 6, (8, "time"))]
)
def test_turns_with_a_step_go_on_until_the_time_is_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, most: int, least: int, end: tuple[int, str]
) -> None:
    """The clock goes on by a second each time it is read: once before the turns, and when there are enough samples."""
    monkeypatch.setattr("kvbench.measure.samples.time", mock.Mock(monotonic=mock.Mock(side_effect=count())))
    sampler: Any = set_up(bench, Batched(), BESIDE, SAMPLING, 1).sampler
    sampler._turn = lambda turn, _, samples, beside: (samples if turn == "swap" else beside.swaps_alone_us).append(turn)
    taken = sampler._collect(None, Sampling(min_samples=least, max_samples=most, cell_seconds=1.5))
    assert (len(taken.samples), taken.stopped_by) == end
    assert len(taken.beside.swaps_alone_us) == 2 * len(taken.samples)


@pytest.mark.parametrize(("sequence", "layers_before"), [("layers-4", 2), ("at-once-4", 0)])
def test_a_layer_waits_for_its_own_mark_and_no_other(bench: Bench, sequence: str, layers_before: int) -> None:
    """The mark of the third layer, or of all at once, is behind a gate: the layers before it are computed meanwhile."""
    driver, held = bench.device.driver, Stream(bench.device.driver)
    step = LayeredStep(bench.device, replace(BESIDE, sequence=sequence))
    computed = [Event(driver) for _ in range(LAYERS)]
    layers = list(step._layers)

    def marked(number: int) -> Any:
        return lambda: (layers[number](), computed[number].record(step._stream.handle))

    step._layers = [marked(number) for number in range(LAYERS)]
    marks = [Event(driver) for _ in range(1 if sequence.startswith("at-once") else LAYERS)]
    gate = Gate(bench.device, held.handle)
    marks[layers_before].record(held.handle)
    joined = Stream(driver)
    step.submit(joined.handle, marks)
    if layers_before:
        computed[layers_before - 1].wait()
    done_while_closed = [event.completed() for event in computed]
    gate.open()
    assert done_while_closed == [True] * layers_before + [False] * (LAYERS - layers_before)
    joined.synchronize()
    assert all(event.completed() for event in (*computed, step.end))


def test_a_step_is_kept_with_its_layers_and_its_threads_are_known(bench: Bench) -> None:
    before = bench.threads.all()
    steps = [bench.step(replace(BESIDE, sequence=f"layers-{count}")) for count in (4, 2, 4)]
    assert [len(step._layers) for step in steps] == [4, 2, 4]
    assert steps[0] is steps[2]
    assert bench.threads.all() - before <= bench.threads._known


def test_a_step_that_dies_is_an_error_and_later_visits_go_on(bench: Bench) -> None:
    ready = measured(bench, BESIDE)
    assert ready.beside is not None
    (step,) = bench.steps.values()

    def dies() -> None:
        raise RuntimeError("out of breath")

    alive, step._layers = step._layers, [*step._layers[:-1], dies]
    with pytest.raises(NeighbourError, match="the neighbour died: RuntimeError: out of breath"):
        measured(bench, BESIDE)
    bench.pools.refill()  # as the worker that replaces this one does
    assert measured(bench, CELL).verified_bytes
    step._layers = alive
    assert measured(bench, BESIDE).beside is not None


def test_a_layer_of_tensors_has_its_part_of_the_same_memory(bench: Bench) -> None:
    cell = replace(CELL, pattern=Pattern.parse("tensors-8"))
    seen: list[SwapRequest] = []

    class Seeing(PerBlock):
        def create(self, request: SwapRequest) -> PreparedSwap:
            seen.append(request)
            return super().create(request)

    ready = set_up(bench, Seeing(), cell, SAMPLING, 1)
    assert isinstance(ready.sampler.prepared.swap, LayeredSwap)
    for _ in range(3):
        ready.workload.advance()
        parts = [source for request in seen for source in request.memory.sources.tolist()]
        assert parts == ready.workload.memories[0].sources.tolist()
    assert [request.cell.blocks for request in seen] == [16] * LAYERS
