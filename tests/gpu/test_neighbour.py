"""Swaps beside every neighbour on a GPU: it runs alone and beside them, and bytes are right."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from kvbench.cells.axes import Direction, Neighbour, Reuse
from kvbench.cells.cell import Cell
from kvbench.engine.device import Device
from kvbench.measure.bench import Bench
from kvbench.measure.neighbour import open_neighbour
from kvbench.results import Beside
from kvbench.results.schema import EffectivePath
from kvbench.sweep.spec import Sampling
from tests.visits import bench_of, load_backends, measure

pytestmark = pytest.mark.gpu

SAMPLING = Sampling(warmups=1, cell_seconds=0.1, min_iterations=5)
CELL = Cell("sm", Direction.D2H, 1024, 16384, sms=2, reuse=Reuse.FRESH, pool_bytes=1 << 28, neighbour=Neighbour.PREFILL)
NEIGHBOURS = [Neighbour.IDLE, Neighbour.DECODE, Neighbour.PREFILL, Neighbour("prefill", 512)]


@pytest.fixture(scope="module")
def bench(gpu: Device) -> Iterator[Bench]:
    yield (made := bench_of(1 << 28, 300, gpu))
    for neighbour in made.neighbours.values():
        neighbour.close()


def beside(bench: Bench, cell: Cell) -> Beside:
    visit = measure(bench, load_backends()[cell.backend], cell, SAMPLING, 3, None)
    assert visit.verified_bytes > 2 * cell.swap_bytes
    assert visit.beside is not None
    return visit.beside


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("backend", ["per_block", "batched", "primed", "sm", "triton"])
@pytest.mark.parametrize("neighbour", NEIGHBOURS, ids=str)
def test_every_neighbour_runs_beside_every_backend(
    bench: Bench, neighbour: Neighbour, backend: str, direction: Direction
) -> None:
    sms = 2 if backend in ("sm", "triton") else None
    turns = beside(bench, replace(CELL, backend=backend, direction=direction, neighbour=neighbour, sms=sms))
    assert len(turns.neighbour_beside_us) >= SAMPLING.min_iterations
    assert turns.neighbour_alone_us
    reads_back = neighbour == Neighbour.DECODE
    assert len(turns.readback_us) == len(turns.neighbour_beside_us) * reads_back
    assert len(turns.readback_alone_us) == len(turns.neighbour_alone_us) * reads_back
    assert all(0 < us < step_us for us, step_us in zip(turns.readback_us, turns.neighbour_beside_us, strict=False))


@pytest.mark.parametrize("direction", Direction)
def test_the_copy_engine_makes_batched_copies_beside_a_step(bench: Bench, direction: Direction) -> None:
    """An idle stream would have the CPU make those of loads."""
    cell = replace(CELL, backend="batched", sms=None, direction=direction, neighbour=Neighbour.PREFILL)
    visit = measure(bench, load_backends()["batched"], cell, SAMPLING, 3, None)
    assert visit.path in (EffectivePath.COPY_ENGINE, EffectivePath.ENGINE_OR_SMS)


@pytest.mark.parametrize("tokens", [64, 512, 65_536])
def test_a_prefill_of_any_length_is_captured(gpu: Device, tokens: int) -> None:
    neighbour = open_neighbour(gpu, Neighbour("prefill", tokens))
    try:
        with neighbour.running():
            first, last = neighbour.run_for(0.0, 2)
        assert all(us > 0 for us in neighbour.times_us(first, last))
    finally:
        neighbour.close()


def test_small_copies_are_in_order_with_the_steps(gpu: Device) -> None:
    """An iteration lasts at least as long as the step alone in its graph, and ends with its readback."""
    neighbour = open_neighbour(gpu, Neighbour.DECODE)
    try:
        with neighbour.running():
            first, last = neighbour.run_for(0.0, 10)
        step_us, readback_us = neighbour.times_us(first, last), neighbour.readbacks_us(first, last)
        assert len(step_us) == len(readback_us) >= 10
        assert all(0 < back < 0.1 * step for back, step in zip(readback_us, step_us, strict=True))
        assert neighbour.dry == 0
    finally:
        neighbour.close()
