"""The memory that the swaps of a cell use: the number of different sets of blocks, and the size of their region."""

from dataclasses import replace
from typing import Final

from kvbench.cells.axes import Direction, Neighbour, Order, Reuse
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import unfit_sides
from kvbench.cells.units import MIB, format_size

# After swaps of this many bytes, neither the GPU's L2 (60 MiB on an H200) nor the host's last-level cache (300 MiB on
# the measured hosts) still holds the first blocks.
FORGOTTEN_AFTER_BYTES: Final = 512 * MIB
# Laid out at most where only time limits the swaps: 512 MiB of blocks of 1 KiB. Smaller blocks would need millions,
# which take longer to lay out than to swap. Each set takes as long as these descriptors more.
MOST_DESCRIPTORS: Final = 1 << 19
DESCRIPTORS_OF_A_SET: Final = 16
# The default pool is the largest power of two that fits, up to these sizes. The cpu device is for trials: a small pool.
LARGEST_POOL_BYTES: Final = {"cuda": 16 << 30, "cpu": 32 << 20}
SMALLEST_POOL_BYTES: Final = 1 << 20
# From this size on throughput falls: on an H200 and an H100, the address translations of smaller pools stay cached.
SCATTERED_FROM_BYTES: Final = 1 << 30


def sets_of(cell: Cell, submissions: int) -> int:
    """Return the number of different sets of blocks that `submissions` consecutive swaps of `cell` go through.

    Fresh blocks repeat once enough other blocks were swapped to evict them from all caches, or earlier if the pool is
    too small for that many sets. Beside a neighbour and on several devices, swaps go on until the time is up, however
    many that is.
    """
    if cell.reuse is Reuse.SAME:
        return 1
    enough = 2 + FORGOTTEN_AFTER_BYTES // cell.swap_bytes
    until_time_is_up = cell.devices > 1 or cell.neighbour is not Neighbour.NONE
    wanted = min(enough, most_sets(cell) if until_time_is_up else submissions)
    return max(1, min(wanted, cell.pool_bytes // cell.dense_bytes)) if cell.pool_bytes else wanted


def most_sets(cell: Cell) -> int:
    """Return the maximum number of sets of blocks for swaps of `cell` that only time limits."""
    return max(1, MOST_DESCRIPTORS // (cell.blocks + DESCRIPTORS_OF_A_SET))


def region_bytes(cell: Cell, submissions: int) -> int:
    """Return the bytes on each side that `submissions` swaps of `cell` are spread over."""
    return cell.pool_bytes or cell.dense_bytes * sets_of(cell, submissions)


def opposite(cell: Cell) -> Cell:
    """Return the swaps of the neighbour `swap` beside `cell`: as fresh, and scattered where the cell's are, but over no
    more memory than that takes.
    """
    back = Direction.D2H if cell.direction is Direction.H2D else Direction.H2D
    pool_bytes = max(cell.dense_bytes, min(cell.pool_bytes, SCATTERED_FROM_BYTES)) if cell.pool_bytes else 0
    return replace(cell, direction=back, order=None if cell.order is None else Order.STREAM, pool_bytes=pool_bytes)


def default_pool_bytes(device_kind: str, usable_bytes: int) -> int:
    """Return the default pool in bytes, with `usable_bytes` free on each side."""
    fits = max(SMALLEST_POOL_BYTES, usable_bytes)
    return min(LARGEST_POOL_BYTES[device_kind], 1 << (fits.bit_length() - 1))


def misfit(cell: Cell) -> str | None:
    """Return why the blocks of `cell` cannot have its patterns, or do not fit into its pool; None if they do."""
    if objection := unfit_sides(*cell.sides, cell.blocks):
        return objection
    if cell.pool_bytes and cell.dense_bytes > cell.pool_bytes:
        size, pool = format_size(cell.block_bytes), format_size(cell.pool_bytes)
        return f"{cell.blocks} blocks of {size} do not fit into a pool of {pool}"
    return None
