"""The memory of one swap as a backend sees it: descriptors as addresses, and tensors in short form."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvbench.engine.device import Addresses


@dataclass(frozen=True)
class TensorGrid:
    """Tensors of one kind as a kernel may take them: T bases and K ids a side in place of T x K descriptors.

    Descriptor t * K + k copies `row_bytes` from `source_bases[t] + source_ids[k] * row_bytes` to
    `destination_bases[t] + destination_ids[k] * row_bytes`; bases are addresses as the device sees them.
    """

    source_bases: Addresses
    destination_bases: Addresses
    source_ids: NDArray[np.uint64]
    destination_ids: NDArray[np.uint64]
    row_bytes: int

    def ids(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the ids of either side as kernels take them."""
        return self.source_ids.astype(np.uint32), self.destination_ids.astype(np.uint32)


@dataclass(frozen=True)
class SwapMemory:
    """A cell's layout as addresses: what drivers copy between and, for kernels, the same as the device sees it.

    `grids` holds the same swap once more for the pattern `tensors-…`, one for each kind of tensors, in descriptor
    order; it is empty for every other pattern.
    """

    sources: Addresses
    destinations: Addresses
    kernel_sources: Addresses
    kernel_destinations: Addresses
    sizes: Addresses
    grids: tuple[TensorGrid, ...] = ()

    def part(self, start: int, end: int) -> "SwapMemory":
        """Return the descriptors from `start` to before `end`, in the same memory as these; without grids."""
        of = slice(start, end)
        return SwapMemory(
            self.sources[of],
            self.destinations[of],
            self.kernel_sources[of],
            self.kernel_destinations[of],
            self.sizes[of],
        )
