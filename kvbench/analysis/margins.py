"""Every threshold that a verdict rests on, each with its reason."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Margin:
    """How far apart two times may lie and still count as the same, a fraction; `reason` completes "because …"."""

    fraction: float
    reason: str


IN_TURN: Final = Margin(0.02, "two copies of one cell, visited in turn, differ by up to as much")
BETWEEN_RUNS: Final = Margin(
    0.05, "two runs of one build, one after the other, differ by up to as much: a host's other work moves the CPU"
)
GATE: Final = Margin(0.03, "it is the smallest change that a gate is asked to find; cells with a floor have their own")
CONTROL: Final = Margin(0.02, "large plain copies on a quiet link repeat more closely than that")
CONTROL_CPU: Final = Margin(0.10, "a fixed piece of work takes so much longer where a CPU's other thread is at work")
INLINE: Final = Margin(0.25, "where the CPU copies, the host's other work moves the time of one visit by up to as much")
TIED: Final = Margin(0.03, "a swap that gains no more is no reason to take SMs from a model")
CLIFF: Final = Margin(0.25, "what every descriptor costs makes GB/s grow with the size, up to as fast as the size does")
KNEE: Final = Margin(0.05, "what more SMs gain beyond it costs the neighbour more than it brings")
QUEUE_KNEE: Final = Margin(1.0, "a submission behind a few swaps takes up to twice as long on some drivers")
STEADY_CEILING: Final = Margin(0.02, "large copies on a quiet machine repeat more closely than that")
