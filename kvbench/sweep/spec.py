"""The specification of a sweep: its axes, its trace, how and how long cells are sampled, its memory limits; and the
TOML files that hold one: the shipped configs, found by name, and users' own files.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from kvbench.cells.axes import Axis, Direction, StreamState, on_off
from kvbench.cells.blocks import TRACE
from kvbench.cells.cell import AXES, Cell, axis_named
from kvbench.cells.facts import plain_device
from kvbench.cells.filter import SWAP_BYTES, Filter, parse_filters
from kvbench.cells.pattern import SHUFFLED, Pattern, Tensors
from kvbench.cells.policy import Policy
from kvbench.cells.units import format_size, parse_size
from kvbench.ground.errors import UsageError, brief
from kvbench.ground.files import read_toml, shipped_folder
from kvbench.ground.text import NAME_PATTERN, Line, check_keys, convert, hint, located, name_of, quoted
from kvbench.models.geometry import MODEL_AXES, ModelSwap
from kvbench.models.presets import ModelChoice
from kvbench.models.steps import StepSizes

MOST_SWAPS: Final = 10_000
SIDES: Final = {"h2d": "Loads (h2d)", "d2h": "Stores (d2h)"}
# Where ids lie in runs, and what a run length is a quantile by.
RUNS_OF: Final = {"host": "host ids", "gpu": "GPU ids", "both": "both sides"}
RUNS_BY: Final = {"by_run": "run", "by_block": "block"}
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class SwapsOfDirection(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The swaps of a trace in one direction: how many there are, their median number of blocks, and which are replayed:
    number `first` (from 0) and every `step`-th from there. The smallest has `least` blocks, 0 if unknown.
    """

    total: _Count
    blocks: _Count
    first: _Count
    step: Annotated[int, msgspec.Meta(ge=1, le=2**40)]
    least: _Count = 0


class Replay(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A trace that a sweep replays: the file, its SHA-256, the geometry of its blocks, and what is replayed of it.

    `swaps` is the number of swaps of each direction that was asked for, 0 in runs from before it was kept; `origin`
    says what the trace was made from, "" if unknown.
    """

    path: Annotated[str, msgspec.Meta(max_length=4096)]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}\\Z")]
    block_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**50)]
    descriptors: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    h2d: SwapsOfDirection
    d2h: SwapsOfDirection
    swaps: _Count = 0
    origin: Annotated[str, msgspec.Meta(max_length=400)] = ""

    @property
    def row_bytes(self) -> int:
        """The bytes of a descriptor; all descriptors of a block have equal parts of it."""
        return self.block_bytes // self.descriptors

    def capacity(self, pool_bytes: int) -> int:
        """The block ids that fit into a pool; no swap uses its first row, nor the row behind a tensor."""
        rows = pool_bytes // self.row_bytes
        return max(0, (rows - 1) // self.descriptors - 1)

    def enough_for(self, blocks: int) -> str:
        """The power of two of a pool into which `blocks` scattered blocks fit."""
        return format_size(1 << (((2 * blocks + 1) * self.descriptors + 1) * self.row_bytes - 1).bit_length())

    @property
    def pattern(self) -> Pattern:
        """The layout of the blocks on both sides: in a tensor for each descriptor."""
        return Pattern.of_tensors(Tensors(self.descriptors, 0)) if self.descriptors > 1 else SHUFFLED

    def swaps_of(self, direction: str) -> SwapsOfDirection:
        return self.h2d if direction == "h2d" else self.d2h

    @property
    def options(self) -> list[str]:
        """The options of a sweep that replays the same swaps."""
        return ["--trace", self.path, *(["--trace-swaps", str(self.swaps)] if self.swaps else [])]


Group = Mapping[str, tuple[str, ...]]

# Axes that a trace decides; its swaps are replayed one at a time on an idle stream.
OF_TRACE: Final = (
    "blocks", "block_size", "pattern", "host_pattern", "device_pattern", "sizes", "sequence", "stream_state", "reuse",
    "neighbour", "opposite", "queued", "streams", "pause", "devices", "ranks",
)  # fmt: skip
# Axes whose values can be measured in turn, sample by sample; `backend` with all that a backend is chosen with.
IN_TURN: Final = ("order", "sms", "overlap", "backend")
_MAX_BYTES: Final = 2**50
# Less memory holds no large copy.
LEAST_LIMIT_BYTES: Final = 2**20
Name = Annotated[
    str, msgspec.Meta(pattern=f"^{NAME_PATTERN}$", extra={"meaning": "1 to 64 letters, digits, '_', '.' or '-'"})
]
DeviceName = Annotated[
    str,
    msgspec.Meta(
        pattern="^(auto|cuda|(cpu|cuda:[0-9]{1,3})(,(cpu|cuda:[0-9]{1,3})){0,63}|cuda:all)$",
        extra={"meaning": "auto, cpu, cuda or cuda:N, a list of these, or cuda:all"},
    ),
]
InTurnAxis = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(IN_TURN)})$", extra={"meaning": ", ".join(IN_TURN)})]
EVERY_GPU: Final = "cuda:all"
MOST_DEVICES: Final = 64
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=_MAX_BYTES)]


class Sampling(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How a cell is sampled. Each field is an option of the command line, a TOML key and a key of run.json."""

    # fmt: off
    rounds: Annotated[int, msgspec.Meta(ge=1, le=1000, description="visits per cell")] = 6
    starts: Annotated[int, msgspec.Meta(ge=1, le=1000,
        description="starts of a worker that the rounds are spread over")] = 1
    warmups: Annotated[int, msgspec.Meta(ge=0, le=10_000, description="warm-up swaps per visit")] = 2
    min_samples: Annotated[int, msgspec.Meta(ge=1, le=100_000, description="minimum samples per visit")] = 5
    max_samples: Annotated[int, msgspec.Meta(ge=1, le=100_000, description="maximum samples per visit")] = 15
    cell_seconds: Annotated[float, msgspec.Meta(ge=0.001, le=3600,
        description="seconds after which a visit stops sampling")] = 1.0
    min_iterations: Annotated[int, msgspec.Meta(ge=1, le=100_000,
        description="minimum whole iterations of a neighbour beside the swaps of a visit")] = 7
    busy_delay_us: Annotated[int, msgspec.Meta(ge=1, le=100_000,
        description="microseconds of delay kernel before a sample on a busy stream")] = 200
    deadline_s: Annotated[float, msgspec.Meta(ge=0.1, le=86_400,
        description="seconds of silence, beyond the time for its samples, after which a visit counts as hung")] = 60.0
    # fmt: on

    def __post_init__(self) -> None:
        if self.max_samples < self.min_samples:
            raise ValueError(f"max_samples: {self.max_samples} is less than min_samples, {self.min_samples}")

    def start_of(self, number: int) -> int:
        """The start of a worker, from 0, that measures a round; the rounds of one start follow each other."""
        return number * min(self.starts, self.rounds) // self.rounds


class Limits(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The memory that a sweep may use on each side, in bytes; None means the free memory."""

    host_bytes: Bytes | None = None
    device_bytes: Bytes | None = None


# Option name and TOML key -> field.
LIMITS: Final = {"host_memory": "host_bytes", "device_memory": "device_bytes"}


class SweepSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A sweep: the union of its groups' cross products, minus what its filters exclude. Values and filters are text.

    A group maps axis names to the requested values. An axis that it does not name takes its default; without
    `backend` it means all installed backends, and `auto` only with a policy. `device` is "auto", "cpu", "cuda",
    "cuda:N", or, for swaps on several devices at once, "cuda:all" or a comma-separated list. `fault` is an opaque text
    for the engine of the cpu device, `policy` the policy of the backend `auto`. `models` are the models whose swaps
    the groups contain, `trace` is the trace that their cells replay. Cells that are equal but for
    the axes `in_turn` are measured in turn, sample by sample. `step_model` is the model of steps beside swaps, None for
    the usual.
    """

    name: Name
    question: Line = ""
    device: DeviceName = "auto"
    groups: Annotated[tuple[Group, ...], msgspec.Meta(min_length=1)] = ({},)
    filters: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    seed: Seed = 0
    fault: Line | None = None
    policy: Policy | None = None
    models: tuple[ModelSwap, ...] = ()
    trace: Replay | None = None
    in_turn: tuple[InTurnAxis, ...] = ()
    step_model: StepSizes | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """The named devices; for "cuda:all", all possible GPUs."""
        if self.device == EVERY_GPU:
            return tuple(f"cuda:{number}" for number in range(MOST_DEVICES))
        return tuple(map(plain_device, self.device.split(",")))

    def with_axes(self, assignments: Mapping[str, str]) -> "SweepSpec":
        """The sweep with these axes (name -> values in the grammar of `-a`) instead of its own."""
        chosen = {name: axis_named(name).texts(text) for name, text in assignments.items()}
        decided = next((name for name in chosen if name in MODEL_AXES), None)
        if self.models and decided is not None:
            raise UsageError(f"-a {decided}: the model sets {', '.join(MODEL_AXES)}; leave it out")
        return replace(self, groups=_once({**group, **chosen} for group in self.groups))

    def with_asked_axes(self, assignments: Mapping[str, str]) -> "SweepSpec":
        """The sweep as `-a` asks: values that the sweep has on an axis select its cells, others replace its own.

        A group without any of the selected values goes. Raises UsageError as `with_axes`.
        """
        spec = self
        for name, text in assignments.items():
            # Also where values select: it refuses an axis that the models set.
            replaced, values = spec.with_axes({name: text}), axis_named(name).texts(text)
            values_of_groups = [_values_of(group, name) for group in spec.groups]
            if not set(values) <= set().union(*values_of_groups):
                spec = replaced
                continue
            groups = []
            for group, values_of_group in zip(spec.groups, values_of_groups, strict=True):
                # Without values on an axis, a group leaves them to its backends.
                kept = tuple(value for value in values if not values_of_group or value in values_of_group)
                groups += [{**group, name: kept}] if kept else []
            spec = replace(spec, groups=_once(groups))
        return spec

    def with_models(self, swaps: Sequence[ModelSwap]) -> "SweepSpec":
        """The sweep with the swaps of these models in every group; without models, the sweep unchanged."""
        if not swaps:
            return self
        groups = _once({**group, **swap.axes} for group in self.groups for swap in swaps)
        return replace(self, groups=groups, models=tuple(swaps))

    def with_trace(self, trace: Replay) -> "SweepSpec":
        """The sweep with cells that replay `trace`; raises UsageError for an axis that the trace decides.

        A cell has the size of the median swap; its visits are of the sizes in the trace.
        """
        if decided := next((name for group in self.groups for name in group if name in OF_TRACE), None):
            raise UsageError(f"-a {decided}: the trace sets it; leave it out")
        texts = {"block_size": str(trace.row_bytes), "pattern": str(trace.pattern), "sequence": TRACE, "reuse": "same"}
        groups = []
        for group in self.groups:
            for direction in group.get("direction", tuple(Direction)):
                if blocks := trace.swaps_of(direction).blocks:
                    values = texts | {"direction": direction, "blocks": str(blocks * trace.descriptors)}
                    groups.append({**group, **{name: AXES[name].texts(text) for name, text in values.items()}})
        if not groups:
            raise UsageError("-a direction: the trace has no swaps in this direction")
        return replace(self, groups=tuple(groups), trace=trace)

    def with_filters(self, texts: Iterable[str]) -> "SweepSpec":
        added = (str(condition) for text in texts for condition in parse_filters(text))
        return replace(self, filters=tuple(dict.fromkeys((*self.filters, *added))))

    def with_sampling(self, changes: Mapping[str, object]) -> "SweepSpec":
        return replace(self, sampling=convert({**msgspec.structs.asdict(self.sampling), **changes}, Sampling))

    def with_options(
        self,
        *,
        device: str | None = None,
        seed: int | None = None,
        fault: str | None = None,
        host_memory: str | None = None,
        device_memory: str | None = None,
    ) -> "SweepSpec":
        """The sweep with these options; None leaves an option unchanged. Raises UsageError."""
        options = {"host_memory": host_memory, "device_memory": device_memory}
        sizes = {name: text for name, text in options.items() if text is not None}
        limits = {LIMITS[name]: read_memory(f"--{name.replace('_', '-')}", text) for name, text in sizes.items()}
        return replace(
            self,
            device=self.device if device is None else convert(device, DeviceName, "device"),
            seed=self.seed if seed is None else convert(seed, Seed, "seed"),
            fault=self.fault if fault is None else convert(fault, Line, "fault"),
            limits=replace(self.limits, **limits),
        )

    def to_plain(self) -> dict[str, object]:
        """The sweep as JSON-compatible data; `from_plain` reads it back."""
        plain: dict[str, object] = msgspec.json.decode(msgspec.json.encode(self))
        return plain

    @classmethod
    def from_plain(cls, plain: object) -> "SweepSpec":
        """Read the output of `to_plain`. It may come from an untrusted source, so it is checked. Raises UsageError."""
        spec: SweepSpec = convert(plain, cls, "spec")
        filters = tuple(str(Filter.parse(text)) for text in spec.filters)
        return replace(spec, groups=tuple(map(_read_group, spec.groups)), filters=filters)


def parse_assignments(items: Iterable[str]) -> dict[str, str]:
    """Split the `axis=values` of repeated `-a` options; raises UsageError, also for an axis given twice."""
    assignments: dict[str, str] = {}
    for item in items:
        name, equals, values = (part.strip() for part in item.partition("="))
        if not (name and equals):  # an axis refuses an empty value itself
            raise UsageError(f"-a {brief(item)}: not an assignment; write axis=values, for example -a blocks=16,64,256")
        if name in assignments:
            merged = brief(f"{name}={assignments[name]},{values}")
            raise UsageError(f"-a {brief(item)}: axis {name} is given twice; write -a {merged}")
        assignments[axis_named(name).name] = values
    return assignments


def read_memory(option: str, value: object) -> int:
    """The bytes of a memory limit (a size, or a number of bytes); raises UsageError, which names the option."""
    with located(option):
        try:
            size = parse_size(value) if isinstance(value, str) else value
        except ValueError as error:
            raise UsageError(str(error)) from None
        limit_bytes: int = convert(size, Bytes, "bytes")
        if limit_bytes < LEAST_LIMIT_BYTES:
            number = str(value).strip()
            meant = f"; did you mean {number}GiB?" if number.isdecimal() else ""
            raise UsageError(f"{limit_bytes} bytes are too few for any cell{meant}")
        return limit_bytes


def _values_of(group: Group, name: str) -> tuple[str, ...]:
    """The values of a group on an axis; none where it leaves them to its backends."""
    axis = AXES[name]
    return group.get(name) or tuple(map(axis.write, axis.default))


def _once(groups: Iterable[Group]) -> tuple[Group, ...]:
    listed = list(groups)
    return tuple(group for index, group in enumerate(listed) if group not in listed[:index])


def _read_group(group: Group) -> Group:
    with located("spec groups"):
        check_keys(group, list(AXES))
        for name, texts in group.items():
            if not texts or len(set(texts)) < len(texts):
                raise UsageError(f"{name}: {quoted(texts)} is empty or repeats a value")
        return {name: tuple(map(AXES[name].rewrite, texts)) for name, texts in group.items()}


_RawAxes = dict[str, Any]


class ConfigFile(ModelChoice, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A config as written in TOML, including the keys of `ModelChoice`; each axis checks its own values."""

    # fmt: off
    question: Annotated[Line, msgspec.Meta(description="the question that the sweep answers, one line")] = ""
    diagnostic: Annotated[bool, msgspec.Meta(
        description="whether it examines kvbench or a machine, and helps to choose no backend")] = False
    device: Annotated[DeviceName, msgspec.Meta(description="the device, as `--device` takes it")] = "auto"
    seed: Annotated[Seed, msgspec.Meta(description="seed of bytes, places and order")] = 0
    in_turn: Annotated[tuple[InTurnAxis, ...], msgspec.Meta(
        description="axes whose values are measured in turn, sample by sample, where cells differ in nothing else: "
        "a list of order, sms, overlap and backend")] = ()
    filters: Annotated[tuple[str, ...], msgspec.Meta(
        description="conditions that every cell meets, each as `--filter` takes it")] = ()
    axes: Annotated[_RawAxes, msgspec.Meta(
        description="table: values on axes, for all groups")] = msgspec.field(default_factory=dict)
    group: Annotated[list[_RawAxes], msgspec.Meta(min_length=1,
        description="tables `[[group]]`: values on axes; the sweep is the union of its groups, "
        "each the cross product of its values")] = msgspec.field(default_factory=lambda: [{}])
    sampling: Annotated[Sampling, msgspec.Meta(description="table: how cells are sampled")] = Sampling()
    limits: Annotated[_RawAxes, msgspec.Meta(
        description="table: the memory that may be used, `host_memory` and `device_memory`")] = msgspec.field(
        default_factory=dict)
    # fmt: on


def shipped_configs() -> dict[str, Path]:
    return {path.stem: path for path in sorted(shipped_folder().glob("*.toml"), key=lambda path: path.stem)}


def find_config(name_or_path: str) -> Path:
    """The file of a shipped config's name ("quick"), or the path itself when it ends in .toml.

    Raises UsageError if no shipped config has that name.
    """
    shipped = shipped_configs()
    if name_or_path in shipped:
        return shipped[name_or_path]
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        return Path(name_or_path)
    near = hint(name_or_path, shipped, f"use one of {', '.join(shipped)}, or a path ending in .toml")
    raise UsageError(f"config {quoted(name_or_path)}: kvbench ships no config of that name; {near}")


def load_config(path: Path, choice: ModelChoice | None = None) -> SweepSpec:
    """Read a sweep from a TOML file; the model settings in `choice` override those in the file.

    Raises UsageError, which names the file, the key and what would be right.
    """
    with located(str(path)):
        if not path.exists():
            raise UsageError(f"file not found; shipped configs: {', '.join(shipped_configs())}")
        table = read_toml(path)
        if not table:
            raise UsageError("is empty; to sweep the default config, leave the argument out")
        misplaced = [key for key in table if key in AXES]
        if misplaced:
            raise UsageError(f"{misplaced[0]} is an axis; write it under [axes] or [[group]]")
        file: ConfigFile = convert(table, ConfigFile)
        common = _axes(file.axes, "[axes]")
        groups = tuple(common | _axes(group, f"[[group]] {number}") for number, group in enumerate(file.group, start=1))
        decided = next((axis for axis in MODEL_AXES if file.models and any(axis in group for group in groups)), None)
        if decided is not None:
            raise UsageError(f"{decided}: is set by the models; leave it out")
        spec = SweepSpec(
            name=name_of(path.stem, "sweep"),
            question=file.question,
            device=file.device,
            groups=groups,
            sampling=file.sampling,
            limits=_limits(file.limits),
            seed=file.seed,
            in_turn=file.in_turn,
        ).with_filters(file.filters)
    swaps = (choice or ModelChoice()).over(file).swaps()
    if swaps and not file.models:  # the filters limit the sizes of the file, which the models replace
        of_sizes = (*MODEL_AXES, SWAP_BYTES.name)
        spec = replace(spec, filters=tuple(text for text in spec.filters if Filter.parse(text).axis not in of_sizes))
    return replace(spec.with_models(swaps), step_model=(choice or ModelChoice()).step_model())


def _axes(table: dict[str, object], name_of_table: str) -> dict[str, tuple[str, ...]]:
    values: dict[str, tuple[str, ...]] = {}
    with located(name_of_table):
        check_keys(table, list(AXES))
        for name, raw in table.items():
            items = raw if isinstance(raw, list) else [raw]
            if not items:
                raise UsageError(f"{name}: the list is empty; leave the axis out to use its default")
            values[name] = AXES[name].texts(",".join(_as_text(AXES[name], item) for item in items))
    return values


def _as_text(axis: Axis, value: object) -> str:
    switch = axis.read is on_off
    if isinstance(value, str):
        return value
    if isinstance(value, bool) and switch:
        return "on" if value else "off"
    if isinstance(value, int) and not isinstance(value, bool) and axis.ranged:
        return quoted(value)
    right = "true, false, " if switch else "a number, " if axis.ranged else ""
    right += f"a string such as {quoted(axis.example)}, or a list of these"
    raise UsageError(f"{axis.name}: {quoted(value)} is not {right}")


def _limits(options: Mapping[str, object]) -> Limits:
    with located("[limits]"):
        check_keys(options, list(LIMITS))
    return Limits(**{LIMITS[name]: read_memory(f"[limits] {name}", value) for name, value in options.items()})


# The verified first swap and the check of the stream's order.
CHECKED_SWAPS: Final = 2
# Swaps on a busy stream: they show what the CPU copies of a swap on an idle one, or how long its delay must be.
BUSY_TWINS: Final = 3
# Watched swaps for each sample: of a cell of six visits with 30 samples, one in ten thousand has none.
WATCHED_SHARE: Final = 0.05
# Minimum duration of a visit beside a neighbour, without what its iterations need.
LEAST_BESIDE_S: Final = 0.1
# Swaps in the chain of a sustained sample, and the first of them, which do not count.
CHAIN: Final = 8
LEAD: Final = 2

# For a deadline: no machine moves, fills or compares the bytes of large swaps more slowly.
_SLOWEST_BYTES_PER_S: Final = 1e9
# The maximum time to compare the bytes that swaps moved, relative to that of moving them.
_COMPARED: Final = 3


def submissions(sampling: Sampling, state: StreamState) -> int:
    """The sets of fresh blocks of a visit: one for each swap that it probably submits.

    These are checks, warm-ups, twins, samples and watched swaps. A visit that submits more swaps, because swaps are
    watched at random, begins again with the first set.
    """
    return _swaps(sampling, state, sampling.max_samples)


def visit_deadline_s(cell: Cell, sampling: Sampling) -> float:
    """The seconds of silence after which a visit of `cell` counts as hung; more work allows more time."""
    swaps = _swaps(sampling, cell.stream_state, sampling.min_samples) * (1 + cell.queued)
    around_us = cell.pause_us + (sampling.busy_delay_us if cell.stream_state.pending else 0)
    least_s = swaps * (cell.swap_bytes / _SLOWEST_BYTES_PER_S + around_us / 1e6)
    return sampling.deadline_s + (1 + _COMPARED) * sampling.cell_seconds + least_s


def _swaps(sampling: Sampling, state: StreamState, samples: int) -> int:
    a_sample = CHAIN if state is StreamState.SUSTAINED else 1
    watched = 1 + round(2 * WATCHED_SHARE * samples)
    return CHECKED_SWAPS + BUSY_TWINS + (sampling.warmups + samples + watched) * a_sample
