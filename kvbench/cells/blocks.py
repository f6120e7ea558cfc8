"""The blocks of a cell's swaps: which belong to which layer, how many different sets there are, and their memory."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Final

from kvbench.cells.axes import Direction, Neighbour, Order, Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import unfit_sides
from kvbench.cells.units import MIB, format_size

AT_ONCE: Final = "at-once"
# The sequence of swaps that replay a trace.
TRACE: Final = "trace"


def is_whole(cell: Cell) -> bool:
    """Whether its swaps are of one size, and no layers wait for them."""
    return not cell.layers and cell.sequence != TRACE


def is_alone(cell: Cell) -> bool:
    """Whether its swaps are whole, with none queued before them and nothing beside them."""
    beside = cell.neighbour != Neighbour.NONE or cell.opposite or cell.devices > 1
    return is_whole(cell) and not (cell.queued or cell.streams > 1 or beside)


# A step with this number of layers has those of Llama 3 70B on one of 8 ranks; other steps have those of Llama 3 8B.
LAYERS_OF_70B: Final = 80
LAYERS_OF_8B: Final = 32
STEPS: Final = (Neighbour.IDLE, Neighbour.DECODE)


def layer_blocks(cell: Cell) -> list[int]:
    """The blocks of each swap of `cell`, in order; they are consecutive descriptors. `unfit` returns None."""
    if cell.sequence.startswith(AT_ONCE):
        return [cell.blocks]
    kinds = cell.sides[0].tensors(cell.blocks)
    if not kinds:
        return [cell.blocks // cell.layers] * cell.layers
    tensors = layer_tensors(cell)
    layers = ([tensors * kind.ids] * (kind.count // tensors) for kind in kinds)
    return [*chain.from_iterable(layers)]


def layer_tensors(cell: Cell) -> int:
    """The tensors of a layer, such as K and V; 0 for a pattern without as many tensors as layers."""
    return sum(kind.count for kind in cell.sides[0].tensors(cell.blocks)) // cell.layers


def unfit(cell: Cell) -> str | None:
    """Why the layers of `cell` cannot be swapped, or wait, as it says, or a trace replayed; None if they can."""
    if cell.sequence == TRACE:
        alone = cell.neighbour == Neighbour.NONE and cell.devices == 1 and not cell.pause_us
        return None if alone else "a trace is replayed without a neighbour and a pause, on one device"
    return next(_objections_to_layers(cell), None) if cell.layers else None


def _objections_to_layers(cell: Cell) -> Iterator[str]:
    """A later one may rely on the earlier ones."""
    if cell.stream_state is StreamState.SUSTAINED or cell.queued or cell.streams > 1:
        yield f"sequence={cell.sequence} needs a stream state in which one swap is timed, without a queue"
    if cell.neighbour != Neighbour.NONE:
        if cell.neighbour not in STEPS:
            yield f"sequence={cell.sequence} needs a neighbour whose layers wait: {' or '.join(map(str, STEPS))}"
        if cell.direction is not Direction.H2D:
            yield "the layers of a step wait for loads (direction=h2d)"
        if cell.devices > 1:
            yield f"sequence={cell.sequence} beside a neighbour needs one device"
    if cell.sequence.startswith(AT_ONCE):
        return
    if apart := next((side for side in cell.sides if side.regions > 1), None):
        yield f"sequence={cell.sequence} needs K and V of a layer one after the other, not {apart}"
    kinds = cell.sides[0].tensors(cell.blocks)
    tensors, count = layer_tensors(cell), sum(kind.count for kind in kinds)
    if kinds and (tensors * cell.layers != count or any(kind.count % tensors for kind in kinds)):
        yield f"the tensors of {cell.sides[0]} cannot be divided into {cell.layers} layers"
    if not kinds and cell.blocks % cell.layers:
        yield f"sequence={cell.sequence} needs a multiple of {cell.layers} blocks, not {cell.blocks}"


# After swaps of this many bytes, neither the GPU's L2 (60 MiB on an H200) nor the host's last-level cache (300 MiB on
# the measured hosts) still holds the first blocks.
FORGOTTEN_AFTER_BYTES: Final = 512 * MIB
# In a pool, large swaps have blocks for every swap of a visit with few samples: none overwrites another's.
SETS_OF_LARGE_SWAPS: Final = 3
# Laid out at most where only time limits the swaps: 512 MiB of blocks of 1 KiB. Smaller blocks would need millions,
# which take longer to lay out than to swap. Each set takes as long as these descriptors more.
MOST_DESCRIPTORS: Final = 1 << 19
DESCRIPTORS_OF_A_SET: Final = 16
# The default pool is the largest power of two that fits, up to these sizes. The cpu device is for trials: a small pool.
LARGEST_POOL_BYTES: Final = {"cuda": 16 << 30, "cpu": 32 << 20}
SMALLEST_POOL_BYTES: Final = 1 << 20
# From this size on throughput falls: on an H200 and an H100, the address translations of smaller pools stay cached.
SCATTERED_FROM_BYTES: Final = 1 << 30


def sets_of(cell: Cell, submissions: int, arms: int = 1) -> int:
    """The number of different sets of blocks that `submissions` consecutive swaps of `cell` go through.

    Fresh blocks repeat once enough other blocks were swapped to evict them from all caches, or earlier if the pool is
    too small for that many sets. Beside a neighbour and on several devices, swaps go on until the time is up, however
    many that is. The `arms` of a visit divide the sets among them: each has enough.
    """
    if cell.reuse is Reuse.SAME:
        return 1
    enough = arms * ((SETS_OF_LARGE_SWAPS if cell.pool_bytes else 2) + FORGOTTEN_AFTER_BYTES // cell.swap_bytes)
    until_time_is_up = cell.devices > 1 or cell.neighbour != Neighbour.NONE or cell.opposite
    wanted = min(enough, most_sets(cell) if until_time_is_up else submissions)
    return max(1, min(wanted, cell.pool_bytes // cell.dense_bytes)) if cell.pool_bytes else wanted


def most_sets(cell: Cell) -> int:
    """The maximum number of sets of blocks for swaps of `cell` that only time limits."""
    return max(1, MOST_DESCRIPTORS // (cell.blocks + DESCRIPTORS_OF_A_SET))


def region_bytes(cell: Cell, submissions: int) -> int:
    """The bytes on each side that `submissions` swaps of `cell` are spread over."""
    return cell.pool_bytes or cell.dense_bytes * sets_of(cell, submissions)


def opposite_of(cell: Cell) -> Cell:
    """The swaps of the other direction beside `cell`: as fresh, and scattered where the cell's are, but over no
    more memory than that takes.
    """
    back = Direction.D2H if cell.direction is Direction.H2D else Direction.H2D
    pool_bytes = max(cell.dense_bytes, min(cell.pool_bytes, SCATTERED_FROM_BYTES)) if cell.pool_bytes else 0
    order = None if cell.order is None else Order.STREAM
    return replace(cell, direction=back, order=order, pool_bytes=pool_bytes)


def default_pool_bytes(device_kind: str, usable_bytes: int) -> int:
    fits = max(SMALLEST_POOL_BYTES, usable_bytes)
    return min(LARGEST_POOL_BYTES[device_kind], 1 << (fits.bit_length() - 1))


def misfit(cell: Cell) -> str | None:
    """Why the blocks of `cell` cannot have its patterns, or do not fit into its pool; None if they do."""
    if objection := unfit_sides(*cell.sides, cell.blocks):
        return objection
    if cell.pool_bytes and cell.dense_bytes > cell.pool_bytes:
        size, pool = format_size(cell.block_bytes), format_size(cell.pool_bytes)
        return f"{cell.blocks} blocks of {size} do not fit into a pool of {pool}"
    return None
