"""SGLang: the copy kernels of HiCache, compiled by SGLang at run time and compiled in sglang-kernel.

Both take a table of base addresses and ids of rows. A block is one row, or the fewest equal rows that the kernel takes.
An address is `base + id * row_bytes` with `base` below `row_bytes`, so that any swap of equal blocks that lie on one
grid can be given to them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from kvbench.backends.base import Mechanism, PreparedSwap, SwapRequest
from kvbench.backends.through_torch import TorchGather, TorchStream, host_bytes, ids_of_rows, pools_of
from kvbench.cells.axes import Direction, ListPlace
from kvbench.cells.cell import EQUAL, Cell
from kvbench.cells.facts import HostMemory
from kvbench.cells.installed import Engine
from kvbench.cells.policy import Choice
from kvbench.cells.units import rough_size
from kvbench.engines.code import EngineBackend, EngineCode, PinnedLists, load_op, stand_ins
from kvbench.ground.errors import KvbenchError
from kvbench.ground.text import counted

if TYPE_CHECKING:
    from kvbench.engine.device import Addresses

_AOT: Final = "sgl_kernel/{}/common_ops.abi3.so"
_AOT_OP: Final = "transfer_kv_all_layer_mla"
_AOT_CODES: Final = {name: EngineCode("sglang-kernel", {_AOT.format(name): (_AOT_OP,)}) for name in ("sm90", "sm100")}
_AOT_QUOTA: Final = 2  # the default of SGLANG_HICACHE_BLOCK_QUOTA and of sgl_kernel.kvcacheio
_AOT_WARPS: Final = 32
_JIT: Final = "sglang/kernels/ops/kvcache/hicache.py"
_CUDA: Final = "sglang/kernels/jit/csrc/kvcacheio/{}.cuh"
_JIT_KERNELS: Final = (_CUDA.format("hicache"), _CUDA.format("hicache_tma"))
_JIT_NAMES: Final = (
    "TMA_BLOCK_QUOTA", "TMA_STAGE_BYTES", "can_use_hicache_jit_kernel", "use_hicache_tma_kernel",
    "transfer_hicache_all_layer_mla",
)  # fmt: skip
_JIT_CODE: Final = EngineCode("sglang", {_JIT: _JIT_NAMES, **dict.fromkeys(_JIT_KERNELS, ("run_all_mla",))})
_STORE: Final = "transfer_hicache_all_layer_staged_lf_pf"
_STORE_MLA: Final = "transfer_hicache_all_layer_mla_staged_lf_pf"
_STORE_KERNELS: Final = (_CUDA.format("staged_write_back"), _CUDA.format("relayout"))
_STORE_NAMES: Final = ("can_use_write_back_jit_kernel", _STORE, _STORE_MLA)
_STORE_CODE: Final = EngineCode("sglang", {_JIT: _STORE_NAMES, **dict.fromkeys(_STORE_KERNELS, ())})
_STORE_PAGES: Final = 64  # its buffer holds as many: _WRITE_BACK_STAGING_PAGE_CHUNK of pool_host/base.py
_SPARSE: Final = "sglang/kernels/ops/kvcache/hisparse.py"
_SPARSE_KERNEL: Final = "sglang/kernels/jit/csrc/kvcacheio/hisparse.cuh"
_SPARSE_CODE: Final = EngineCode(
    "sglang", {_SPARSE: ("copy_cache_planned_mla",), _SPARSE_KERNEL: ("copy_cache_planned",)}
)
_SPARSE_CTAS: Final = 4  # the default of copy_cache_planned_mla
CODES: Final = (*_AOT_CODES.values(), _JIT_CODE, _STORE_CODE, _SPARSE_CODE)
# Their __init__ imports what SGLang depends on; hicache.py needs them as folders only.
_JIT_FOLDERS: Final = ("sglang", "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.kvcache", "sglang.srt")

_STORED: Final = (
    "sglang_store copies whole pages of the host, d2h: name pattern=tensors-T/runs-B and host_pattern=page-first-T/"
    "runs-B, or page-first-L+L/runs-B for K and V of L layers, with the B tokens of a page"
)
_RESERVE_BYTES: Final = 10 << 30  # HICACHE_HOST_MEMORY_RESERVE_BYTES
_SHARE: Final = 0.8  # the default of --hicache-host-memory-fraction


def _pool(host: HostMemory) -> str:
    most = max(0, host.available_bytes - _RESERVE_BYTES) * _SHARE / host.ranks
    ranks = counted(host.ranks, "rank")
    return f"up to {rough_size(int(most))} a rank, or twice the GPU's pool: {_SHARE} of all but 10 GiB over {ranks}"


ENGINE: Final = Engine(
    name="sglang",
    title="SGLang",
    kernel="sglang_jit",
    settings=("TMA_BLOCK_QUOTA",),
    takes=lambda _direction, _bytes, _blocks, values: Choice("sglang_jit", (("sms", str(values[0])),)),
    remark="SGLANG_HICACHE_TMA_TRANSFER=0 takes the other kernel, which was not measured",
    by_default={Direction.D2H: "sglang_store"},
    measured={Direction.D2H: "its kernel (layer_first)"},
    pool=_pool,
)


class SglangAot(EngineBackend):
    """`transfer_kv_all_layer_mla` of sglang-kernel with one layer; `sms` is its block quota, as shipped 2."""

    name = "sglang_aot"
    summary = "SGLang's copy kernel of sglang-kernel: as shipped, or with a chosen SM count"
    codes = tuple(_AOT_CODES.values())

    def create(self, request: SwapRequest) -> PreparedSwap:
        info = request.device.driver.info
        code = _AOT_CODES["sm90" if (info.compute_major, info.compute_minor) == (9, 0) else "sm100"]
        op = load_op(code.path(*code.files), "sgl_kernel", _AOT_OP)
        sms, row_bytes = request.cell.sms or _AOT_QUOTA, request.cell.block_bytes

        def launch(source: Any, destination: Any, from_ids: Any, to_ids: Any) -> None:
            op(source, destination, from_ids, to_ids, row_bytes, 1, sms, _AOT_WARPS)

        return PreparedSwap(IdsSwap(request, row_bytes, launch), Mechanism.SM_KERNEL)


class SglangJit(EngineBackend):
    """`transfer_hicache_all_layer_mla` of SGLang with one layer: its TMA kernel where that fits, else its other one.

    `sms` is the block quota; without it, SGLang decides.
    """

    name = "sglang_jit"
    summary = "SGLang's copy kernels, compiled by SGLang: as shipped, or with a chosen SM count"
    codes = (_JIT_CODE,)
    modules = ("torch", "tvm_ffi")
    loader = "load_jit"
    settings_in = _JIT

    def create(self, request: SwapRequest) -> PreparedSwap:
        module, sms = load_jit(), request.cell.sms
        row_bytes = row_of(request.cell.block_bytes, module.TMA_STAGE_BYTES)
        # SGLang asks this, which compiles the kernel, when it allocates its pool.
        if not module.can_use_hicache_jit_kernel(element_size=row_bytes, block_quota=sms):
            raise KvbenchError(f"SGLang's kernels do not take rows of {row_bytes} bytes, or do not compile")

        def launch(source: Any, destination: Any, from_ids: Any, to_ids: Any) -> None:
            module.transfer_hicache_all_layer_mla(
                ptr_dst=destination,
                indices_dst=to_ids,
                ptr_src=source,
                indices_src=from_ids,
                cache_src_stride_bytes=row_bytes,
                cache_dst_stride_bytes=row_bytes,
                block_quota=sms,
            )

        tma = module.use_hicache_tma_kernel(element_size=row_bytes, block_quota=sms or module.TMA_BLOCK_QUOTA)
        warnings = () if tma else ("SGLang takes its register kernel, which needs no TMA",)
        return PreparedSwap(IdsSwap(request, row_bytes, launch), Mechanism.SM_KERNEL, warnings=warnings)


class SglangHiSparse(EngineBackend):
    """`copy_cache_planned_mla` of SGLang, which fetches the rows of latent attention that a decode step misses.

    The ids of a step, all of one request, lie on the device; `sms` is the number of thread blocks, as shipped 4.
    """

    name = "sglang_hisparse"
    summary = "SGLang's gather of rows by ids on the GPU: as shipped, or with a chosen SM count"
    codes = (_SPARSE_CODE,)
    modules = ("torch", "tvm_ffi")
    loader = "load_hisparse"
    supports = "list memory sms"

    def create(self, request: SwapRequest) -> PreparedSwap:
        if request.cell.list_place is not ListPlace.GPU:
            raise KvbenchError("SGLang's copy_cache_planned_mla takes ids on the GPU (list=gpu)")
        import torch

        module, row_bytes = load_hisparse(), request.cell.block_bytes
        requests: Any = torch.ones(1, dtype=torch.int32, device=TorchStream(request.device).device)
        # the kernel reads nothing of these tensors but where they begin
        host, pool = pools_of(request, (row_bytes,))

        def launch(source_ids: Any, destination_ids: Any, rows: Any) -> None:
            module.copy_cache_planned_mla(
                miss_src=source_ids.view(1, -1),
                miss_dst=destination_ids.view(1, -1),
                miss_count=rows,
                num_real_reqs=requests,
                host_cache=host,
                device_buffer=pool,
                item_size_bytes=row_bytes,
                num_blocks=request.cell.sms or _SPARSE_CTAS,
            )

        return TorchGather(request, launch, types=("int64", "int32")).prepared


@dataclass(frozen=True)
class TokenPages:
    """A store of whole pages of the host, in each of which the rows of a token in all layers lie side by side.

    `regions` are K and V, or 1 of latent attention. Addresses are those of the list.
    """

    regions: int
    layers: int
    page_tokens: int
    row_bytes: int

    @classmethod
    def of_cell(cls, cell: Cell) -> Self:
        """Raises KvbenchError for a cell of other swaps."""
        device, host = cell.sides
        runs = {side.order.run if side.order and side.order.kind == "runs" else 0 for side in cell.sides}
        if cell.direction is Direction.H2D or cell.sizes != EQUAL or host.page != 1 or device.page or len(runs) > 1:
            raise KvbenchError(_STORED)
        kind, page_tokens = host.tensors(cell.blocks)[0], runs.pop()
        if not page_tokens or kind.ids % page_tokens:
            raise KvbenchError(_STORED)
        return cls(host.regions, kind.count // host.regions, page_tokens, cell.block_bytes)

    @property
    def token_bytes(self) -> int:
        """The bytes of a token that lie side by side on the host."""
        return self.layers * self.row_bytes

    def tokens(self, addresses: "Addresses", start: int, apart: int) -> tuple[int, "Addresses"]:
        """Where token 0 of the first tensor lies, in a pool from `start` on with `apart` bytes from each to the
        next, and the numbers of the tokens of the list.
        """
        first = addresses.reshape(self.regions * self.layers, -1)[0]
        base = start + (int(first[0]) - start) % apart
        return base, ids_of_rows(first, base, apart).view(np.uint64)

    def tensors(self, addresses: "Addresses", base: int, number: int) -> list[int]:
        """Where token 0 lies in each of `number` tensors or groups of these; `base` is that of the first."""
        firsts = addresses.reshape(number, -1)[:, 0].tolist()
        return [base + first - firsts[0] for first in firsts]


class SglangStore(EngineBackend):
    """The store of SGLang's default layout, `page_first`: a kernel of one thread for every 16 bytes gathers the rows of
    all layers in a buffer on the GPU, from which whole pages of the host are copied.
    """

    name = "sglang_store"
    summary = "SGLang's store of whole pages of the host, gathered on the GPU: as shipped"
    codes = (_STORE_CODE,)
    modules = ("torch", "tvm_ffi")
    loader = "load_jit"
    supports = "memory"

    def create(self, request: SwapRequest) -> PreparedSwap:
        pages, module = TokenPages.of_cell(request.cell), load_jit()
        if not module.can_use_write_back_jit_kernel(element_size=pages.row_bytes):
            raise KvbenchError(f"SGLang's store does not take rows of {pages.row_bytes} bytes, or does not compile")
        store = getattr(module, _STORE if pages.regions == 2 else _STORE_MLA)
        return PreparedSwap(StoreSwap(request, pages, store), Mechanism.STAGED)


class StoreSwap:
    """Uploads the numbers of the tokens on the GPU, and calls SGLang's store with these and those of the host."""

    def __init__(self, request: SwapRequest, pages: TokenPages, store: Callable[..., None]) -> None:
        self._stream, self._pages, self._store, memory = TorchStream(request.device), pages, store, request.memory
        torch, device, layers = self._stream.torch, self._stream.device, pages.layers
        self._from, self._to = memory.sources, memory.destinations
        seen_elsewhere = int(memory.kernel_destinations[0]) - int(self._to[0])
        self._starts = memory.starts[0], memory.starts[1] - seen_elsewhere
        (on_device, tokens), (on_host, _) = self._tokens()
        # The store goes through its buffer in turns, each of a kernel and a copy.
        buffered = min(len(tokens), _STORE_PAGES * pages.page_tokens)
        self.calls = 2 * -(-len(tokens) // buffered)
        tables = np.array(pages.tensors(self._from, on_device, pages.regions * layers)).reshape(pages.regions, layers)
        shape = (layers, pages.row_bytes)
        self._given = (
            *(torch.tensor(table.tolist(), dtype=torch.uint64, device=device) for table in tables),
            *(torch.empty((buffered, *shape), dtype=torch.uint8, device=device) for _ in range(pages.regions)),
            *(host_bytes(address, (1, *shape)) for address in pages.tensors(self._to, on_host, pages.regions)),
        )
        self._pinned = PinnedLists(self._stream, 1, len(tokens))

    def _tokens(self) -> tuple[tuple[int, "Addresses"], tuple[int, "Addresses"]]:
        """Where token 0 lies, and the numbers of the tokens, on the device and on the host."""
        pages, (device_start, host_start) = self._pages, self._starts
        on_device = pages.tokens(self._from, device_start, pages.row_bytes)
        return on_device, pages.tokens(self._to, host_start, pages.token_bytes)

    def submit(self, stream: int) -> None:
        (_, on_device), (_, on_host) = self._tokens()
        regions = self._pages.regions
        tables, buffers, hosts = (self._given[first : first + regions] for first in range(0, 3 * regions, regions))

        def launch(pinned: Any) -> None:
            uploaded = pinned.to(self._stream.device, non_blocking=True)
            numbers = self._stream.torch.from_numpy(on_host.view(np.int64))
            self._store(*tables, uploaded, numbers, *buffers, *hosts, page_size=self._pages.page_tokens)

        with self._stream(stream):
            self._pinned.submit([on_device], launch)


class IdsSwap:
    """Uploads the ids of both sides, as SGLang does, and calls `launch` with base addresses and ids of rows."""

    calls = 3

    def __init__(self, request: SwapRequest, row_bytes: int, launch: Any) -> None:
        self._stream, self._launch, memory = TorchStream(request.device), launch, request.memory
        if (memory.sizes != request.cell.block_bytes).any():
            raise KvbenchError("SGLang's kernels copy blocks of one size")
        self._sides, self._row_bytes = (memory.kernel_sources, memory.kernel_destinations), row_bytes
        self._rows = request.cell.block_bytes // row_bytes
        self._pinned = PinnedLists(self._stream, 2, len(memory.sizes) * self._rows)
        torch, device = self._stream.torch, self._stream.device
        bases = [base_of(side, row_bytes) for side in self._sides]
        self._bases = [torch.tensor([base], dtype=torch.uint64, device=device) for base in bases]

    def submit(self, stream: int) -> None:
        with self._stream(stream):
            self._pinned.submit([ids_of(side, self._row_bytes, self._rows) for side in self._sides], self._upload)

    def _upload(self, *ids: Any) -> None:
        self._launch(*self._bases, *(rows.to(self._stream.device, non_blocking=True) for rows in ids))


def row_of(block_bytes: int, limit: int) -> int:
    """The size of the fewest equal rows of at most `limit` bytes that make a block."""
    return next(block_bytes // n for n in count(-(-block_bytes // limit)) if block_bytes % n == 0)


def base_of(side: "Addresses", row_bytes: int) -> int:
    """The address of row 0; raises KvbenchError where addresses differ by other than whole rows."""
    rests = side % row_bytes
    if (rests != rests[0]).any():
        raise KvbenchError("SGLang's kernels copy rows of one tensor: every address must be a row of block_size")
    return int(rests[0])


def ids_of(side: "Addresses", row_bytes: int, rows: int) -> "Addresses":
    """The ids of the rows of blocks at these addresses, `rows` a block, in their order."""
    first: Addresses = side // np.uint64(row_bytes)
    return first if rows == 1 else np.add.outer(first, np.arange(rows, dtype=np.uint64)).ravel()


def _load(name: str) -> Any:
    """A module of SGLang's kernels, loaded without sglang itself and what that imports.

    What it imports of sglang stays in sys.modules, as the JIT's records look for their module there.
    """
    folders = {name: {"__path__": [str(_JIT_CODE.path(name.replace(".", "/")))]} for name in _JIT_FOLDERS}
    checks = {"sglang.srt.utils": {}, "sglang.srt.utils.common": {"is_cuda": lambda: True}}
    with stand_ins({**folders, **checks}):
        return import_module(f"sglang.kernels.ops.kvcache.{name}")


load_jit, load_hisparse = (cache(partial(_load, name)) for name in ("hicache", "hisparse"))
