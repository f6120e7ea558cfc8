"""Facts about devices and backends that a worker reports, so that the parent can plan without it; kvbench's names."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvbench.cells.axes import DEFAULT_ORDER, Direction
from kvbench.cells.cell import Cell
from kvbench.cells.units import KIB
from kvbench.ground.errors import UsageError
from kvbench.ground.text import range_text

# Size and number of the plain copies that measure a device's ceiling.
CEILING_BYTES: Final = {"cuda": 1 << 30, "cpu": 1 << 24}
CEILING_SAMPLES: Final = 4
# From this CUDA version of the driver on (13010: 13.1), it may make a batched copy with SMs: see kvbench probe engine.
BATCH_MAY_USE_SMS_FROM: Final = 13_010
# Up to this block size the driver copies on the CPU: observed with driver 580 on an H200, see the cliff in reports/.
CPU_INLINE_UP_TO_BYTES: Final = 24 * KIB
# Blocks that lie in such runs on the host, in the mean, can be staged (csrc/swap/staged.hpp).
LEAST_RUN_BYTES: Final = 256 * KIB


def plain_device(name: str) -> str:
    """The one name of a device: "cuda:0" for "cuda:00"."""
    return re.sub(r":0+(?=\d)", ":", name)


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device as the plan sees it: `name` is "cpu" or "cuda:N", `kind` "cpu" or "cuda".

    The memory of an `integrated` GPU is the host's, as on GB10: both sides of a swap take theirs from it.
    """

    name: str
    kind: str
    title: str
    sm_count: int | None
    device_free_bytes: int
    host_free_bytes: int
    batch_entry: str | None
    has_torch: bool = True
    integrated: bool = False
    free_2mib_pages: int = 0
    free_1gib_pages: int = 0

    @property
    def has_one_memory(self) -> bool:
        return self.kind == "cpu" or self.integrated


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The memory that engines' pools on a host share: `memlock_bytes` is None without a limit, and `memlock_counts` if
    the driver refuses to pin more; `ranks` are the GPUs, at least one.
    """

    available_bytes: int
    shm_bytes: int
    memlock_bytes: int | None
    memlock_counts: bool
    ranks: int


def device_named(asked: str, devices: Iterable[DeviceFacts]) -> str:
    """The name of a requested device; "auto" is the first GPU of `devices`, else "cpu". Raises UsageError."""
    if asked == "auto":
        return next((device.name for device in devices if device.kind == "cuda"), "cpu")
    if asked == "cuda":
        return "cuda:0"
    if asked != "cpu" and not re.fullmatch(r"cuda:\d+", asked, re.ASCII):
        raise UsageError(f"--device {asked}: not a device; write auto, cpu, cuda or cuda:N")
    return plain_device(asked)


# The backends that some code treats specially.
AUTO: Final = "auto"
BATCHED: Final = "batched"
COPIER: Final = "copier"
EMPTY: Final = "empty"
EMPTY_TORCH: Final = "empty_torch"
# What copies nothing: the least that a call takes.
FLOORS: Final = frozenset({EMPTY, EMPTY_TORCH})
MERGED: Final = "merged"
PER_BLOCK: Final = "per_block"
PRIMED: Final = "primed"
SM: Final = "sm"
STAGED: Final = "staged"
TRITON: Final = "triton"
# What a policy cannot name: what follows one, and what copies nothing.
NO_CHOICES: Final = frozenset({AUTO, COPIER, *FLOORS})


@dataclass(frozen=True, slots=True)
class SmsRow:
    """The default SM count of a kernel for swaps in one direction (None: both), with a pool of `least_pool_bytes` or
    more, blocks of `most_block_bytes` or less, and `most_blocks` blocks or fewer.
    """

    sms: int
    direction: Direction | None = None
    least_pool_bytes: int = 0
    most_block_bytes: int = 1 << 34
    most_blocks: int = 1 << 62

    def fits(self, direction: Direction, pool_bytes: int, block_bytes: int, blocks: int) -> bool:
        return (
            self.direction in (None, direction)
            and pool_bytes >= self.least_pool_bytes
            and block_bytes <= self.most_block_bytes
            and blocks <= self.most_blocks
        )


# The first row that applies decides; the last row applies to every swap.
SmsRule = tuple[SmsRow, ...]
DEFAULT_SMS: Final[SmsRule] = (SmsRow(12),)
# The axes of a backend whose swaps can be submitted again before an earlier submission has completed.
QUEUE_AXES: Final = frozenset({"queued", "streams"})


@dataclass(frozen=True, slots=True)
class EngineSetting:
    """A setting of an engine as its installed files define it: its name, its default, the place (file:line), and the
    line there, which older runs lack.
    """

    name: str
    default: int
    place: str
    line: str = ""


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """A backend as the plan sees it.

    `axes` are the optional axes that it supports on this device (of memory, order, sms, descriptors_per_call, overlap,
    queued, streams). `unavailable` is the reason why it cannot run there, or None. `default_sms` is the rule for its
    default SM count, empty if the backend decides. `package` is the package that provides it ("name==version"),
    `settings` are those of the engine whose code the backend runs. A backend with `on_request` is measured only if it
    is named. The code of a `plug_in` is of another package: its rows, and what shares a process with it, are only as
    true as that. It copies blocks that lie in runs of `host_run_bytes` or more on the host, in the mean.
    """

    name: str
    summary: str
    axes: frozenset[str]
    unavailable: str | None = None
    default_sms: SmsRule = DEFAULT_SMS
    package: str = ""
    settings: tuple[EngineSetting, ...] = ()
    on_request: bool = False
    plug_in: bool = False
    host_run_bytes: int = 0


def with_usual(cell: Cell, backend: BackendFacts, device: DeviceFacts) -> Cell:
    """The cell with the backend's access order and SM count, if it supports them, where the cell has none."""
    if cell.order is None and "order" in backend.axes:
        cell = replace(cell, order=DEFAULT_ORDER[cell.direction])
    if cell.sms is None and "sms" in backend.axes:
        swap = cell.direction, cell.spread_bytes, cell.block_bytes, cell.blocks
        usual = next((row.sms for row in backend.default_sms if row.fits(*swap)), None)  # None: the backend decides
        cell = replace(cell, sms=None if usual is None else min(usual, device.sm_count or usual))
    return cell


def plug_ins_of(backends: Iterable[BackendFacts]) -> dict[str, str]:
    return {facts.name: facts.package for facts in backends if facts.plug_in}


def sms_text(counts: Collection[int]) -> str:
    """One count as "4 SMs", several by their ends, "2 to 12 SMs", and none as ""."""
    return f"{range_text(counts, str)} SM{'s' if max(counts) > 1 else ''}" if counts else ""


def method_label(
    backend: str, sms: int | Collection[int] | None = None, more: Sequence[str] = (), *, plug_in: bool = False
) -> str:
    """The name of a method, everywhere: "batched", "sm (2 to 12 SMs)", of a plug-in "mine (plug-in, 4 SMs)".

    `more` are further settings. A plug-in's figures are only as true as its package, so that its name says what it is.
    """
    counts = [sms] if isinstance(sms, int) else list(sms or ())
    settings = ", ".join(filter(None, ("plug-in" if plug_in else "", sms_text(counts), *more)))
    return f"{backend} ({settings})" if settings else backend
