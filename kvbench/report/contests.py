"""Batched copies against the other backends, cell by cell: what the threshold and the crossover map rest on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import pandas as pd

from kvbench.analysis.compare import Visits
from kvbench.report.select import DIRECTIONS, STATES, Pinned, where
from kvbench.report.tables import rows_of
from kvbench.report.view import View

BATCHED: Final = "batched"
Shape = tuple[int, int]  # block bytes, blocks


@dataclass(frozen=True, slots=True)
class Arm:
    """A backend's cells in one direction and stream state, failed and skipped ones too; `times` of those measured."""

    backend: str
    cells: pd.DataFrame
    times: Mapping[Shape, Visits]

    @property
    def is_kernel(self) -> bool:
        return bool(self.cells["sms"].notna().any())


@dataclass(frozen=True, slots=True)
class BackendContest:
    """One direction and stream state; batched is the first of the arms."""

    direction: str
    state: str
    arms: Sequence[Arm]


def backend_contests(view: View) -> tuple[list[BackendContest], Pinned]:
    """Return a contest per direction and state in which batched and another backend were measured.

    The second value says what the axes that are not shown were set to.
    """
    pinned = view.pinned
    found = []
    for direction, state in product(DIRECTIONS, STATES):
        cells = where(pinned.cells, direction=direction, stream_state=state)
        others = sorted(set(cells["backend"]) - {BATCHED})
        arms = [arm for name in (BATCHED, *others) if (arm := _arm(view, where(cells, backend=name))).times]
        if len(arms) > 1 and arms[0].backend == BATCHED:
            found.append(BackendContest(direction, state, arms))
    return found, pinned


def _arm(view: View, cells: pd.DataFrame) -> Arm:
    rows = [row for row in rows_of(cells) if row["cell_id"] in view.visits]
    times = {(int(row["block_bytes"]), int(row["blocks"])): view.visits[row["cell_id"]] for row in rows}
    return Arm(str(rows[0]["backend"]) if rows else "", cells, times)
