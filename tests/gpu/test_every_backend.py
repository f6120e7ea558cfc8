"""Every backend moves the right bytes on a GPU: any size, any alignment, both ways, any stream state."""

import pytest

from kvbench.backends.base import Backend
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.facts import FLOORS, STAGED
from kvbench.engine.device import STREAM_STATES, Device, MemoryKind
from tests.swaps import aligned_swap, mixed_swap, run_and_compare
from tests.visits import load_backends

pytestmark = pytest.mark.gpu

MIXED_SIZES = [*range(1, 130), 255, 576, 656, 1000, 4095, 4096, 4097, 24_576, 25_088, 65_537, 1 << 20, (1 << 20) - 3]
RIGHT = (0, 0, None)


def backends() -> list[Backend]:
    """Those that move any list: not the floors, which move nothing, and not staged copies, which need pages."""
    return [backend for name, backend in load_backends().items() if name not in {*FLOORS, STAGED}]


def sms_of(backend: Backend, device: Device) -> int | None:
    return 3 if "sms" in backend.axes(device.facts()) else None


every_backend = pytest.mark.parametrize("backend", backends(), ids=lambda backend: backend.name)


@every_backend
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("memory_kind", [MemoryKind.allocated, MemoryKind.registered], ids=["allocated", "registered"])
def test_mixed_sizes_at_any_alignment_arrive(
    gpu: Device, backend: Backend, direction: Direction, memory_kind: MemoryKind
) -> None:
    assert backend.unavailable(gpu.facts()) is None
    swap = mixed_swap(MIXED_SIZES * 3, seed=11)
    assert run_and_compare(gpu, backend, direction, swap, memory_kind=memory_kind, sms=sms_of(backend, gpu)) == RIGHT


@every_backend
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("alignment", [2, 8, 16, 4096])
def test_aligned_swaps_arrive(gpu: Device, backend: Backend, direction: Direction, alignment: int) -> None:
    swap = aligned_swap([1, 7, 16, 100, 4096, 5000, 40_000] * 40, alignment, seed=alignment)
    assert run_and_compare(gpu, backend, direction, swap, sms=sms_of(backend, gpu)) == RIGHT


@every_backend
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("state", STREAM_STATES)
def test_repeated_swaps_in_either_stream_state_arrive(
    gpu: Device, backend: Backend, direction: Direction, state: StreamState
) -> None:
    swap = aligned_swap([16_384] * 600, 16_384, seed=3)
    assert run_and_compare(gpu, backend, direction, swap, sms=sms_of(backend, gpu), times=6, state=state) == RIGHT
