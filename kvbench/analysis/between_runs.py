"""The spread between runs, which no interval within a run sees, and whether the visits of a run are independent.

Two starts of one build can differ by more than the visits of either: each process has its own memory, and pages lie
elsewhere. The spread is measured once a card: `python -m reports.spread` starts a small config several times and keeps
the result in `configs/between_runs.json`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import Annotated, Final

import msgspec
import numpy as np

from kvbench.analysis.compare import MIN_PAIRS, Visits
from kvbench.analysis.margins import Margin
from kvbench.files import shipped_folder

FILE: Final = "between_runs.json"
# Of all differences between two starts, the spread covers this share.
SHARE: Final = 0.95
# Calls dominate the time of smaller swaps.
LARGE_FROM_BYTES: Final = 8 << 20
# From this mean correlation of successive visits on, intervals within a run are clearly too narrow. It is below 0.25 in
# 27 of the 28 committed runs.
CORRELATED: Final = 0.3
# Fewer cells say little about a correlation.
_LEAST_CELLS: Final = 20

_Fraction = Annotated[float, msgspec.Meta(ge=0)]


class CardSpread(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The measured spread of a card: by kind of swap, the relative difference below which SHARE of two starts stay."""

    driver: str
    made: str
    starts: int
    cells: int
    spread: dict[str, _Fraction]


def kind_of(backend: str, swap_bytes: int) -> str:
    """Return the kind of a swap: swaps of one kind have one spread."""
    return f"{backend}, {'from' if swap_bytes >= LARGE_FROM_BYTES else 'below'} {LARGE_FROM_BYTES >> 20} MiB"


def spread_by_kind(starts: Sequence[Mapping[str, float]], kinds: Mapping[str, str]) -> dict[str, float]:
    """Return the spread of each kind; `starts` has cell -> time for each start, `kinds` cell -> kind."""
    differences: dict[str, list[float]] = {}
    for one, other in combinations(starts, 2):
        for cell in one.keys() & other.keys():
            differences.setdefault(kinds[cell], []).append(abs(math.log(one[cell] / other[cell])))
    return {kind: math.expm1(float(np.quantile(values, SHARE))) for kind, values in sorted(differences.items())}


def spread_between(card: str, kind: str) -> Margin:
    """Return the spread between two runs on a card for a kind of swap.

    A card that was not measured has the spread of other cards, a kind that was not measured the largest of any kind.
    """
    known = measured_spreads()
    of_cards = [known[card]] if card in known else [*known.values()]
    where = f"{of_cards[0].starts} starts of one build on {card}" if card in known else "starts on other cards"
    fractions = [of_card.spread[kind] for of_card in of_cards if kind in of_card.spread]
    every = [fraction for of_card in of_cards for fraction in of_card.spread.values()]
    return Margin(max(fractions or every), f"{where} differed by up to this much ({kind})")


@cache
def measured_spreads() -> Mapping[str, CardSpread]:
    """Return the shipped spreads by card."""
    return msgspec.json.decode((shipped_folder() / FILE).read_bytes(), type=dict[str, CardSpread])


def correlation_of_successive(cells: Iterable[Visits]) -> float | None:
    """Return the mean correlation of successive visits, over cells with six or more; None with too few cells.

    It is 0 if visits are independent: the bias of few visits is taken off. A drift of the machine or of a process makes
    it positive.
    """
    found = []
    for visits in cells:
        logs = np.log([visits[number] for number in sorted(visits)])
        deviations = logs - logs.mean()
        total = float(deviations @ deviations)
        if len(logs) >= MIN_PAIRS and total > 0:
            found.append(float(deviations[1:] @ deviations[:-1]) / total + 1 / len(logs))
    return float(np.mean(found)) if len(found) >= _LEAST_CELLS else None
