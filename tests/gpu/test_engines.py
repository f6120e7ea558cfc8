"""The code of installed engines moves the right bytes, as shipped and with a chosen SM count."""

import pytest

from kvbench.backends.base import Backend, backend_named
from kvbench.cells.axes import Direction, StreamState
from kvbench.engine.device import STREAM_STATES, Device
from kvbench.sweep.installed import installed
from tests.swaps import aligned_swap, run_and_compare

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


def counts(backend: Backend, device: Device) -> tuple[int | None, ...]:
    return (None, 3) if "sms" in backend.axes(device.facts()) else (None,)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("blocks", [1, 15, 16, 500])
@pytest.mark.parametrize("block_bytes", [1024, 24_576])
def test_blocks_arrive(gpu: Device, engine: Backend, direction: Direction, blocks: int, block_bytes: int) -> None:
    swap = aligned_swap([block_bytes] * blocks, block_bytes, seed=blocks)
    for sms in counts(engine, gpu):
        assert run_and_compare(gpu, engine, direction, swap, sms=sms) == RIGHT


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("state", STREAM_STATES)
def test_repeated_swaps_arrive_in_every_stream_state(
    gpu: Device, engine: Backend, direction: Direction, state: StreamState
) -> None:
    swap = aligned_swap([16_384] * 500, 16_384, seed=3)
    for sms in counts(engine, gpu):
        assert run_and_compare(gpu, engine, direction, swap, sms=sms, times=6, state=state) == RIGHT
