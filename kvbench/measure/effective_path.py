"""Names what really ran, from the evidence in the samples."""

from collections.abc import Sequence
from typing import Final

from kvbench.backends.base import Mechanism
from kvbench.results.schema import EffectivePath

# On an idle stream cuMemcpyBatchAsync may copy inside the call. The same submission made while work is pending only
# hands over to the copy engine: what the idle call costs its thread beyond that went into copying. Of a visit's samples
# the fastest tells, since a CPU may run at half its speed for some of them. Seen on an H200: 1.5 to 8 times where the
# CPU copied, 0.9 to 1.4 times where it did not; fewer than one visit in a hundred lie on the wrong side.
CPU_INLINE_RATIO: Final = 1.5


def effective_path(mechanism: Mechanism, cpu_us: Sequence[float], busy_cpu_us: float | None) -> EffectivePath:
    """Return what ran in the samples of a visit, by the CPU time of each submission.

    `busy_cpu_us` is that of the same submission on a busy stream, if taken.
    """
    match mechanism:
        case Mechanism.BATCHED_COPY:
            return EffectivePath.CPU_INLINE if _copied_inside(cpu_us, busy_cpu_us) else EffectivePath.COPY_ENGINE
        case Mechanism.SINGLE_COPIES:
            return EffectivePath.COPY_ENGINE
        case Mechanism.FALLBACK:
            return EffectivePath.FALLBACK
        case Mechanism.SM_KERNEL:
            return EffectivePath.SM_KERNEL
        case Mechanism.HOST_THREAD:
            return EffectivePath.HOST_THREAD


def _copied_inside(cpu_us: Sequence[float], busy_cpu_us: float | None) -> bool:
    return busy_cpu_us is not None and min(cpu_us) >= CPU_INLINE_RATIO * busy_cpu_us
