"""The shape of a swap: everything that an engine decides before it chooses how to make it."""

from typing import Any, NamedTuple, Self

from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.units import size_text


class SwapKind(NamedTuple):
    """A direction and a state of the stream; as text "h2d idle"."""

    direction: Direction
    stream_state: StreamState

    def __str__(self) -> str:
        return f"{self.direction} {self.stream_state}"

    def to_plain(self) -> dict[str, Any]:
        return {"direction": self.direction.value, "stream_state": self.stream_state.value}


class SwapShape(NamedTuple):
    """Swaps of one kind with as many blocks of one size."""

    direction: Direction
    stream_state: StreamState
    blocks: int
    block_bytes: int

    @classmethod
    def of(cls, cell: Cell) -> Self:
        return cls(cell.direction, cell.stream_state, cell.blocks, cell.block_bytes)

    @property
    def kind(self) -> SwapKind:
        return SwapKind(self.direction, self.stream_state)

    @property
    def size_text(self) -> str:
        """The blocks: "64 x 4KiB"."""
        return f"{self.blocks} x {size_text(self.block_bytes)}"

    def to_plain(self) -> dict[str, Any]:
        return {**self.kind.to_plain(), "block_bytes": self.block_bytes, "blocks": self.blocks}
