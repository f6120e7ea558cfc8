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


# A call that copies on the CPU keeps its thread busy for its whole length and leaves next to nothing to wait for; one
# that only hands over to the copy engine leaves its last copies to wait for.
_CPU_SHARE_OF_SUBMISSION: Final = 0.8
_SUBMISSION_SHARE_OF_WALL: Final = 0.9
_CPU_US_A_DESCRIPTOR: Final = 0.6


def effective_path(mechanism: Mechanism, samples: Sequence[Sample], descriptors: int) -> EffectivePath:
    """Return what ran in these samples of a swap of `descriptors` descriptors."""
    match mechanism:
        case Mechanism.BATCHED_COPY:
            return EffectivePath.CPU_INLINE if _copied_inside_call(samples, descriptors) else EffectivePath.COPY_ENGINE
        case Mechanism.SINGLE_COPIES:
            return EffectivePath.COPY_ENGINE
        case Mechanism.FALLBACK:
            return EffectivePath.FALLBACK
        case Mechanism.SM_KERNEL:
            return EffectivePath.SM_KERNEL
        case Mechanism.HOST_THREAD:
            return EffectivePath.HOST_THREAD


def _copied_inside_call(samples: Sequence[Sample], descriptors: int) -> bool:
    submit_us = median(sample.submit_us for sample in samples)
    cpu_us = median(sample.cpu_us for sample in samples)
    wall_us = median(sample.wall_us for sample in samples)
    return (
        cpu_us >= _CPU_SHARE_OF_SUBMISSION * submit_us
        and cpu_us >= _CPU_US_A_DESCRIPTOR * descriptors
        and submit_us >= _SUBMISSION_SHARE_OF_WALL * wall_us
    )
