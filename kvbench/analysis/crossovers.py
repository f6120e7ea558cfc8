"""Which of several is fastest, block size by block size, and between which sizes that changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvbench.stats import Quartiles


@dataclass(frozen=True, slots=True)
class Crossover:
    """`before` is fastest up to `below_bytes`, `after` from `above_bytes` on; any size in between is undecided."""

    below_bytes: int
    above_bytes: int
    before: str
    after: str


def leaders(times: Mapping[str, Quartiles]) -> list[str]:
    """Return the names that this noise does not tell apart from the fastest, by their medians: one where it is decided.

    An arm is told apart when its lower quartile lies above the upper quartile of the arm with the smallest median.
    """
    ordered = sorted(times, key=lambda name: (times[name].median, name))
    return [name for name in ordered if times[name].low <= times[ordered[0]].high]


def winners(arms: Mapping[str, Mapping[int, Quartiles]]) -> dict[int, str | None]:
    """Return the fastest arm at every size that all arms have, ascending; None where it is undecided."""
    common = sorted(set[int].intersection(*(set(times) for times in arms.values()))) if arms else []
    found: dict[int, str | None] = {}
    for size in common:
        first, *others = leaders({name: times[size] for name, times in arms.items()})
        found[size] = None if others else first
    return found


def crossovers(fastest: Mapping[int, str | None]) -> Sequence[Crossover]:
    """Return where the winner changes, from `winners`; sizes in any order."""
    decided = [(size, name) for size, name in sorted(fastest.items()) if name is not None]
    return [
        Crossover(below, above, before, after)
        for (below, before), (above, after) in pairwise(decided)
        if before != after
    ]
