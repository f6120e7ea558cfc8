"""The code of installed engines moves the right bytes, as shipped and with a chosen SM count."""

from dataclasses import replace

import pytest

from kvbench.backends.base import Backend, backend_named
from kvbench.cells.axes import Direction, ListPlace, Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.installed import installed
from kvbench.cells.pattern import Pattern
from kvbench.engine.device import STREAM_STATES, Device
from kvbench.engines.sglang import SglangStore
from kvbench.sweep.spec import Sampling
from tests.swaps import aligned_swap, run_and_compare
from tests.visits import bench_of, measure

pytestmark = pytest.mark.gpu

RIGHT = (0, 0, None)
ENGINES = [name for name, installation in installed()[0].items() if installation.engine]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, gpu: Device) -> Backend:
    backend = backend_named(request.param)
    assert backend is not None
    if reason := backend.unavailable(gpu.facts()):
        pytest.skip(f"{backend.name}: {reason}")
    return backend


@pytest.fixture
def gather(engine: Backend, gpu: Device) -> Backend:
    return engine if "list" in engine.axes(gpu.facts()) else pytest.skip("takes lists of the host")


@pytest.fixture
def copier(engine: Backend, gpu: Device) -> Backend:
    if engine.name == SglangStore.name:
        pytest.skip("stores whole pages")
    return engine if "list" not in engine.axes(gpu.facts()) else pytest.skip("takes ids on the GPU")


@pytest.mark.parametrize("host", ["page-first-4+4/runs-16", "page-first-8/runs-16"])
@pytest.mark.parametrize("tokens", [16, 2048])
def test_whole_pages_of_the_host_are_stored(gpu: Device, tokens: int, host: str) -> None:
    store = SglangStore()
    if reason := store.unavailable(gpu.facts()):
        pytest.skip(reason)
    sides = {"pattern": Pattern.parse("tensors-8/runs-16"), "host_pattern": Pattern.parse(host)}
    cell = replace(Cell(store.name, Direction.D2H, 8 * tokens, 1024, reuse=Reuse.FRESH, pool_bytes=64 << 20), **sides)
    sampling = Sampling(warmups=1, min_samples=2, max_samples=2)
    assert measure(bench_of(64 << 20, 300, gpu), store, cell, sampling, 3, None).verified_bytes > 2 * cell.swap_bytes


@pytest.mark.parametrize("rows", [1, 64, 4096])
def test_rows_of_ids_on_the_gpu_arrive(gpu: Device, gather: Backend, rows: int) -> None:
    cell = Cell(gather.name, Direction.H2D, rows, 656, list_place=ListPlace.GPU, pool_bytes=64 << 20)
    sampling = Sampling(warmups=1, min_samples=2, max_samples=2)
    assert measure(bench_of(64 << 20, 300, gpu), gather, cell, sampling, 3, None).verified_bytes > 2 * rows * 656


def counts(backend: Backend, device: Device) -> tuple[int | None, ...]:
    return (None, 3) if "sms" in backend.axes(device.facts()) else (None,)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("blocks", [1, 15, 16, 500])
@pytest.mark.parametrize("block_bytes", [1024, 24_576])
def test_blocks_arrive(gpu: Device, copier: Backend, direction: Direction, blocks: int, block_bytes: int) -> None:
    swap = aligned_swap([block_bytes] * blocks, block_bytes, seed=blocks)
    for sms in counts(copier, gpu):
        assert run_and_compare(gpu, copier, direction, swap, sms=sms) == RIGHT


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("state", STREAM_STATES)
def test_repeated_swaps_arrive_in_every_stream_state(
    gpu: Device, copier: Backend, direction: Direction, state: StreamState
) -> None:
    swap = aligned_swap([16_384] * 500, 16_384, seed=3)
    for sms in counts(copier, gpu):
        assert run_and_compare(gpu, copier, direction, swap, sms=sms, times=6, state=state) == RIGHT
