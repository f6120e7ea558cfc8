"""Where the memory of a process lies among the host's NUMA nodes: kept near the GPU, and asked for page by page."""

import ctypes
import os
import platform
from typing import Final

import numpy as np

from kvbench.machine.sources import Sources, reason_of

# The number of the system call move_pages; glibc has no function for it.
_MOVE_PAGES: Final = {"x86_64": 279, "aarch64": 239}
_SAMPLE: Final = 256


def stay_near(node: int, bus_id: str, *, sources: Sources | None = None) -> tuple[int, list[str]]:
    """Keep this process on the CPUs of the GPU's NUMA node, so that it pins memory there.

    `node` is what the driver says, -1 if it does not know: then the kernel is asked. Returns the node, -1 if neither
    knows, and a note if memory may be pinned elsewhere.
    """
    if node < 0:
        try:
            node = (sources or Sources()).near_node(bus_id)
        except Exception as error:
            return -1, [f"memory may be pinned far from the GPU, whose NUMA node is unknown: {reason_of(error)}"]
    near = (sources or Sources()).cpus_of_node(node)
    if usable := near & os.sched_getaffinity(0):
        os.sched_setaffinity(0, usable)
    elif near:
        why = f"this process cannot run on the GPU's NUMA node {node}"
        return node, [f"{why}, so memory is pinned on another (taskset?)"]
    return node, []


def far_pages(address: int, size_bytes: int, node: int) -> list[str]:
    """A note if some of a sample of the pages, which must be in use, are not on `node` (-1: any will do)."""
    nodes = nodes_of_pages(address, size_bytes) if node >= 0 else []
    if far := [of_page for of_page in nodes if of_page != node]:
        far_nodes = ", ".join(map(str, sorted(set(far))))
        sampled = f"{len(far)} of {len(nodes)} sampled pages of host memory"
        return [f"{sampled} are on NUMA node {far_nodes}, the GPU is on {node}"]
    return []


def nodes_of_pages(address: int, size_bytes: int) -> list[int]:
    """The NUMA nodes of a sample of the pages in use; empty if the kernel does not report them."""
    pages = np.linspace(address, address + size_bytes - 1, _SAMPLE).astype(np.uint64) & ~np.uint64(0xFFF)
    nodes = np.full(_SAMPLE, -1, dtype=np.int32)
    # Of this process (0), and without nodes to move to (None): the call only asks.
    arguments = map(ctypes.c_void_p, (0, _SAMPLE, pages.ctypes.data, None, nodes.ctypes.data, 0))
    ctypes.CDLL(None).syscall(ctypes.c_long(_MOVE_PAGES.get(platform.machine(), -1)), *arguments)
    return [int(node) for node in nodes if node >= 0]
