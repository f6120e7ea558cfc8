"""The memory of one swap as a backend sees it: descriptors as addresses, and a compact form for tensors."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvbench.engine.device import Addresses


@dataclass(frozen=True)
class TensorGrid:
    """Tensors of one kind in compact form for kernels: T bases and K ids per side instead of T x K descriptors.

    Descriptor t * K + k copies `row_bytes` from `source_bases[t] + source_ids[k] * row_bytes` to
    `destination_bases[t] + destination_ids[k] * row_bytes`; bases are addresses as the device sees them.
    """

    source_bases: Addresses
    destination_bases: Addresses
    source_ids: NDArray[np.uint64]
    destination_ids: NDArray[np.uint64]
    row_bytes: int

    def tensors(self, start: int, end: int) -> "TensorGrid":
        """Return the tensors from `start` up to, but not including, `end`, in the same memory."""
        sources, destinations = self.source_bases[start:end], self.destination_bases[start:end]
        return replace(self, source_bases=sources, destination_bases=destinations)


@dataclass(frozen=True)
class SwapMemory:
    """A cell's layout as addresses: those for the driver's copies, and the same as the device sees them for kernels.

    For a pattern of tensors, `grids` describes the same swap in compact form, one grid per kind of tensors, in
    descriptor order; it is empty for every other pattern.
    """

    sources: Addresses
    destinations: Addresses
    kernel_sources: Addresses
    kernel_destinations: Addresses
    sizes: Addresses
    grids: tuple[TensorGrid, ...] = ()

    def part(self, start: int, end: int, grids: tuple[TensorGrid, ...] = ()) -> "SwapMemory":
        """Return the descriptors from `start` up to, but not including, `end`, in the same memory, with these grids."""
        lists = ("sources", "destinations", "kernel_sources", "kernel_destinations", "sizes")
        return replace(self, **{name: getattr(self, name)[start:end] for name in lists}, grids=grids)
