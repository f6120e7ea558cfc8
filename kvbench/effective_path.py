"""Names what really ran, from the evidence in the samples."""

from collections.abc import Sequence
from enum import StrEnum
from statistics import median
from typing import Final

from kvbench.backends.base import Mechanism
from kvbench.engine import Sample


class EffectivePath(StrEnum):
    """What moved the bytes."""

    COPY_ENGINE = "copy engine"
    CPU_INLINE = "CPU inline"
    FALLBACK = "per-copy fallback"
    SM_KERNEL = "SM kernel"
    HOST_THREAD = "host thread"


# On an idle stream cuMemcpyBatchAsync may copy inside the call. The same submission made while work is pending only
# hands over to the copy engine: what the idle call costs its thread beyond that went into copying. Seen on an H200: 2
# to 10 times where the CPU copied, 0.9 to 1.4 times where it did not.
CPU_INLINE_RATIO: Final = 1.6


def effective_path(mechanism: Mechanism, samples: Sequence[Sample], busy_cpu_us: float | None) -> EffectivePath:
    """Return what ran in `samples`; `busy_cpu_us` is the CPU time of the same submission on a busy stream, if taken."""
    match mechanism:
        case Mechanism.BATCHED_COPY:
            return EffectivePath.CPU_INLINE if _copied_inside(samples, busy_cpu_us) else EffectivePath.COPY_ENGINE
        case Mechanism.SINGLE_COPIES:
            return EffectivePath.COPY_ENGINE
        case Mechanism.FALLBACK:
            return EffectivePath.FALLBACK
        case Mechanism.SM_KERNEL:
            return EffectivePath.SM_KERNEL
        case Mechanism.HOST_THREAD:
            return EffectivePath.HOST_THREAD


def _copied_inside(samples: Sequence[Sample], busy_cpu_us: float | None) -> bool:
    return busy_cpu_us is not None and median(sample.cpu_us for sample in samples) >= CPU_INLINE_RATIO * busy_cpu_us
