"""The schema of a run directory: run.json, the records of the journal, and the meaning of every column."""

import re
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Annotated, Any, Final, Literal

import msgspec

from kvbench.cells.cell import AxisTexts, Cell
from kvbench.cells.facts import BackendFacts

SCHEMA: Final = 1
# What a swap's time holds. 1: a swap began when its list was prepared; what the preparation took was kept apart. 2: it
# begins with the caller's arrays. Runs of different clocks are not compared.
CLOCK: Final = 2

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
    CPU_INLINE = "CPU inline"
    FALLBACK = "per-copy fallback"
    SM_KERNEL = "SM kernel"
    STAGED = "SM kernel and copy engine"
    HOST_THREAD = "host thread"


# Suffix of the path of a backend from another package: kvbench cannot check that path.
CLAIMED: Final = " (claimed)"
_Path = Annotated[str, msgspec.Meta(pattern=rf"^({'|'.join(EffectivePath)})({re.escape(CLAIMED)})?$")]


class RunInfo(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """run.json: the origin of a run and how it ended."""

    # fmt: off
    schema: Annotated[int, msgspec.Meta(
        description="version of this layout; a reader refuses a newer one than it knows")] = SCHEMA
    clock: Annotated[int, msgspec.Meta(
        description="what a swap's time holds: 2 begins with the caller's arrays, 1 began after their preparation; a "
        "run without this field has 1")] = 1
    kvbench: Annotated[str, msgspec.Meta(description="version of kvbench")]
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
        description='state of the machine, `at` "start" and "end": clocks, link, temperature, throttling, load, other '
        "processes; and why a value is missing")] = []
    backends: Annotated[list[BackendFacts], msgspec.Meta(
        description="the requested backends at the start of the run: package and version, axes, why one was "
        "unavailable; `--resume` continues with these")] = []
    status: Annotated[RunStatus, msgspec.Meta(
        description="`running`, `complete`, `interrupted` or `stopped`")] = "running"
    status_reason: Annotated[str | None, msgspec.Meta(description="why the run did not complete")] = None
    # fmt: on


class Samples(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True):
    """The raw samples of one visit: lists of equal length, times in microseconds; `COLUMNS` describes the fields.

    `gpu_us` is None on an idle stream, where no event is timed, `depth_held` if no swap was queued, and the times of
    layers if the swap has none. Beside a step whose layers wait for the swaps, samples are without the step. Samples of
    clock 1 have `prepare_us` and `submit_us`, which become `caller_us`, and two more times, which are dropped.
    """

    caller_us: list[_TimeUs] = []
    wall_us: list[_TimeUs]
    cpu_us: list[_TimeUs]
    gpu_us: list[_TimeUs] | None = None
    pending_before: list[_Flag]
    pending_after: list[_Flag]
    depth_held: list[_Flag] | None = None
    first_layer_us: list[float] | None = None
    slowest_gap_us: list[_TimeUs] | None = None
    prepare_us: list[_TimeUs] | None = None
    submit_us: list[_TimeUs] | None = None
    coalesce_us: list[_TimeUs] | None = None
    gap_us: list[float] | None = None

    def __post_init__(self) -> None:
        if self.prepare_us is not None and self.submit_us is not None and not self.caller_us:
            both = [sum(pair) for pair in zip(self.prepare_us, self.submit_us, strict=True)]
            msgspec.structs.force_setattr(self, "caller_us", both)
            for name in ("prepare_us", "submit_us", "coalesce_us", "gap_us"):
                msgspec.structs.force_setattr(self, name, None)
        # unrolled for speed: a journal has many thousands of visits
        count = len(self.wall_us)
        if not (
            len(self.caller_us) == len(self.cpu_us) == len(self.pending_before) == len(self.pending_after) == count
            and (self.gpu_us is None or len(self.gpu_us) == count)
            and (self.depth_held is None or len(self.depth_held) == count)
            and (self.first_layer_us is None or len(self.first_layer_us) == count)
            and (self.slowest_gap_us is None or len(self.slowest_gap_us) == count)
        ):
            raise ValueError("the lists of a visit's samples differ in length")

    def __len__(self) -> int:
        return len(self.wall_us)


class Beside(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Swaps and their neighbour in one visit: each alone and beside the other, measured in turn.

    `neighbour_…_us` are its iteration times, `swaps_…_gbps` the GB/s of each turn of swaps, gaps included,
    `swaps_…_us` the median wall time of the swaps of each turn, and `one_block_…_us` the times of swaps of one block,
    from submission to completion. Where the layers of a step wait for the swaps, an iteration is a step from its
    submission, beside swaps together with theirs, and a turn one swap. `dry` counts how often the neighbour's stream
    ran out of work.
    """

    neighbour_alone_us: list[_TimeUs] = []
    neighbour_beside_us: list[_TimeUs] = []
    swaps_alone_gbps: list[_TimeUs] = []
    swaps_beside_gbps: list[_TimeUs] = []
    swaps_alone_us: list[_TimeUs] = []
    swaps_beside_us: list[_TimeUs] = []
    one_block_alone_us: list[_TimeUs] = []
    one_block_beside_us: list[_TimeUs] = []
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
    """Large plain copies in one direction: `swap_bytes` each, event times in `gpu_us`."""

    direction: Literal["h2d", "d2h"]
    round: _Count
    swap_bytes: _Positive
    gpu_us: list[_TimeUs]


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
    """Large plain copies in one direction, made without the engine: `copy_bytes` each, times in `gpu_us`.

    On a GPU the times are taken between events, on the device cpu with the host clock.
    """

    direction: Literal["h2d", "d2h"]
    round: _Count
    copy_bytes: _Positive
    gpu_us: list[_TimeUs]


class Visit(_OfCell, tag="visit", frozen=True, kw_only=True):
    """One visit of a cell: its samples, what stopped it, the effective path, and driver calls or launches per swap.

    `busy_cpu_us` is the evidence for the path of a batched copy on an idle stream: the CPU time of the same submission
    on a busy stream, where the call only hands over to the copy engine. `cpu` is the CPU that the submitting thread was
    pinned to, and `chosen` the choice of a backend that chooses among others. `began` is in seconds since 1970, and
    `verify_ms` is the part of the visit's duration spent on comparing and restoring bytes. `span_ns` is its begin and
    end on the host's monotonic clock. `probe_us` is the longest time of a fixed piece of work on that CPU, `slowdown`
    its ratio to the best time in this process; `clock_limits` are NVML's reasons for a limited clock. `disturbed` lists
    what disturbed the visit, as text; a disturbed visit is repeated up to twice, and the last `attempt` counts.
    `process` is the number of the worker process of this run that made it, in the order of their starts. If the swaps
    had a neighbour, `samples` are those beside it, and `beside` has the rest. `staging_bytes` and `sm_us` are of swaps
    through a buffer on the device: its size, and the time of their kernels times the SM count.
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
    disturbed: list[str] = []
    process: _Count | None = None
    beside: Beside | None = None
    staging_bytes: _Count | None = None
    sm_us: _TimeUs | None = None


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

NO_FIGURE: Final = (
    "the delay did not outlast preparation and submission in every sample, so execution could not be measured "
    "separately"
)

_TIMES: Final = {
    "caller": "host time that a swap takes from the thread that makes it, from the caller's arrays to the return of "
    "the last call: preparation (sorting, tables, uploads) and submission, with any wait for room in the driver's "
    "queue",
    "gpu": "time between the CUDA events around the swap on a busy stream, with the descriptor upload, without "
    "preparation and submission; empty on an idle stream, where no event has a time stamp",
    "wall": "host clock from the caller's arrays until the host sees completion; on a busy stream with the rest of the "
    "delay kernel and of queued swaps; for sustained swaps, like all times, what one more swap adds to a chain",
    "cpu": "CPU time of the thread inside caller_us; on an idle stream the smaller of caller_us and the thread's CPU "
    "time until completion",
    "swap": "the time that GB/s are computed from: wall_us on an idle stream (latency), gpu_us on a busy one "
    "(execution), the wall_us of one more swap in a chain (sustained); empty on a busy stream unless the delay "
    "outlasted the submission in every sample",
}

SAMPLE_COLUMNS: Final[dict[str, str]] = {f"{name}_us": text for name, text in _TIMES.items()} | {
    "pending_before": "1 if the start event had not retired at the call: the stream was busy",
    "pending_after": "1 if it had not retired when the call returned: gpu_us is execution only; 0 on an idle stream",
    "depth_held": "1 if no queued swap had started at the call: all of them were waiting; empty if no swap was queued",
}

COLUMNS: Final[dict[str, str]] = {
    "device": "cuda:N, or cpu (host copies, no GPU)",
    "cell_id": "twelve hex digits that depend only on the cell's axes",
    "block_bytes": "bytes of one descriptor (block_size as a number)",
    "swap_bytes": "bytes per swap",
    "status": "ok, no figure (samples, but no GB/s), failed (no timings) or skipped",
    "reason": "why the cell has no figure, failed or was skipped",
    "samples": "samples of the cell, all rounds together",
    "rounds": "visits with these samples",
    "outliers": "samples more than 5 robust standard deviations (MAD) from the median of their visit, if it has 6",
    **{
        f"{name}_us_{part}": f"{words} {name}_us: {text}"
        for name, text in _TIMES.items()
        for part, words in (
            ("median", "median of the visits' medians of"),
            ("q1", "lower quartile of the samples'"),
            ("q3", "upper quartile of the samples'"),
        )
    },
    "swap_us_low": "lower end of the 95% interval of swap_us_median, from the visits; empty with fewer than six",
    "swap_us_high": "upper end of that interval",
    "gbps": "GB/s (10^9 bytes per second) at the median of swap_us",
    "gbps_q1": "GB/s at the upper quartile of swap_us",
    "gbps_q3": "GB/s at the lower quartile of swap_us",
    "gbps_low": "GB/s at swap_us_high",
    "gbps_high": "GB/s at swap_us_low",
    "latency_gbps": "gbps of one swap on an idle stream, from wall_us: with preparation and submission",
    "execution_gbps": "gbps after a delay that outlasted preparation and submission in every sample, from gpu_us, "
    "which contains neither; else empty",
    "sustained_gbps": "gbps of consecutive swaps: the slope of wall_us over the number of swaps",
    "neighbour_alone_us": "mean time of the neighbour's iterations in a visit, without swaps; median of the visits",
    "neighbour_beside_us": "the same beside swaps",
    "neighbour_p50_alone_us": "median of its iterations without swaps, all visits together",
    "neighbour_p50_us": "the same beside swaps",
    "neighbour_p99_alone_us": "99th percentile of its iterations without swaps, all visits together",
    "neighbour_p99_us": "the same beside swaps",
    "neighbour_worst_alone_us": "the longest of its iterations without swaps",
    "neighbour_worst_us": "the same beside swaps",
    "neighbour_slowdown": "neighbour_beside_us / neighbour_alone_us, visit by visit: the centre of these pairs",
    "neighbour_slowdown_low": "lower end of its 95% interval, from the visits; empty with fewer than six",
    "neighbour_slowdown_high": "upper end of that interval",
    "neighbour_slowdown_median": "the same by the medians of the iterations: does not see a few long ones",
    "neighbour_slowdown_p99": "neighbour_p99_us over the 99th percentile without swaps",
    "neighbour_slowdown_worst": "neighbour_worst_us over the longest iteration without swaps",
    "exposure_us_per_gb": "time that the neighbour lost, in microseconds per GB (10^9 bytes) swapped beside it: "
    "10^6 (1 - 1 / neighbour_slowdown) / swaps_beside_gbps, visit by visit, the centre of the visits",
    "exposure_us_per_gb_low": "lower end of its 95% interval, from the visits; empty with fewer than six",
    "exposure_us_per_gb_high": "upper end of that interval",
    "swaps_alone_gbps": "median GB/s of swaps without the neighbour, over whole turns with the gaps between swaps",
    "swaps_beside_gbps": "the same beside the neighbour",
    "swaps_beside_gbps_low": "lower end of the 95% interval of its median, from the visits; empty with fewer than six",
    "swaps_beside_gbps_high": "upper end of that interval",
    "one_block_alone_us": "median wall time of a one-block swap without the neighbour: the start-up time of a swap",
    "one_block_beside_us": "the same beside the neighbour",
    "swap_start_delay_us": "how much later a swap starts beside the neighbour: median of one_block_beside_us - "
    "one_block_alone_us, visit by visit; negative if it starts earlier",
    "swap_delay_us": "how much later a swap completes beside the neighbour, from its submission: difference of the "
    "median wall times, visit by visit; empty in runs that did not keep them",
    "first_layer_us": "time from the caller's arrays until the first layer has arrived: median of the visits' medians; "
    "the last has arrived after swap_us",
    "slowest_gap_us": "the longest time between the arrivals of two consecutive layers of a swap: median of the "
    "visits' medians",
    "hidden_share": "share of the swaps' time that a step hides whose layers wait for them, 1 - (step with swaps - "
    "step alone) / swaps alone: median of the visits, each by the medians of its samples",
    "hidden_share_low": "lower end of its 95% interval, from the visits; empty with fewer than six",
    "hidden_share_high": "upper end of that interval",
    "ceiling_gbps": "median GB/s of large plain copies in the same direction of the same run",
    "ceiling_share": "gbps / ceiling_gbps",
    "limit_blocks_per_s": "the translation limit: the highest rate of scattered small blocks that SM copies reached "
    "in this direction of the same run; empty if no limit is in reach, or if the run did not measure it",
    "roof_gbps": "the roof of this cell: GB/s of large SM copies (for a kernel) or ceiling_gbps, limited to "
    "limit_blocks_per_s blocks per second if the blocks are scattered over 1 GiB or more",
    "roof_share": "gbps / roof_gbps",
    "path": "effective path: the mechanism that moved the bytes; if visits differ, the most frequent one comes first",
    "staging_bytes": "device memory that a staged swap takes beside its blocks; empty for others",
    "sm_us": "SM time of a staged swap: how long its kernels ran, times their SM count; median of the visits, empty "
    "for others",
    "chosen": "the choice of auto for the cell: a backend and its axes",
    "order_note": 'marks an access order that needs care ("any on d2h")',
    "state_held": "share of samples in which the stream was in the requested state",
    "execution_only": "busy stream: share of samples whose gpu_us is execution only (pending_after)",
    "depth_held": "share of samples in which no queued swap had started at the call; empty if no swap was queued",
    "stopped_by": "what ended the visits: max_samples or time (cell_seconds)",
    "repeated": "disturbed visits that were repeated; the last attempt counts",
    "disturbed": "disturbed visits that count",
    "verified_bytes": "bytes compared after the copies, all visits together",
    "warnings": "warnings about this cell",
    "command": "the command that measures only this cell",
}
