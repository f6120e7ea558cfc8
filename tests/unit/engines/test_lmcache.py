"""What LMCache's kernel takes for the blocks of a swap, and what it cannot take."""

import numpy as np
import pytest

from kvbench.engines.lmcache import check
from kvbench.errors import KvbenchError

# Rows of 2 tensors: 3 chunks of 4 blocks on the host, the same ids in both tensors on the GPU.
CHUNKS = np.add.outer([0, 4], np.add.outer([40, 8, 80], np.arange(4))).astype(np.uint64)
BLOCKS = np.add.outer([0, 1000], [7, 3, 5, 900, 2, 8, 1, 4, 6, 9, 11, 10]).astype(np.uint64)
SIZES = np.full(24, 4096, np.uint64)


def test_chunks_of_tensors_and_chunks_of_one_block_are_taken() -> None:
    check(CHUNKS * SIZES[0], BLOCKS * SIZES[0] + np.uint64(512), SIZES)
    check(BLOCKS.reshape(1, -1, 1), BLOCKS[::-1].reshape(1, -1) * SIZES[0], SIZES)


def test_blocks_of_tensors_that_lie_apart_on_the_host_are_refused() -> None:
    with pytest.raises(KvbenchError, match="host_pattern must be page-first-TxC"):
        check(BLOCKS.reshape(2, 3, 4) * SIZES[0], BLOCKS * SIZES[0], SIZES)


@pytest.mark.parametrize("moved", [8, 4096])
def test_blocks_off_the_rows_of_their_tensors_are_refused(moved: int) -> None:
    gpu = BLOCKS * SIZES[0]
    gpu[1, 5] += np.uint64(moved)
    with pytest.raises(KvbenchError, match="in rows"):
        check(CHUNKS * SIZES[0], gpu, SIZES)


@pytest.mark.parametrize(("size", "last"), [(24, 24), (4096, 2048)])
def test_sizes_that_the_kernel_cannot_copy_are_refused(size: int, last: int) -> None:
    sizes = np.array([size] * 23 + [last], np.uint64)
    with pytest.raises(KvbenchError, match="one size, a multiple of 32"):
        check(CHUNKS * sizes[0], BLOCKS * sizes[0], sizes)
