"""LMCache: the kernel between chunks of host memory and blocks of the GPU.

It takes a base for each tensor on the GPU, ids of blocks, and addresses of chunks. A chunk holds blocks of all
tensors, tensor by tensor, as with `host_pattern=page-first-TxC`. Without pages, a chunk is one block.
"""

import math
from functools import cache
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from kvbench.backends.base import Mechanism, PreparedSwap, SwapRequest
from kvbench.backends.through_torch import TorchStream
from kvbench.cells.axes import Direction
from kvbench.cells.installed import Engine
from kvbench.engines.code import EngineBackend, EngineCode, PinnedLists, stand_ins
from kvbench.ground.errors import KvbenchError

if TYPE_CHECKING:
    from kvbench.engine.device import Addresses

_OP: Final = "multi_layer_block_kv_transfer"
_TYPES: Final = ("PageBufferShapeDesc", "TransferDirection", "NL_X_NB_BS_HS")
_CUDA, _NATIVE, _OLD = (f"lmcache/{name}{EXTENSION_SUFFIXES[0]}" for name in ("cuda_ops", "lmcache_native", "c_ops"))
# From LMCache 0.5.4 on, types have a library of their own.
CODE: Final = EngineCode("lmcache", {_CUDA: (_OP,), _NATIVE: _TYPES})
CODES: Final = (CODE,)
_OLD_CODE: Final = EngineCode("lmcache", {_OLD: (_OP, *_TYPES)})
_CALL_CHUNKS: Final = 4
_BLOCK_TOKENS: Final = 16  # with elements of two bytes, a block is a multiple of 32 bytes
_HEAD_BYTES: Final = 256 * _BLOCK_TOKENS  # of 128 elements of two bytes; the kernel has a warp for each of up to 8

ENGINE: Final = Engine(name="lmcache", title="LMCache", pages=True)


class LmCache(EngineBackend):
    name = "lmcache"
    summary = "LMCache's kernel between chunks of host memory and blocks of the GPU, from its installed package"
    codes: ClassVar[tuple[EngineCode, ...]] = (CODE, _OLD_CODE)
    loader = "load_ops"
    supports = "memory"

    def create(self, request: SwapRequest) -> PreparedSwap:
        return PreparedSwap(LmCacheSwap(request), Mechanism.SM_KERNEL)


class LmCacheSwap:
    """A swap as LMCache sees it: the addresses of chunks, and ids of blocks in tensors from `_bases` on.

    Uploads the ids of blocks, and calls the kernel for every four chunks, as LMCache's connectors do.
    """

    def __init__(self, request: SwapRequest) -> None:
        cell, memory, h2d = request.cell, request.memory, request.cell.direction is Direction.H2D
        host, gpu = (memory.kernel_sources, memory.kernel_destinations)[:: 1 if h2d else -1]
        pattern, self._block_bytes = cell.sides[0 if h2d else 1], cell.block_bytes
        tensors, self._blocks = (pattern.terms[0].count, pattern.page) if pattern.page else (1, 1)
        check(host.reshape(tensors, -1, self._blocks), gpu.reshape(tensors, -1), memory.sizes)
        ids = len(gpu) // tensors
        self._gpu, self._chunks = gpu[:ids], host[: ids : self._blocks]
        # No id is negative, and each fits in 31 bits: tensors begin as far below their first block as that takes.
        before = min(int(gpu[0]) // self._block_bytes, 1 << 30) * self._block_bytes
        self._start, bases = int(gpu[0]) - before, gpu[::ids] - np.uint64(before)
        self._stream, (ops, enums) = TorchStream(request.device), load_ops()
        self._op, self._pinned = getattr(ops, _OP), PinnedLists(self._stream, 1, len(self._gpu))
        device = self._stream.torch.device(self._stream.device)
        self._table = self._stream.torch.from_numpy(bases.view(np.int64)).to(device)
        direction = enums.TransferDirection.H2D if h2d else enums.TransferDirection.D2H
        shape, tokens = _shape(enums.PageBufferShapeDesc(), self._block_bytes, tensors), self._blocks * _BLOCK_TOKENS
        self._how = (device, direction, shape, tokens, enums.EngineKVFormat.NL_X_NB_BS_HS, 0)
        self.calls = 1 + -(-len(self._chunks) // _CALL_CHUNKS)

    def submit(self, stream: int) -> None:
        ids = (self._gpu - np.uint64(self._start)) // np.uint64(self._block_bytes)
        with self._stream(stream):
            self._pinned.submit([ids], self._launch)

    def _launch(self, ids: Any) -> None:
        uploaded, chunks = ids.to(self._stream.device, non_blocking=True), self._chunks.tolist()
        for start in range(0, len(chunks), _CALL_CHUNKS):
            part = chunks[start : start + _CALL_CHUNKS]
            blocks = slice(start * self._blocks, (start + len(part)) * self._blocks)
            self._op(self._table, part, uploaded[blocks], *self._how)


def check(host: "Addresses", gpu: "Addresses", sizes: "Addresses") -> None:
    """Check that blocks lie as LMCache's kernel copies them; raises KvbenchError.

    `host` has the shape (tensors, chunks, blocks of a chunk), `gpu` (tensors, blocks), `sizes` (tensors x blocks,).
    """
    inside = np.arange(host[:, 0].size, dtype=np.uint64).reshape(len(host), 1, -1) * sizes[0]
    if (host - host[:1, :, :1] != inside).any():
        raise KvbenchError("a chunk of LMCache is one piece of memory: host_pattern must be page-first-TxC")
    steps, block_bytes = (gpu - gpu[:, :1]).view(np.int64), int(sizes[0])
    if (sizes != block_bytes).any() or (steps != steps[0]).any() or (steps % block_bytes).any() or block_bytes % 32:
        raise KvbenchError("LMCache's kernel copies blocks of one size, a multiple of 32 bytes, that lie in rows")


def _shape(shape: Any, block_bytes: int, tensors: int) -> Any:
    shape.kv_size, shape.nl, shape.bs, shape.element_size = 1, tensors, _BLOCK_TOKENS, 2
    shape.nh = max(1, math.gcd(block_bytes, 8 * _HEAD_BYTES) // _HEAD_BYTES)
    shape.hs = block_bytes // (shape.bs * shape.nh * shape.element_size)
    return shape


@cache
def load_ops() -> tuple[Any, Any]:
    """The modules of LMCache's functions and of its types, loaded without lmcache itself."""
    code = LmCache().code
    names = [file.rpartition("/")[2].partition(".")[0] for file in code.files]
    with stand_ins({"lmcache": {"__path__": [str(code.path("lmcache"))]}}):
        return import_module(f"lmcache.{names[0]}"), import_module(f"lmcache.{names[-1]}")
