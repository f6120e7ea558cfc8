"""Swaps by layers on a GPU: bytes are right, each layer is marked, and the layers of a step wait for them."""

from dataclasses import replace

import pytest

from kvbench.cells.axes import Direction, Neighbour, Reuse
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.engine.device import Event, Stream
from kvbench.measure.bench import Bench
from kvbench.measure.neighbour import LayeredStep
from kvbench.report.sections.layers import hidden_share
from kvbench.results import Beside, Visit
from kvbench.sweep.spec import Sampling
from tests.gates import Gate
from tests.visits import load_backends, measure

pytestmark = pytest.mark.gpu

POOL_BYTES = 1 << 29
SAMPLING = Sampling(warmups=2, min_samples=6, max_samples=12, cell_seconds=0.1)
LAYERS = 8
CELL = Cell(
    "sm", Direction.H2D, 1024, 32768, sms=2, reuse=Reuse.FRESH, pool_bytes=POOL_BYTES, sequence=f"layers-{LAYERS}"
)
BACKENDS = ["per_block", "batched", "primed", "merged", "sm", "triton", "auto"]


def measured(bench: Bench, cell: Cell) -> Visit:
    cell = replace(cell, sms=2 if cell.backend in ("sm", "triton") else None)
    visit = measure(bench, load_backends()[cell.backend], cell, SAMPLING, 3, None)
    assert visit.verified_bytes > 2 * cell.swap_bytes
    return visit


def beside(bench: Bench, cell: Cell) -> Beside:
    visit = measured(bench, cell)
    assert visit.beside is not None
    return visit.beside


@pytest.mark.parametrize("pattern", ["shuffled", f"tensors-{2 * LAYERS}"])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_layer_arrives_one_after_the_other(
    bench: Bench, backend: str, direction: Direction, pattern: str
) -> None:
    cell = replace(CELL, backend=backend, direction=direction, pattern=Pattern.parse(pattern))
    samples = measured(bench, cell).samples
    assert samples.first_layer_us
    # Where other processes use the GPU, its events do not fit the host's clock: 3.6 ms in 1.5 ms (driver 580.159.04).
    times = zip(samples.first_layer_us, samples.slowest_gap_us or (), samples.event_us or (), strict=True)
    for first_us, gap_us, last_us in times:
        assert 0 < first_us < last_us
        assert 0 < gap_us <= last_us - first_us


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_that_computes_next_to_nothing_takes_as_long_as_its_loads(
    bench: Bench, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvbench.measure.neighbour.IDLE_LAYER_US", 1)
    bench.steps.clear()
    turns = beside(bench, replace(CELL, backend=backend, neighbour=Neighbour.IDLE))
    bench.steps.clear()
    assert all(
        both_us >= arrived_us > 0
        for both_us, arrived_us in zip(turns.neighbour_beside_us, turns.swaps_beside_us, strict=True)
    )


@pytest.mark.parametrize("neighbour", [Neighbour.IDLE, Neighbour.DECODE])
@pytest.mark.parametrize("first_closed", [0, 3])
def test_no_layer_is_computed_before_its_mark(bench: Bench, neighbour: Neighbour, first_closed: int) -> None:
    driver, held, joined = bench.device.driver, Stream(bench.device.driver), Stream(bench.device.driver)
    step = LayeredStep(bench.device, replace(CELL, neighbour=neighbour))
    computed = [Event(driver) for _ in range(LAYERS)]
    layers = list(step._layers)

    def marked(number: int) -> object:
        return layers[number](), computed[number].record(step._stream.handle)

    step._layers = [lambda number=number: marked(number) for number in range(LAYERS)]  # type: ignore[misc]
    marks = [Event(driver) for _ in range(LAYERS)]
    gate = Gate(bench.device, held.handle)
    marks[first_closed].record(held.handle)
    step.submit(joined.handle, marks)
    if first_closed:
        computed[first_closed - 1].wait()
    done_while_closed = [event.completed() for event in computed]
    gate.open()
    assert done_while_closed == [True] * first_closed + [False] * (LAYERS - first_closed)
    joined.synchronize()
    assert all(event.completed() for event in (*computed, step.end))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_decode_step_has_a_share_of_its_loads_hidden(bench: Bench, backend: str) -> None:
    assert hidden_share(beside(bench, replace(CELL, backend=backend, neighbour=Neighbour.DECODE))) is not None
