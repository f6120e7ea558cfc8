"""Determines the effective path from the evidence in the samples."""

from collections.abc import Sequence
from typing import Final

from kvbench.backends.base import Mechanism
from kvbench.results.schema import EffectivePath

# On an idle stream cuMemcpyBatchAsync can copy inside the call. While work is pending, the same submission only hands
# over to the copy engine: additional CPU time of the idle call is spent on copying. The fastest sample of a visit
# decides, because a CPU can run at half its speed for some samples. Observed on an H200: a ratio of 1.5 to 8 if the CPU
# copied and of 0.9 to 1.4 if it did not; fewer than one visit in a hundred is misclassified.
CPU_INLINE_RATIO: Final = 1.5


def effective_path(mechanism: Mechanism, cpu_us: Sequence[float], busy_cpu_us: float | None) -> EffectivePath:
    """Return the effective path of a visit, from the CPU time of each submission.

    `busy_cpu_us` is the CPU time of the same submission on a busy stream, if measured.
    """
    match mechanism:
        case Mechanism.BATCHED_COPY if busy_cpu_us is not None and min(cpu_us) >= CPU_INLINE_RATIO * busy_cpu_us:
            return EffectivePath.CPU_INLINE
        case Mechanism.BATCHED_COPY | Mechanism.SINGLE_COPIES:
            return EffectivePath.COPY_ENGINE
        case Mechanism.FALLBACK:
            return EffectivePath.FALLBACK
        case Mechanism.SM_KERNEL:
            return EffectivePath.SM_KERNEL
        case Mechanism.STAGED:
            return EffectivePath.STAGED
        case Mechanism.HOST_THREAD:
            return EffectivePath.HOST_THREAD
