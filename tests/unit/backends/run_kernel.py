"""Runs the Triton kernel in Triton's interpreter; in a process of its own, since that is chosen before Triton loads.

Usage: run_kernel.py IN.npz OUT.npz. IN holds `source` and `destination` (bytes), `swaps` (rows of source offset,
destination offset, size, number of the launch) and `launches` (rows of grid, items, pieces, piece bytes, lanes);
`gathers` are rows of row bytes, grid, and the ids of both sides, in `row_source` and `row_destination`. OUT gets both
destinations.
"""

import os
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
from numpy.typing import NDArray

from kvbench.backends.triton import words_of
from kvbench.backends.triton_kernel import copy_descriptors, gather_rows

Bytes = NDArray[np.uint8]


def aligned(array: Bytes) -> Bytes:
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
    rows = aligned(arrays["row_destination"])
    for row_bytes, grid, *ids in arrays["gathers"].tolist():
        gather(aligned(arrays["row_source"]), rows, row_bytes, grid, ids)
    np.savez(result, destination=destination, row_destination=rows)


def gather(
    source: NDArray[np.uint8], destination: NDArray[np.uint8], row_bytes: int, grid: int, ids: list[int]
) -> None:
    import torch

    sources, destinations = torch.tensor(ids).reshape(2, -1)
    count = torch.tensor([len(sources)], dtype=torch.int32)
    kernel: Any = gather_rows
    starts = (side.ctypes.data for side in (source, destination))
    kernel[(grid,)](*starts, sources, destinations, count, **words_of(row_bytes))


if __name__ == "__main__":
    main(*sys.argv[1:])
