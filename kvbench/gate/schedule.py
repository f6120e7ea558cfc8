"""Whose turn it is: rounds of two, the order within a round turned about, one seed a round."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

SideName = Literal["a", "b"]
A: Final[SideName] = "a"
B: Final[SideName] = "b"
# Spec seeds are at most 63 bits; a round adds less than this.
_MAX_SEED: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Turn:
    """One side's measurement of one round, in a process of its own; both turns of a round have one `seed`."""

    round: int
    side: SideName
    seed: int

    @property
    def folder(self) -> str:
        """The name of its run directory."""
        return folder_of(self.round, self.side)


def folder_of(number: int, side: SideName) -> str:
    """Return the name of a side's run directory of round `number`: "03-a"."""
    return f"{number:02d}-{side}"


def turns(first_round: int, rounds: int, seed: int) -> Iterator[Turn]:
    """Yield the turns of `rounds` rounds from `first_round` on: a b, b a, a b and so on.

    So whatever drifts steadily, and whatever comes first or second costs, falls on both sides alike once the number of
    rounds is even. The seed changes with the round: cells are shuffled anew, and alike on both sides.
    """
    for number in range(first_round, first_round + rounds):
        for side in (A, B) if number % 2 == 0 else (B, A):
            yield Turn(number, side, (seed + number) % _MAX_SEED)
