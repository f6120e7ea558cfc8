"""Swaps as an engine's thread makes them, by a call from Python; and the least that such a call takes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kvbench.backends.auto import Auto
from kvbench.backends.base import Backend, Mechanism, PreparedSwap, SwapRequest
from kvbench.backends.through_torch import TorchStream, not_installed
from kvbench.cells.axes import DEFAULT_ORDER, Order
from kvbench.cells.facts import COPIER, EMPTY, EMPTY_TORCH, DeviceFacts


class CopierFromPython(Auto):
    """`BlockCopier.copy` with three tensors; `auto` runs the same code, called from C++."""

    name = COPIER
    summary = "kvbench.copy.BlockCopier as an engine calls it: from Python, with tensors"
    on_request = True

    def unavailable(self, device: DeviceFacts) -> str | None:
        return not_installed("torch") if device.kind == "cuda" else None

    def create(self, request: SwapRequest) -> PreparedSwap:
        order = request.cell.order or DEFAULT_ORDER[request.cell.direction]
        prepared = super().create(request)
        copy = self._copier(request.device, request.policy).engine.copy
        return replace(prepared, swap=_Call(copy, request, any_order=order is Order.ANY), warnings=())


class _Call:
    """The lists share the memory of the request's arrays, so that the copier reads the current one."""

    calls = 1

    def __init__(self, copy: Callable[..., None], request: SwapRequest, *, any_order: bool) -> None:
        memory = request.memory
        self._copy, self._any_order = copy, any_order
        arrays = [values.view(np.int64) for values in (memory.sources, memory.destinations, memory.sizes)]
        self._lists: list[object] = [*arrays]
        if request.device.is_cuda:
            # Imported here: torch takes seconds to load, and a machine without a GPU can lack it.
            import torch

            self._lists = [torch.from_numpy(array) for array in arrays]

    def submit(self, stream: int) -> None:
        self._copy(*self._lists, stream, source_order_any=self._any_order)


class EmptyLaunch(Backend):
    """Launches a kernel of one thread that copies nothing: what a call with any kernel takes at least."""

    name = EMPTY
    summary = "an empty launch from Python, which copies nothing: the floor of a call"
    on_request = True

    def create(self, request: SwapRequest) -> PreparedSwap:
        return PreparedSwap(_Launch(request), Mechanism.NOTHING)


class _Launch:
    calls = 1

    def __init__(self, request: SwapRequest) -> None:
        self._delay = request.device.driver.delay

    def submit(self, stream: int) -> None:
        self._delay(0, stream)  # ns: the kernel ends at once


class EmptyTorchLaunch(Backend):
    """Launches a kernel of torch that writes one byte, on the stream as the backends of engines make it current.

    Their calls cannot take less than this: what an engine's code takes more is its own, and not of how it is called.
    """

    name = EMPTY_TORCH
    summary = "an empty launch through torch, as the backends of engines make theirs: the floor of their calls"
    on_request = True

    def unavailable(self, device: DeviceFacts) -> str | None:
        return not_installed("torch") if device.kind == "cuda" else "a launch through torch needs a GPU"

    def create(self, request: SwapRequest) -> PreparedSwap:
        return PreparedSwap(_TorchLaunch(request), Mechanism.NOTHING)


class _TorchLaunch:
    calls = 1

    def __init__(self, request: SwapRequest) -> None:
        self._stream = TorchStream(request.device)
        self._byte = self._stream.torch.zeros(1, dtype=self._stream.torch.uint8, device=self._stream.device)

    def submit(self, stream: int) -> None:
        with self._stream(stream):
            self._byte.zero_()
