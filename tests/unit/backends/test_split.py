"""A swap in launches: each has its share of the descriptors, in the memory that is written anew before every swap."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from kvbench.backends.base import Mechanism, PreparedSwap, SwapRequest
from kvbench.backends.split import create_launches, joined
from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.engine.device import open_device
from kvbench.engine.faults import FaultPlan
from kvbench.engine.memory import SwapMemory
from tests.unit.measure.test_visit import Recorded, honest

CELL = Cell("cheat", Direction.H2D, 16, 4096)


@dataclass
class Seen(Recorded):
    """Keeps the memory of every request."""

    memories: list[SwapMemory] = field(default_factory=list)

    def create(self, request: SwapRequest) -> PreparedSwap:
        self.memories.append(request.memory)
        return PreparedSwap(self, Mechanism.HOST_THREAD)


def request(launch_bytes: int) -> SwapRequest:
    addresses = [np.arange(16, dtype=np.uint64) * np.uint64(4096) for _ in range(4)]
    memory = SwapMemory(*addresses, sizes=np.full(16, 4096, np.uint64))
    return SwapRequest(open_device("cpu", FaultPlan()), replace(CELL, launch_bytes=launch_bytes), memory)


@pytest.mark.parametrize(
    ("launch_bytes", "blocks"),
    [(0, [16]), (1 << 20, [16]), (4 * 4096, [4] * 4), (5 * 4096 + 1, [5, 5, 5, 1]), (1, [1] * 16)],
)
def test_no_launch_is_larger_than_asked_for_unless_a_block_is(launch_bytes: int, blocks: list[int]) -> None:
    backend = Seen(honest)
    swap = joined(create_launches(backend, request(launch_bytes))).swap
    assert [len(memory.sizes) for memory in backend.memories] == blocks
    assert swap.calls == len(blocks)


def test_a_launch_sees_the_blocks_that_are_written_later() -> None:
    backend, whole = Seen(honest), request(4 * 4096)
    create_launches(backend, whole)
    whole.memory.sources[:] = 7
    assert all((memory.sources == 7).all() for memory in backend.memories)
