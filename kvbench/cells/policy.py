"""A policy: small tables, measured on one device, of the backend and parameters for each swap; and its file.

The file is TOML; `Policy` has its fields. A table belongs to a direction and a stream state. It has a row for each of
its `block_bytes`, and each row has a choice for each of its `blocks`, in the form of `Choice`: "sm sms=2". A choice
that was not measured is "".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Annotated, Any, Final, Self

import msgspec
import tomli_w

from kvbench.cells.axes import Direction, Situation, StreamState, pace_of, pace_text
from kvbench.cells.cell import AXES, Cell
from kvbench.cells.facts import BATCHED, MERGED, NO_CHOICES, PER_BLOCK, PRIMED, SM, STAGED, method_label
from kvbench.ground.errors import UsageError
from kvbench.ground.files import read_toml
from kvbench.ground.text import Line, convert, located, quoted

NO_POLICY: Final = "auto had no policy and used its built-in defaults: build one with kvbench tune -p FILE"
FORMAT: Final = 2
# What auto and `kvbench.copy` do themselves; a choice of another backend is replaced.
SERVING: Final = (BATCHED, PRIMED, MERGED, PER_BLOCK, SM, STAGED)
# The axes that a choice can set: all that the caller does not decide.
CHOSEN_AXES: Final = tuple(axis.name for axis in AXES.values() if axis.chosen)
_USUAL: Final = {name: axis.usual or axis.show(axis.unused) for name, axis in AXES.items()}
# Axes that decide which choice is fastest, and that a choice does not set.
WORKLOAD_AXES: Final = ("pool", "reuse", "pause", "pattern", "host_pattern", "device_pattern", "sizes")
MAX_VALUES: Final = 64  # per axis of a table

# Stream states in which the driver takes the same path, by how well one serves for another.
_ALIKE: Final = (
    (StreamState.IDLE, StreamState.OPENED),
    (StreamState.GATED, StreamState.BUSY, StreamState.SUSTAINED),
    (StreamState.UNWAITED, StreamState.UNWAITED_EVENT),
)

_Blocks = Annotated[int, msgspec.Meta(ge=1, le=10**8)]
_Bytes = Annotated[int, msgspec.Meta(ge=1, le=2**34)]
_Values = msgspec.Meta(min_length=1, max_length=MAX_VALUES)


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend and the values of its optional axes, in the grammar of `-a`; an omitted axis has its default.

    The backend is of a `plug_in` where a run says so.
    """

    backend: str
    axes: tuple[tuple[str, str], ...] = ()
    plug_in: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return " ".join((self.backend, *(f"{name}={value}" for name, value in self.axes)))

    @property
    def sms(self) -> int:
        """The SM count that it names, 0 for none."""
        return int(dict(self.axes).get("sms", 0))

    @property
    def without_sms(self) -> Self:
        """The method, which all its SM counts have in common."""
        return replace(self, axes=tuple(axis for axis in self.axes if axis[0] != "sms"))

    @property
    def label(self) -> str:
        """The choice as readers see it: "sm (4 SMs)"; the access order follows a rule, so it is left out."""
        return self.label_with([self.sms] if self.sms else [])

    def label_with(self, counts: Sequence[int]) -> str:
        """The same with other SM counts: "sm (2 to 8 SMs)"."""
        settings = [f"{name} {value}" for name, value in self.axes if name not in ("order", "sms")]
        return ", ".join((method_label(self.backend, counts, plug_in=self.plug_in), *settings))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a choice in the form that `str` writes; raises UsageError."""
        backend, *settings = text.split(" ")
        AXES["backend"].parse_one(backend)
        if backend in NO_CHOICES:
            raise UsageError(f"choice {quoted(text)}: {backend} is not a backend that a policy can choose")
        pairs = tuple((name, value) for name, _, value in (setting.partition("=") for setting in settings))
        names = {name for name, _ in pairs}
        if len(names) < len(pairs) or not names <= set(CHOSEN_AXES):
            raise UsageError(
                f"choice {quoted(text)}: write a backend, then axis=value of {', '.join(CHOSEN_AXES)}, each once"
            )
        for name, value in pairs:
            if AXES[name].parse_one(value) == 0 and name == "sms":
                raise UsageError(f"choice {quoted(text)}: write the number of SMs, not all")
        if "pace" in names and backend in SERVING and backend != SM:
            raise UsageError(f"choice {quoted(text)}: {backend} has no pace; {SM} has")
        return cls(backend, pairs)

    @classmethod
    def with_axes(cls, backend: str, axes: Mapping[str, str | None]) -> Self:
        """The choice of a backend with `axes`, without values that are missing or the default."""
        return cls(backend, tuple((name, value) for name, value in axes.items() if value and value != _USUAL[name]))

    @classmethod
    def of_cell(cls, cell: Cell, *, plug_in: bool = False) -> Self:
        """The choice that a cell measures, marked where its backend is of a `plug_in`."""
        texts = cell.as_strings()
        choice = cls.with_axes(cell.backend, {name: texts.get(name) for name in CHOSEN_AXES})
        return replace(choice, plug_in=plug_in)

    @property
    def share(self) -> float:
        """The share of the ceiling that its pace is, 0 for none and for a pace in GB/s."""
        pace = pace_of(dict(self.axes).get("pace", "none"))
        return pace.share if pace else 0.0

    def at_pace(self, gbps: float) -> "Choice":
        return Choice.with_axes(self.backend, {**dict(self.axes), "pace": pace_text(gbps)})

    def apply(self, cell: Cell) -> Cell:
        chosen: dict[str, Any] = {AXES[name].field: AXES[name].parse_one(value) for name, value in self.axes}
        return replace(cell, backend=self.backend, **chosen)


class Table(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """The choices for one direction, by stream state for swaps alone, or `beside` a step; block sizes in bytes and
    numbers of blocks are ascending.
    """

    direction: Direction
    stream_state: StreamState | None = None
    beside: Situation | None = None
    block_bytes: Annotated[tuple[_Bytes, ...], _Values]
    blocks: Annotated[tuple[_Blocks, ...], _Values]
    choices: tuple[tuple[Line, ...], ...]

    @property
    def title(self) -> str:
        """What it is for: "h2d idle", "d2h beside decode"."""
        return f"{self.direction} {self.stream_state or f'beside {self.beside}'}"

    def __post_init__(self) -> None:
        if (self.stream_state is None) is (self.beside is None):
            raise ValueError("a table must have a stream_state, or what its swaps are beside")
        if self.beside is Situation.ALONE:
            raise ValueError(f"beside of a table must be {Situation.DECODE} or {Situation.PREFILL}")
        for name in ("block_bytes", "blocks"):
            values = getattr(self, name)
            if any(low >= high for low, high in pairwise(values)):
                raise ValueError(f"{name} of a table must ascend")
        if [len(row) for row in self.choices] != [len(self.blocks)] * len(self.block_bytes):
            raise ValueError(
                "choices of a table must have a row for each of block_bytes, and each row a choice for each of blocks"
            )
        texts = set(filter(None, chain.from_iterable(self.choices)))
        if not texts:
            raise ValueError("a table must have at least one choice")
        for text in texts:
            try:
                Choice.parse(text)
            except UsageError as error:
                raise ValueError(str(error)) from None

    def choose(self, blocks: int, block_bytes: float) -> Choice:
        """The choice at the nearest point; an unmeasured point takes that of the nearest measured one."""
        size, count = _nearest(self.block_bytes, block_bytes), _nearest(self.blocks, blocks)
        texts = zip(product(self.block_bytes, self.blocks), chain(*self.choices), strict=True)
        measured = {point: text for point, text in texts if text}
        # The number of SMs that a kernel needs depends on the size, and much less on the number of blocks.
        near = min(measured, key=lambda point: (_apart(point[0], size), _apart(point[1], count), point))
        return Choice.parse(measured[near])


class Policy(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The tables of one device and their origin.

    `device` is the title of the device, `driver` the version of its driver ("" on the device cpu) and `identity_hash`
    that of the machine; `made` is the time of the newest of its runs (ISO 8601, UTC), `runs` are their commands.
    `workload` maps axes that a choice depends on and does not set to the value that most of the swaps had.
    `ceiling_gbps` is, by direction, the rate of large copies of which the pace of a choice can be a share.
    """

    format: Annotated[int, msgspec.Meta(ge=1, le=FORMAT)] = FORMAT
    device: Line
    driver: Line = ""
    identity_hash: Line = ""
    made: Line = ""
    workload: Mapping[Line, Line] = {}
    ceiling_gbps: Mapping[Direction, Annotated[float, msgspec.Meta(gt=0, le=1e5)]] = {}
    runs: tuple[Line, ...] = ()
    tables: Annotated[tuple[Table, ...], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        titles = [table.title for table in self.tables]
        if len(set(titles)) < len(titles):
            raise ValueError("two tables have the same direction and stream state, or step beside")
        if self.format == 1 and any(table.beside for table in self.tables):
            raise ValueError("tables beside a step are of format 2")
        if unknown := sorted(self.workload.keys() - set(WORKLOAD_AXES)):
            raise ValueError(f"workload: {quoted(unknown[0])} is not one of {', '.join(WORKLOAD_AXES)}")
        for table in self.tables:
            shares = [text for text in chain(*table.choices) if text and Choice.parse(text).share]
            if shares and table.direction not in self.ceiling_gbps:
                raise ValueError(f"choice {quoted(shares[0])}: its pace needs ceiling_gbps of {table.direction}")

    def check_machine(self, device: str, driver: str) -> str | None:
        """A warning for another version of the driver, or None; "" is none.

        Raises UsageError for a device with another title: the fastest choices differ between devices, so such a policy
        is no better than none.
        """
        if self.device != device:
            raise UsageError(
                f"policy: it was measured on {quoted(self.device)}, this is {quoted(device)}; build one here with "
                "kvbench show RUN -p FILE"
            )
        was, now = self.driver or "none", driver or "none"
        same = self.driver == driver
        return None if same else f"the policy was measured with driver {was}, this is {now}: build a new one"

    def beside(self, direction: Direction, situation: Situation) -> Table | None:
        """The table for swaps beside a step, None if that was not measured: no other serves for it."""
        tables = (table for table in self.tables if table.direction is direction)
        return next((table for table in tables if table.beside is situation), None)

    def table(self, direction: Direction, state: StreamState) -> Table | None:
        """The table for a stream state, else for one that is alike (something pending, or nothing), else any.

        None if there is no table by stream state for this direction.
        """
        tables = {table.stream_state: table for table in self.tables if table.direction is direction}
        alike = next(states for states in _ALIKE if state in states)
        return next(filter(None, map(tables.get, (state, *alike, *StreamState))), None)

    def choose(self, table: Table, blocks: int, block_bytes: float) -> Choice:
        """The choice of one of its tables at the nearest point; its pace is in GB/s."""
        choice = table.choose(blocks, block_bytes)
        return choice.at_pace(choice.share * self.ceiling_gbps[table.direction]) if choice.share else choice

    def to_toml(self) -> str:
        return tomli_w.dumps(msgspec.to_builtins(self))


def load_policy(path: Path) -> Policy:
    """Read a policy file; raises UsageError, which names the file and the error."""
    with located(str(path)):
        return convert(read_toml(path), Policy, "policy")


def _nearest(values: Sequence[int], value: float) -> int:
    """The value that is nearest in ratio, of two the smaller; `values` ascend."""
    return min(values, key=lambda candidate: _apart(candidate, value))


def _apart(value: float, other: float) -> float:
    return round(abs(math.log(value / other)), 12)  # the same both ways; sizes of 16 GiB that differ by a byte differ
