"""Two runs that measured the same cells: what differs in their identity, and cell by cell in their figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from kvbench.analysis.intervals import DRIFT, rank_sum_probability
from kvbench.machine.identity import differing
from kvbench.report.select import LATER, SIDE_AXES
from kvbench.report.view import View
from kvbench.results import Scalar

CHANCE: Final = 0.05
_AXES: Final = ("backend", "direction", "stream_state", "blocks", "block_bytes", "block_size", *SIDE_AXES)
_FIGURES: Final = ("samples", "rounds", "swap_us_q1", "swap_us_median", "swap_us_q3", "gbps", "path")


@dataclass(frozen=True, slots=True)
class Pairing:
    """`other` against `base`: the rows of the cells that both measured.

    `cells` has the axes (one of `LATER` only where `base` has swept it), `_base` and `_other` of the figures, `change`
    (other over base - 1 of the medians of swap_us), `chance` of such visits if there were no difference, and `verdict`:
    slower, faster, drift (beyond the noise, but by no more than `DRIFT`), noise or undecided. The largest changes for
    the worse come first, slower and faster before the others.
    """

    base: View
    other: View
    cells: pd.DataFrame

    def count(self, verdict: str) -> int:
        return int((self.cells["verdict"] == verdict).sum())

    @property
    def differences(self) -> Sequence[tuple[str, str, str]]:
        """(field, of base, of other) of the identities, of the versions of kvbench and of the ceilings."""
        return differing(_identity(self.base), _identity(self.other))


def pairings(views: Sequence[View]) -> list[Pairing]:
    """Return for every run but the first its pairing with the one before it that shares most measured cells, if any."""
    found = []
    for place, other in enumerate(views):
        ids = set(other.measured["cell_id"])
        shared = {number: len(ids.intersection(base.measured["cell_id"])) for number, base in enumerate(views[:place])}
        most = max(shared, key=lambda number: shared[number], default=None)
        if most is not None and shared[most]:
            found.append(Pairing(views[most], other, _cells(views[most], other)))
    return found


def _cells(base: View, other: View) -> pd.DataFrame:
    axes = [axis for axis in _AXES if axis not in LATER or base.measured[axis].notna().any()]
    columns = ["cell_id", *axes, *_FIGURES]
    both = base.measured[columns].merge(
        other.measured[["cell_id", *_FIGURES]], on="cell_id", suffixes=("_base", "_other")
    )
    change = both["swap_us_median_other"] / both["swap_us_median_base"] - 1
    chances = _chances(base, other, both["cell_id"])
    both = both.assign(change=change, chance=[chances[cell][0] for cell in both["cell_id"]])
    least = np.array([chances[cell][1] for cell in both["cell_id"]])
    both["verdict"] = np.select(
        [least > CHANCE, both["chance"] > CHANCE, change > DRIFT, change < -DRIFT],
        ["undecided", "noise", "slower", "faster"],
        "drift",
    )
    return both.iloc[np.lexsort((-both["change"], ~both["verdict"].isin(["slower", "faster"])))]


def _chances(base: View, other: View, cell_ids: "pd.Series[str]") -> dict[str, tuple[float, float]]:
    """Return cell id -> how likely visits this far apart are without a difference, and how unlikely any could be."""
    visits = [_visits(view, cell_ids) for view in (base, other)]
    found = {}
    for cell in cell_ids:
        first, second = (medians[cell] for medians in visits)
        least = rank_sum_probability([0.0] * len(first), [1.0] * len(second))
        found[str(cell)] = (rank_sum_probability(first, second), least)
    return found


def _visits(view: View, cell_ids: "pd.Series[str]") -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return cell id -> median of swap_us of every visit."""
    samples = view.all_samples
    medians = samples[samples["cell_id"].isin(cell_ids)].groupby(["cell_id", "round"], sort=False)["swap_us"].median()
    by_cell = medians.groupby(level="cell_id", sort=False)
    return {str(cell): found.to_numpy(dtype=np.float64) for cell, found in by_cell}


def _identity(view: View) -> dict[str, Scalar]:
    info = view.run.info
    ceilings = view.measured.groupby("direction")["ceiling_gbps"].first()
    own: dict[str, Scalar] = {"kvbench": info.kvbench, "device": view.title, "date": view.date}
    for way, rate in ceilings.dropna().items():
        own[f"ceiling {way} GB/s"] = round(float(rate), 1)
    return dict(info.identity) | own
