"""vLLM: the batched copy of its compiled library, its Triton path, and the transfer handler that calls either."""

import ctypes
import functools
import inspect
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module, util
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvbench.backends.base import Mechanism, PreparedSwap, SwapRequest
from kvbench.backends.through_torch import TorchGather, TorchStream, pools_of
from kvbench.cells.axes import Direction, ListPlace, Order, StreamState
from kvbench.cells.facts import HostMemory
from kvbench.cells.installed import Engine, Values
from kvbench.cells.policy import Choice
from kvbench.cells.units import rough_size
from kvbench.engines.code import EngineBackend, EngineCode, PinnedLists, by_path, load_op
from kvbench.ground.errors import KvbenchError

if TYPE_CHECKING:
    from kvbench.engine.device import Addresses, SwapMemory

_LIBRARY: Final = "vllm/_C_stable_libtorch.abi3.so"
_TRITON: Final = "vllm/v1/kv_offload/cpu/swap_blocks_triton.py"
_BATCH_CODE: Final = EngineCode("vllm", {_LIBRARY: ("_C_cache_ops", "swap_blocks_batch")})
_SPARSE_CODE: Final = EngineCode("vllm", {_LIBRARY: ("_C_cache_ops", "hisparse_gather_compact")})
_TRITON_CODE: Final = EngineCode("vllm", {_TRITON: ("NUM_SMS", "THRESHOLD_BYTES", "MIN_N", "swap_blocks_batch")})
# Newest first. The op has moved from one library to the other, and 0.20 ships both.
_HANDLER_FILES: Final = ("vllm/v1/kv_offload/cpu/gpu_worker.py", "vllm/v1/kv_offload/worker/cpu_gpu.py")
_LIBRARIES: Final = ("vllm/_C_stable_libtorch.abi3.so", "vllm/_C.abi3.so")
_HANDLER: Final = "SingleDirectionOffloadingHandler"
_HANDLER_NAMES: Final = ("transfer_async", "get_finished", "_stream_pool", "_transfer_events")
_BESIDE_HANDLER: Final = ("CanonicalKVCacheRef", "GPULoadStoreSpec", "BlockIDsLoadStoreSpec")
_HANDLER_CODES: Final = tuple(
    EngineCode("vllm", {file: (_HANDLER, *_HANDLER_NAMES, *_BESIDE_HANDLER), library: ()})
    for file, libraries in zip(_HANDLER_FILES, (_LIBRARIES, _LIBRARIES[::-1]), strict=True)
    for library in libraries
)
CODES: Final = (_BATCH_CODE, _SPARSE_CODE, _TRITON_CODE, _HANDLER_CODES[0])
_WORD_BYTES: Final = 8
_MAX_CHUNK_BYTES: Final = 8192
_REQUEST_ROWS: Final = 2048  # index_topk of the models of sparse attention


def _takes(direction: Direction, block_bytes: int, blocks: int, values: Values) -> Choice:
    sms, below_bytes, from_blocks = values
    if direction is Direction.H2D and block_bytes < below_bytes and blocks >= from_blocks:
        return Choice(VllmTriton.name, (("sms", str(sms)),))
    return Choice(VllmBatch.name)


def _tries(sizes: Sequence[int], counts: Sequence[int], defaults: Values) -> tuple[Sequence[int], ...]:
    _, below_bytes, from_blocks = defaults
    return sorted({below_bytes, *sizes, sizes[-1] + 1}), sorted({from_blocks, *counts})


def _pool(host: HostMemory) -> str:
    """By `SharedOffloadRegion` and `check_shm_free_space`."""
    most = min(host.shm_bytes, host.available_bytes)
    pageable = "; stays pageable: the driver counts memlock" if host.memlock_counts else ""
    return (
        f"up to {rough_size(most)} of all ranks: a file in /dev/shm, with {rough_size(host.shm_bytes)} free{pageable}"
    )


ENGINE: Final = Engine(
    name="vllm",
    title="vLLM",
    same_as="vllm_batch",
    kernel="vllm_triton",
    settings=("NUM_SMS", "THRESHOLD_BYTES", "MIN_N"),
    takes=_takes,
    tries=_tries,
    remark="THRESHOLD_BYTES acts on the largest page of all groups",
    directions=(Direction.H2D,),
    # Loads wait for an event of the compute stream from version 0.28 on.
    states=(StreamState.GATED, StreamState.OPENED),
    pool=_pool,
)


class VllmBatch(EngineBackend):
    """`swap_blocks_batch` of vLLM's library: addresses and sizes in CPU tensors, one batched copy of the driver."""

    name = "vllm_batch"
    summary = "vLLM's batched copy, from its installed package"
    codes = (_BATCH_CODE,)
    supports = "memory order"

    def create(self, request: SwapRequest) -> PreparedSwap:
        return PreparedSwap(VllmBatchSwap(request), Mechanism.BATCHED_COPY)


class VllmBatchSwap:
    """The tensors share the memory of the request's arrays, so that the op reads the current list."""

    calls = 1

    def __init__(self, request: SwapRequest) -> None:
        self._stream = TorchStream(request.device)
        self._op = _load_op()
        self._any_order = request.cell.order is Order.ANY
        memory = request.memory
        lists = (memory.sources, memory.destinations, memory.sizes)
        self._lists = [self._stream.torch.from_numpy(values.view(np.int64)) for values in lists]

    def submit(self, stream: int) -> None:
        with self._stream(stream):
            self._op(*self._lists, self._any_order)


class VllmHiSparse(EngineBackend):
    """`hisparse_gather_compact` of vLLM's library: rows that requests of a decode step miss, by ids on the GPU.

    A request has at most as many rows as a model of sparse attention reads; vLLM chooses the SMs.
    """

    name = "vllm_hisparse"
    summary = "vLLM's gather of rows by ids on the GPU, from its installed package"
    codes = (_SPARSE_CODE,)
    loader = "load_sparse"
    supports = "list memory"

    def create(self, request: SwapRequest) -> PreparedSwap:
        cell = request.cell
        requests = -(-cell.blocks // _REQUEST_ROWS)
        if cell.list_place is not ListPlace.GPU or cell.blocks % requests:
            raise KvbenchError(
                f"vLLM's hisparse_gather_compact takes ids on the GPU (list=gpu), up to {_REQUEST_ROWS} or a multiple"
            )
        rows = max(cell.pool_bytes, cell.dense_bytes) // cell.block_bytes
        gather, (host, device) = load_sparse(), pools_of(request, (rows, cell.block_bytes))
        hot = device.unsqueeze(1)  # vLLM's pages, of one row each

        def launch(source_ids: Any, destination_ids: Any, counts: Any) -> None:
            gather(host, hot, source_ids.view(requests, -1), destination_ids.view(requests, -1), counts)

        return TorchGather(request, launch, types=("int32", "int32"), requests=requests).prepared


class VllmTriton(EngineBackend):
    """`swap_blocks_batch` of swap_blocks_triton.py.

    Without `sms` as shipped: vLLM's NUM_SMS and, for fewer than MIN_N blocks, its fallback to the batched copy. With
    `sms` the same code with that NUM_SMS, for any number of blocks.
    """

    name = "vllm_triton"
    summary = "vLLM's Triton path, from its installed package: as shipped, or with a chosen SM count"
    codes = (_TRITON_CODE,)
    modules = ("torch", "triton")
    loader = "load_wrapper"
    settings_in = _TRITON

    def create(self, request: SwapRequest) -> PreparedSwap:
        swap = VllmTritonSwap(request)
        if not swap.falls_back:
            return PreparedSwap(swap, Mechanism.SM_KERNEL)
        warning = "vLLM's wrapper takes its batched copy for so few blocks"
        return PreparedSwap(swap, Mechanism.BATCHED_COPY, warnings=(warning,))


class VllmTritonSwap:
    """vLLM fills pinned tensors with its lists; so does `submit`, before it calls vLLM's wrapper."""

    def __init__(self, request: SwapRequest) -> None:
        memory, sms = request.memory, request.cell.sms
        if any(int(np.bitwise_or.reduce(part)) % _WORD_BYTES for part in _lists(memory)):
            raise KvbenchError("vLLM's Triton path copies 8-byte words: block_size must be a multiple of 8")
        self._stream = TorchStream(request.device)
        self._module = load_wrapper(() if sms is None else (("NUM_SMS", sms), ("MIN_N", 0)))
        self.falls_back = len(memory.sizes) < self._module.MIN_N
        self.calls = 1 if self.falls_back else 4
        self._memory = memory
        self._any_order = request.cell.direction is Direction.H2D
        self._chunk_bytes = min(1 << (int(memory.sizes.max()) - 1).bit_length(), _MAX_CHUNK_BYTES)
        self._pinned = PinnedLists(self._stream, 3, len(memory.sizes))

    def submit(self, stream: int) -> None:
        with self._stream(stream):
            self._pinned.submit(_lists(self._memory), self._launch)

    def _launch(self, *lists: Any) -> None:
        self._module.swap_blocks_batch(*lists, self._any_order, bytes_per_chunk=self._chunk_bytes)


def _lists(memory: "SwapMemory") -> tuple[Any, Any, Any]:
    return memory.kernel_sources, memory.kernel_destinations, memory.sizes


@cache
def load_wrapper(constants: tuple[tuple[str, int], ...] = ()) -> Any:
    """The module swap_blocks_triton of vLLM, loaded without vllm itself, with `constants` in place of its own."""
    module = _load(_TRITON_CODE, _TRITON, _TRITON_CODE.files[_TRITON])
    vars(module).update(constants)
    return module


class VllmHandler(EngineBackend):
    """`transfer_async` and `get_finished` of vLLM's SingleDirectionOffloadingHandler, for blocks of one tensor a side.

    Supported are handlers whose constructor takes `gpu_tensors`, `cpu_tensors` and `gpu_to_cpu` with
    `block_size_factor` and `kv_cache_groups_data_refs` (0.20, 0.25) or `blocks_per_chunk` and `layer_refs_per_group`
    (0.33), and whose `transfer_async` takes a tuple of both specs or one after the other.
    """

    name = "vllm_handler"
    summary = "vLLM's transfer handler, which chooses between its batched copy and its Triton path"
    codes = _HANDLER_CODES
    loader = "load_handler"
    supports = "memory"

    def create(self, request: SwapRequest) -> PreparedSwap:
        swap = HandlerSwap(request, load_handler())
        return PreparedSwap(swap, Mechanism.SM_KERNEL if swap.takes_triton else Mechanism.BATCHED_COPY)


class HandlerSwap:
    """A swap through a handler of `module`, whose own streams wait for the swap's stream and are waited for by it."""

    def __init__(self, request: SwapRequest, module: Any) -> None:
        memory, block_bytes = request.memory, request.cell.block_bytes
        if (memory.sizes != block_bytes).any():
            raise KvbenchError("vLLM's handler copies blocks of one size")
        self._module, self._h2d = module, request.cell.direction is Direction.H2D
        self._stream = TorchStream(request.device)
        self._cuda = self._stream.torch.cuda
        self._sides = [Rows(side, block_bytes) for side in (memory.kernel_sources, memory.kernel_destinations)]
        host, gpu = self._sides if self._h2d else self._sides[::-1]
        refs = [[module.CanonicalKVCacheRef(tensor_idx=0, page_size_bytes=block_bytes)]]
        torch = self._stream.torch
        self._handler = built(
            getattr(module, _HANDLER),
            gpu_tensors=[torch.as_tensor(gpu, device=self._stream.device)],
            cpu_tensors=[torch.from_numpy(host.array())],
            gpu_to_cpu=not self._h2d,
            block_size_factor=1,
            kv_cache_groups_data_refs=refs,
            blocks_per_chunk=1,
            layer_refs_per_group=refs,
        )
        self._one_spec = len(inspect.signature(self._handler.transfer_async).parameters) == 2
        self._jobs = count()
        # vLLM binds the size of the kernel's chunks to the wrapper around its kernel.
        self.takes_triton = isinstance(getattr(self._handler, "_swap_blocks_batch", None), functools.partial)
        self.calls = 4 if self.takes_triton else 1

    def submit(self, stream: int) -> None:
        handler, job = self._handler, next(self._jobs)
        with self._stream(stream):
            handler.get_finished()
            if not handler._stream_pool:
                handler._stream_pool.append(self._cuda.Stream())
            current = self._cuda.current_stream()
            for pooled in handler._stream_pool:  # before 0.28 loads did not wait
                pooled.wait_stream(current)
            specs = self._specs()
            handler.transfer_async(job, specs) if self._one_spec else handler.transfer_async(job, *specs)
            current.wait_event(handler._transfer_events[job])

    def _specs(self) -> Sequence[Any]:
        turn = slice(None, None, 1 if self._h2d else -1)
        host, gpu = (side.ids() for side in self._sides[turn])
        to_or_from_gpu = self._module.GPULoadStoreSpec(gpu, group_sizes=[len(gpu)], block_indices=[0])
        specs: Sequence[Any] = (_host_spec_of(self._module.BlockIDsLoadStoreSpec)(host), to_or_from_gpu)
        return specs[turn]


@cache
def _host_spec_of(base: type) -> type:
    return type("HostSpec", (base,), {"medium": staticmethod(lambda: "CPU")})


class Rows:
    """One side of a swap as rows of a tensor: `addresses`, which change from swap to swap, all on one grid of blocks.

    Row 0 is the lowest address of the first list, since the pool's begin is unknown: an id can be negative.
    """

    def __init__(self, addresses: "Addresses", block_bytes: int) -> None:
        self._addresses, self._block_bytes, self._base = addresses, block_bytes, int(addresses.min())
        if ((addresses - np.uint64(self._base)) % np.uint64(block_bytes)).any():
            raise KvbenchError("vLLM's handler copies rows of one tensor: every address must be a row of block_size")
        # How other libraries read memory on a GPU: numba's description of an array.
        self.__cuda_array_interface__ = {
            "shape": (2, block_bytes), "typestr": "|i1", "data": (self._base, False), "version": 3,
        }  # fmt: skip

    def array(self) -> Any:
        return np.ctypeslib.as_array((ctypes.c_int8 * (2 * self._block_bytes)).from_address(self._base)).reshape(2, -1)

    def ids(self) -> Any:
        return (self._addresses - np.uint64(self._base)).view(np.int64) // self._block_bytes


def built(handler: Any, **offered: Any) -> Any:
    """A handler, given what it takes of `offered`; raises KvbenchError for a form that is not supported."""
    parameters = inspect.signature(handler).parameters
    needed = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
    if unknown := needed - offered.keys():
        raise KvbenchError(f"vLLM's {_HANDLER} needs {' and '.join(sorted(unknown))}, which kvbench does not know")
    instance = handler(**{name: value for name, value in offered.items() if name in parameters})
    if absent := [name for name in _HANDLER_NAMES if not hasattr(instance, name)]:
        raise KvbenchError(f"vLLM's {_HANDLER} has no {' and no '.join(absent)}")
    return instance


@cache
def load_handler() -> Any:
    """The module of vLLM's handler, loaded without vllm itself."""
    code = next(code for code in _HANDLER_CODES if code.missing() is None)
    return _load(code, next(iter(code.files)), (_HANDLER, *_BESIDE_HANDLER))


def _load(code: EngineCode, file: str, names: Sequence[str]) -> Any:
    """A module of vLLM by its file, with stand-ins for what is not KV offloading; it must have these `names`."""
    import torch

    def swap_blocks_batch(*lists: Any, **named: Any) -> None:
        _load_op()(*lists, *named.values())  # however many it takes

    has_triton = util.find_spec("triton") is not None
    triton = {"triton": import_module("triton"), "tl": import_module("triton.language")} if has_triton else {}
    stand_ins: dict[str, dict[str, Any]] = {
        "vllm._custom_ops": {"swap_blocks_batch": swap_blocks_batch},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.platforms": {"current_platform": _Platform(torch.cuda)},
        "vllm.triton_utils": {"HAS_TRITON": has_triton, **triton},
        "vllm.utils.torch_utils": {"PIN_MEMORY": True},
        "vllm.utils.platform_utils": {"is_pin_memory_available": lambda: True},
    }
    with by_path(code.path(""), ("vllm.v1.kv_offload", "vllm.utils.math_utils"), stand_ins):
        module = import_module(file.removesuffix(".py").replace("/", "."))
    if absent := [name for name in names if not hasattr(module, name)]:
        raise KvbenchError(f"vllm {code.version}: {file} has no {' and no '.join(absent)}")
    return module


@cache
def _load_op() -> Any:
    for library in filter(Path.is_file, map(_BATCH_CODE.path, _LIBRARIES)):
        with suppress(AttributeError):
            return load_op(library, "_C_cache_ops", "swap_blocks_batch")
    raise KvbenchError(f"vllm {_BATCH_CODE.version}: no library has the op swap_blocks_batch")


def load_sparse() -> Any:
    return load_op(_SPARSE_CODE.path(_LIBRARY), "_C_cache_ops", "hisparse_gather_compact")


class _Platform:
    """vLLM's current_platform on a GPU of NVIDIA, as far as a handler asks it."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda

    def __getattr__(self, name: str) -> Any:
        if name.startswith("is_"):
            return lambda: name in ("is_cuda", "is_cuda_alike")
        return getattr(self._cuda, name)
