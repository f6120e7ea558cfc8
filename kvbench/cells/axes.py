"""The axes of a sweep, and the cell: one point of the sweep."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from kvbench.errors import UsageError, brief
from kvbench.grammar import Axis, block_size, choice, number_or_all, on_off, whole, word
from kvbench.kernel_shape import RULE, KernelShape
from kvbench.patterns import SHUFFLED, Pattern
from kvbench.units import format_size


class Direction(StrEnum):
    """Which way a swap goes: into the GPU (onload) or out of it (offload)."""

    H2D = "h2d"
    D2H = "d2h"


class Order(StrEnum):
    """CUmemcpySrcAccessOrder: when a batched copy may read its sources, relative to the stream's order."""

    STREAM = "stream"
    DURING_API_CALL = "during_api_call"
    ANY = "any"


class StreamState(StrEnum):
    """Whether work is pending on the stream at the moment when a swap is submitted."""

    IDLE = "idle"
    BUSY = "busy"

    @property
    def swap_clock(self) -> str:
        """The sample's time that GB/s come from: on a busy stream wall_us would include the rest of the delay."""
        return "wall_us" if self is StreamState.IDLE else "gpu_us"


class Memory(StrEnum):
    """How host memory was pinned: allocated by the driver, or the program's own pages registered with it."""

    ALLOCATED = "allocated"
    REGISTERED = "registered"


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the sweep. `None` on an axis means that the backend or the device does not know that axis.

    `order` is what the driver is asked for (the default that follows from direction is resolved by the plan);
    `descriptors_per_call` 0 means all in one call; `sms` is the grid of an SM backend (0, all SMs of the device,
    stands in a request alone: the plan puts the number in). `queued` swaps wait in front of the measured one, dealt
    with it over `streams` in turn. `kernel` is a KernelShape as text, or the word that leaves it to the
    backend.
    """

    backend: str
    direction: Direction
    blocks: int
    block_bytes: int
    stream_state: StreamState = StreamState.IDLE
    pattern: Pattern = SHUFFLED
    memory: Memory | None = Memory.ALLOCATED
    order: Order | None = None
    sms: int | None = None
    descriptors_per_call: int | None = None
    coalesce: bool | None = None
    overlap: bool | None = None
    queued: int = 0
    streams: int = 1
    kernel: str = RULE

    @property
    def swap_bytes(self) -> int:
        """Bytes that one swap moves."""
        return self.blocks * self.block_bytes

    @property
    def pool_bytes(self) -> int:
        """Bytes of a memory pool for this cell, on either side."""
        return self.pattern.pool_rows(self.blocks) * self.block_bytes

    @property
    def id(self) -> str:
        """Twelve hex digits that depend on the values alone: the same cell has the same id in every run."""
        return id_of(self.as_strings())

    @property
    def label(self) -> str:
        """The cell for people, without the axes that do not apply: "batched h2d 10000 x 16KiB idle shuffled …"."""
        head = f"{self.backend} {self.direction} {self.blocks} x {format_size(self.block_bytes)} {self.stream_state}"
        rest = {k: v for k, v in self.as_strings().items() if k not in _IN_HEAD and v is not None}
        tail = " ".join(f"{name}={value}" for name, value in rest.items() if value != UNREMARKABLE.get(name))
        return f"{head} {tail}".rstrip()

    def as_strings(self) -> dict[str, str | None]:
        """Return axis name -> value in the grammar of `-a`, None where the axis does not apply.

        An axis that came later is left out where the cell does not use it (`Axis.unused`): ids stay as they were.
        """
        values = ((axis, getattr(self, axis.field)) for axis in AXES.values())
        return {axis.name: axis.show(value) for axis, value in values if value is None or value != axis.unused}

    @classmethod
    def from_strings(cls, values: dict[str, str | None]) -> "Cell":
        """Rebuild a cell from `as_strings`; raises UsageError for unknown axes or impossible values.

        An axis that is missing and that not every backend heeds is one that the cell does not use.
        """
        unknown = sorted(set(values) - set(AXES))
        missing = sorted(name for name, axis in AXES.items() if name not in values and not axis.heeded)
        if unknown or missing:
            raise UsageError(f"a cell has the axes {', '.join(AXES)}; got unknown {unknown}, missing {missing}")
        parsed = {axis.field: axis.unused for axis in AXES.values() if axis.heeded}
        for name, text in values.items():
            axis = AXES[name]
            if text is None and not axis.optional:
                raise UsageError(f"axis {name} of a cell has no value")
            parsed[axis.field] = None if text is None else axis.parse_one(text)
        return cls(**parsed)  # type: ignore[arg-type]  # each axis parses to its field's type

    def command(self) -> str:
        """Return the command that measures this cell alone."""
        return command_of(self.as_strings())


def id_of(strings: Mapping[str, str | None]) -> str:
    """Return `Cell.id` of the cell with these `as_strings`."""
    text = json.dumps(strings, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2s(text.encode(), digest_size=6).hexdigest()


def command_of(strings: Mapping[str, str | None]) -> str:
    """Return `Cell.command` of the cell with these `as_strings`."""
    settings = " ".join(f"-a {name}={value}" for name, value in strings.items() if value is not None)
    return f"kvbench sweep {settings}"


_LINE: Final = (
    Axis("backend", "backend", word, str, "who copies (kvbench list backends)", "per_block,batched"),
    Axis("direction", "direction", choice(Direction), str, "h2d (onload) or d2h (offload)", "h2d,d2h"),
    Axis("blocks", "blocks", whole(1, 10**8), str, "descriptors in one swap", "16,64,256", ranged=True),
    Axis(
        "block_size",
        "block_bytes",
        block_size,
        lambda v: format_size(int(str(v))),
        "bytes of one descriptor",
        "1KiB:256KiB:x2",
        ranged=True,
    ),
    Axis(
        "stream_state",
        "stream_state",
        choice(StreamState),
        str,
        "is work pending on the stream when the swap is submitted",
        "idle,busy",
    ),
    Axis(
        "pattern",
        "pattern",
        Pattern.parse,
        str,
        "how blocks lie in memory: shuffled, contiguous, reversed, runs-R, tensors-T, tensors-TxK+TxK",
        "shuffled,runs-16,tensors-64",
    ),
    Axis("memory", "memory", choice(Memory), str, "how host memory is pinned", "allocated,registered", optional=True),
    Axis(
        "order",
        "order",
        choice(Order),
        str,
        "source access order of batched copies (default: any for h2d, stream for d2h)",
        "stream,any",
        optional=True,
    ),
    Axis(
        "sms",
        "sms",
        whole(1, 4096, {"all": 0}),
        number_or_all,
        "SMs that a kernel may use (its grid); all is the device's number",
        "1:32:x2",
        ranged=True,
        optional=True,
    ),
    Axis(
        "descriptors_per_call",
        "descriptors_per_call",
        whole(1, 10**8, {"all": 0}),
        number_or_all,
        "at most so many descriptors in one batched call",
        "all,8192",
        ranged=True,
        optional=True,
    ),
    Axis(
        "coalesce",
        "coalesce",
        on_off,
        lambda v: "on" if v else "off",
        "merge descriptors adjacent on both sides before the call",
        "off,on",
        optional=True,
    ),
    Axis(
        "overlap",
        "overlap",
        on_off,
        lambda v: "on" if v else "off",
        "CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE of batched copies",
        "off,on",
        optional=True,
    ),
    Axis(
        "queued",
        "queued",
        whole(0, 100_000),
        str,
        "swaps that wait on a busy stream in front of the measured one",
        "0,1:4096:x4",
        ranged=True,
        unused=0,
    ),
    Axis(
        "streams",
        "streams",
        whole(1, 64),
        str,
        "streams over which these and the measured one are dealt in turn",
        "1,8",
        ranged=True,
        unused=1,
    ),
    Axis(
        "kernel",
        "kernel",
        KernelShape.canonical,
        str,
        "shape of the sm kernel: bulk-WARPSxSTAGESxSIZE, lanes-WARPSxLOADSxSIZE, or rule for its own choice",
        "rule,bulk-8x6x4KiB,lanes-16x8x4KiB",
        unused=RULE,
    ),
)
AXES: Final[dict[str, Axis]] = {axis.name: axis for axis in _LINE}
_IN_HEAD: Final = frozenset({"backend", "direction", "blocks", "block_size", "stream_state"})
UNREMARKABLE: Final = {
    "pattern": "shuffled",
    "memory": "allocated",
    "descriptors_per_call": "all",
    "coalesce": "off",
    "overlap": "off",
}
assert {axis.field for axis in _LINE} == {field.name for field in fields(Cell)}


def axis_named(name: str) -> Axis:
    """Return the axis `name`; raises UsageError that lists the axes there are."""
    if name not in AXES:
        raise UsageError(f"unknown axis {brief(name)!r}; the axes are {', '.join(AXES)}")
    return AXES[name]
