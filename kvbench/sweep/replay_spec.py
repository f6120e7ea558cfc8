"""What a sweep replays of a trace, as its spec keeps it. Needs no numpy, so that the command line starts fast."""

from typing import Annotated, Final

import msgspec

from kvbench.cells.pattern import SHUFFLED, Pattern, Tensors
from kvbench.cells.units import format_size

MOST_SWAPS: Final = 10_000
# The longest time that the swaps of one direction may be apart in a replay at the times of the trace.
MOST_SPAN_S: Final = 120.0
SIDES: Final = {"h2d": "Loads (h2d)", "d2h": "Stores (d2h)"}
# Where ids lie in runs, and what a run length is a quantile by.
RUNS_OF: Final = {"host": "host ids", "gpu": "GPU ids", "both": "both sides"}
RUNS_BY: Final = {"by_run": "run", "by_block": "block"}
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class SwapsOf(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The swaps of a trace in one direction: how many there are, their median number of blocks, and which are replayed:
    number `first` (from 0) and every `step`-th from there, up to `most`. The smallest has `least` blocks, 0 if unknown.
    """

    total: _Count
    blocks: _Count
    first: _Count
    step: Annotated[int, msgspec.Meta(ge=1, le=2**40)]
    most: _Count = MOST_SWAPS
    least: _Count = 0


class Replay(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A trace that a sweep replays: the file, its SHA-256, the geometry of its blocks, and what is replayed of it.

    `swaps` is the number of swaps of each direction that was asked for, 0 in runs from before it was kept; `origin`
    says what the trace was made from, "" if unknown.
    With `speed`, swaps have the distances in time of the trace, divided by it; otherwise none.
    """

    path: Annotated[str, msgspec.Meta(max_length=4096)]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}\\Z")]
    block_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**50)]
    descriptors: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    h2d: SwapsOf
    d2h: SwapsOf
    speed: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None
    swaps: _Count = 0
    origin: Annotated[str, msgspec.Meta(max_length=400)] = ""

    @property
    def row_bytes(self) -> int:
        """The bytes of a descriptor; all descriptors of a block have equal parts of it."""
        return self.block_bytes // self.descriptors

    def capacity(self, pool_bytes: int) -> int:
        """Return how many block ids fit into a pool; no swap uses its first row, nor the row behind a tensor."""
        rows = pool_bytes // self.row_bytes
        return max(0, (rows - 1) // self.descriptors - 1)

    def enough_for(self, blocks: int) -> str:
        """Return the power of two of a pool into which `blocks` scattered blocks fit."""
        return format_size(1 << (((2 * blocks + 1) * self.descriptors + 1) * self.row_bytes - 1).bit_length())

    @property
    def pattern(self) -> Pattern:
        """The layout of the blocks on both sides: in a tensor for each descriptor."""
        return Pattern.of_tensors(Tensors(self.descriptors, 0)) if self.descriptors > 1 else SHUFFLED

    def of(self, direction: str) -> SwapsOf:
        return self.h2d if direction == "h2d" else self.d2h

    @property
    def most_pauses_s(self) -> float:
        return 0.0 if self.speed is None else MOST_SPAN_S

    @property
    def options(self) -> list[str]:
        """The options of a sweep that replays the same swaps."""
        chosen = {"--trace": self.path, "--trace-swaps": self.swaps or None, "--speed": self.speed}
        return [part for name, value in chosen.items() if value is not None for part in (name, f"{value}")]
