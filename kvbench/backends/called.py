"""Swaps as an engine's thread makes them, by a call from Python; and the least that such a call takes."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from kvbench.backends.auto import Auto
from kvbench.backends.base import Backend, Mechanism, PreparedSwap, SwapRequest
from kvbench.cells.axes import DEFAULT_ORDER, Order
from kvbench.cells.facts import COPIER, EMPTY, DeviceFacts

_SHORTEST_NS: Final = 0


class CopierFromPython(Auto):
    """`BlockCopier.copy` with three tensors; `auto` runs the same code, called from C++."""

    name = COPIER
    summary = "kvbench.copy.BlockCopier as an engine calls it: from Python, with tensors"
    on_request = True

    def unavailable(self, device: DeviceFacts) -> str | None:
        if device.kind == "cuda" and importlib.util.find_spec("torch") is None:
            return "torch not installed; install kvbench[cuda]"
        return None

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

            self._lists = [torch.from_numpy(one) for one in arrays]

    def submit(self, stream: int) -> None:
        self._copy(*self._lists, stream, source_order_any=self._any_order)


class EmptyLaunch(Backend):
    """Launches a kernel of one thread that copies nothing: what a call with any kernel takes at least."""

    name = EMPTY
    summary = "an empty launch from Python, which copies nothing: the floor of a call"
    on_request = True

    def axes(self, _device: DeviceFacts) -> frozenset[str]:
        return frozenset()

    def create(self, request: SwapRequest) -> PreparedSwap:
        return PreparedSwap(_Launch(request), Mechanism.NOTHING)


class _Launch:
    calls = 1

    def __init__(self, request: SwapRequest) -> None:
        self._delay = request.device.driver.delay

    def submit(self, stream: int) -> None:
        self._delay(_SHORTEST_NS, stream)
