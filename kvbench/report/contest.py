"""Batched copies against the other backends, cell by cell: what the threshold and the crossover map rest on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from kvbench.analysis.intervals import Quartiles
from kvbench.report.select import QUEUE, STATES, Pinned, pin
from kvbench.report.tables import rows_of, swap_quartiles
from kvbench.report.view import View
from kvbench.tune.fit import timed

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


def a_stream(state: str) -> str:
    """Return the state of a stream, or of a contest, in words."""
    words = {"idle": "an idle stream", BACK_TO_BACK: f"a busy stream, {BATCHED} back to back"}
    return words.get(state, "a busy stream")


def _arm(cells: pd.DataFrame, backend: str, state: str) -> Arm | None:
    own = cells[(cells["backend"] == backend) & (cells["stream_state"] == state)]
    times = {(int(row["block_bytes"]), int(row["blocks"])): swap_quartiles(row) for row in rows_of(timed(own))}
    return Arm(backend, own, times) if times else None
