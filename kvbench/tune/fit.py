"""A policy from runs: at every point the fastest of what was measured there, kept steady where noise decides."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from kvbench.analysis.curves import leaders
from kvbench.analysis.intervals import Quartiles
from kvbench.cells.axes import Direction, StreamState
from kvbench.errors import UsageError
from kvbench.results import Run
from kvbench.results.frame import unqueued
from kvbench.text import MAX_LINE
from kvbench.tune.table import AUTO, CHOSEN_AXES, MAX_VALUES, Choice, Policy, Table

# Candidates this close to the fastest are as good: medians of two runs of one machine differ by as much.
NOISE: Final = 0.02
# So much slower at most is a candidate that goes on because the quartiles do not tell it from the fastest.
LITTLE: Final = 0.10
# Of equally good ones the one that needs least: no SMs, then few of our own kernel, then whatever else there is.
_SIMPLEST: Final = ("batched", "primed", "per_block", "sm", "triton")
_TIMES: Final = ["swap_us_q1", "swap_us_median", "swap_us_q3"]

Point = tuple[int, int]  # block bytes, blocks


def fit_policy(runs: Sequence[Run]) -> Policy:
    """Return the policy that `runs` of one device and driver amount to.

    A point is a block size and a number of blocks at which at least two backends were tried, `auto` apart; a candidate
    that failed is none. Shuffled blocks in memory that the driver allocated count, nothing else. Raises UsageError.
    """
    device, driver = _machine(runs)
    cells = pd.concat([tried(run.frame()) for run in runs], ignore_index=True)
    cells = cells[cells["backend"] != AUTO]
    tables = tuple(
        _table(direction, state, choose_all(times))
        for direction in Direction
        for state in StreamState
        if (times := _times(cells[(cells["direction"] == direction) & (cells["stream_state"] == state)]))
    )
    if not tables:
        raise UsageError(
            "nothing to choose between: the runs hold no block size and number of blocks at which two backends or more "
            "were measured on shuffled blocks; sweep with -a backend=batched,sm or all backends"
        )
    newest = max(runs, key=lambda run: run.info.created)
    return Policy(
        device=device,
        driver=driver,
        identity_hash=newest.info.identity_hash[:MAX_LINE],
        made=newest.info.created[:MAX_LINE],
        runs=tuple(" ".join(run.info.command)[:MAX_LINE] for run in runs),
        tables=tables,
    )


def choose_all(times: Mapping[Point, Mapping[Choice, Quartiles]]) -> dict[Point, Choice]:
    """Return a choice for every point from the times of its candidates in microseconds.

    Points are taken by block size, and of one size by the number of blocks. The choice of a neighbour that has one
    (that with fewer blocks, else that of the smaller size) goes on while it is as good as the fastest, or undecided and
    little slower; else the simplest of those as good as the fastest is taken.
    """
    chosen: dict[Point, Choice] = {}
    for size, count in sorted(times):
        candidates = times[size, count]
        fastest_us = min(time.median for time in candidates.values())
        undecided = leaders({str(choice): time for choice, time in candidates.items()})
        good = [choice for choice, time in candidates.items() if time.median <= (1 + NOISE) * fastest_us]
        little = [choice for choice, time in candidates.items() if time.median <= (1 + LITTLE) * fastest_us]
        near = [choice for choice in little if str(choice) in undecided]
        neighbours = (
            max((point for point in chosen if point[0] == size), default=None),
            max((point for point in chosen if point[1] == count), default=None),
        )
        kept = [chosen[point] for point in neighbours if point is not None and chosen[point] in (*good, *near)]
        chosen[size, count] = kept[0] if kept else min(good, key=_simplicity)
    return chosen


def _simplicity(choice: Choice) -> tuple[int, int, str]:
    rank = _SIMPLEST.index(choice.backend) if choice.backend in _SIMPLEST else len(_SIMPLEST)
    return rank, int(dict(choice.axes).get("sms", 0)), str(choice)


def _machine(runs: Sequence[Run]) -> tuple[str, str]:
    """Return the one device and driver of `runs`."""
    pairs = [(run.info.device.get("title"), run.info.identity.get("driver_version")) for run in runs]
    found = {(str(title or "")[:MAX_LINE], str(driver or "")[:MAX_LINE]) for title, driver in pairs}
    if len(found) > 1:
        told = sorted(f"{title or 'a nameless device'} with driver {driver or 'none'}" for title, driver in found)
        raise UsageError(f"a policy is of one device and driver; these runs are of {'; '.join(told)}")
    return found.pop()


def tried(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of a run's table that a policy rests on, `auto` among them: measured or failed."""
    usual = (frame["pattern"] == "shuffled") & (frame["memory"].isna() | (frame["memory"] == "allocated"))
    return unqueued(frame[usual & (frame["status"] != "skipped")])


def timed(cells: pd.DataFrame) -> pd.DataFrame:
    """Keep the measured cells whose times are times: a run may come from a stranger."""
    times = cells[_TIMES].to_numpy(dtype=float)
    sound = np.isfinite(times).all(axis=1) & (times > 0).all(axis=1)
    return cells[(cells["status"] == "ok") & pd.Series(sound, index=cells.index)]


def choice_of(row: Mapping[Any, Any]) -> Choice:
    """Return the choice that a row of a run's table is the result of."""
    return Choice.of(str(row["backend"]), {name: str(row[name]) for name in CHOSEN_AXES if pd.notna(row[name])})


def _times(cells: pd.DataFrame) -> dict[Point, dict[Choice, Quartiles]]:
    """Return the candidates of every point of one direction and stream state; of several runs the means."""
    found: dict[Point, dict[Choice, Quartiles]] = {}
    for _, here in cells.groupby(["block_bytes", "blocks"]):
        measured = timed(here).to_dict("records")
        if here["backend"].nunique() < 2 or not measured:
            continue
        rows: dict[Choice, list[Mapping[Any, Any]]] = {}
        for row in measured:
            rows.setdefault(choice_of(row), []).append(row)
        point = int(here["block_bytes"].iloc[0]), int(here["blocks"].iloc[0])
        found[point] = {choice: _mean(seen) for choice, seen in rows.items()}
    return found


def _mean(rows: Sequence[Mapping[Any, Any]]) -> Quartiles:
    return Quartiles(*(sum(float(row[part]) for row in rows) / len(rows) for part in _TIMES))


def _table(direction: Direction, state: StreamState, chosen: Mapping[Point, Choice]) -> Table:
    sizes, counts = (tuple(sorted({point[place] for point in chosen})) for place in (0, 1))
    if max(len(sizes), len(counts)) > MAX_VALUES:
        raise UsageError(
            f"a policy has at most {MAX_VALUES} block sizes and numbers of blocks in a table; these runs have "
            f"{len(sizes)} and {len(counts)}"
        )
    return Table(
        direction=direction,
        stream_state=state,
        block_bytes=sizes,
        blocks=counts,
        choices=tuple(tuple(str(chosen.get((size, count), "")) for count in counts) for size in sizes),
    )
