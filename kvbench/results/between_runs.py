"""How far two runs differ: two starts of one build can differ by more than the visits of either.

Each process has its own memory, and pages lie elsewhere. The spread is measured once a card: `python -m reports.spread`
starts a small config several times and keeps the result in `configs/between_runs.json`.
"""

from collections.abc import Mapping
from functools import cache
from itertools import chain
from typing import Annotated, Final

import msgspec

from kvbench.analysis.margins import Margin
from kvbench.ground.files import shipped_folder

FILE: Final = "between_runs.json"
# Calls dominate the time of smaller swaps.
LARGE_FROM_BYTES: Final = 8 << 20

_Fraction = Annotated[float, msgspec.Meta(ge=0)]


class CardSpread(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The measured spread of a card: by kind of swap, the relative difference below which 95% of two starts stay."""

    driver: str
    made: str
    starts: int
    cells: int
    spread: dict[str, _Fraction]


def kind_of(backend: str, swap_bytes: int) -> str:
    """The kind of a swap: swaps of one kind have one spread."""
    return f"{backend}, {'from' if swap_bytes >= LARGE_FROM_BYTES else 'below'} {LARGE_FROM_BYTES >> 20} MiB"


def spread_between(card: str, kind: str) -> Margin:
    """The spread between two runs on a card for a kind of swap.

    A card that was not measured has the spread of other cards, a kind that was not measured the largest of any kind.
    """
    measured = measured_spreads()
    cards = [measured[card]] if card in measured else [*measured.values()]
    starts = f"{cards[0].starts} starts of one build on {card}" if card in measured else "starts on other cards"
    same_kind = [spreads.spread[kind] for spreads in cards if kind in spreads.spread]
    fractions = same_kind or chain.from_iterable(spreads.spread.values() for spreads in cards)
    return Margin(max(fractions), f"{starts} differed by up to this much ({kind})")


@cache
def measured_spreads() -> Mapping[str, CardSpread]:
    return msgspec.json.decode((shipped_folder() / FILE).read_bytes(), type=dict[str, CardSpread])
