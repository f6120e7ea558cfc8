"""The layers of a swap: which of its descriptors belong to which layer."""

from typing import Final

from kvbench.cells.axes import Direction, Neighbour, StreamState
from kvbench.cells.cell import Cell

AT_ONCE: Final = "at-once"
# The sequence of swaps that replay a trace.
TRACE: Final = "trace"
# A step with this number of layers has those of Llama 3 70B on one of 8 ranks; other steps have those of Llama 3 8B.
LAYERS_OF_70B: Final = 80
LAYERS_OF_8B: Final = 32
STEPS: Final = (Neighbour.IDLE, Neighbour.DECODE)


def layer_blocks(cell: Cell) -> list[int]:
    """Return the blocks of each swap of `cell`, in order; they are consecutive descriptors. `unfit` returns None."""
    if cell.sequence.startswith(AT_ONCE):
        return [cell.blocks]
    kinds = cell.sides[0].tensors(cell.blocks)
    if not kinds:
        return [cell.blocks // cell.layers] * cell.layers
    each = layer_tensors(cell)
    return [each * kind.ids for kind in kinds for _ in range(kind.count // each)]


def layer_tensors(cell: Cell) -> int:
    """Return the tensors of a layer, such as K and V; 0 for a pattern without as many tensors as layers."""
    return sum(kind.count for kind in cell.sides[0].tensors(cell.blocks)) // cell.layers


def unfit(cell: Cell) -> str | None:
    """Return why the layers of `cell` cannot be swapped, or wait, as it says, or a trace replayed; None if they can."""
    if cell.sequence == TRACE:
        alone = cell.neighbour is Neighbour.NONE and cell.devices == 1 and not cell.pause_us
        return None if alone else "a trace is replayed without a neighbour and a pause, on one device"
    if not cell.layers:
        return None
    if cell.stream_state is StreamState.SUSTAINED or cell.queued or cell.streams > 1:
        return f"sequence={cell.sequence} needs a stream state in which one swap is timed, without a queue"
    return _unfit_step(cell) or _unfit_blocks(cell)


def _unfit_step(cell: Cell) -> str | None:
    if cell.neighbour is Neighbour.NONE:
        return None
    if cell.neighbour not in STEPS:
        return f"sequence={cell.sequence} needs a neighbour whose layers wait: {' or '.join(STEPS)}"
    if cell.direction is not Direction.H2D:
        return "the layers of a step wait for loads (direction=h2d)"
    if cell.devices > 1:
        return f"sequence={cell.sequence} beside a neighbour needs one device"
    return None


def _unfit_blocks(cell: Cell) -> str | None:
    if cell.sequence.startswith(AT_ONCE):
        return None
    if apart := next((side for side in cell.sides if side.regions > 1), None):
        return f"sequence={cell.sequence} needs K and V of a layer one after the other, not {apart}"
    kinds = cell.sides[0].tensors(cell.blocks)
    each = layer_tensors(cell)
    if kinds and (each * cell.layers != sum(kind.count for kind in kinds) or any(kind.count % each for kind in kinds)):
        return f"the tensors of {cell.sides[0]} cannot be divided into {cell.layers} layers"
    if not kinds and cell.blocks % cell.layers:
        return f"sequence={cell.sequence} needs a multiple of {cell.layers} blocks, not {cell.blocks}"
    return None
