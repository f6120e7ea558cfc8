"""A policy from runs: at every point the fastest of what was measured there; ties go by a rule."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Final

import pandas as pd

from kvbench.analysis.compare import Verdict, Visits, compare_visits, leaders
from kvbench.analysis.margins import IN_TURN, TIED
from kvbench.cells.axes import Direction, Reuse, StreamState
from kvbench.errors import UsageError
from kvbench.results import Run
from kvbench.results.frame import unqueued, visit_times
from kvbench.text import MAX_LINE
from kvbench.tune.table import AUTO, CHOSEN_AXES, MAX_VALUES, Choice, Policy, Table

# Ways without SMs first, of which one batched call is the simplest; of kernels our own before whatever else there is.
_SIMPLEST: Final = ("batched", "primed", "per_block", "sm", "triton")

Point = tuple[int, int]  # block bytes, blocks
Arms = Mapping[Choice, Visits]
Kind = tuple[Direction, StreamState]


def fit_policy(runs: Sequence[Run]) -> Policy:
    """Return the policy that `runs` of one device and driver amount to; raises UsageError."""
    device, driver = _machine(runs)
    tables = tuple(_table(*kind, choose_all(times)) for kind, times in candidates(runs).items())
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


def candidates(runs: Sequence[Run]) -> dict[Kind, dict[Point, Arms]]:
    """Return the times of everything that a policy may choose from, by direction and stream state, then by point.

    A point is a block size and a number of blocks at which at least two backends were tried, `auto` apart; a candidate
    that failed is none. Rounds of several runs are numbered on, so that only visits of one run are paired.
    """
    found: dict[Kind, dict[Point, dict[Choice, dict[int, float]]]] = {}
    backends: dict[tuple[Kind, Point], set[str]] = {}
    first = 0
    for run in runs:
        samples = run.samples()
        frame = run.frame(samples)
        visits = visit_times(frame, samples)
        cells = tried(frame)
        for row in cells[cells["backend"] != AUTO].to_dict("records"):
            kind = Direction(row["direction"]), StreamState(row["stream_state"])
            point = int(row["block_bytes"]), int(row["blocks"])
            backends.setdefault((kind, point), set()).add(row["backend"])
            if times := visits.get(row["cell_id"]):
                arm = found.setdefault(kind, {}).setdefault(point, {}).setdefault(choice_of(row), {})
                arm.update({first + number: us for number, us in times.items()})
        first += 1 + max(samples["round"], default=0)
    contests: dict[Kind, dict[Point, Arms]] = {}
    for kind in product(Direction, StreamState):
        points: dict[Point, Arms] = {
            point: arms for point, arms in found.get(kind, {}).items() if len(backends[kind, point]) > 1
        }
        if points:
            contests[kind] = points
    return contests


def choose_all(times: Mapping[Point, Arms]) -> dict[Point, Choice]:
    """Return a choice for every point from the times of its candidates.

    Of those that `tied_at` names the one with the fewest SMs is taken, of several the simplest way, of several again
    the choice of a neighbour: that with fewer blocks, else that of the smaller size. Points are taken in that order.
    """
    chosen: dict[Point, Choice] = {}
    for size, count in sorted(times):
        near = (
            max((point for point in chosen if point[0] == size), default=None),
            max((point for point in chosen if point[1] == count), default=None),
        )
        neighbours = [chosen[point] for point in near if point is not None]
        chosen[size, count] = min(tied_at(times[size, count]), key=lambda choice: _rank(choice, neighbours))
    return chosen


def tied_at(arms: Arms) -> dict[Choice, Verdict]:
    """Return the fastest of some candidates and those as good as it, each with its verdict against the fastest.

    As good is what is not SLOWER and loses no more than `TIED`.
    """
    named = {str(choice): choice for choice in arms}
    found = leaders({name: arms[choice] for name, choice in named.items()}, IN_TURN)
    fastest = arms[named[next(iter(found))]]
    ratios = {name: compare_visits(fastest, arms[named[name]], IN_TURN).ratio for name in found}
    return {named[name]: said for name, said in found.items() if ratios[name] <= 1 + TIED.fraction}


def _rank(choice: Choice, neighbours: Sequence[Choice]) -> tuple[int, int, int, str]:
    rank = _SIMPLEST.index(choice.backend) if choice.backend in _SIMPLEST else len(_SIMPLEST)
    near = neighbours.index(choice) if choice in neighbours else len(neighbours)
    return int(dict(choice.axes).get("sms", 0)), rank, near, str(choice)


def _machine(runs: Sequence[Run]) -> tuple[str, str]:
    """Return the one device and driver of `runs`."""
    pairs = [(run.info.device.get("title"), run.info.identity.get("driver_version")) for run in runs]
    found = {(str(title or "")[:MAX_LINE], str(driver or "")[:MAX_LINE]) for title, driver in pairs}
    if len(found) > 1:
        told = sorted(f"{title or 'a nameless device'} with driver {driver or 'none'}" for title, driver in found)
        raise UsageError(f"a policy is of one device and driver; these runs are of {'; '.join(told)}")
    return found.pop()


def tried(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of a run's table that a policy rests on, `auto` among them: measured or failed.

    Shuffled blocks in memory that the driver allocated count, without a pause; of several pools the largest, fresh
    blocks before the same again.
    """
    usual = (frame["pattern"] == "shuffled") & (frame["memory"].isna() | (frame["memory"] == "allocated"))
    cells = unqueued(frame[usual & (frame["pause_us"] == 0) & (frame["status"] != "skipped")])
    fresh = cells["reuse"] == Reuse.FRESH.value
    cells = cells[fresh] if fresh.any() else cells
    largest: pd.DataFrame = cells[cells["pool_bytes"] == cells["pool_bytes"].max()]
    return largest


def choice_of(row: Mapping[Any, Any]) -> Choice:
    """Return the choice that a row of a run's table is the result of."""
    return Choice.of(str(row["backend"]), {name: str(row[name]) for name in CHOSEN_AXES if pd.notna(row[name])})


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
