"""The curves behind the cliff and the SM tables and charts: picked once, shown twice."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from kvbench.analysis.curves import Cliff, find_cliff, knee
from kvbench.report.select import SERIES, STATES, Pinned, fullest, pin

MIN_SIZES: Final = 4
MIN_COUNTS: Final = 3


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart: measured points ascending in `x` (block bytes or SMs); `panel` is N or the block bytes.

    Lines of one backend in one panel are told apart by `variant`, which counts from 0, and its `words`: the stream's
    state or, where runs are compared and `run` says which this is, the run's label.
    """

    backend: str
    direction: str
    state: str
    panel: int
    x: Sequence[int]
    points: pd.DataFrame
    run: tuple[int, str] | None = None

    @property
    def variant(self) -> int:
        return STATES.index(self.state) if self.run is None else self.run[0]

    @property
    def words(self) -> str:
        return f"{self.state} stream" if self.run is None else f"run {self.run[1]}"

    @property
    def label(self) -> str:
        """The line's name, not escaped."""
        return f"{self.backend}, {self.words}"

    @property
    def gbps(self) -> Sequence[float]:
        return [float(value) for value in self.points["gbps"]]

    @property
    def cliff(self) -> Cliff | None:
        """The largest jump beyond noise, where `x` are block bytes."""
        return find_cliff(self.x, self.gbps, list(self.points["gbps_q1"]), list(self.points["gbps_q3"]))

    @property
    def knee(self) -> int | None:
        """The first SM count within 5% of the best, where `x` are SMs."""
        return knee(self.x, self.gbps)


@dataclass(frozen=True, slots=True)
class Curves:
    """The curves of one subject; `main` is the number of blocks that a single chart shows.

    `cells` are all rows that they were picked from, failed and skipped ones too.
    """

    curves: Sequence[Curve]
    pinned: Pinned
    cells: pd.DataFrame
    main: int

    @property
    def measured(self) -> pd.DataFrame:
        return self.cells[self.cells["status"] == "ok"]

    def panels(self) -> list[int]:
        return sorted({curve.panel for curve in self.curves})

    def at(self, panel: int) -> "list[Curve]":
        return [curve for curve in self.curves if curve.panel == panel]


def cliff_curves(cells: pd.DataFrame) -> Curves | str:
    """Return GB/s over block size, a panel per number of blocks, from the rows of a run; or why there are none."""
    pinned = pin(cells, shown=())
    measured = pinned.cells[pinned.cells["status"] == "ok"]
    curves = _curves(measured, "blocks", "block_bytes")
    if not any(len(curve.x) >= MIN_SIZES for curve in curves):
        return f"it needs a backend measured at {MIN_SIZES} block sizes with the same number of blocks"
    return Curves(curves, pinned, pinned.cells, fullest(measured, "blocks", over="block_bytes"))


def ladder_curves(cells: pd.DataFrame) -> Curves | str:
    """Return GB/s over the SM count, a panel per block size, at one number of blocks; or why there are none.

    `cells` are the rows of a run.
    """
    kernels = cells[cells["sms"].notna()]
    pinned = pin(kernels, shown=("sms",))
    measured = pinned.cells[pinned.cells["status"] == "ok"]
    counts = measured.groupby([*SERIES, "blocks", "block_bytes"])["sms"].transform("size")
    ladders = measured[counts >= MIN_COUNTS]
    if ladders.empty:
        return f"it needs a kernel backend measured at {MIN_COUNTS} SM counts or more"
    blocks = fullest(ladders, "blocks", over="sms")
    curves = _curves(ladders[ladders["blocks"] == blocks], "block_bytes", "sms")
    return Curves(curves, pinned, pinned.cells[pinned.cells["blocks"] == blocks], blocks)


def _curves(measured: pd.DataFrame, panel: str, x: str) -> list[Curve]:
    found = []
    for _, group in measured.groupby([*SERIES, panel]):
        points = group.sort_values(x).reset_index(drop=True)
        backend, direction, state = (str(points[axis].iloc[0]) for axis in SERIES)
        values = [int(value) for value in points[x]]
        found.append(Curve(backend, direction, state, int(points[panel].iloc[0]), values, points))
    return sorted(
        found, key=lambda curve: (curve.direction != "h2d", curve.backend, curve.state != "idle", curve.panel)
    )
