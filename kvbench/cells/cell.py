"""The cell: one point of a sweep; its axes, one for each field; and the shape of its swaps."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Final, Literal, NamedTuple, Self

from kvbench.cells.axes import (
    HARDWARE_QUEUES,
    NO_PACE,
    Axis,
    Direction,
    ListPlace,
    Memory,
    Neighbour,
    Order,
    Priority,
    Reuse,
    Role,
    StreamState,
    backend_name,
    block_size,
    by_layers,
    choice,
    host_memory,
    on_off,
    pace,
    pause,
    pause_text,
    pool,
    size,
    sizes_within,
    switch,
    whole,
    zero_as,
)
from kvbench.cells.pattern import AS_PATTERN, CONTIGUOUS, DESCENDING, SHUFFLED, Pattern
from kvbench.cells.units import KIB, size_text
from kvbench.ground.errors import UsageError
from kvbench.ground.text import hint, quoted

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

    backend: str
    direction: Direction
    blocks: int
    block_bytes: int
    stream_state: StreamState = StreamState.IDLE
    pattern: Pattern = SHUFFLED
    device_pattern: Pattern = AS_PATTERN
    host_pattern: Pattern = AS_PATTERN
    sizes: str = EQUAL
    memory: str | None = Memory.ALLOCATED
    order: Order | None = None
    sms: int | None = None
    pace: str = NO_PACE
    descriptors_per_call: int | None = None
    overlap: bool | None = None
    list_place: ListPlace = ListPlace.HOST
    queued: int = 0
    streams: int = 1
    priority: Priority = Priority.NONE
    pool_bytes: int = 0
    reuse: Reuse = Reuse.SAME
    pause_us: int = 0
    neighbour: Neighbour = Neighbour.NONE
    opposite: bool = False
    sequence: str = "whole"
    devices: int = 1
    ranks: int = 1

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
        in_a_loop = self.neighbour != Neighbour.NONE and not self.layers
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

    @property
    def host_run_bytes(self) -> int:
        """Bytes that lie together on the host, in whatever order, in the mean over the blocks of a swap."""
        host = self.sides[0 if self.direction is Direction.H2D else 1]
        run = 1 if self.sizes.startswith("alternate") else host.run_blocks(self.blocks)
        return self.swap_bytes // -(-self.blocks // run)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Computed once: a report looks cells up tens of thousands of times."""
        return hash(tuple(getattr(self, axis.field) for axis in AXES.values()))

    @cached_property
    def id(self) -> str:
        """Twelve hex digits that depend only on the values: the same cell has the same id in every run."""
        text = json.dumps(self.as_strings(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2s(text.encode(), digest_size=6).hexdigest()

    def shuffle_key(self, number: int, seed: int) -> bytes:
        """A key that sorts the cells of round `number` into an order shuffled by `seed`."""
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
        """Axis name -> value in the grammar of `-a`, or None if the axis does not apply.

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
        """`text` by the name of every axis."""
        return {name: self.text(name) for name in AXES}

    def text(self, name: str) -> str | None:
        """The value on one axis as `-a` takes it; None where it does not apply, or is not used as usual."""
        axis = AXES[name]
        value = getattr(self, axis.field)
        return axis.show(value) if axis.default or not axis.later or value != axis.unused else None


def _axes(**entries: Axis) -> dict[str, Axis]:
    """Name -> axis, in the order of the fields of `Cell`, by which the entries are named."""
    assert list(entries) == list(_HELP) == [field.name for field in fields(Cell)]
    named = [replace(axis, name=axis.name or field, field=field, help=_HELP[field]) for field, axis in entries.items()]
    return {axis.name: axis for axis in named}


# What each axis means, in a line of help.
_HELP: Final = {
    "backend": "implementation of the swap (kvbench list backends)",
    "direction": "direction: h2d (onload) or d2h (offload)",
    "blocks": "number of blocks per swap, one descriptor each",
    "block_bytes": "size of a block",
    "stream_state": "what is pending on the stream at submission: nothing, a delay, an event that is not reached or "
    "one that is, the previous swaps, or the record of the start event, which nobody waits for",
    "pattern": "layout of the blocks in memory, on both sides (see Patterns)",
    "device_pattern": "layout of the blocks in device memory; pattern: as the axis pattern",
    "host_pattern": "layout of the blocks in host memory; pattern: as the axis pattern",
    "sizes": "sizes within a swap: equal; alternate-D: every other block has 1/D of the size (an indexer beside MLA); "
    "last-D: the last block has 1/D (it is not full)",
    "memory": "how host memory is pinned: allocated by the driver, or registered: own pages, shared (a file in "
    "/dev/shm), huge pages, or slots-SIZExR: of such a file, every R-th slot of SIZE, as one of R ranks registers it",
    "order": "source access order of batched copies (default: any for h2d, stream for d2h)",
    "sms": "SM count of a copy kernel (its grid size), or all",
    "pace": "rate at which a copy kernel is held: GB/s, or a share of the rate of large copies in the same round",
    "descriptors_per_call": "maximum descriptors per batched call",
    "overlap": "set CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE on batched copies",
    "list_place": "where the list lies at submission: host: in arrays; gpu: as ids, which a kernel in a CUDA "
    "graph reads",
    "queued": "swaps queued on a busy stream before the measured one",
    "streams": "streams over which the queued and the measured swaps are distributed round-robin",
    "priority": "priority of the stream of the swaps: none (the default), low (the GPU's lowest) or high (its highest)",
    "pool_bytes": "memory that the blocks are scattered over on each side: a size, or dense (adjacent blocks)",
    "reuse": "fresh: every swap moves different blocks; same: every swap moves the same blocks",
    "pause_us": "duration of other CPU work before every swap, as between decode steps",
    "neighbour": "work beside the swaps: none, idle (waits), decode (a step), prefill or prefill-TOKENS (a layer)",
    "opposite": "swaps of the other direction at the same time, by the same backend on a stream of their own",
    "sequence": "whole: one swap; layers-L: a swap for each of L layers, back to back; at-once-L: one swap, for which "
    "all L layers of a step wait; L is the model's own if left out; trace: set by --trace",
    "devices": "devices of one host that swap at once, each its own blocks (set by --device cuda:all)",
    "ranks": "GPUs whose decode steps wait for each other, by two all-reduces a layer, while all of them swap",
}
AXES: Final = _axes(
    backend=Axis("per_block,batched", backend_name, role=Role.SERIES),
    direction=Axis("h2d,d2h", choice(Direction), role=Role.SERIES, default=tuple(Direction)),
    blocks=Axis("16,64,256", whole(1, 10**8), role=Role.SHAPE, ranged=True, default=(256,)),
    block_bytes=Axis(
        "1KiB:256KiB:x2", block_size, size, Role.SHAPE, ranged=True, default=(16 * KIB,), name="block_size"
    ),
    stream_state=Axis(
        "idle,busy,gated,opened,sustained,unwaited,unwaited-event",
        choice(StreamState),
        role=Role.SERIES,
        default=(StreamState.IDLE,),
    ),
    pattern=Axis("shuffled,runs-16,tensors-64", Pattern.parse, default=(SHUFFLED,)),
    device_pattern=Axis("tensors-64,tensors-64/runs-16", Pattern.of_side, unused=AS_PATTERN, expert=True),
    host_pattern=Axis("page-first-64,page-first-64x16", Pattern.of_side, unused=AS_PATTERN, expert=True),
    sizes=Axis("equal,alternate-8,last-2", sizes_within, unused=EQUAL, expert=True),
    memory=Axis(
        "allocated,registered,shared,huge-2MiB,slots-2MiBx8",
        host_memory,
        default=(Memory.ALLOCATED,),
        noun="choice of host memory",
    ),
    order=Axis("stream,any", choice(Order), noun="access order", cuda_only=True, chosen=True),
    sms=Axis(
        "1:32:x2", whole(1, 4096, "all"), zero_as("all"), ranged=True, noun="SMs to choose", cuda_only=True, chosen=True
    ),
    pace=Axis("none,85%,46GB/s", pace, unused=NO_PACE, noun="pace", cuda_only=True, chosen=True, kept=True),
    descriptors_per_call=Axis(
        "all,8192",
        whole(1, 10**8, "all"),
        zero_as("all"),
        ranged=True,
        default=(0,),
        noun="descriptors per call",
        chosen=True,
        expert=True,
        as_text=True,
    ),
    overlap=Axis(
        "off,on", on_off, switch, default=(False,), noun="overlap flag", cuda_only=True, chosen=True, expert=True
    ),
    list_place=Axis(
        "host,gpu",
        choice(ListPlace),
        unused=ListPlace.HOST,
        noun="gather by ids on the GPU",
        cuda_only=True,
        name="list",
    ),
    queued=Axis(
        "0,1:4096:x4", whole(0, 100_000), role=Role.QUEUE, ranged=True, unused=0, noun="queue of swaps", expert=True
    ),
    streams=Axis(
        "1,8", whole(1, HARDWARE_QUEUES), role=Role.QUEUE, ranged=True, unused=1, noun="pool of streams", expert=True
    ),
    priority=Axis("none,low,high", choice(Priority), unused=Priority.NONE, expert=True),
    pool_bytes=Axis("dense,16GiB", pool, zero_as("dense", size), ranged=True, default=(0,), unused=0, name="pool"),
    reuse=Axis("fresh,same", choice(Reuse), default=(Reuse.FRESH,), unused=Reuse.SAME),
    pause_us=Axis("0,200us", pause, pause_text, ranged=True, unused=0, expert=True, name="pause"),
    neighbour=Axis("none,decode,prefill-512", Neighbour.parse, role=Role.BESIDE, unused=Neighbour.NONE),
    opposite=Axis("off,on", on_off, switch, role=Role.BESIDE, unused=False),
    sequence=Axis("whole,layers-32,at-once-32", by_layers, role=Role.BESIDE, unused="whole"),
    devices=Axis("1,2", whole(1, 64), role=Role.BESIDE, ranged=True, unused=1, expert=True),
    ranks=Axis("1,2", whole(1, 64), role=Role.BESIDE, ranged=True, unused=1, expert=True),
)


def axis_named(name: str) -> Axis:
    if name not in AXES:
        raise UsageError(f"unknown axis {quoted(name)}; {hint(name, AXES, 'the axes are ' + ', '.join(AXES))}")
    return AXES[name]


def axes_of(*roles: Role) -> tuple[str, ...]:
    return tuple(name for name, axis in AXES.items() if axis.role in roles)


def command_of(texts: Mapping[str, str | None]) -> str:
    settings = " ".join(f"-a {name}={value}" for name, value in texts.items() if value is not None)
    return f"kvbench sweep {settings}"


class SwapKind(NamedTuple):
    """A direction and a state of the stream; as text "h2d idle"."""

    direction: Direction
    stream_state: StreamState

    def __str__(self) -> str:
        return f"{self.direction} {self.stream_state}"


class SwapShape(NamedTuple):
    """Swaps of one kind with as many blocks of one size."""

    direction: Direction
    stream_state: StreamState
    blocks: int
    block_bytes: int

    @classmethod
    def of_cell(cls, cell: Cell) -> Self:
        return cls(cell.direction, cell.stream_state, cell.blocks, cell.block_bytes)

    @property
    def kind(self) -> SwapKind:
        return SwapKind(self.direction, self.stream_state)

    @property
    def size_text(self) -> str:
        """The blocks: "64 x 4KiB"."""
        return f"{self.blocks} x {size_text(self.block_bytes)}"
