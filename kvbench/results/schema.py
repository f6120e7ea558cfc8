"""The schema of a run directory: run.json with the identity of its machine, and the records of the journal."""

import hashlib
import json
import math
import re
from array import array
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Annotated, Any, Final, Literal

import msgspec

from kvbench.cells.cell import AxisTexts, Cell
from kvbench.cells.facts import BackendFacts

SCHEMA: Final = 1
# The least share of the samples of a visit in which a delay has to outlast the submission. A busy host holds the thread
# up for milliseconds in some.
LEAST_HELD: Final = 0.5
# The field of an identity with the packages of the requested backends that kvbench does not provide; missing if there
# is none.
PLUG_INS: Final = "plug_ins"
# What is under test when two builds or backends are compared; all other fields describe the machine.
_UNDER_TEST: Final = ("engine_hash", PLUG_INS)

Scalar = str | int | float | bool | None
RunStatus = Literal["running", "complete", "interrupted", "stopped"]
StopReason = Literal["max_samples", "time"]
FailureKind = Literal["error", "mismatch", "timeout", "crash"]

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_TimeUs = Annotated[float, msgspec.Meta(ge=0)]
# A roof has a figure for each of its three kinds of copies.
_SomeTimesUs = Annotated[list[_TimeUs], msgspec.Meta(min_length=1)]
_Flag = Annotated[int, msgspec.Meta(ge=0, le=1)]


class EffectivePath(StrEnum):
    """The mechanism that moved the bytes."""

    COPY_ENGINE = "copy engine"
    ENGINE_OR_SMS = "copy engine or SMs"
    CPU_INLINE = "CPU inline"
    FALLBACK = "per-copy fallback"
    SM_KERNEL = "SM kernel"
    STAGED = "SM kernel and copy engine"
    HOST_THREAD = "host thread"
    NOTHING = "no copy"


# Suffix of the path of a backend from another package: kvbench cannot check that path.
CLAIMED: Final = " (claimed)"
_Path = Annotated[str, msgspec.Meta(pattern=rf"^({'|'.join(EffectivePath)})({re.escape(CLAIMED)})?$")]


class RunInfo(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """run.json: the origin of a run and how it ended."""

    # fmt: off
    schema: Annotated[int, msgspec.Meta(
        description="version of this layout; a reader refuses a newer one than it knows")] = SCHEMA
    clock: Annotated[Literal[3], msgspec.Meta(
        description="what a swap's time is: between two CUDA events, in every stream state")] = 3
    kvbench: Annotated[str, msgspec.Meta(description="version of kvbench")]
    commit: Annotated[str | None, msgspec.Meta(
        description="commit of kvbench, with `-dirty` if files differed from it; null if unknown")] = None
    created: Annotated[str, msgspec.Meta(description="when the run began, ISO 8601 in UTC")]
    command: Annotated[list[str], msgspec.Meta(description="the command line")]
    spec: Annotated[dict[str, Any], msgspec.Meta(
        description="the sweep as it was resolved: axes, filters, sampling, limits, seed, policy, models")]
    device: Annotated[dict[str, Scalar], msgspec.Meta(
        description="the device, with the memory that was free when the run began")]
    identity: Annotated[dict[str, Scalar], msgspec.Meta(
        description="what makes two machines the same kind: GPU, driver, CUDA, CPU, link, libraries, hash of the "
        "engine's sources")]
    identity_hash: Annotated[str, msgspec.Meta(description="hash of `identity`")]
    observed: Annotated[list[dict[str, Any]], msgspec.Meta(
        description='state of the machine, `at` "start" and "end": clocks, link, temperature, throttling, GPU errors, '
        "load, other processes; and why a value is missing")] = []
    backends: Annotated[list[BackendFacts], msgspec.Meta(
        description="the requested backends at the start of the run: package and version, axes, why one was "
        "unavailable; `--resume` continues with these")] = []
    searched_by: Annotated[str | None, msgspec.Meta(
        description="the command that chose the visits as it went: `--resume` does not continue such a run")] = None
    status: Annotated[RunStatus, msgspec.Meta(
        description="`running`, `complete`, `interrupted` or `stopped`")] = "running"
    status_reason: Annotated[str | None, msgspec.Meta(description="why the run did not complete")] = None
    journal_lines: Annotated[_Count, msgspec.Meta(
        description="lines of the journal when the run last ended; fewer mean that it was cut since")] = 0
    # fmt: on

    @property
    def link(self) -> str:
        """The fastest link between host and GPU that was seen, as an idle GPU slows it: "PCIe 5 x16"; "" if unknown."""
        if self.identity.get("link") == "c2c":
            return "NVLink-C2C"
        observed = [(look.get("pcie_generation"), look.get("pcie_width")) for look in self.observed]
        links = [link for link in observed if all(isinstance(number, int) for number in link)]
        return "PCIe {} x{}".format(*max(links)) if links else ""

    @property
    def cuda(self) -> int:
        """The newest CUDA version that the driver supports (13010: 13.1), 0 where it is not known."""
        match = re.fullmatch(r"(\d{1,3})\.(\d)", str(self.identity.get("cuda_driver_api")))
        return 1000 * int(match[1]) + 10 * int(match[2]) if match else 0

    @property
    def settings(self) -> dict[str, int]:
        """The settings of engines that the run recorded."""
        return {setting.name: setting.default for backend in self.backends for setting in backend.settings}


class Disturbance(StrEnum):
    """What disturbed a visit."""

    SLOW_CPU = "slow CPU"
    LIMITED_CLOCKS = "limited GPU clocks"
    STEP = "step in the times"
    OTHER_THREAD = "another thread"


class Samples(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True):
    """The raw samples of one visit: sequences of equal length, times in microseconds; `SAMPLE_COLUMNS` describes them.

    `event_us` is None for a cell whose `swap_clock` is another, `depth_held` if no swap was queued, `chain_us`, the
    mean of a chain, if swaps were not sustained, and the times of layers if the swap has none. Swaps of a trace
    have a size and a number each, and the copies that merging left of them (`pieces`). Beside a step whose layers wait
    for the swaps, samples are without the step.
    """

    caller_us: Sequence[_TimeUs]
    wall_us: Sequence[_TimeUs]
    cpu_us: Sequence[_TimeUs]
    event_us: Sequence[_TimeUs] | None = None
    pending_before: Sequence[_Flag]
    pending_after: Sequence[_Flag]
    depth_held: Sequence[_Flag] | None = None
    chain_us: Sequence[_TimeUs] | None = None
    first_layer_us: Sequence[float] | None = None
    slowest_gap_us: Sequence[_TimeUs] | None = None
    swap_blocks: Sequence[_Count] | None = None
    pieces: Sequence[_Count] | None = None
    swap_numbers: Sequence[_Count] | None = None

    def __post_init__(self) -> None:
        if len({len(values) for values in msgspec.structs.astuple(self) if values is not None}) > 1:
            raise ValueError("the lists of a visit's samples differ in length")

    def __len__(self) -> int:
        return len(self.wall_us)

    def __repr__(self) -> str:  # the values of a visit fill a screen
        return f"<{len(self)} samples>"

    def pack(self) -> None:
        """Hold arrays in place of lists, which take five times the memory."""
        for name in self.__struct_fields__:
            if (values := getattr(self, name)) is not None:
                msgspec.structs.force_setattr(self, name, array("d" if name.endswith("_us") else "q", values))


class Opposite(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Swaps and those of the other direction in one visit, in GB/s between events: each alone, a value for each of its
    turns, and both at once, while swaps of both ran.
    """

    alone_gbps: list[_TimeUs] = []
    opposite_alone_gbps: list[_TimeUs] = []
    at_once_gbps: list[_TimeUs] = []
    opposite_at_once_gbps: list[_TimeUs] = []


class Beside(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Swaps and their neighbour in one visit: each alone and beside the other, measured in turn.

    `neighbour_…_us` are its iteration times, `swaps_…_gbps` the GB/s of each turn of swaps, gaps included, and
    `swaps_…_us` the median wall time of the swaps of each turn. Where the layers of a step wait for the swaps, an
    iteration is a step from its submission, beside swaps together with theirs, and a turn one swap. `readback_…us` are
    the times from the end of a decode step's computation until its sampled tokens are on the host, without swaps and
    beside them; runs from before the step had small copies have none. `dry` counts how often the neighbour's stream ran
    out of work. Only older runs have the times of swaps of one block.
    """

    neighbour_alone_us: list[_TimeUs] = []
    neighbour_beside_us: list[_TimeUs] = []
    swaps_alone_gbps: list[_TimeUs] = []
    swaps_beside_gbps: list[_TimeUs] = []
    swaps_alone_us: list[_TimeUs] = []
    swaps_beside_us: list[_TimeUs] = []
    one_block_alone_us: list[_TimeUs] = []
    one_block_beside_us: list[_TimeUs] = []
    readback_alone_us: list[_TimeUs] = []
    readback_us: list[_TimeUs] = []
    dry: _Count = 0


class _Record(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, tag_field="type"):
    """A line of the journal."""


class _OfCell(_Record, dict=True, frozen=True, kw_only=True):
    """A line about one cell. The cell is text in the journal and a Cell everywhere else."""

    cell_text: AxisTexts = msgspec.field(name="cell")

    @cached_property
    def cell(self) -> Cell:
        """The cell; raises UsageError for unknown axes and invalid values, which `load_run` rejects."""
        return _cell_of(tuple(self.cell_text.items()))


@lru_cache(maxsize=1 << 16)
def _cell_of(items: tuple[tuple[str, str | None], ...]) -> Cell:
    return Cell.from_strings(dict(items))


class Skip(_OfCell, tag="skip", frozen=True, kw_only=True):
    """A cell that is not supported, or does not fit, on this device: never run, kept with its reason."""

    reason: str


class Ceiling(_Record, tag="ceiling", frozen=True, kw_only=True):
    """Large plain copies in one direction: `swap_bytes` each, times in `event_us`.

    Those with an `attempt` were made before the visits of that attempt, when the round was measured again.
    """

    direction: Literal["h2d", "d2h"]
    round: _Count
    attempt: _Count = 0
    swap_bytes: _Positive
    event_us: list[_TimeUs]


class Roof(_Record, tag="roof", frozen=True, kw_only=True):
    """What SM copies reach in one direction: `copy_bytes` in large blocks, and `blocks` small blocks on all SMs.

    The small blocks are fresh, and scattered over `pool_bytes` or dense. All times are execution times: the difference
    of a long and a short swap of the faster kind of kernel.
    """

    direction: Literal["h2d", "d2h"]
    round: _Count
    pool_bytes: _Positive
    copy_bytes: _Positive
    copy_us: _SomeTimesUs
    blocks: _Positive
    block_bytes: _Positive
    scattered_us: _SomeTimesUs
    dense_us: _SomeTimesUs


class Control(_Record, tag="control", frozen=True, kw_only=True):
    """Large plain copies in one direction, made without the engine: `copy_bytes` each, times in `event_us`.

    On a GPU the times are taken between events, on the device cpu with the host clock.
    """

    direction: Literal["h2d", "d2h"]
    round: _Count
    copy_bytes: _Positive
    event_us: list[_TimeUs]


class Visit(_OfCell, tag="visit", frozen=True, kw_only=True):
    """One visit of a cell: its samples, what stopped it, the effective path, and driver calls or launches per swap.

    `busy_cpu_us` is the evidence for the path of a batched copy on an idle stream: the CPU time of the same
    submission on a busy stream, where the call only hands over to the copy engine. `cpu` is the CPU that the
    submitting thread was pinned to, and `chosen` the choice of a backend that chooses among others. `pace_gbps` is
    the rate at which its swaps were held, None if at none. `began` is in seconds since 1970; only older runs
    have `verify_ms`, what comparing and restoring bytes took. `span_ns` is its begin and end on the host's
    monotonic clock. `probe_us` is the longest time of a fixed piece of work on that CPU, `slowdown` its ratio to the
    best time in this process; `clock_limits` are NVML's reasons for a limited clock. `disturbed` lists what disturbed
    the visit; a disturbed visit is repeated up to twice, and the least disturbed `attempt` counts. `group` names the
    arms that were measured in turn: of those with one `span_ns`, sample k is of tuple k. `process` is the number of
    the worker process of this run that made it, in the order of their starts. If the swaps had a neighbour, `samples`
    are those beside it, and `beside` has the rest.
    """

    round: _Count
    samples: Samples
    stopped_by: StopReason
    path: _Path
    calls: _Count
    verified_bytes: _Count
    busy_cpu_us: _TimeUs | None = None
    cpu: _Count | None = None
    chosen: str | None = None
    pace_gbps: _TimeUs | None = None
    warnings: list[str] = []
    began: _Positive | None = None
    took_ms: _TimeUs | None = None
    verify_ms: _TimeUs | None = None
    span_ns: tuple[_Count, _Count] | None = None
    probe_us: _TimeUs | None = None
    slowdown: _TimeUs | None = None
    sm_clock_mhz: _Count | None = None
    clock_limits: list[str] = []
    attempt: _Count = 0
    group: str | None = None
    disturbed: list[Disturbance] = []
    process: _Count | None = None
    beside: Beside | None = None
    opposite: Opposite | None = None

    @property
    def swap_us(self) -> Sequence[float]:
        """The time of the swap in each sample. On a busy stream, NaN where the delay did not outlast the submission,
        and everywhere in a visit with too few other samples.
        """
        samples, pending = self.samples, self.cell.stream_state.pending
        times_us: Sequence[float] | None = getattr(samples, self.cell.swap_clock)
        if times_us is None or (pending and sum(samples.pending_after) < LEAST_HELD * len(samples)):
            return [math.nan] * len(samples)
        if not pending:
            return times_us
        return [us if outlasted else math.nan for us, outlasted in zip(times_us, samples.pending_after, strict=True)]

    @property
    def swap_times_us(self) -> list[float]:
        """The times of the swap that are known."""
        return [us for us in self.swap_us if not math.isnan(us)]


class Failure(_OfCell, tag="failure", frozen=True, kw_only=True):
    """The failure of a cell, and the command that reproduces it; a failed cell has no timings."""

    round: _Count
    kind: FailureKind
    message: str
    command: str


class Retry(_OfCell, tag="retry", frozen=True, kw_only=True):
    """A failed cell is retried: its failures before this line no longer count."""


class Note(_Record, tag="note", frozen=True, kw_only=True):
    """Information for the reader of the run: a replaced worker, or a warning with its remedy."""

    text: str


Record = Skip | Ceiling | Roof | Control | Visit | Failure | Retry | Note
CellRecord = Skip | Visit | Failure


def identity_hash(fields: Mapping[str, Scalar]) -> str:
    """16 hex digits that depend on the fields but not on their order."""
    text = json.dumps(dict(fields), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()


def differences(a: Mapping[str, Scalar], b: Mapping[str, Scalar]) -> list[str]:
    """One line for each field that differs ('triton: "3.6.0" against "3.7.1"'), sorted by name.

    Empty if and only if the hashes agree; a missing field differs from a field that is None.
    """
    return [f"{name}: {in_a} against {in_b}" for name, in_a, in_b in differing(a, b)]


def differing(a: Mapping[str, Scalar], b: Mapping[str, Scalar]) -> list[tuple[str, str, str]]:
    """The fields that differ, sorted by name: (name, value in `a`, value in `b`) as text."""
    pairs = ((name, _show(name, a), _show(name, b)) for name in sorted(a.keys() | b.keys()))
    return [(name, in_a, in_b) for name, in_a, in_b in pairs if in_a != in_b]


def machine_differences(a: Mapping[str, Scalar], b: Mapping[str, Scalar]) -> list[str]:
    """The `differences` of two machines: of all fields but those that are under test in a comparison."""
    without = dict.fromkeys(_UNDER_TEST)
    return differences({**a, **without}, {**b, **without})


def _show(name: str, fields: Mapping[str, Scalar]) -> str:
    if name not in fields:
        return "not recorded"
    value = fields[name]
    return "unknown" if value is None else json.dumps(value, ensure_ascii=False, allow_nan=False)
