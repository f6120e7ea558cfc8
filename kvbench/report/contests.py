"""Batched copies against the other backends, cell by cell: what the threshold and the crossover map rest on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import pandas as pd

from kvbench.analysis.curves import leaders
from kvbench.analysis.intervals import Quartiles
from kvbench.report.numbers import TIMES, figure
from kvbench.report.select import DIRECTIONS, STATES, Pinned, pin, where
from kvbench.report.tables import rows_of, swap_quartiles
from kvbench.report.view import View
from kvbench.tune.fit import timed

BATCHED: Final = "batched"
Shape = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TimeRatio:
    """One time over another; `decided` where their quartiles lie apart."""

    value: float
    decided: bool

    def __str__(self) -> str:
        return f"{'' if self.decided else '≈ '}{TIMES}{figure(self.value)}"


def time_ratio(first: Quartiles, second: Quartiles) -> TimeRatio:
    decided = len(leaders({"first": first, "second": second})) == 1
    return TimeRatio(first.median / second.median, decided)


@dataclass(frozen=True, slots=True)
class Arm:
    """A backend's cells in one direction and stream state, failed and skipped ones too.

    `times` are the quartiles of `swap_us` in us of those measured, by block bytes and number of blocks.
    """

    backend: str
    cells: pd.DataFrame
    times: Mapping[Shape, Quartiles]

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
    pinned = pin(view.frame, shown=())
    found = []
    for direction, state in product(DIRECTIONS, STATES):
        cells = where(pinned.cells, direction=direction, stream_state=state)
        others = sorted(set(cells["backend"]) - {BATCHED})
        arms = [arm for name in (BATCHED, *others) if (arm := arm_of(cells, name))]
        if len(arms) > 1 and arms[0].backend == BATCHED:
            found.append(BackendContest(direction, state, arms))
    return found, pinned


def arm_of(cells: pd.DataFrame, backend: str) -> Arm | None:
    """Return the arm of `backend` among cells of one direction and state, None where none of them has a time."""
    own = where(cells, backend=backend)
    times = {(int(row["block_bytes"]), int(row["blocks"])): swap_quartiles(row) for row in rows_of(timed(own))}
    return Arm(backend, own, times) if times else None
