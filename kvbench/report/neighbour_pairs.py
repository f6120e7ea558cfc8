"""Neighbours in two runs: how much slower each is beside swaps in one than in the other."""

from collections.abc import Sequence
from typing import Final

import pandas as pd

from kvbench.analysis.compare import compare_apart
from kvbench.analysis.margins import GATE
from kvbench.report.model import DataTable, Text
from kvbench.report.numbers import TIMES, figure
from kvbench.report.tables import rows_of
from kvbench.report.view import View
from kvbench.report.ways import axes_apart, label_of
from kvbench.results.cost import costs_of
from kvbench.results.frame import visits_that_count

_VERDICT: Final = (
    f"Slower, faster: the whole 95% interval of the ratio of slowdowns, by visit, lies beyond {GATE.fraction:.0%}. A "
    "slowdown is of a visit that measured the neighbour alone and beside swaps in turn, so runs differ less in it than "
    "in times"
)
_FIGURES: Final = ("neighbour_slowdown", "swaps_beside_gbps")
_NAMES: Final = ("neighbour", "direction", "swaps")
_MOST_ROWS: Final = 40


def neighbour_pairs(base: View, other: View) -> pd.DataFrame:
    """Return a row for each cell whose neighbour both runs measured, the largest changes for the worse first.

    The columns are cell_id, neighbour, direction, swaps, `_base` and `_other` of the figures, `change` (the slowdown of
    other over that of base, less 1) with its interval, and `verdict`.
    """
    ours, theirs = (costs_of(visits_that_count(view.run.records)) for view in (base, other))
    cells = base.measured[base.measured["cell_id"].isin(ours.keys() & theirs.keys())]
    both = cells.merge(other.measured[["cell_id", *_FIGURES]], on="cell_id", suffixes=("_base", "_other"))
    if both.empty:
        return pd.DataFrame()
    apart = axes_apart(both)
    slowdowns = (
        [[cost.slowdown for cost in side[cell].values()] for side in (ours, theirs)] for cell in both["cell_id"]
    )
    found = [compare_apart(before, after, GATE) for before, after in slowdowns]
    made = both.assign(
        swaps=[label_of(row, apart) for row in rows_of(both)],
        change=[one.ratio - 1 for one in found],
        change_low=[one.low - 1 for one in found],
        change_high=[one.high - 1 for one in found],
        verdict=[one.verdict.value for one in found],
    )
    sides = [f"{name}_{side}" for name in _FIGURES for side in ("base", "other")]
    columns = ["cell_id", *_NAMES, *sides, "change", "change_low", "change_high", "verdict"]
    return made[columns].sort_values("change", ascending=False, ignore_index=True)


def neighbour_table(base: View, other: View, pairs: pd.DataFrame, notes: Sequence[Text], caption: Text) -> DataTable:
    """Return the table of `pairs`, which `neighbour_pairs` made."""
    rows: list[list[Text]] = []
    for row in rows_of(pairs.head(_MOST_ROWS)):
        known = row["change_high"] < float("inf")
        interval = f" ({1 + row['change_low']:.3f} to {1 + row['change_high']:.3f})" if known else ""
        slowdowns = (f"{row[f'neighbour_slowdown_{side}']:.2f}" for side in ("base", "other"))
        rates = (figure(row[f"swaps_beside_gbps_{side}"]) for side in ("base", "other"))
        ratio = f"{TIMES}{1 + row['change']:.3f}{interval}"
        rows.append([*(row[name] for name in _NAMES), *rates, *slowdowns, ratio, row["verdict"].lower()])
    labels = [view.label for view in (base, other)]
    header = ("Neighbour", "Dir", "Swaps", *(f"{label} GB/s" for label in labels), *labels, "Ratio (95%)", "Verdict")
    return DataTable("Slowdown of neighbours, worst first", header, rows, [_VERDICT, *notes], caption, left=3)
