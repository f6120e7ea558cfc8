"""Host pages that a probe maps itself, and registers with the driver where it wants to."""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from kvbench.engine.device import Device, register_pages, unregister_pages
from kvbench.machine.probes import available_bytes
from kvbench.machine.sources import Sources


class Pages:
    """Fresh private pages, not yet in memory; `size_bytes` is rounded by the kernel."""

    def __init__(self, size_bytes: int) -> None:
        self._map = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.size_bytes = size_bytes
        self.address = np.frombuffer(self._map, np.uint8).ctypes.data

    @contextmanager
    def registered(self, device: Device, start: int = 0, size_bytes: int = 0) -> Iterator[None]:
        """Pin a part of the pages (default: all) within the context. Raises EngineError."""
        register_pages(device.driver, self.address + start, size_bytes or self.size_bytes)
        try:
            yield
        finally:
            unregister_pages(device.driver, self.address + start)


def spare_bytes(share: float = 0.25) -> int:
    """Return how much memory a probe may pin: a share of what is available, by default one that others do not miss."""
    return int(available_bytes(Sources()) * share)
