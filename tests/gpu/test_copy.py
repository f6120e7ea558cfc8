"""`kvbench.copy.BlockCopier` on a GPU: right bytes, arrays that change, two streams, and no growth."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kvbench.cells.axes import Direction
from kvbench.copy import BlockCopier
from kvbench.engine.device import Device
from tests.swaps import MixedSwap, mixed_swap

pytestmark = pytest.mark.gpu

SMALL, ALIGNED = [1, 7, 16, 24, 64, 100, 4096, 65_536] * 40, [4096] * 700
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Lists:
    """A list between a pinned tensor and one on the GPU, with random bytes in its source."""

    def __init__(self, direction: Direction, swap: MixedSwap) -> None:
        source = torch.randint(0, 256, (swap.span_bytes,), dtype=torch.uint8)
        h2d = direction is Direction.H2D
        self.source = source.pin_memory() if h2d else source.cuda()
        empty = torch.zeros(swap.span_bytes, dtype=torch.uint8)
        self.destination = empty.cuda() if h2d else empty.pin_memory()
        self.swap = swap
        self.expected = empty
        for at, to, size in zip(swap.source_offsets, swap.destination_offsets, swap.sizes, strict=True):
            self.expected[int(to) : int(to + size)] = source[int(at) : int(at + size)]
        torch.cuda.synchronize()

    def tensors(self) -> Tensors:
        def at(offsets: NDArray[np.uint64], buffer: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(offsets.astype(np.int64) + buffer.data_ptr())

        sizes = torch.from_numpy(self.swap.sizes.astype(np.int64))
        return at(self.swap.source_offsets, self.source), at(self.swap.destination_offsets, self.destination), sizes

    def arrived(self) -> bool:
        return bool((self.destination.cpu() == self.expected).all())

    def copied_though_the_arrays_change(self, copier: Any, gpu: Device, *, is_busy: bool, any_order: bool) -> None:
        """Copy the list a few times; the arrays change right after each call."""
        stream = torch.cuda.Stream()
        for _ in range(5):
            self.destination.zero_()
            torch.cuda.synchronize()
            tensors = self.tensors()
            if is_busy:
                gpu.driver.delay(2_000_000, stream.cuda_stream)
            copier.copy(*tensors, stream, source_order_any=any_order)
            for tensor in tensors:
                tensor.fill_(1)
            stream.synchronize()
            assert self.arrived()


def arrive_side_by_side(copier: Any, every: Sequence[Lists]) -> bool:
    """Copy each list a hundred times on a stream of its own, and return whether all arrived."""
    streams = [torch.cuda.Stream() for _ in every]
    for _ in range(100):
        for lists, stream in zip(every, streams, strict=True):
            copier.copy(*lists.tensors(), stream)
    torch.cuda.synchronize()
    return all(lists.arrived() for lists in every)


@pytest.mark.parametrize("sizes", [SMALL, ALIGNED, [65_536] * 50], ids=["mixed", "aligned", "few"])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("pace", [None, 20])
def test_the_bytes_arrive_though_the_arrays_change_right_after_the_call(
    gpu: Device, direction: Direction, sizes: list[int], pace: float | None, is_busy: bool
) -> None:
    lists, any_order = Lists(direction, mixed_swap(sizes, seed=2)), direction is Direction.H2D
    lists.copied_though_the_arrays_change(BlockCopier(gpu.name, pace=pace), gpu, is_busy=is_busy, any_order=any_order)


def test_one_copier_serves_two_streams(gpu: Device) -> None:
    every = [Lists(Direction.H2D, mixed_swap(ALIGNED, seed=number)) for number in range(2)]
    assert arrive_side_by_side(BlockCopier(gpu.name), every)


def test_many_calls_take_no_more_memory(gpu: Device) -> None:
    copier, stream = BlockCopier(gpu.name), torch.cuda.Stream()
    lists = Lists(Direction.D2H, mixed_swap([4096] * 64, seed=4))
    tensors = lists.tensors()
    free_bytes = []
    for _ in range(11):
        for _ in range(10_000):
            copier.copy(*tensors, stream)
        stream.synchronize()
        free_bytes.append(gpu.driver.free_memory()[0])
    # Other processes take memory of the GPU too, but not in every span of calls; a leak does.
    assert any(later >= earlier for earlier, later in pairwise(free_bytes)), free_bytes
    assert lists.arrived()


@pytest.mark.parametrize("alignment", [1, 16], ids=["lanes", "bulk"])
def test_a_byte_of_several_destinations_is_one_of_those_that_go_there(gpu: Device, alignment: int) -> None:
    copier, stream = BlockCopier(gpu.name), torch.cuda.Stream()
    source = torch.randint(0, 256, (400, 4096), dtype=torch.uint8).pin_memory()
    destination = torch.zeros(1 << 16, dtype=torch.uint8, device="cuda")
    offsets = alignment * torch.randint(0, ((1 << 16) - 4096) // alignment, (400,))
    copier.copy(
        source.data_ptr() + 4096 * torch.arange(400), destination.data_ptr() + offsets, torch.full((400,), 4096), stream
    )
    stream.synchronize()
    allowed = np.zeros((1 << 16, 256), bool)
    for offset, block in zip(offsets.tolist(), source.numpy(), strict=True):
        allowed[np.arange(offset, offset + 4096), block] = True
    allowed[~allowed.any(axis=1), 0] = True  # where nothing goes
    assert allowed[np.arange(1 << 16), destination.cpu().numpy()].all()
