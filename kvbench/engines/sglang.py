"""SGLang: the copy kernels of HiCache, compiled by SGLang at run time and compiled in sglang-kernel.

Both take a table of base addresses and ids of rows. An address is `base + id * block_bytes` with `base` below
`block_bytes`, so that any swap of equal blocks that lie on one grid can be given to them.
"""

from functools import cache
from typing import Any, Final

import numpy as np

from kvbench.backends.base import Mechanism, PreparedSwap, SwapRequest
from kvbench.cells.facts import DeviceFacts, EngineSetting
from kvbench.engine.device import Addresses
from kvbench.engines.code import EngineCode
from kvbench.engines.torch_call import PinnedLists, TorchStream
from kvbench.errors import KvbenchError

_AOT: Final = "sgl_kernel/{}/common_ops.abi3.so"
_AOT_OP: Final = "transfer_kv_all_layer_mla"
_AOT_CODES: Final = {name: EngineCode("sglang-kernel", {_AOT.format(name): (_AOT_OP,)}) for name in ("sm90", "sm100")}
_AOT_QUOTA: Final = 2  # the default of SGLANG_HICACHE_BLOCK_QUOTA and of sgl_kernel.kvcacheio
_AOT_WARPS: Final = 32
_JIT: Final = "sglang/kernels/ops/kvcache/hicache.py"
_JIT_KERNELS: Final = tuple(f"sglang/kernels/jit/csrc/kvcacheio/{name}.cuh" for name in ("hicache", "hicache_tma"))
_JIT_NAMES: Final = ("TMA_BLOCK_QUOTA", "transfer_hicache_all_layer_mla")
_JIT_CODE: Final = EngineCode("sglang", {_JIT: _JIT_NAMES, **dict.fromkeys(_JIT_KERNELS, ("run_all_mla",))})
CODES: Final = (*_AOT_CODES.values(), _JIT_CODE)
_JIT_MODULE: Final = "sglang.kernels.ops.kvcache.hicache"


class SglangAot:
    """`transfer_kv_all_layer_mla` of sglang-kernel with one layer; `sms` is its block quota, as shipped 2."""

    name = "sglang_aot"
    summary = "SGLang's copy kernel of sglang-kernel: as shipped, or with a chosen SM count"
    default_sms = ()

    @property
    def package(self) -> str:
        return next((code.title for code in _AOT_CODES.values() if code.missing() is None), "")

    def axes(self, _device: DeviceFacts) -> frozenset[str]:
        return frozenset({"memory", "sms"})

    def unavailable(self, device: DeviceFacts) -> str | None:
        code = next((one for one in _AOT_CODES.values() if one.missing() is None), _AOT_CODES["sm90"])
        return code.unavailable(device) or code.load_error(*code.files)

    def create(self, request: SwapRequest) -> PreparedSwap:
        info = request.device.driver.info
        op = _load_op("sm90" if (info.compute_major, info.compute_minor) == (9, 0) else "sm100")
        sms = request.cell.sms or _AOT_QUOTA

        def launch(source: Any, destination: Any, from_ids: Any, to_ids: Any, block_bytes: int) -> None:
            op(source, destination, from_ids, to_ids, block_bytes, 1, sms, _AOT_WARPS)

        return PreparedSwap(IdsSwap(request, launch), Mechanism.SM_KERNEL)


class SglangJit:
    """`transfer_hicache_all_layer_mla` of SGLang with one layer: its TMA kernel where that fits, else its other one.

    `sms` is the block quota; without it, SGLang decides.
    """

    name = "sglang_jit"
    summary = "SGLang's copy kernels, compiled by SGLang: as shipped, or with a chosen SM count"
    default_sms = ()

    @property
    def package(self) -> str:
        return _JIT_CODE.title

    @property
    def settings(self) -> tuple[EngineSetting, ...]:
        return () if _JIT_CODE.missing() else _JIT_CODE.settings(_JIT)

    def axes(self, _device: DeviceFacts) -> frozenset[str]:
        return frozenset({"memory", "sms"})

    def unavailable(self, device: DeviceFacts) -> str | None:
        return _JIT_CODE.unavailable(device, ("torch", "tvm_ffi")) or _JIT_CODE.import_error(_JIT_MODULE)

    def create(self, request: SwapRequest) -> PreparedSwap:
        module, sms = _load_jit(), request.cell.sms

        def launch(source: Any, destination: Any, from_ids: Any, to_ids: Any, block_bytes: int) -> None:
            module.transfer_hicache_all_layer_mla(
                ptr_dst=destination,
                indices_dst=to_ids,
                ptr_src=source,
                indices_src=from_ids,
                cache_src_stride_bytes=block_bytes,
                cache_dst_stride_bytes=block_bytes,
                block_quota=sms,
            )

        return PreparedSwap(IdsSwap(request, launch), Mechanism.SM_KERNEL)


class IdsSwap:
    """Uploads the ids of both sides, as SGLang does, and calls `launch` with base addresses, ids and block size."""

    calls = 3

    def __init__(self, request: SwapRequest, launch: Any) -> None:
        self._stream, self._launch, memory = TorchStream(request.device), launch, request.memory
        self._block_bytes = int(memory.sizes[0])
        if (memory.sizes != self._block_bytes).any():
            raise KvbenchError("SGLang's kernels copy blocks of one size")
        self._sides = (memory.kernel_sources, memory.kernel_destinations)
        self._pinned = PinnedLists(self._stream, 2, len(memory.sizes))
        torch, device = self._stream.torch, self._stream.device
        bases = [self._base(side) for side in self._sides]
        self._bases = [torch.tensor([base], dtype=torch.uint64, device=device) for base in bases]

    def _base(self, side: Addresses) -> int:
        rests = side % self._block_bytes
        if (rests != rests[0]).any():
            raise KvbenchError("SGLang's kernels copy rows of one tensor: every address must be a row of block_size")
        return int(rests[0])

    def submit(self, stream: int) -> None:
        with self._stream(stream):
            self._pinned.submit([side // np.uint64(self._block_bytes) for side in self._sides], self._upload)

    def _upload(self, *ids: Any) -> None:
        uploaded = [one.to(self._stream.device, non_blocking=True) for one in ids]
        self._launch(*self._bases, *uploaded, self._block_bytes)


@cache
def _load_op(folder: str) -> Any:
    from torch import ops

    library: Any = ops  # its functions have no types
    (file,) = _AOT_CODES[folder].files
    library.load_library(str(_AOT_CODES[folder].path(file)))
    return getattr(library.sgl_kernel, _AOT_OP)


@cache
def _load_jit() -> Any:
    import importlib

    return importlib.import_module(_JIT_MODULE)
