"""Swaps beside every neighbour on a GPU: it runs alone and beside them, and bytes are right."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from kvbench.cells.axes import Direction, Neighbour, Reuse
from kvbench.cells.cell import Cell
from kvbench.engine.device import Device
from kvbench.measure.bench import Bench
from kvbench.results import Beside
from kvbench.sweep.spec import Sampling
from tests.visits import bench_of, load_backends, measure

pytestmark = pytest.mark.gpu

SAMPLING = Sampling(warmups=1, cell_seconds=0.3)
LONG = Sampling(warmups=1, cell_seconds=0.9)  # for neighbours with long iterations
CELL = Cell("sm", Direction.D2H, 1024, 16384, sms=2, reuse=Reuse.FRESH, pool_bytes=1 << 28, neighbour=Neighbour.PREFILL)
NEIGHBOURS = [Neighbour.IDLE, Neighbour.DECODE, Neighbour.PREFILL, Neighbour("prefill", 512)]


@pytest.fixture(scope="module")
def bench(gpu: Device) -> Iterator[Bench]:
    yield (made := bench_of(1 << 28, 300, gpu))
    for neighbour in made.neighbours.values():
        neighbour.close()


def beside(bench: Bench, cell: Cell) -> Beside:
    sampling = LONG if cell.neighbour in (Neighbour.IDLE, Neighbour.DECODE) else SAMPLING
    visit = measure(bench, load_backends()[cell.backend], cell, sampling, 3, None)
    assert visit.verified_bytes > 2 * cell.swap_bytes
    assert visit.beside is not None
    return visit.beside


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("backend", ["per_block", "batched", "primed", "sm", "triton"])
@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_every_neighbour_runs_beside_every_backend(
    bench: Bench, neighbour: Neighbour, backend: str, direction: Direction
) -> None:
    sms = 2 if backend in ("sm", "triton") else None
    cell = replace(CELL, backend=backend, direction=direction, neighbour=neighbour, sms=sms)
    every = (beside(bench, cell) for _ in range(3))  # a host that is held up can lose a turn
    assert any(turns.neighbour_alone_us and turns.neighbour_beside_us for turns in every)
