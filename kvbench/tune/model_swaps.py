"""What the swaps of models take by a rule, from the nearest measured shapes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvbench.models.geometry import ModelSwap
from kvbench.policy import Choice
from kvbench.tune.answer import Answer
from kvbench.tune.fit import sms_of
from kvbench.tune.rule import SmallestRule
from kvbench.units import gigabytes_per_second


@dataclass(frozen=True, slots=True)
class Load:
    """The swap of a model in one direction and stream state: at the GB/s, and the time of the calling thread per block,
    of the choice for the `nearest` measured shape.
    """

    swap: ModelSwap
    nearest: Answer
    choice: Choice

    @property
    def us(self) -> float:
        """The time of the swap in microseconds."""
        return self.swap.block_bytes * self.swap.blocks / self.gbps / 1e3

    @property
    def gbps(self) -> float:
        moved = self.nearest.block_bytes * self.nearest.blocks
        return gigabytes_per_second(moved, self.nearest.time_of(self.choice))

    @property
    def caller_us(self) -> float:
        """What the swap takes from the thread that makes it, in microseconds."""
        return self.nearest.caller_us[self.choice] / self.nearest.blocks * self.swap.blocks

    def to_plain(self) -> dict[str, Any]:
        """Return the load as JSON-compatible data."""
        return {
            "model": self.swap.geometry.name,
            "tokens": self.swap.tokens,
            "block_bytes": self.swap.block_bytes,
            "blocks": self.swap.blocks,
            "direction": self.nearest.direction.value,
            "stream_state": self.nearest.state.value,
            "quantity": self.nearest.state.quantity,
            "choice": str(self.choice),
            "us": round(self.us, 1),
            "gbps": round(self.gbps, 3),
            "caller_us": round(self.caller_us, 1),
            "sms": sms_of(self.choice),
            "measured": {"block_bytes": self.nearest.block_bytes, "blocks": self.nearest.blocks},
        }


def loads_of(rule: SmallestRule, swap: ModelSwap) -> Iterator[Load]:
    """Yield the swap of a model in every direction and stream state of a rule."""
    choices = rule.choices
    for kind in rule.lines:
        nearest = rule.nearest(kind, swap.block_bytes, swap.blocks)
        yield Load(swap, nearest, choices[nearest])
