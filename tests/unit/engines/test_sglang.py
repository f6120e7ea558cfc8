"""The rows that SGLang's kernels are given for the blocks of a swap."""

import numpy as np
import pytest

from kvbench.engines.sglang import base_of, ids_of, row_of
from kvbench.errors import KvbenchError

KIB = 1024


@pytest.mark.parametrize(
    ("block_bytes", "row_bytes"),
    [(4 * KIB, 4 * KIB), (32 * KIB, 32 * KIB), (48 * KIB, 24 * KIB), (256 * KIB, 32 * KIB), (80 * KIB, 20 * KIB)],
)
def test_a_block_is_the_fewest_equal_rows_that_the_kernel_takes(block_bytes: int, row_bytes: int) -> None:
    assert row_of(block_bytes, 32 * KIB) == row_bytes


@pytest.mark.parametrize("rows", [1, 3])
def test_base_and_ids_of_rows_give_every_byte_of_the_blocks_in_their_order(rows: int) -> None:
    row_bytes, start = 24 * KIB, (1 << 46) + 512
    blocks = np.array([start + block * rows * row_bytes for block in (7, 0, 3)], np.uint64)
    addresses = base_of(blocks, row_bytes) + ids_of(blocks, row_bytes, rows).astype(object) * row_bytes
    assert addresses.tolist() == [int(block) + row * row_bytes for block in blocks for row in range(rows)]


def test_blocks_off_the_grid_of_rows_are_refused() -> None:
    with pytest.raises(KvbenchError, match="must be a row"):
        base_of(np.array([0, 4096, 4097], np.uint64), 4096)
