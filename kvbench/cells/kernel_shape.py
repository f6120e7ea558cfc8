"""The shape of the copy kernel: its method, and its number of warps, stages or loads, and piece size."""

import re
from dataclasses import dataclass, replace
from typing import Final

from kvbench.cells.units import format_size, parse_size

RULE: Final = "rule"
_MAX_DEPTH: Final = 32
_LINE_BYTES: Final = 128
_BARRIER_BYTES: Final = 8
# Maximum shared memory of a thread block on sm_90, the largest of all architectures.
MAX_SHARED_BYTES: Final = 227 * 1024


@dataclass(frozen=True, slots=True)
class KernelShape:
    """`bulk`: `warps` rings of `depth` stages of `piece_bytes` in shared memory (sm_90 or newer, 16-byte alignment).
    `lanes`: `warps` warps that keep `depth` loads per thread in flight, in pieces of `piece_bytes` (any alignment).
    `words`: the same with fewer instructions, for few blocks (16-byte alignment).

    Raises ValueError for an invalid shape.
    """

    method: str
    warps: int
    depth: int
    piece_bytes: int

    def __post_init__(self) -> None:
        if not 1 <= self.warps <= 32:
            raise ValueError(f"{self.warps} warps is not from 1 to 32")
        least = 3 if self.method == "bulk" else 1
        if not least <= self.depth <= _MAX_DEPTH:
            raise ValueError(f"depth {self.depth} is not from {least} to {_MAX_DEPTH}")
        if not 128 <= self.piece_bytes <= 65_536 or self.piece_bytes % 16:
            raise ValueError(f"a piece of {self.piece_bytes} bytes is not a multiple of 16 from 128B to 64KiB")
        if self.shared_bytes > MAX_SHARED_BYTES:
            raise ValueError(
                f"its stages take {self.shared_bytes} bytes of shared memory, more than {MAX_SHARED_BYTES}"
            )

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that a thread block takes."""
        stages = self.warps * self.depth if self.method == "bulk" else 0
        # A stage is a piece plus one line; the barriers come first, padded to a whole line.
        return stages * (self.piece_bytes + _LINE_BYTES) + -(-stages * _BARRIER_BYTES // _LINE_BYTES) * _LINE_BYTES

    def fitted(self, shared_bytes: int) -> "KernelShape | None":
        """Return the shape with as many of its warps as fit into `shared_bytes`, or None if not even one fits."""
        fewer = (replace(self, warps=warps) for warps in range(self.warps, 0, -1))
        return next((shape for shape in fewer if shape.shared_bytes <= shared_bytes), None)

    def __str__(self) -> str:
        return f"{self.method}-{self.warps}x{self.depth}x{format_size(self.piece_bytes)}"

    @classmethod
    def parse(cls, text: str) -> "KernelShape":
        """Read a shape in the form that `str` writes; raises ValueError."""
        match = re.fullmatch(r"(bulk|lanes|words)-(\d{1,2})x(\d{1,2})x(\d{1,6}[A-Za-z]*)", text)
        if match is None:
            raise ValueError(
                f"{text!r} is not a kernel; write bulk-WARPSxSTAGESxSIZE, lanes-WARPSxLOADSxSIZE, "
                f"words-WARPSxLOADSxSIZE or {RULE}"
            )
        return cls(match[1], int(match[2]), int(match[3]), parse_size(match[4]))

    @classmethod
    def canonical(cls, text: str) -> str:
        """Return the canonical text of a shape, or of the rule, as stored in a cell; raises ValueError."""
        return text if text == RULE else str(cls.parse(text))

    @property
    def defines(self) -> tuple[str, ...]:
        """The compiler options that select this kernel."""
        values = {"METHOD": self.method, "WARPS": self.warps, "DEPTH": self.depth, "PIECE_BYTES": self.piece_bytes}
        return tuple(f"-DKVBENCH_{name}={value}" for name, value in values.items())
