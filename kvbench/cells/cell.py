"""The cell: one point of a sweep. Each field carries the entry of its axis."""

import hashlib
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, Final, Literal, Self

from kvbench.cells.axes import Direction, ListPlace, Memory, Neighbour, Order, Reuse, StreamState
from kvbench.cells.axis import (
    Axis,
    Role,
    backend_name,
    block_size,
    by_layers,
    choice,
    on_off,
    pause,
    pause_text,
    pool,
    size,
    sizes_within,
    switch,
    whole,
    zero_as,
)
from kvbench.cells.device_facts import HARDWARE_QUEUES
from kvbench.cells.pattern import AS_PATTERN, CONTIGUOUS, DESCENDING, SHUFFLED, Pattern
from kvbench.cells.units import KIB
from kvbench.errors import UsageError
from kvbench.text import hint, shown

EQUAL: Final = "equal"
AxisTexts = dict[str, str | None]


@dataclass(frozen=True)
class Cell:
    """One point of a sweep. `None` on an axis means that the backend or the device does not support the axis.

    `order` is the access order requested from the driver (the plan resolves the default for the direction).
    `descriptors_per_call` 0 means all in one call. `sms` is the grid size of an SM backend; 0 means all SMs of the
    device and occurs only in requests, because the plan replaces it by the number. `queued` swaps are submitted before
    the measured one; all of them are distributed over `streams` round-robin.
    """

    # fmt: off
    backend: Annotated[str, Axis(
        "implementation of the swap (kvbench list backends)", "per_block,batched", backend_name, role=Role.SERIES)]
    direction: Annotated[Direction, Axis(
        "direction: h2d (onload) or d2h (offload)", "h2d,d2h", choice(Direction), role=Role.SERIES,
        default=tuple(Direction))]
    blocks: Annotated[int, Axis(
        "number of blocks per swap, one descriptor each", "16,64,256", whole(1, 10**8),
        role=Role.SHAPE, default=(256,), ranged=True, number=True)]
    block_bytes: Annotated[int, Axis(
        "size of a block", "1KiB:256KiB:x2", block_size, size,
        role=Role.SHAPE, default=(16 * KIB,), ranged=True, number=True, name="block_size")]
    stream_state: Annotated[StreamState, Axis(
        "what is pending on the stream at submission: nothing, a delay, an event that is not reached or one that is, "
        "or the previous swaps", "idle,busy,gated,opened,sustained",
        choice(StreamState), role=Role.SERIES, default=(StreamState.IDLE,))] = StreamState.IDLE
    pattern: Annotated[Pattern, Axis(
        "layout of the blocks in memory, on both sides (see Patterns)",
        "shuffled,runs-16,tensors-64", Pattern.parse, default=(SHUFFLED,), usual=str(SHUFFLED))] = SHUFFLED
    device_pattern: Annotated[Pattern, Axis(
        "layout of the blocks in device memory; pattern: as the axis pattern", "tensors-64,tensors-64/runs-16",
        Pattern.of_side, unused=AS_PATTERN, expert=True)] = AS_PATTERN
    host_pattern: Annotated[Pattern, Axis(
        "layout of the blocks in host memory; pattern: as the axis pattern", "page-first-64,page-first-64x16",
        Pattern.of_side, unused=AS_PATTERN, expert=True)] = AS_PATTERN
    sizes: Annotated[str, Axis(
        "sizes within a swap: equal; alternate-D: every other block has 1/D of the size (an indexer beside MLA); "
        "last-D: the last block has 1/D (it is not full)", "equal,alternate-8,last-2",
        sizes_within, unused=EQUAL, expert=True)] = EQUAL
    memory: Annotated[Memory | None, Axis(
        "how host memory is pinned: allocated by the driver, or registered: own pages, shared (a file in /dev/shm) or "
        "huge pages", "allocated,registered,shared,huge-2MiB", choice(Memory), default=(Memory.ALLOCATED,),
        optional=True, noun="choice of host memory", usual=Memory.ALLOCATED)] = Memory.ALLOCATED
    order: Annotated[Order | None, Axis(
        "source access order of batched copies (default: any for h2d, stream for d2h)", "stream,any", choice(Order),
        optional=True, noun="access order", cuda_only=True, chosen=True)] = None
    sms: Annotated[int | None, Axis(
        "SM count of a copy kernel (its grid size), or all",
        "1:32:x2", whole(1, 4096, "all"), zero_as("all"),
        ranged=True, optional=True, noun="SMs to choose", cuda_only=True, chosen=True, number=True)] = None
    descriptors_per_call: Annotated[int | None, Axis(
        "maximum descriptors per batched call", "all,8192", whole(1, 10**8, "all"), zero_as("all"), default=(0,),
        ranged=True, optional=True, noun="descriptors per call", chosen=True, usual="all", expert=True)] = None
    overlap: Annotated[bool | None, Axis(
        "set CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE on batched copies", "off,on", on_off, switch, default=(False,),
        optional=True, noun="overlap flag", cuda_only=True, chosen=True, usual="off", expert=True)] = None
    list_place: Annotated[ListPlace, Axis(
        "where the list lies at submission: host: in arrays; gpu: as ids, which a kernel in a CUDA graph reads",
        "host,gpu", choice(ListPlace), unused=ListPlace.HOST, noun="gather by ids on the GPU", cuda_only=True,
        name="list")] = ListPlace.HOST
    queued: Annotated[int, Axis(
        "swaps queued on a busy stream before the measured one", "0,1:4096:x4", whole(0, 100_000),
        role=Role.QUEUE, ranged=True, unused=0, noun="queue of swaps", number=True, expert=True)] = 0
    streams: Annotated[int, Axis(
        "streams over which the queued and the measured swaps are distributed round-robin", "1,8",
        whole(1, HARDWARE_QUEUES), role=Role.QUEUE, ranged=True, unused=1, noun="pool of streams", number=True,
        expert=True)] = 1
    pool_bytes: Annotated[int, Axis(
        "memory that the blocks are scattered over on each side: a size, or dense (adjacent blocks)",
        "dense,16GiB", pool, zero_as("dense", size), default=(0,), ranged=True, unused=0, number=True, name="pool")] = 0
    reuse: Annotated[Reuse, Axis(
        "fresh: every swap moves different blocks; same: every swap moves the same blocks", "fresh,same", choice(Reuse),
        default=(Reuse.FRESH,), unused=Reuse.SAME)] = Reuse.SAME
    pause_us: Annotated[int, Axis(
        "duration of other CPU work before every swap, as between decode steps", "0,200us", pause, pause_text,
        ranged=True, unused=0, number=True, name="pause", expert=True)] = 0
    neighbour: Annotated[Neighbour, Axis(
        "work beside the swaps: none, idle, gemm, decode, swap (opposite direction)",
        "none,gemm,decode", choice(Neighbour), role=Role.BESIDE, unused=Neighbour.NONE)] = Neighbour.NONE
    sequence: Annotated[str, Axis(
        "whole: one swap; layers-L: a swap for each of L layers, back to back; at-once-L: one swap, for which "
        "all L layers of a step wait; L is the model's own if left out; trace: set by --trace",
        "whole,layers-32,at-once-32", by_layers,
        role=Role.BESIDE, unused="whole")] = "whole"
    devices: Annotated[int, Axis(
        "devices of one host that swap at once, each its own blocks (set by --device cuda:all)", "1,2", whole(1, 64),
        role=Role.BESIDE, ranged=True, unused=1, number=True, expert=True)] = 1
    # fmt: on

    @property
    def swap_bytes(self) -> int:
        small, small_bytes = self.small_blocks
        return (self.blocks - len(small)) * self.block_bytes + len(small) * small_bytes

    @property
    def small_blocks(self) -> tuple[range, int]:
        """The descriptors that are smaller than the block size, and the bytes of each."""
        kind, _, divisor = self.sizes.partition("-")
        first = {"alternate": 1, "last": self.blocks - 1}.get(kind, self.blocks)
        return range(first, self.blocks, 2), max(1, self.block_bytes // int(divisor or 1))

    @property
    def layers(self) -> int:
        """The layers that wait for the swap, 0 if none does."""
        number = self.sequence.rpartition("-")[2]
        return int(number) if number.isdigit() else 0

    @property
    def swap_clock(self) -> Literal["event_us", "wall_us"]:
        """The time of a swap: between two events, but for what has none: a call after a pause, which the record of an
        event would prepare, and the swaps of a loop beside a neighbour.
        """
        after_pause = self.pause_us > 0 and self.stream_state.ungated is StreamState.IDLE
        in_a_loop = self.neighbour is not Neighbour.NONE and not self.layers
        return "wall_us" if after_pause or in_a_loop else "event_us"

    @property
    def hot(self) -> bool:
        """Whether every swap moves the same blocks, adjacent in memory: the opposite of an engine's swap."""
        return self.pool_bytes == 0 and self.reuse is Reuse.SAME

    @property
    def spread_bytes(self) -> int:
        """Bytes that the blocks of one swap are spread over on each side."""
        return max(self.pool_bytes, self.swap_bytes)

    @property
    def dense_bytes(self) -> int:
        """Bytes that the adjacent blocks take on each side, including spare rows."""
        return max(side.pool_rows(self.blocks) for side in self.sides) * self.block_bytes

    @property
    def sides(self) -> tuple[Pattern, Pattern]:
        host, device = self.pattern, self.pattern.on_device
        onward = self.direction is Direction.H2D
        if self.pattern.kind == "reversed":
            host, device = (DESCENDING, CONTIGUOUS) if onward else (CONTIGUOUS, DESCENDING)
        host = host if self.host_pattern == AS_PATTERN else self.host_pattern
        device = device if self.device_pattern == AS_PATTERN else self.device_pattern
        return (host, device) if onward else (device, host)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Computed once: a report looks cells up tens of thousands of times."""
        return hash(tuple(getattr(self, axis.field) for axis in AXES.values()))

    @cached_property
    def id(self) -> str:
        """Twelve hex digits that depend only on the values: the same cell has the same id in every run."""
        return _id_of(self)

    def shuffle_key(self, number: int, seed: int) -> bytes:
        """Return a key that sorts the cells of round `number` into an order shuffled by `seed`."""
        return hashlib.blake2s(f"{seed}/{number}/{self.id}".encode()).digest()

    @property
    def label(self) -> str:
        """A readable label, without usual values: "batched h2d 10000 x 16KiB idle pool=16GiB …"."""
        texts = self.as_strings()
        head = f"{self.backend} {self.direction} {self.blocks} x {texts['block_size']} {self.stream_state}"
        side = [(axis, texts.get(axis.name)) for axis in AXES.values() if axis.role not in (Role.SERIES, Role.SHAPE)]
        tail = " ".join(f"{axis.name}={text}" for axis, text in side if text is not None and text != axis.usual)
        return " ".join(filter(None, (head, "hot" if self.hot else "", tail)))

    def as_strings(self) -> AxisTexts:
        """Return axis name -> value in the grammar of `-a`, or None if the axis does not apply.

        A later axis (`Axis.later`) that the cell does not use is omitted, so that ids stay the same.
        """
        values = ((axis, getattr(self, axis.field)) for axis in AXES.values())
        return {axis.name: axis.show(value) for axis, value in values if not (axis.later and value == axis.unused)}

    @classmethod
    def from_strings(cls, values: AxisTexts) -> Self:
        """Rebuild a cell from `as_strings`; raises UsageError for unknown axes or invalid values.

        A missing axis that is later, or that not every backend supports, counts as not used.
        """
        unknown = sorted(set(values) - set(AXES))
        spared = {name: axis for name, axis in AXES.items() if axis.depends_on_backend or axis.later}
        missing = sorted(set(AXES) - set(spared) - set(values))
        if unknown or missing:
            raise UsageError(f"a cell has the axes {', '.join(AXES)}; unknown: {unknown}, missing: {missing}")
        parsed = {axis.field: axis.unused for axis in spared.values()}
        for name, text in values.items():
            axis = AXES[name]
            if text is None and not axis.optional:
                raise UsageError(f"axis {name} of a cell has no value")
            parsed[axis.field] = None if text is None else axis.parse_one(text)
        return cls(**parsed)  # type: ignore[arg-type]  # each axis parses to its field's type

    def command(self) -> str:
        return command_of(self.spelled_out())

    def spelled_out(self) -> AxisTexts:
        """Return `as_strings`, plus the axes that cells use by default but this cell does not."""
        used_by_default = (axis for axis in AXES.values() if axis.later and axis.default)
        return self.as_strings() | {axis.name: axis.show(getattr(self, axis.field)) for axis in used_by_default}


def _entries(kind: type) -> dict[str, Axis]:
    """Return name -> axis of the fields of `kind`, in their order."""
    axes = {}
    for field, annotation in typing.get_type_hints(kind, include_extras=True).items():
        (entry,) = (extra for extra in typing.get_args(annotation)[1:] if isinstance(extra, Axis))
        axis = replace(entry, name=entry.name or field, field=field)
        axes[axis.name] = axis
    return axes


AXES: Final = _entries(Cell)


def axis_named(name: str) -> Axis:
    if name not in AXES:
        raise UsageError(f"unknown axis {shown(name)}; {hint(name, AXES, 'the axes are ' + ', '.join(AXES))}")
    return AXES[name]


def axes_of(*roles: Role) -> tuple[str, ...]:
    return tuple(name for name, axis in AXES.items() if axis.role in roles)


def command_of(texts: Mapping[str, str | None]) -> str:
    """Return the command that measures the cells with these values, each in the grammar of `-a`."""
    settings = " ".join(f"-a {name}={value}" for name, value in texts.items() if value is not None)
    return f"kvbench sweep {settings}"


@lru_cache(maxsize=1 << 16)
def _id_of(cell: Cell) -> str:
    text = json.dumps(cell.as_strings(), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2s(text.encode(), digest_size=6).hexdigest()
