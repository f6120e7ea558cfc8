"""What the worker tells the parent about its device and its backends, so that a plan needs neither."""

from dataclasses import dataclass
from typing import Final

from kvbench.cells.axes import Direction, Neighbour

# One plain copy of this size gives a device's ceiling.
CEILING_BYTES: Final = {"cuda": 1 << 30, "cpu": 1 << 26}
# A visit beside a neighbour takes at least so long: each of its turns needs iterations of the neighbour.
LEAST_BESIDE_S: Final = 0.3
# What neighbours that run through torch take of a GPU's memory, its own included, generously.
TORCH_BYTES: Final = {Neighbour.GEMM: 1 << 30, Neighbour.MEMORY: 3 << 30, Neighbour.DECODE: 22 << 30}


@dataclass(frozen=True, slots=True)
class SmsRow:
    """SMs that a kernel takes when none are named, for swaps one way (None: both) out of a pool of `least_pool_bytes`
    or more, in blocks of `most_block_bytes` or less.
    """

    sms: int
    direction: Direction | None = None
    least_pool_bytes: int = 0
    most_block_bytes: int = 1 << 34

    def fits(self, direction: Direction, pool_bytes: int, block_bytes: float) -> bool:
        """Whether the row is for swaps this way, spread over `pool_bytes`, in blocks of `block_bytes`."""
        return (
            self.direction in (None, direction)
            and pool_bytes >= self.least_pool_bytes
            and block_bytes <= self.most_block_bytes
        )


# The first row that fits decides; the last one fits every swap.
SmsRule = tuple[SmsRow, ...]
DEFAULT_SMS: Final[SmsRule] = (SmsRow(12),)
# The axes of a backend whose swaps may be submitted again before an earlier submission has completed.
QUEUE_AXES: Final = frozenset({"queued", "streams"})


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """A backend as the plan sees it.

    `axes` are the optional axes that it supports on this device (of memory, order, sms, descriptors_per_call, coalesce,
    overlap, queued, streams, kernel); `unavailable` is the reason why it cannot run there, None where it can;
    `default_sms` is the rule for its SM count when none is asked for. `kernels` are the first words of the kernels that
    it can be asked for, `package` is what brings it ("name==version").
    """

    name: str
    summary: str
    axes: frozenset[str]
    unavailable: str | None = None
    default_sms: SmsRule = DEFAULT_SMS
    kernels: tuple[str, ...] = ()
    package: str = ""

    def sms_for(self, direction: Direction, pool_bytes: int, block_bytes: float) -> int:
        """Return the SMs that a swap takes when none are named; `pool_bytes` is what its blocks are spread over."""
        return next(row.sms for row in self.default_sms if row.fits(direction, pool_bytes, block_bytes))


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device as the plan sees it: `name` is "cpu" or "cuda:N", `kind` "cpu" or "cuda".

    `shared_bytes` is the shared memory that a block of threads may have, None on the cpu device.
    """

    name: str
    kind: str
    title: str
    sm_count: int | None
    device_free_bytes: int
    host_free_bytes: int
    batch_entry: str | None
    shared_bytes: int | None = None
    has_torch: bool = True


def pool_rows(blocks: int) -> int:
    """Return the rows of a memory pool for swaps of `blocks` blocks.

    The spare rows stay poisoned: they prove that a swap wrote nothing else.
    """
    return blocks + max(2, blocks // 16)
