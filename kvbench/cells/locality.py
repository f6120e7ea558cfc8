"""Which memory the swaps of a cell take: how many different sets of blocks, and the region that they lie in."""

from typing import Final

from kvbench.cells.axes import Reuse
from kvbench.cells.cell import Cell
from kvbench.units import MIB, format_size

# Blocks of so many bytes swapped since, and neither a GPU's L2 (60 MiB on an H200) nor a host's last-level cache
# (300 MiB on the hosts that were measured) holds the first of them any more.
FORGOTTEN_AFTER_BYTES: Final = 512 * MIB
# A pool that nobody names: the largest power of two that fits, up to these. Little on the device cpu, which is for
# trying the tool.
LARGEST_POOL_BYTES: Final = {"cuda": 16 << 30, "cpu": 32 << 20}
SMALLEST_POOL_BYTES: Final = 1 << 20
# Throughput falls from here on: a smaller pool's address translations stay warm on an H200 and an H100.
SCATTERED_FROM_BYTES: Final = 1 << 30


def sets_of(cell: Cell, submissions: int) -> int:
    """Return how many different sets of blocks `submissions` swaps of `cell` go through, one after the other.

    Fresh blocks come again when so much else was swapped that the caches have forgotten them, and earlier in a pool
    that holds no more.
    """
    if cell.reuse is Reuse.SAME:
        return 1
    wanted = min(submissions, 2 + FORGOTTEN_AFTER_BYTES // cell.swap_bytes)
    return max(1, min(wanted, cell.pool_bytes // cell.dense_bytes)) if cell.pool_bytes else wanted


def region_bytes(cell: Cell, submissions: int) -> int:
    """Return the bytes on either side that `submissions` swaps of `cell` are spread over."""
    return cell.pool_bytes or cell.dense_bytes * sets_of(cell, submissions)


def default_pool_bytes(device_kind: str, usable_bytes: int) -> int:
    """Return the pool where none is asked for, with `usable_bytes` free on either side."""
    fits = max(SMALLEST_POOL_BYTES, usable_bytes)
    return min(LARGEST_POOL_BYTES[device_kind], 1 << (fits.bit_length() - 1))


def misfit(cell: Cell) -> str | None:
    """Return why the pool cannot hold the blocks of `cell`, None where it can."""
    if cell.pool_bytes and cell.dense_bytes > cell.pool_bytes:
        size, pool = format_size(cell.block_bytes), format_size(cell.pool_bytes)
        return f"{cell.blocks} blocks of {size} do not fit into a pool of {pool}"
    return None
