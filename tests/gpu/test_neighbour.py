"""Swaps beside every neighbour on a GPU: its stream has work, bytes are right, doing nothing costs nothing."""

from collections.abc import Iterator
from dataclasses import replace
from statistics import median

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
CELL = Cell("sm", Direction.D2H, 1024, 16384, sms=2, reuse=Reuse.FRESH, pool_bytes=1 << 28, neighbour=Neighbour.GEMM)
VISITS = 5  # to compare: single visits of swaps that the thread makes slow differ by a tenth on a busy host
NEIGHBOURS = [neighbour for neighbour in Neighbour if neighbour is not Neighbour.NONE]


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


def is_supplied(turns: Beside) -> bool:
    """Return whether the neighbour's stream had work but for moments in which a busy host held its thread up."""
    return turns.dry <= 0.1 * (len(turns.neighbour_alone_us) + len(turns.neighbour_beside_us))


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("backend", ["per_block", "batched", "primed", "sm", "triton"])
@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_every_neighbour_runs_beside_every_backend(
    bench: Bench, neighbour: Neighbour, backend: str, direction: Direction
) -> None:
    sms = 2 if backend in ("sm", "triton") else None
    turns = beside(bench, replace(CELL, backend=backend, direction=direction, neighbour=neighbour, sms=sms))
    assert min(len(turns.neighbour_alone_us), len(turns.neighbour_beside_us)) > 10
    if neighbour is not Neighbour.SWAP:  # whose submission a loop of single copies may hold up
        assert is_supplied(turns)


def test_a_neighbour_that_does_nothing_costs_nothing(bench: Bench) -> None:
    # An SM kernel that saturates the link delays the launches of every other stream; the copy engine does not.
    # Large blocks, which the copy engine alone makes slow: the submission of many small ones varies with the host.
    cell = replace(CELL, backend="batched", sms=None, blocks=64, block_bytes=1 << 20, neighbour=Neighbour.IDLE)
    visits = [beside(bench, cell) for _ in range(VISITS)]
    for turns in visits:
        assert median(turns.neighbour_beside_us) == pytest.approx(median(turns.neighbour_alone_us), rel=0.005)
    assert median(median(turns.swaps_beside_gbps) / median(turns.swaps_alone_gbps) for turns in visits) > 0.95


def test_small_swaps_are_as_fast_in_the_loop_beside_an_idle_neighbour_as_alone(bench: Bench) -> None:
    # Of a kernel: the submission of many small copies varies with the host.
    cell = replace(CELL, backend="sm", direction=Direction.H2D, blocks=16, block_bytes=4096, sms=2)
    sampled, paused, running = [], [], []
    for _ in range(VISITS):
        alone = measure(bench, load_backends()["sm"], replace(cell, neighbour=Neighbour.NONE), LONG, 3, None)
        sampled.append(cell.swap_bytes / median(alone.samples.wall_us) / 1e3)
        turns = beside(bench, replace(cell, neighbour=Neighbour.IDLE))
        paused.append(median(turns.swaps_alone_gbps))
        running.append(median(turns.swaps_beside_gbps))
    # Of each, the visit that other work on the host held up least.
    assert max(paused) == pytest.approx(max(sampled), rel=0.05)
    assert max(running) == pytest.approx(max(sampled), rel=0.05)
