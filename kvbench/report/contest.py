"""Batched copies against the other backends, cell by cell: what the threshold and the crossover map rest on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from kvbench.report.selection import QUEUE, STATES, Pinned, pin
from kvbench.report.view import View
from kvbench.stats import Quartiles

BATCHED: Final = "batched"
BACK_TO_BACK: Final = "back-to-back"
Shape = tuple[int, int]


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
class Contest:
    """One direction and stream state; batched is the first of the arms.

    In the state BACK_TO_BACK batched was submitted behind another swap of its kind, the others on a busy stream.
    """

    direction: str
    state: str
    arms: Sequence[Arm]


@dataclass(frozen=True, slots=True)
class Contests:
    """All contests of a run; `pinned` says what the axes that are not shown were set to."""

    contests: Sequence[Contest]
    pinned: Pinned


def contests(view: View) -> Contests:
    """Return a contest per direction and state in which batched and another backend were measured."""
    pinned = pin(view.frame, shown=())
    found = []
    for direction in ("h2d", "d2h"):
        cells = pinned.cells[pinned.cells["direction"] == direction]
        others = sorted(set(cells["backend"]) - {BATCHED})
        for state in STATES:
            arms = [arm for name in (BATCHED, *others) if (arm := _arm(cells, name, state))]
            if len(arms) > 1 and arms[0].backend == BATCHED:
                found.append(Contest(direction, state, arms))
    return Contests(found, pinned)


def back_to_back(view: View) -> list[Contest]:
    """Return the contests on a busy stream once more, with batched behind one queued swap, where that was measured."""
    frame = view.frame
    behind_one = (frame["queued"] == 1) & (frame["streams"] == 1) & (frame["backend"] == BATCHED)
    cells = pin(frame[behind_one], shown=QUEUE).cells
    found = []
    for contest in view.once(contests).contests:
        arm = _arm(cells[cells["direction"] == contest.direction], BATCHED, contest.state)
        if arm and contest.state == "busy":
            found.append(Contest(contest.direction, BACK_TO_BACK, [arm, *contest.arms[1:]]))
    return found


def _arm(cells: pd.DataFrame, backend: str, state: str) -> Arm | None:
    own = cells[(cells["backend"] == backend) & (cells["stream_state"] == state)]
    times = _times(own[own["status"] == "ok"])
    return Arm(backend, own, times) if times else None


def _times(measured: pd.DataFrame) -> Mapping[Shape, Quartiles]:
    columns = ["block_bytes", "blocks", "swap_us_q1", "swap_us_median", "swap_us_q3"]
    return {
        (int(size), int(blocks)): Quartiles(float(low), float(median), float(high))
        for size, blocks, low, median, high in measured[columns].itertuples(index=False)
        if np.isfinite([low, median, high]).all() and low > 0
    }
