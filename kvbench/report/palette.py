"""Colours and marks of backends: the same in every chart, told apart by colour-blind readers and in grey print."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Ink:
    """How a backend is drawn: colour (Okabe-Ito) and point marker."""

    colour: str
    marker: str


_OWN: Final = {
    "per_block": Ink("#D55E00", "^"),
    "batched": Ink("#0072B2", "o"),
    "triton": Ink("#009E73", "s"),
    "sm": Ink("#CC79A7", "D"),
    "primed": Ink("#56B4E9", "P"),
}
_FREE: Final = (Ink("#E69F00", "v"), Ink("#000000", "X"), Ink("#8C6D31", "h"), Ink("#7F7F7F", "<"))


def inks(backends: Iterable[str]) -> dict[str, Ink]:
    """Return an ink for every backend; those of other packages take the free ones in the order of their names."""
    others = sorted(set(backends) - set(_OWN))
    return _OWN | {name: _FREE[number % len(_FREE)] for number, name in enumerate(others)}
