"""What calls into torch share: ops of a library, the measured stream as the current one, lists in pinned memory."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from kvbench.engine.device import Device

# Engines keep a pinned set of lists for each transfer in flight; more than this many are never in flight here.
_SETS: Final = 4


@cache
def load_op(library: Path, namespace: str, name: str) -> Any:
    """Return an op of a library, which torch loads."""
    from torch import ops

    loaded: Any = ops  # its functions have no types
    loaded.load_library(str(library))
    return getattr(getattr(loaded, namespace), name)


class TorchStream:
    """Makes CUDA streams, given by handle, torch's current stream; a torch object is created once per stream."""

    def __init__(self, device: "Device") -> None:
        # Imported here: torch takes seconds to load, and a machine without a GPU can lack it.
        import torch

        self.torch: Any = torch
        self.device = f"cuda:{int(device.name.partition(':')[2] or 0)}"
        self._known: dict[int, Any] = {}

    def __call__(self, handle: int) -> Any:
        """Return the context in which the stream is current."""
        if handle not in self._known:
            self._known[handle] = self.torch.cuda.ExternalStream(handle, device=self.device)
        return self.torch.cuda.stream(self._known[handle])


class PinnedLists:
    """Sets of pinned int64 tensors, as engines keep them; a set is reused after the launch that read it completed."""

    def __init__(self, stream: TorchStream, lists: int, length: int) -> None:
        torch = stream.torch
        with torch.cuda.device(stream.device):
            self._sets = [
                ([torch.empty(length, dtype=torch.int64, pin_memory=True) for _ in range(lists)], torch.cuda.Event())
                for _ in range(_SETS)
            ]

    def submit(self, values: Sequence[NDArray[np.uint64]], launch: Callable[..., None]) -> None:
        """Copy `values` into the oldest set and call `launch` with its tensors, on torch's current stream."""
        tensors, done = self._sets[0]
        self._sets.append(self._sets.pop(0))
        done.synchronize()
        for tensor, array in zip(tensors, values, strict=True):
            tensor.numpy()[:] = array.view(np.int64)
        launch(*tensors)
        done.record()
