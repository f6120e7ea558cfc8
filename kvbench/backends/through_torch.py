"""Calls through torch: on a stream given by its handle, and rows gathered in a CUDA graph that torch captured."""

import ctypes
import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvbench.backends.base import Mechanism, PreparedSwap, SwapRequest
from kvbench.ground.errors import KvbenchError

if TYPE_CHECKING:
    from kvbench.engine.device import Addresses, Device


def not_installed(*modules: str) -> str | None:
    """Which of these modules are missing and how to install them, or None."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return f"{' and '.join(missing)} not installed; install kvbench[cuda]" if missing else None


class TorchStream:
    """Makes CUDA streams, given by handle, torch's current stream; a torch object is created once per stream."""

    def __init__(self, device: "Device") -> None:
        # Imported here: torch takes seconds to load, and a machine without a GPU can lack it.
        import torch

        self.torch: Any = torch
        self.device = device.name
        self._streams: dict[int, Any] = {}

    def __call__(self, handle: int) -> Any:
        """The context in which the stream is current."""
        if handle not in self._streams:
            self._streams[handle] = self.torch.cuda.ExternalStream(handle, device=self.device)
        return self.torch.cuda.stream(self._streams[handle])


class TorchGather:
    """A gather of equal rows whose ids lie on the device, in a CUDA graph with what `launch` submits.

    `launch` gets the tensors of the rows' ids in the source and in the destination, counted from the start of each
    pool and of the types in `types`, and an int32 tensor with the number of rows of each of `requests`, on torch's
    current stream.
    """

    calls = 1

    def __init__(
        self, request: SwapRequest, launch: Callable[..., None], types: Sequence[str], requests: int = 1
    ) -> None:
        self._stream, self._memory = TorchStream(request.device), request.memory
        self._row_bytes = request.cell.block_bytes
        torch, rows = self._stream.torch, len(request.memory.sizes)
        with torch.cuda.device(self._stream.device):
            self._ids = [torch.zeros(rows, dtype=getattr(torch, name), device="cuda") for name in types]
            count = torch.zeros(requests, dtype=torch.int32, device="cuda")
            self._read_by_graph = (count, launch)  # a graph keeps no tensor alive
            side = torch.cuda.Stream()
            self._graph: Any = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                launch(*self._ids, count)  # compiles and loads what a capture cannot, and moves no row
            side.synchronize()
            with torch.cuda.graph(self._graph, stream=side, capture_error_mode="thread_local"):
                launch(*self._ids, count)
            count.fill_(rows // requests)
            torch.cuda.synchronize()

    @property
    def prepared(self) -> PreparedSwap:
        return PreparedSwap(self, Mechanism.SM_KERNEL, stage=self.stage)

    def stage(self) -> None:
        """Write the ids of the caller's arrays to the device and wait for them."""
        torch, memory = self._stream.torch, self._memory
        sides = (memory.kernel_sources, memory.kernel_destinations)
        with torch.cuda.device(self._stream.device):
            for ids, addresses, start in zip(self._ids, sides, memory.starts, strict=True):
                ids.copy_(torch.from_numpy(ids_of_rows(addresses, start, self._row_bytes)))
            torch.cuda.current_stream().synchronize()

    def submit(self, stream: int) -> None:
        with self._stream(stream):
            self._graph.replay()


class _OnDevice:
    """Memory of the device that torch did not allocate, as torch takes it."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {"data": (address, False), "shape": shape, "typestr": "|u1", "version": 3}


def host_bytes(address: int, shape: tuple[int, ...]) -> Any:
    """A tensor of bytes at an address of the host."""
    import torch

    memory = (ctypes.c_uint8 * int(np.prod(shape))).from_address(address)
    return torch.from_numpy(np.ctypeslib.as_array(memory).reshape(shape))


def pools_of(request: SwapRequest, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Tensors of bytes from the start of the host's and of the device's pool of an h2d swap."""
    import torch

    memory = request.memory
    # Of the host's pool only the address is known by which kernels reach it: the first row lies as far behind either.
    start = int(memory.sources[0]) - (int(memory.kernel_sources[0]) - memory.starts[0])
    return host_bytes(start, shape), torch.as_tensor(
        _OnDevice(memory.starts[1], shape), device=TorchStream(request.device).device
    )


def ids_of_rows(addresses: "Addresses", start: int, row_bytes: int) -> NDArray[np.int64]:
    """The numbers of rows that lie whole rows behind `start`; raises KvbenchError for others."""
    offsets = addresses - np.uint64(start)
    if (offsets % np.uint64(row_bytes)).any():
        raise KvbenchError("the rows of a gather must lie whole rows apart")
    return (offsets // np.uint64(row_bytes)).view(np.int64)
