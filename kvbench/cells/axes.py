"""The named values of axes, and the grammar of an axis: how one value, a list and a range are read and written."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, NamedTuple

from kvbench.cells.pattern import Pattern
from kvbench.cells.units import KIB, format_size, parse_binary_size, parse_size
from kvbench.ground.errors import UsageError, brief


class Direction(StrEnum):
    """The direction of a swap: to the GPU (h2d, onload) or from it (d2h, offload)."""

    H2D = "h2d"
    D2H = "d2h"


class Order(StrEnum):
    """CUmemcpySrcAccessOrder: when a batched copy may read its sources, relative to the stream's order."""

    STREAM = "stream"
    DURING_API_CALL = "during_api_call"
    ANY = "any"


# Maximum of the CUDA driver; streams that share a queue block each other.
HARDWARE_QUEUES: Final = 32
DEFAULT_ORDER: Final = {Direction.H2D: Order.ANY, Direction.D2H: Order.STREAM}


class StreamState(StrEnum):
    """What is pending on the stream when a swap is submitted, which decides the quantity that GB/s measure.

    idle: nothing; latency. busy: a delay that outlasts the submission; execution. gated: a wait for an event that
    another stream reaches after the submission; execution, from the opening of the gate. opened: a wait for an event
    that was reached before; latency. sustained: the previous swaps, submitted one after the other without waiting;
    sustained. unwaited: the record of the start event, which nobody waits for, as in the benchmarks of engines;
    latency. unwaited-event: the same behind an event of another stream, as in vLLM's worker; latency.
    """

    IDLE = "idle"
    BUSY = "busy"
    GATED = "gated"
    OPENED = "opened"
    SUSTAINED = "sustained"
    UNWAITED = "unwaited"
    UNWAITED_EVENT = "unwaited-event"

    @property
    def pending(self) -> bool:
        return self in (StreamState.BUSY, StreamState.GATED)

    @property
    def quantity(self) -> str:
        """The name of the quantity that GB/s measure."""
        if self is StreamState.SUSTAINED:
            return "sustained"
        return "execution" if self.pending else "latency"

    @property
    def ungated(self) -> "StreamState":
        """The state in which the driver takes the same path without an event to wait for."""
        without = {
            StreamState.GATED: StreamState.BUSY,
            StreamState.OPENED: StreamState.IDLE,
            StreamState.UNWAITED_EVENT: StreamState.UNWAITED,
        }
        return without.get(self, self)


class Reuse(StrEnum):
    """Whether each swap moves different blocks from the previous one, as in an engine, or the same blocks again."""

    FRESH = "fresh"
    SAME = "same"


class Situation(StrEnum):
    """What an engine's GPU does while it swaps."""

    ALONE = "alone"
    DECODE = "decode"
    PREFILL = "prefill"

    @property
    def beside(self) -> str:
        """What the swaps are beside, as tables say it."""
        return "nothing" if self is Situation.ALONE else self.value


PREFILL_TOKENS: Final = 2048
LEAST_TOKENS, MOST_TOKENS = 64, 65_536


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The work that runs continuously on the device beside the swaps; `tokens` are those of a prefill, else 0."""

    kind: str
    tokens: int = 0

    NONE: ClassVar["Neighbour"]
    IDLE: ClassVar["Neighbour"]
    DECODE: ClassVar["Neighbour"]
    PREFILL: ClassVar["Neighbour"]

    def __str__(self) -> str:
        return f"{self.kind}-{self.tokens}" if self.tokens not in (0, PREFILL_TOKENS) else self.kind

    @property
    def uses_torch(self) -> bool:
        return self.kind in ("decode", "prefill")

    @property
    def situation(self) -> Situation | None:
        """What swaps beside it show of an engine's; None beside what only waits."""
        if self.kind == "none":
            return Situation.ALONE
        return None if self.kind == "idle" else Situation(self.kind)

    @classmethod
    def parse(cls, text: str) -> "Neighbour":
        """Read none, idle, decode, prefill, or prefill-TOKENS; raises ValueError."""
        for named in (cls.NONE, cls.IDLE, cls.DECODE, cls.PREFILL):
            if text.lower() == named.kind:
                return named
        if text.lower() == "gemm":
            raise ValueError("gemm is gone: its figures were those of one matrix's size; prefill is a layer of a model")
        match = re.fullmatch(r"prefill-([1-9]\d{0,5})", text.lower())
        if match is None or not LEAST_TOKENS <= int(match[1]) <= MOST_TOKENS:
            raise ValueError(
                f"not none, idle, decode, prefill or prefill-TOKENS with {LEAST_TOKENS} to {MOST_TOKENS} tokens"
            )
        tokens = int(match[1])
        return cls.PREFILL if tokens == PREFILL_TOKENS else cls("prefill", tokens)


Neighbour.NONE, Neighbour.IDLE = Neighbour("none"), Neighbour("idle")
Neighbour.DECODE, Neighbour.PREFILL = Neighbour("decode"), Neighbour("prefill", PREFILL_TOKENS)


class Memory(StrEnum):
    """How host memory is pinned: allocated by the driver, or pages that are registered with the driver.

    These are the program's own, of one file in /dev/shm, as engines share their pool between ranks, or huge pages.
    """

    ALLOCATED = "allocated"
    REGISTERED = "registered"
    SHARED = "shared"
    HUGE_2MIB = "huge-2MiB"
    HUGE_1GIB = "huge-1GiB"


# The bytes of a page of memory in huge pages.
HUGE_BYTES: Final[Mapping[str, int]] = {Memory.HUGE_2MIB: 1 << 21, Memory.HUGE_1GIB: 1 << 30}


class Slots(NamedTuple):
    """A file in /dev/shm of which every `ranks`-th slot of `slot_bytes` is registered, as one of its ranks sees it."""

    slot_bytes: int
    ranks: int


def slots_of(memory: str | None) -> Slots | None:
    """The slots of host memory that is registered in them, None for other memory; raises ValueError."""
    match = re.fullmatch(r"slots-(\S+)x(\d{1,3})", memory or "")
    return Slots(parse_size(match[1]), int(match[2])) if match else None


class Pace(NamedTuple):
    """The rate at which a copy kernel is held: in GB/s, or as a share of the rate of large copies; the other is 0."""

    gbps: float
    share: float


NO_PACE: Final = "none"
PACES_GBPS: Final = (0.1, 1000.0)  # the lowest and the highest


def pace_of(text: str) -> Pace | None:
    """The pace that a value of the axis names, None for none; raises ValueError."""
    low, high = PACES_GBPS
    match = re.fullmatch(r"(\d{1,4}(?:\.\d{1,2})?)(GB/s|%)", text)
    value = float(match[1]) if match else 0.0
    if match and match[2] == "GB/s" and low <= value <= high:
        return Pace(value, 0.0)
    if match and match[2] == "%" and 1 <= value <= 100:
        return Pace(0.0, value / 100)
    if text == NO_PACE:
        return None
    raise ValueError(f"not none, a rate from {low:g}GB/s to {high:g}GB/s, or a share of the link from 1% to 100%")


class Priority(StrEnum):
    """The priority of the stream of the swaps: the default, or the lowest or highest of the GPU."""

    NONE = "none"
    LOW = "low"
    HIGH = "high"


class ListPlace(StrEnum):
    """Where the list of a swap lies at submission: in arrays of the host, or as ids on the GPU, for a CUDA graph."""

    HOST = "host"
    GPU = "gpu"


MAX_AXIS_VALUES: Final = 10_000
MOST_LAYERS: Final = 1024

AxisValue = str | int | bool | StrEnum | Pattern | Neighbour


class Role(StrEnum):
    SERIES = "series"  # distinguishes the curves of a chart
    SHAPE = "shape"  # the size of a swap: the x-axis of curves
    SIDE = "side"  # a chart shows one value and names the others
    QUEUE = "queue"  # queued swaps: has its own section
    BESIDE = "beside"  # the neighbour, layers, other devices: has its own section


@dataclass(frozen=True, slots=True)
class Axis:
    """The complete description of one axis for the command line, the plan, results, reports and docs.

    `field` is the field of `Cell`. `read` and `write` are the grammar of one value; `ranged` axes are numbers and
    accept ranges. `default` holds the values used if none are requested.
    An axis that not every backend supports has a `noun`, which completes "… has no"; a cell that does not use it has
    None (`optional`) or the `unused` value, which leaves the swap unchanged. Where a `kept` axis is named, a backend
    without it is skipped. `cuda_only` axes need a GPU. A policy can set `chosen` axes. Lists mark `expert` axes, which
    few questions need.
    """

    example: str
    read: Callable[[str], AxisValue]
    write: Callable[[AxisValue], str] = str
    role: Role = Role.SIDE
    ranged: bool = False
    default: tuple[AxisValue, ...] = ()
    unused: AxisValue | None = None
    noun: str = ""
    cuda_only: bool = False
    chosen: bool = False
    kept: bool = False
    expert: bool = False
    as_text: bool = False
    name: str = ""
    field: str = ""
    help: str = ""

    @property
    def depends_on_backend(self) -> bool:
        """Whether a backend can lack the axis; such a backend is measured with `unused`."""
        return bool(self.noun)

    @property
    def optional(self) -> bool:
        """Whether a cell that does not use the axis has None."""
        return self.depends_on_backend and not self.later

    @property
    def usual(self) -> str | None:
        """The value that labels omit, as text."""
        return self.show(self.default[0]) if self.default and not self.later else None

    @property
    def number(self) -> bool:
        """Whether the summary stores the axis as a number; it stores others as text."""
        return self.ranged and not self.as_text

    @property
    def later(self) -> bool:
        """Whether cells omit the axis if they do not use it, which keeps the ids of cells older than the axis."""
        return self.unused is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the summary: the value as text, and, if that is another column, as a number."""
        return (self.name,) if self.name == self.field else (self.name, self.field)

    def parse_one(self, text: str) -> AxisValue:
        try:
            return self.read(text)
        except ValueError as error:
            raise self._refusal(text, str(error)) from None

    def rewrite(self, text: str) -> str:
        """One value as `write` has it: "4096" as "4KiB"."""
        return self.write(self.parse_one(text))

    def show(self, value: AxisValue | None) -> str | None:
        return None if value is None else self.write(value)

    def parse(self, text: str) -> tuple[AxisValue, ...]:
        """Read a comma-separated list of values and ranges, `lo:hi:xK` (geometric) and `lo:hi:+K` (arithmetic).

        Return unique values in the given order. Raises UsageError.
        """
        values: dict[AxisValue, None] = {}
        for item in text.split(","):
            if not item.strip():
                raise self._refusal(text, f"an empty value; {self._hint()}")
            for value in self._item(item.strip()):
                values[value] = None
            if len(values) > MAX_AXIS_VALUES:
                raise self._refusal(text, f"more than {MAX_AXIS_VALUES} values")
        return tuple(values)

    def texts(self, text: str) -> tuple[str, ...]:
        """The values of `parse`, each as `write` has it."""
        return tuple(map(self.write, self.parse(text)))

    def _item(self, item: str) -> Sequence[AxisValue]:
        if not (self.ranged and ":" in item):
            return (self.parse_one(item),)
        parts = item.split(":")
        if len(parts) != 3 or parts[2][:1] not in ("x", "+"):
            raise self._refusal(item, f"not a range lo:hi:xK or lo:hi:+K; {self._hint()}")
        low, high = self.parse_one(parts[0]), self.parse_one(parts[1])
        assert isinstance(low, int)
        assert isinstance(high, int)
        # "dense" and "all" are read as 0, from which no range begins.
        if any(end.strip()[0].isalpha() for end in parts[:2]):
            raise self._refusal(item, f"the ends of a range must be numbers; {self._hint()}")
        self._check_units(item, low, high)
        geometric = parts[2][0] == "x"
        try:
            step = int(parts[2][1:]) if geometric else self._step(parts[2][1:])
        except ValueError:
            raise self._refusal(item, f"the step {brief(parts[2])} is not a whole number; {self._hint()}") from None
        if low > high or step < (2 if geometric else 1) or (geometric and low == 0):
            raise self._refusal(item, "a range must ascend: xK (K >= 2, from 1 or more) or +K (K >= 1)")
        values = [low]
        while (following := values[-1] * step if geometric else values[-1] + step) <= high:
            values.append(following)
            if len(values) > MAX_AXIS_VALUES:
                raise self._refusal(item, f"more than {MAX_AXIS_VALUES} values")
        return values

    def _check_units(self, item: str, low: int, high: int) -> None:
        """Refuse a range from `low` to `high` with a unit on one end alone, unless it begins at 0."""
        *ends, step = item.split(":")
        units = [end.strip().lstrip("0123456789. ") for end in ends]
        if low and bool(units[0]) != bool(units[1]):
            bare = high if units[0] else low
            unit = "B" if bare >= KIB else "".join(units)
            right = ":".join([end if given else end + unit for end, given in zip(ends, units, strict=True)] + [step])
            raise self._refusal(item, f"{bare} has no unit; write {right}")

    def _step(self, text: str) -> int:
        """Read a step: a size or a whole number, or what the axis reads, such as 200us; raises ValueError."""
        try:
            return parse_size(text)
        except ValueError:
            return int(str(self.read(text)))

    def _refusal(self, text: str, why: str) -> UsageError:
        return UsageError(f"axis {self.name}={brief(text)}: {why}")

    def _hint(self) -> str:
        return f"for example {self.name}={self.example}"


def whole(lowest: int, highest: int, zero: str = "") -> Callable[[str], int]:
    """A function that reads a whole number in a range, or the word `zero`, if there is one, as 0."""

    def read(text: str) -> int:
        if zero and text == zero:
            return 0
        also = f" or {zero}" if zero else ""
        if not re.fullmatch(r"\d{1,18}", text) or not lowest <= int(text) <= highest:
            raise ValueError(f"not a whole number from {lowest} to {highest}{also}")
        return int(text)

    return read


def zero_as(word: str, write: Callable[[AxisValue], str] = str) -> Callable[[AxisValue], str]:
    """A function that writes 0 as `word`, and other values with `write`."""
    return lambda value: word if value == 0 else write(value)


def block_size(text: str) -> int:
    size = parse_binary_size(text)
    if not 1 <= size <= 2**34:
        raise ValueError("not a size from 1B to 16GiB")
    return size


def pool(text: str) -> int:
    if text == "dense":
        return 0
    size_bytes = parse_binary_size(text)
    if not 2**12 <= size_bytes <= 2**44:
        raise ValueError("not dense or a size from 4KiB to 16TiB")
    return size_bytes


def pause(text: str) -> int:
    """Read a pause in microseconds: 0, 200us, 5ms; raises ValueError."""
    if text == "0":
        return 0
    match = re.fullmatch(r"(\d{1,6})(us|ms)", text)
    pause_us = int(match[1]) * {"us": 1, "ms": 1000}[match[2]] if match else -1
    if not 0 <= pause_us <= 1_000_000:
        raise ValueError("not a pause: write 0, or a number with us or ms, up to 1000ms")
    return pause_us


def pause_text(value: AxisValue) -> str:
    time_us = int(str(value))
    if time_us == 0:
        return "0"
    return f"{time_us // 1000}ms" if time_us % 1000 == 0 else f"{time_us}us"


def by_layers(text: str) -> str:
    """Read a sequence: whole, layers-L or at-once-L, with a model layers or at-once, and trace; raises ValueError."""
    match = re.fullmatch(r"whole|trace|(?:layers|at-once)(?:-([1-9]\d{0,3}))?", text)
    if match is None or not 2 <= int(match[1] or 2) <= MOST_LAYERS:
        raise ValueError(
            f"not whole, layers-L or at-once-L with L from 2 to {MOST_LAYERS}; with --model also layers or at-once"
        )
    return text


def sizes_within(text: str) -> str:
    match = re.fullmatch(r"equal|(?:alternate|last)-([1-9]\d{0,3})", text)
    if match is None or match[1] == "1":
        raise ValueError("not equal, alternate-D or last-D with D from 2 to 9999")
    return text


def size(value: AxisValue) -> str:
    return format_size(int(str(value)))


def switch(value: AxisValue) -> str:
    return "on" if value else "off"


def backend_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", text):
        raise ValueError("not a backend's name (letters, digits, '_', '.', '-')")
    return text


def on_off(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError("not on or off")
    return text == "on"


def host_memory(text: str) -> str:
    slots = slots_of(text)
    if slots is None:
        return str(choice(Memory, "slots-SIZExR")(text))
    if slots.slot_bytes % 4096 or slots.slot_bytes == 0 or not 2 <= slots.ranks <= 128:
        raise ValueError("slots-SIZExR takes a multiple of 4KiB and 2 to 128 ranks")
    return f"slots-{format_size(slots.slot_bytes)}x{slots.ranks}"


def pace(text: str) -> str:
    """Read a pace; raises ValueError."""
    rate = pace_of(text)
    if rate is None:
        return NO_PACE
    return pace_text(rate.gbps) if rate.gbps else f"{100 * rate.share:g}%"


def pace_text(gbps: float) -> str:
    return f"{round(gbps, 2):g}GB/s"


def choice(kind: type[StrEnum], other: str = "") -> Callable[[str], AxisValue]:
    def read(text: str) -> AxisValue:
        named = next((value for value in kind if value.lower() == text.lower()), None)
        if named is None:
            raise ValueError(f"not one of {', '.join(filter(None, (*kind, other)))}")
        return named

    return read
