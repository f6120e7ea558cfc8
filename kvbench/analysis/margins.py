"""The thresholds of all verdicts, each with its reason."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Margin:
    """The largest relative difference of two figures that count as the same; `reason` completes "because …".

    Where a figure can be 0, a difference of `least`, in its unit, counts as the same too.
    """

    fraction: float
    reason: str
    least: float = 0.0

    def allowed(self, *figures: float) -> float:
        """The largest difference of such figures that counts as the same, in their unit."""
        return max(self.least, self.fraction * max(map(abs, figures)))


IN_TURN: Final = Margin(0.02, "two copies of one cell, visited in turn, differ by up to this much")
BETWEEN_RUNS: Final = Margin(
    0.05, "two consecutive runs of one build differ by up to this much: other work on the host affects the CPU"
)
GATE: Final = Margin(0.03, "it is the smallest change that a gate must find")
CONTROL: Final = Margin(0.02, "large plain copies on a quiet link repeat more closely")
CEILING: Final = Margin(0.05, "large plain copies of rounds on a quiet machine differ by less")
CONTROL_CPU: Final = Margin(0.10, "a fixed piece of work takes this much longer on a CPU with a busy sibling thread")
INLINE: Final = Margin(
    0.25, "where the CPU copies, other work on the host changes the time of a visit by up to this much"
)
UPPER_HALF: Final = Margin(
    0.2, "beyond the margin of a cell: bursts of other work move the upper half of a visit more than its lower tenth"
)
# Pairs of equal builds that are too few for an interval lie above their margin by chance, but not together by this
# factor: with a busy other thread of its CPU, one takes 1.6 times as long.
FEW_PAIRS: Final = 4.0
TIED: Final = Margin(0.03, "a smaller gain does not justify taking SMs from a model")
WIDE: Final = Margin(0.05, "three digits promise more than a figure has whose interval reaches further on each side")
CHAIN: Final = Margin(0.5, "a chain whose mean swap takes so much longer, or less, than one more swap adds is uneven")
MIN_P99: Final = 500  # a p99 of fewer values is the worst few
MIN_P90: Final = 40
MIN_ITERATIONS: Final = 20  # of a neighbour beside swaps: the mean of fewer rests on where the swaps began
# A smaller difference of two times is no more than an interrupt takes.
ABSOLUTE_US: Final = 1.0
CLIFF: Final = Margin(0.25, "at a constant cost per descriptor, GB/s grow up to in proportion to the size")
KNEE: Final = Margin(0.05, "beyond it, more SMs cost the neighbour more than they gain")
# On an H100 with driver 580.159.04 (`kvbench sweep beside`, f7d27ecd), over the 56 cells of the copy kernel: 0.2 ms/GB
# beside decode, 0.7 beside a prefill, 0.5 over both.
LOST: Final = Margin(0.1, "the means of three starts and of three others of one build differ by up to this much", 0.5)
HEALTHY: Final = Margin(0.1, "packets of 128 bytes in place of 256, which some hosts set, cost a link 8%")
QUEUE_KNEE: Final = Margin(1.0, "on some drivers, a submission after a few swaps takes up to twice as long")


def between_runs(base_us: float, *, inline: bool) -> Margin:
    """The margin of two runs that were not made in turn, for a cell that took `base_us` in the first.

    `inline` cells are copied by the CPU in both.
    """
    usual = INLINE if inline else BETWEEN_RUNS
    return max(usual, Margin(ABSOLUTE_US / base_us, "it is a microsecond"), key=lambda margin: margin.fraction)
