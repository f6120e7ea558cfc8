"""vLLM: the batched copy of its compiled library and its Triton path, as gpu_worker.py of vLLM calls them."""

from collections.abc import Sequence
from functools import cache
from importlib import util
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvbench.backends.base import Mechanism, PreparedSwap, SwapRequest
from kvbench.cells.axes import Direction, Order, StreamState
from kvbench.cells.device_facts import DeviceFacts
from kvbench.cells.policy import Choice
from kvbench.engines.code import EngineCode, OfPackage, PinnedLists, TorchStream, load_op, stand_ins
from kvbench.errors import KvbenchError
from kvbench.sweep.installed import Engine, Values

if TYPE_CHECKING:
    from kvbench.engine.device import SwapMemory

_LIBRARY: Final = "vllm/_C_stable_libtorch.abi3.so"
_TRITON: Final = "vllm/v1/kv_offload/cpu/swap_blocks_triton.py"
_BATCH_CODE: Final = EngineCode("vllm", {_LIBRARY: ("_C_cache_ops", "swap_blocks_batch")})
_TRITON_CODE: Final = EngineCode("vllm", {_TRITON: ("NUM_SMS", "THRESHOLD_BYTES", "MIN_N", "swap_blocks_batch")})
CODES: Final = (_BATCH_CODE, _TRITON_CODE)
_WORD_BYTES: Final = 8
_MAX_CHUNK_BYTES: Final = 8192


def _takes(direction: Direction, block_bytes: int, blocks: int, values: Values) -> Choice:
    sms, below_bytes, from_blocks = values
    if direction is Direction.H2D and block_bytes < below_bytes and blocks >= from_blocks:
        return Choice(VllmTriton.name, (("sms", str(sms)),))
    return Choice(VllmBatch.name)


def _tries(sizes: Sequence[int], counts: Sequence[int], defaults: Values) -> tuple[Sequence[int], ...]:
    _, below_bytes, from_blocks = defaults
    return sorted({below_bytes, *sizes, sizes[-1] + 1}), sorted({from_blocks, *counts})


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
)


class VllmBatch(OfPackage):
    """`swap_blocks_batch` of vLLM's library: addresses and sizes in CPU tensors, one batched copy of the driver."""

    name = "vllm_batch"
    summary = "vLLM's batched copy, from its installed package"
    codes = (_BATCH_CODE,)

    def axes(self, _device: DeviceFacts) -> frozenset[str]:
        return frozenset({"memory", "order"})

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
        self._lists = [self._stream.torch.from_numpy(one.view(np.int64)) for one in lists]

    def submit(self, stream: int) -> None:
        with self._stream(stream):
            self._op(*self._lists, self._any_order)


class VllmTriton(OfPackage):
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


def _load_op() -> Any:
    return load_op(_BATCH_CODE.path(_LIBRARY), "_C_cache_ops", "swap_blocks_batch")


@cache
def load_wrapper(constants: tuple[tuple[str, int], ...] = ()) -> Any:
    """Return vLLM's module swap_blocks_triton, loaded without vllm itself, with `constants` in place of its own."""
    import triton
    import triton.language

    def swap_blocks_batch(*lists: Any, is_src_access_order_any: bool) -> None:
        _load_op()(*lists, is_src_access_order_any)

    stubs = {
        "vllm": {},
        "vllm._custom_ops": {"swap_blocks_batch": swap_blocks_batch},
        "vllm.triton_utils": {"triton": triton, "tl": triton.language},
    }
    spec = util.spec_from_file_location("kvbench_vllm_swap_blocks_triton", _TRITON_CODE.path(_TRITON))
    assert spec is not None
    assert spec.loader is not None
    module: Any = util.module_from_spec(spec)
    with stand_ins(stubs):
        spec.loader.exec_module(module)
    if lost := [name for name in _TRITON_CODE.files[_TRITON] if not hasattr(module, name)]:
        raise KvbenchError(f"vllm {_TRITON_CODE.version}: {_TRITON} has no {' and no '.join(lost)}")
    vars(module).update(constants)
    return module
