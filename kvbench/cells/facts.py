"""What the worker tells the parent about its device and its backends, so that a plan needs neither."""

from dataclasses import dataclass
from typing import Final

# One plain copy of this size gives a device's ceiling.
CEILING_BYTES: Final = {"cuda": 1 << 30, "cpu": 1 << 26}
# SMs that a kernel takes when none are named: (from so many bytes a swap on, SMs), ascending, the first from 0.
SmsRule = tuple[tuple[int, int], ...]
DEFAULT_SMS: Final[SmsRule] = ((0, 12),)
# The axes of a backend whose swaps may be submitted again before an earlier submission has completed.
QUEUE_AXES: Final = frozenset({"queued", "streams"})


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """A backend as the plan sees it.

    `axes` are the optional axes that it supports on this device (of memory, order, sms, descriptors_per_call, coalesce,
    overlap, queued, streams, kernel); `unavailable` is the reason why it cannot run there, None where it can;
    `default_sms` is the rule for its SM count when none is asked for.
    """

    name: str
    summary: str
    axes: frozenset[str]
    unavailable: str | None = None
    default_sms: SmsRule = DEFAULT_SMS

    def sms_for(self, swap_bytes: int) -> int:
        """Return the SMs that a swap of `swap_bytes` takes when none are named."""
        return next(sms for least_bytes, sms in reversed(self.default_sms) if swap_bytes >= least_bytes)


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device as the plan sees it: `name` is "cpu" or "cuda:N", `kind` "cpu" or "cuda"."""

    name: str
    kind: str
    title: str
    sm_count: int | None
    device_free_bytes: int
    host_free_bytes: int
    batch_entry: str | None


def pool_rows(blocks: int) -> int:
    """Return the rows of a memory pool for swaps of `blocks` blocks.

    The spare rows stay poisoned: they prove that a swap wrote nothing else.
    """
    return blocks + max(2, blocks // 16)
