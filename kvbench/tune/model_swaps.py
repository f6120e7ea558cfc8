"""What the swaps of models take by a rule, from the nearest measured shapes."""

from collections.abc import Iterator, Sequence
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
            "group": self.swap.geometry.label,
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


def totals_of(rule: SmallestRule, swaps: Sequence[ModelSwap]) -> Iterator[str]:
    """Yield a line for each model of several groups: what all of them take, one after another."""
    of_model: dict[tuple[str, int, int], list[ModelSwap]] = {}
    for swap in swaps:
        of_model.setdefault((swap.geometry.name, swap.tp, swap.tokens), []).append(swap)
    for (name, tp, tokens), groups in of_model.items():
        if len(groups) > 1:
            times: dict[tuple[str, str], float] = {}
            for load in (load for swap in groups for load in loads_of(rule, swap)):
                kind = load.nearest.direction.value, load.nearest.state.value
                times[kind] = times.get(kind, 0) + load.us
            texts = ", ".join(f"{direction} {state} {us:.0f} us" for (direction, state), us in times.items())
            ranks = f", TP {tp}" if tp > 1 else ""
            yield f"{name}{ranks}, {tokens} tokens, all {len(groups)} groups: {texts}"
