"""The axes of a sweep, the grammar of their values, and the cell: one point of the sweep."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from kvbench.errors import UsageError, brief
from kvbench.units import format_size, parse_size

MAX_AXIS_VALUES: Final = 10_000


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
class Pattern:
    """How blocks lie in memory: `shuffled`, `contiguous`, `reversed`, or `runs-R` (shuffled runs of R neighbours)."""

    kind: str
    run: int = 1

    def __str__(self) -> str:
        return f"runs-{self.run}" if self.kind == "runs" else self.kind

    @classmethod
    def parse(cls, text: str) -> "Pattern":
        """Read a pattern as `str` writes it; raises ValueError."""
        if text in ("shuffled", "contiguous", "reversed"):
            return cls(text)
        match = re.fullmatch(r"runs-(\d{1,6})", text)
        if match is None or int(match[1]) < 2:
            raise ValueError(f"{text!r} is no pattern; write shuffled, contiguous, reversed or runs-R with R >= 2")
        return cls("runs", int(match[1]))


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the sweep. `None` on an axis means that the backend or the device does not know that axis.

    `order` is what the driver is asked for (the default that follows from direction is resolved by the plan);
    `descriptors_per_call` 0 means all in one call; `sms` is the grid of an SM backend (0, all SMs of the device,
    stands in a request alone: the plan puts the number in).
    """

    backend: str
    direction: Direction
    blocks: int
    block_bytes: int
    stream_state: StreamState = StreamState.IDLE
    pattern: Pattern = Pattern("shuffled")
    memory: Memory | None = Memory.ALLOCATED
    order: Order | None = None
    sms: int | None = None
    descriptors_per_call: int | None = None
    coalesce: bool | None = None
    overlap: bool | None = None

    @property
    def swap_bytes(self) -> int:
        """Bytes that one swap moves."""
        return self.blocks * self.block_bytes

    @property
    def id(self) -> str:
        """Twelve hex digits that depend on the values alone: the same cell has the same id in every run."""
        text = json.dumps(self.as_strings(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2s(text.encode(), digest_size=6).hexdigest()

    @property
    def label(self) -> str:
        """The cell for people, without the axes that do not apply: "batched h2d 10000 x 16KiB idle shuffled …"."""
        head = f"{self.backend} {self.direction} {self.blocks} x {format_size(self.block_bytes)} {self.stream_state}"
        rest = {k: v for k, v in self.as_strings().items() if k not in _IN_HEAD and v is not None}
        tail = " ".join(f"{name}={value}" for name, value in rest.items() if value != _UNREMARKABLE.get(name))
        return f"{head} {tail}".rstrip()

    def as_strings(self) -> dict[str, str | None]:
        """Return axis name -> value in the grammar of `-a`, None where the axis does not apply."""
        return {axis.name: axis.show(getattr(self, axis.field)) for axis in AXES.values()}

    @classmethod
    def from_strings(cls, values: dict[str, str | None]) -> "Cell":
        """Rebuild a cell from `as_strings`; raises UsageError for unknown axes or impossible values."""
        unknown, missing = sorted(set(values) - set(AXES)), sorted(set(AXES) - set(values))
        if unknown or missing:
            raise UsageError(f"a cell has exactly the axes {', '.join(AXES)}; got unknown {unknown}, missing {missing}")
        parsed = {}
        for name, text in values.items():
            axis = AXES[name]
            if text is None and not axis.optional:
                raise UsageError(f"axis {name} of a cell has no value")
            parsed[axis.field] = None if text is None else axis.parse_one(text)
        return cls(**parsed)  # type: ignore[arg-type]  # each axis parses to its field's type

    def command(self) -> str:
        """Return the command that measures this cell alone."""
        settings = " ".join(f"-a {name}={value}" for name, value in self.as_strings().items() if value is not None)
        return f"kvbench sweep {settings}"


AxisValue = str | int | bool | Direction | Order | StreamState | Memory | Pattern


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its name on the command line, the cell's field, how one value is read and written."""

    name: str
    field: str
    read: Callable[[str], AxisValue]
    write: Callable[[AxisValue], str]
    help: str
    example: str
    ranged: bool = False
    optional: bool = False

    def parse_one(self, text: str) -> AxisValue:
        """Read one value; raises UsageError that names the axis, the value and what would be right."""
        try:
            return self.read(text)
        except ValueError as error:
            raise UsageError(f"axis {self.name}={brief(text)}: {error}") from None

    def show(self, value: AxisValue | None) -> str | None:
        return None if value is None else self.write(value)

    def parse(self, text: str) -> tuple[AxisValue, ...]:
        """Read a list: values and ranges between commas, `lo:hi:xK` (geometric) and `lo:hi:+K` (arithmetic).

        Values keep their order and are unique. Raises UsageError.
        """
        values: dict[AxisValue, None] = {}
        for item in text.split(","):
            if not item.strip():
                raise UsageError(f"axis {self.name}={brief(text)}: an empty value; {self._hint()}")
            for value in self._item(item.strip()):
                values[value] = None
            if len(values) > MAX_AXIS_VALUES:
                raise UsageError(f"axis {self.name}={brief(text)}: more than {MAX_AXIS_VALUES} values")
        return tuple(values)

    def _item(self, item: str) -> Sequence[AxisValue]:
        if not (self.ranged and ":" in item):
            return (self.parse_one(item),)
        parts = item.split(":")
        if len(parts) != 3 or parts[2][:1] not in ("x", "+"):
            raise UsageError(f"axis {self.name}={brief(item)}: a range is lo:hi:xK or lo:hi:+K; {self._hint()}")
        low, high = self.parse_one(parts[0]), self.parse_one(parts[1])
        assert isinstance(low, int)
        assert isinstance(high, int)
        if any(end.strip()[0].isalpha() for end in parts[:2]):
            raise UsageError(f"axis {self.name}={brief(item)}: a range goes from a number to a number; {self._hint()}")
        geometric = parts[2][0] == "x"
        try:
            step = int(parts[2][1:]) if geometric else parse_size(parts[2][1:])
        except ValueError:
            raise UsageError(
                f"axis {self.name}={brief(item)}: the step {brief(parts[2])} is no whole number; {self._hint()}"
            ) from None
        if low > high or step < (2 if geometric else 1) or (geometric and low == 0):
            raise UsageError(
                f"axis {self.name}={brief(item)}: a range rises, by xK (K >= 2, from at least 1) or by +K (K >= 1)"
            )
        values = [low]
        while (following := values[-1] * step if geometric else values[-1] + step) <= high:
            values.append(following)
            if len(values) > MAX_AXIS_VALUES:
                raise UsageError(f"axis {self.name}={brief(item)}: more than {MAX_AXIS_VALUES} values")
        return values

    def _hint(self) -> str:
        return f"for example {self.name}={self.example}"


def _whole(lowest: int, highest: int, words: dict[str, int] | None = None) -> Callable[[str], int]:
    def read(text: str) -> int:
        if words and text in words:
            return words[text]
        also = f" or {', '.join(words)}" if words else ""
        if not re.fullmatch(r"\d{1,18}", text) or not lowest <= int(text) <= highest:
            raise ValueError(f"not a whole number from {lowest} to {highest}{also}")
        return int(text)

    return read


def _number_or_all(value: AxisValue) -> str:
    return "all" if value == 0 else str(value)


def _block_size(text: str) -> int:
    size = parse_size(text)
    if not 1 <= size <= 2**34:
        raise ValueError("not a size from 1B to 16GiB")
    return size


def _word(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", text):
        raise ValueError("not a backend's name (letters, digits, '_', '.', '-')")
    return text


def _on_off(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError("not on or off")
    return text == "on"


def _choice(kind: type[StrEnum]) -> Callable[[str], AxisValue]:
    def read(text: str) -> AxisValue:
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"not one of {', '.join(kind)}") from None

    return read


_LINE: Final = (
    Axis("backend", "backend", _word, str, "who copies (kvbench list backends)", "per_block,batched"),
    Axis("direction", "direction", _choice(Direction), str, "h2d (onload) or d2h (offload)", "h2d,d2h"),
    Axis("blocks", "blocks", _whole(1, 10**8), str, "descriptors in one swap", "16,64,256", ranged=True),
    Axis(
        "block_size",
        "block_bytes",
        _block_size,
        lambda v: format_size(int(str(v))),
        "bytes of one descriptor",
        "1KiB:256KiB:x2",
        ranged=True,
    ),
    Axis(
        "stream_state",
        "stream_state",
        _choice(StreamState),
        str,
        "is work pending on the stream when the swap is submitted",
        "idle,busy",
    ),
    Axis(
        "pattern",
        "pattern",
        Pattern.parse,
        str,
        "how blocks lie in memory: shuffled, contiguous, reversed, runs-R",
        "shuffled,runs-16",
    ),
    Axis("memory", "memory", _choice(Memory), str, "how host memory is pinned", "allocated,registered", optional=True),
    Axis(
        "order",
        "order",
        _choice(Order),
        str,
        "source access order of batched copies (default: any for h2d, stream for d2h)",
        "stream,any",
        optional=True,
    ),
    Axis(
        "sms",
        "sms",
        _whole(1, 4096, {"all": 0}),
        _number_or_all,
        "SMs that a kernel may use (its grid); all is the device's number",
        "1:32:x2",
        ranged=True,
        optional=True,
    ),
    Axis(
        "descriptors_per_call",
        "descriptors_per_call",
        _whole(1, 10**8, {"all": 0}),
        _number_or_all,
        "at most so many descriptors in one batched call",
        "all,8192",
        ranged=True,
        optional=True,
    ),
    Axis(
        "coalesce",
        "coalesce",
        _on_off,
        lambda v: "on" if v else "off",
        "merge descriptors adjacent on both sides before the call",
        "off,on",
        optional=True,
    ),
    Axis(
        "overlap",
        "overlap",
        _on_off,
        lambda v: "on" if v else "off",
        "CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE of batched copies",
        "off,on",
        optional=True,
    ),
)
AXES: Final[dict[str, Axis]] = {axis.name: axis for axis in _LINE}
_IN_HEAD: Final = frozenset({"backend", "direction", "blocks", "block_size", "stream_state"})
_UNREMARKABLE: Final = {
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
