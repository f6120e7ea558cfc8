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
