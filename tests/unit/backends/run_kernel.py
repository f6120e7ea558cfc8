"""Runs the Triton kernel in Triton's interpreter; in a process of its own, since that is chosen before Triton loads.

Usage: run_kernel.py IN.npz OUT.npz. IN holds `source` and `destination` (bytes), `swaps` (rows of source offset,
destination offset, size, number of the launch) and `launches` (rows of grid, items, pieces, piece bytes, lanes); OUT
gets the destination.
"""

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
from numpy.typing import NDArray

from kvbench.backends.triton_kernel import copy_descriptors


def aligned(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a copy that starts at a multiple of 16, so that offsets into it are alignments."""
    room = np.empty(len(array) + 16, dtype=np.uint8)
    start = -room.ctypes.data % 16
    room[start : start + len(array)] = array
    return room[start : start + len(array)]


def main(given: str, result: str) -> None:
    arrays = np.load(given)
    source, destination, swaps = aligned(arrays["source"]), aligned(arrays["destination"]), arrays["swaps"]
    for number, (grid, items, pieces, piece_bytes, lanes) in enumerate(arrays["launches"].tolist()):
        table = np.ascontiguousarray(swaps[swaps[:, 3] == number][:, :3])
        table[:, 0] += source.ctypes.data
        table[:, 1] += destination.ctypes.data
        copy_descriptors[(grid,)](table.ctypes.data, items, pieces, piece_bytes=piece_bytes, lanes=lanes, num_warps=8)
    np.savez(result, destination=destination)


if __name__ == "__main__":
    main(*sys.argv[1:])
