"""What LMCache's library is given for the blocks of a swap, and what it cannot take."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvbench.backends.base import SwapRequest
from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.engine.device import Addresses, SwapMemory
from kvbench.engines import lmcache
from kvbench.engines.lmcache import LmCache, check
from kvbench.ground.errors import KvbenchError

# Rows of 2 tensors: 3 chunks of 4 blocks on the host, the same ids in both tensors on the GPU.
CHUNKS = np.add.outer([0, 4], np.add.outer([40, 8, 80], np.arange(4))).astype(np.uint64)
BLOCKS = np.add.outer([0, 1000], [7, 3, 5, 900, 2, 8, 1, 4, 6, 9, 11, 10]).astype(np.uint64)
SIZES = np.full(24, 4096, np.uint64)


def test_chunks_of_tensors_and_chunks_of_one_block_are_taken() -> None:
    check(CHUNKS * SIZES[0], BLOCKS * SIZES[0] + np.uint64(512), SIZES)
    check(BLOCKS.reshape(1, -1, 1), BLOCKS[::-1].reshape(1, -1) * SIZES[0], SIZES)


def test_blocks_of_tensors_that_lie_apart_on_the_host_are_refused() -> None:
    with pytest.raises(KvbenchError, match="host_pattern must be page-first-TxC"):
        check(BLOCKS.reshape(2, 3, 4) * SIZES[0], BLOCKS * SIZES[0], SIZES)


@pytest.mark.parametrize("moved", [8, 4096])
def test_blocks_off_the_rows_of_their_tensors_are_refused(moved: int) -> None:
    gpu = BLOCKS * SIZES[0]
    gpu[1, 5] += np.uint64(moved)
    with pytest.raises(KvbenchError, match="in rows"):
        check(CHUNKS * SIZES[0], gpu, SIZES)


@pytest.mark.parametrize(("size", "last"), [(24, 24), (4096, 2048)])
def test_sizes_that_the_kernel_cannot_copy_are_refused(size: int, last: int) -> None:
    sizes = np.array([size] * 23 + [last], np.uint64)
    with pytest.raises(KvbenchError, match="one size, a multiple of 32"):
        check(CHUNKS * sizes[0], BLOCKS * sizes[0], sizes)


Copies = set[tuple[int, int, int]]


class Library:
    """LMCache's two libraries as far as a swap needs them; `copies` are the (source, destination, bytes) asked for."""

    TransferDirection = Direction
    EngineKVFormat = SimpleNamespace(NL_X_NB_BS_HS=3)
    PageBufferShapeDesc = SimpleNamespace

    def __init__(self) -> None:
        self.copies: Copies = set()

    def multi_layer_block_kv_transfer(
        self, bases: Any, chunks: Sequence[int], ids: Any, _device: object, direction: Direction, *how: Any
    ) -> None:
        assert len(chunks) <= 4
        for chunk, chunk_ids in zip(chunks, np.split(ids.numpy(), len(chunks)), strict=True):
            self._copy(direction, bases.tolist(), chunk, chunk_ids.tolist(), *how)

    def _copy(
        self, direction: Direction, bases: Any, chunk: int, ids: Any, shape: Any, tokens: int, kind: int, skipped: int
    ) -> None:
        assert (kind, skipped, len(bases), len(ids)) == (3, 0, shape.nl, tokens // shape.bs)
        size = shape.kv_size * shape.bs * shape.nh * shape.hs * shape.element_size
        for tensor, base in enumerate(bases):
            for number, one in enumerate(ids):
                ends = chunk + (tensor * len(ids) + number) * size, base + one * size
                self.copies.add((*(ends if direction is Direction.H2D else ends[::-1]), size))


class Stream:
    device = "cpu"

    def __init__(self, _device: object) -> None:
        self.torch = pytest.importorskip("torch")

    def __call__(self, _handle: int) -> Any:
        return nullcontext()


class Lists:
    def __init__(self, *_: object) -> None: ...

    def submit(self, values: Sequence[Addresses], launch: Callable[..., None]) -> None:
        from_numpy = pytest.importorskip("torch").from_numpy
        launch(*(from_numpy(one.view(np.int64)) for one in values))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """The library, whose types are not in the module of its functions, as from LMCache 0.5.4 on."""
    made = Library()
    types = ("TransferDirection", "EngineKVFormat", "PageBufferShapeDesc")
    functions = {name: getattr(made, name) for name in dir(made) if not name.startswith("_") and name not in types}
    monkeypatch.setattr(lmcache, "load_ops", lambda: (SimpleNamespace(**functions), made))
    monkeypatch.setattr(lmcache, "TorchStream", Stream)
    monkeypatch.setattr(lmcache, "PinnedLists", Lists)
    return made


@pytest.mark.parametrize("direction", Direction)
def test_the_library_is_asked_for_the_copies_of_every_list(library: Library, direction: Direction) -> None:
    ends = [CHUNKS.ravel() * SIZES[0] + np.uint64(1 << 46), BLOCKS.ravel() * SIZES[0] + np.uint64((1 << 45) + 512)]
    sources, destinations = ends if direction is Direction.H2D else ends[::-1]
    patterns = {"pattern": Pattern.parse("tensors-2"), "host_pattern": Pattern.parse("page-first-2x4")}
    cell = Cell("lmcache", direction, len(sources), int(SIZES[0]), **patterns)
    memory = SwapMemory(sources, destinations, sources, destinations, SIZES)
    swap: Any = LmCache().create(SwapRequest(SimpleNamespace(), cell, memory)).swap  # type: ignore[arg-type]
    for moved in (0, -5 * 4096, 1 << 33):  # lists are rewritten in place
        for side in (sources, destinations):
            side += np.uint64(moved % (1 << 64))
        library.copies.clear()
        swap.submit(0)
        assert library.copies == set(zip(sources.tolist(), destinations.tolist(), SIZES.tolist(), strict=True))
