"""Facts about a device that its worker reports, so that the parent can plan without it, and about all devices."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvbench.cells.units import KIB
from kvbench.errors import UsageError

# Size of the plain copy that measures a device's ceiling.
CEILING_BYTES: Final = {"cuda": 1 << 30, "cpu": 1 << 26}
# Maximum of the CUDA driver; streams that share a queue block each other.
HARDWARE_QUEUES: Final = 32
# From this CUDA version of the driver on (13010: 13.1), it may make a batched copy with SMs: see kvbench probe engine.
BATCH_MAY_USE_SMS_FROM: Final = 13_010
# Up to this block size the driver copies on the CPU: observed with driver 580 on an H200, see the cliff in reports/.
CPU_INLINE_UP_TO_BYTES: Final = 24 * KIB


def plain_device(name: str) -> str:
    """Return the one name of a device: "cuda:0" for "cuda:00"."""
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
    """Return the name of a requested device; "auto" is the first GPU of `devices`, else "cpu". Raises UsageError."""
    if asked == "auto":
        return next((device.name for device in devices if device.kind == "cuda"), "cpu")
    if asked == "cuda":
        return "cuda:0"
    if asked != "cpu" and not re.fullmatch(r"cuda:\d+", asked, re.ASCII):
        raise UsageError(f"--device {asked}: not a device; write auto, cpu, cuda or cuda:N")
    return plain_device(asked)
