"""The layers of a swap: which blocks belong to which, and which cells cannot have any."""

from dataclasses import replace

import pytest

from kvbench.cells.axes import Direction, Neighbour, StreamState
from kvbench.cells.blocks import layer_blocks, unfit
from kvbench.cells.cell import AXES, Cell
from kvbench.cells.pattern import Pattern
from kvbench.errors import UsageError

CELL = Cell("batched", Direction.H2D, 64, 4096, sequence="layers-4")


def of(pattern: str, blocks: int, sequence: str = "layers-4") -> Cell:
    return replace(CELL, pattern=Pattern.parse(pattern), blocks=blocks, sequence=sequence)


@pytest.mark.parametrize(
    ("cell", "blocks"),
    [
        (CELL, [16] * 4),
        (of("tensors-8", 64), [16] * 4),
        (of("tensors-4x10+4x3", 52), [20, 20, 6, 6]),  # two layers with all tokens, two with a window
        (of("page-first-4", 64), [16] * 4),
        (of("shuffled", 63, "at-once-4"), [63]),
    ],
)
def test_the_blocks_of_a_swap_are_divided_into_layers_by_tensors(cell: Cell, blocks: list[int]) -> None:
    assert unfit(cell) is None
    assert layer_blocks(cell) == blocks
    assert sum(blocks) == cell.blocks


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (of("shuffled", 63), "sequence=layers-4 needs a multiple of 4 blocks, not 63"),
        (of("tensors-6", 66), "the tensors of tensors-6 cannot be divided into 4 layers"),
        (of("tensors-2", 64), "the tensors of tensors-2 cannot be divided into 4 layers"),
        (of("tensors-5x4+3x10", 50), "the tensors of tensors-5x4+3x10 cannot be divided into 4 layers"),
        (of("page-first-4+4", 64), "needs K and V of a layer one after the other, not page-first-4+4"),
        (replace(CELL, stream_state=StreamState.SUSTAINED), "needs a stream state in which one swap is timed"),
        (replace(CELL, queued=3, stream_state=StreamState.BUSY), "needs a stream state in which one swap is timed"),
        (replace(CELL, neighbour=Neighbour.GEMM), "needs a neighbour whose layers wait: idle or decode"),
        (replace(CELL, neighbour=Neighbour.IDLE, direction=Direction.D2H), "wait for loads (direction=h2d)"),
        (replace(CELL, neighbour=Neighbour.IDLE, devices=2), "beside a neighbour needs one device"),
    ],
)
def test_impossible_layers_are_refused_with_the_reason(cell: Cell, reason: str) -> None:
    assert reason in (unfit(cell) or "")


@pytest.mark.parametrize("text", ["layers-1", "layers-0", "layers-1025", "layers-x", "at-once-1", "two"])
def test_a_sequence_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"axis sequence=.*: not whole, layers-L or at-once-L with L from 2 to 1024"):
        AXES["sequence"].parse(text)
