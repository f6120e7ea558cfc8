"""Swaps by layers on the cpu device: each layer is marked, every byte is right, and a step waits for its layers."""

from dataclasses import replace
from itertools import count
from typing import Any
from unittest import mock

import pytest

from kvbench.backends.base import PreparedSwap, SwapRequest
from kvbench.backends.driver_copies import Batched, Merged, PerBlock
from kvbench.cells.axes import Direction, Neighbour, Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.engine.device import STREAM_STATES
from kvbench.measure.bench import Bench
from kvbench.measure.neighbour import DecodeWork, LayeredStep, NeighbourError, _work
from kvbench.measure.samples import BesideStep, LayeredSwap, set_up
from kvbench.measure.workload import VerificationError
from kvbench.models.steps import USUAL
from kvbench.results import Visit
from kvbench.results.schema import Beside
from kvbench.sweep.spec import Sampling
from tests.unit.measure.test_visit import Recorded, copies
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


@pytest.mark.parametrize("backend", [PerBlock(), Batched(), Merged()])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("pattern", ["shuffled", "tensors-8", "tensors-4x12+4x4"])
def test_every_layer_is_swapped_verified_and_marked(
    bench: Bench, backend: Any, direction: Direction, pattern: str
) -> None:
    cell = replace(CELL, backend=backend.name, direction=direction, pattern=Pattern.parse(pattern))
    measurement = measured(bench, cell, backend)
    assert measurement.verified_bytes >= 5 * cell.swap_bytes
    taken: Any = measurement.samples
    for first_us, gap_us, end_us in zip(taken.first_layer_us, taken.slowest_gap_us, taken.event_us, strict=True):
        assert 0 < first_us < end_us
        assert (end_us - first_us) / (LAYERS - 1) <= gap_us + 0.01 < end_us - first_us  # the other gaps are longer


def test_each_layer_is_a_call_of_its_own(bench: Bench) -> None:
    assert measured(bench, CELL).calls == LAYERS
    assert measured(bench, replace(CELL, sequence="at-once-4")).calls == 1
    assert measured(bench, replace(CELL, sequence="whole")).samples.first_layer_us is None


def test_a_backend_that_leaves_a_block_of_a_layer_out_is_caught(bench: Bench) -> None:
    with pytest.raises(VerificationError, match="in the block of descriptor 15"):
        measured(bench, CELL, Recorded(lambda request, _, stream: copies(request, stream, slice(-1))))


def test_a_turn_times_the_step_alone_the_swap_alone_or_both_of_the_next_blocks() -> None:
    """Swaps beside a step end where their last layer has arrived."""
    calls, beside, taken = mock.Mock(), Beside(), list[Any]()
    calls.swap, calls.step.end.us_since.return_value = mock.Mock(spec=LayeredSwap, marks=["first", "last"]), 1.0
    idle = (STREAM_STATES[StreamState.IDLE], mock.ANY)
    region = mock.Mock(measure_python=lambda submit, *how: (submit(99), mock.Mock(wall_us=4.0 * (how == idle)))[1])
    sampler: Any = BesideStep(mock.Mock(region=region), BESIDE, calls.workload, [mock.Mock(swap=calls.swap)])
    sampler._step = calls.step
    for turn in ("step", "swap", "both"):
        sampler._turn(turn, lambda: mock.Mock(wall_us=2.0, event_us=9.0), taken, beside)
    rates = {"swaps_alone_gbps": [BESIDE.swap_bytes / 2e3], "swaps_beside_gbps": [BESIDE.swap_bytes / 4e3]}
    assert beside == Beside(
        neighbour_alone_us=[4.0], neighbour_beside_us=[4.0], swaps_alone_us=[2.0], swaps_beside_us=[3.0], **rates
    )
    step = mock.call.step.submit(99, ["first", "last"])
    ends = mock.call.step.end.us_since("last")
    assert calls.mock_calls == [step, mock.call.workload.advance(), mock.call.swap.submit(99), step, ends]


@pytest.mark.parametrize(
    ("most", "least", "end"), [(5, 1, (4, "time")), (2, 1, (2, "max_samples")), (9, 6, (8, "time"))]
)
def test_turns_with_a_step_go_on_until_the_time_is_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, most: int, least: int, end: tuple[int, str]
) -> None:
    """The clock goes on by a second each time it is read: once before the turns, and when there are enough samples."""
    monkeypatch.setattr("kvbench.measure.samples.time", mock.Mock(monotonic=mock.Mock(side_effect=count())))
    sampler: Any = set_up(bench, Batched(), BESIDE, SAMPLING, 1)
    turns = list[str]()
    sampler._turn = lambda turn, _, samples, __: (turns.append(turn), samples.append(turn) if turn == "swap" else None)
    taken = sampler._collect(None, Sampling(min_samples=least, max_samples=most, cell_seconds=1.5))
    assert (len(taken.samples), taken.stopped_by) == end
    assert turns == ["step", "swap", "both", "both", "swap", "step"] * (len(taken.samples) // 2)


@pytest.mark.parametrize(("layers", "marks"), [(4, 4), (4, 1), (8, 2)])
def test_a_layer_waits_for_its_own_mark_and_no_other(bench: Bench, layers: int, marks: int) -> None:
    step: Any = LayeredStep(bench.device, BESIDE)
    own, calls = step._stream.handle, mock.Mock()
    step._layers, step.end = [getattr(calls, f"layer_{number}") for number in range(layers)], calls.end
    step.submit(99, [getattr(calls, f"mark_{number}") for number in range(marks)])
    expected = [mock.call.end.record(own), mock.call.end.hold(99)]
    for number in reversed(range(layers)):
        expected.insert(0, getattr(mock.call, f"layer_{number}")())
        if number in range(0, layers, layers // marks):
            expected.insert(0, getattr(mock.call, f"mark_{number * marks // layers}").hold(own))
    assert calls.mock_calls == expected


def test_a_layer_of_a_step_waits_for_100_us_or_is_one_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.measure.neighbour.TorchWork", of_torch := mock.Mock())
    for name in ("Stream", "Event", "Buffer"):
        monkeypatch.setattr(f"kvbench.measure.neighbour.{name}", mock.MagicMock())
    device = mock.Mock()
    device.name = "cuda:3"
    step = LayeredStep(device, BESIDE)
    for layer in step._layers:
        layer()
    assert device.driver.delay.mock_calls == [mock.call(100_000, step._stream.handle)] * LAYERS
    step = LayeredStep(device, replace(BESIDE, neighbour=Neighbour.DECODE))
    of_torch.assert_called_once_with(Neighbour.DECODE, 3, step._stream.handle, LAYERS)
    assert (step._layers, step._thread) == (of_torch.return_value.parts, of_torch.return_value.thread)
    assert _work(device, mock.Mock(handle=7), Neighbour.PREFILL, USUAL) is of_torch.return_value
    of_torch.assert_called_with(Neighbour.PREFILL, 3, 7, model=USUAL)
    assert isinstance(_work(device, mock.Mock(handle=7), Neighbour.DECODE, USUAL), DecodeWork)


def test_a_step_is_kept_with_its_layers_and_its_threads_are_known(bench: Bench) -> None:
    before = bench.threads.all()
    steps = [bench.step(replace(BESIDE, sequence=f"layers-{count}")) for count in (4, 2, 4)]
    assert [len(step._layers) for step in steps] == [4, 2, 4]
    assert steps[0] is steps[2]
    assert bench.threads.all() - before <= bench.threads._known


def test_a_step_that_dies_is_an_error_and_later_visits_go_on(bench: Bench) -> None:
    assert measured(bench, BESIDE).beside is not None
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
    cell, bench = replace(CELL, pattern=Pattern.parse("tensors-8")), replace(bench, policy=(policy := mock.Mock()))
    seen: list[SwapRequest] = []

    class Seeing(PerBlock):
        def create(self, request: SwapRequest) -> PreparedSwap:
            seen.append(request)
            return super().create(request)

    ready = set_up(bench, Seeing(), cell, SAMPLING, 1)
    assert isinstance(ready.prepared.swap, LayeredSwap)
    for _ in range(3):
        ready.workload.advance()
        parts = [source for request in seen for source in request.memory.sources.tolist()]
        assert parts == ready.workload.memories[0].sources.tolist()
    given = [(request.cell.blocks, request.cell.layers, request.policy) for request in seen]
    assert given == [(16, 0, policy)] * LAYERS
