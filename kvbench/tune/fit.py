"""A policy from runs: at every point the fastest of what was measured there; ties go by a rule."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any, Final

import pandas as pd

from kvbench.analysis.compare import MIN_PAIRS, Comparison, Verdict, Visits, compare_visits
from kvbench.analysis.margins import BETWEEN_RUNS, IN_TURN, TIED
from kvbench.cells.axes import Direction, Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import SHUFFLED
from kvbench.errors import UsageError
from kvbench.results import Run
from kvbench.results.frame import unqueued, visit_times
from kvbench.text import MAX_LINE
from kvbench.tune.table import AUTO, CHOSEN_AXES, MAX_VALUES, Choice, Policy, Table

# Ways without SMs first, of which one batched call is the simplest; of kernels our own before whatever else there is.
_SIMPLEST: Final = ("batched", "primed", "per_block", "sm", "triton")

# Less than this share of a run's cells are not what it is about.
_FEW: Final = 1 / 3

Point = tuple[int, int]  # block bytes, blocks
Arms = Mapping[Choice, Visits]
Kind = tuple[Direction, StreamState]


def fit_policy(runs: Sequence[Run]) -> Policy:
    """Return the policy that `runs` of one device and driver amount to; raises UsageError."""
    chosen = {
        kind: {point: decision.choice for point, decision in decide_all(times).items()}
        for kind, times in candidates(runs).items()
    }
    return policy_of(runs, chosen)


def policy_of(runs: Sequence[Run], chosen: Mapping[Kind, Mapping[Point, Choice]]) -> Policy:
    """Return the policy of some choices, and where they come from; raises UsageError for runs of several devices."""
    device, driver = machine_of(runs)
    newest = max(runs, key=lambda run: run.info.created)
    return Policy(
        device=device,
        driver=driver,
        identity_hash=newest.info.identity_hash[:MAX_LINE],
        made=newest.info.created[:MAX_LINE],
        runs=tuple(" ".join(run.info.command)[:MAX_LINE] for run in runs),
        tables=tuple(_table(*kind, choices) for kind, choices in chosen.items()),
    )


def candidates(runs: Sequence[Run]) -> dict[Kind, dict[Point, Arms]]:
    """Return the times of everything that a policy may choose from, by direction and stream state, then by point.

    A point is a block size and a number of blocks at which at least two backends were tried, `auto` apart; a candidate
    that failed is none. Rounds of several runs are numbered on, so that only visits of one run are paired. Raises
    UsageError where there is no such point, and for runs of several devices.
    """
    machine_of(runs)
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
    if not contests:
        raise UsageError(
            "nothing to choose between: the runs hold no block size and number of blocks at which two backends or more "
            "were measured on the same blocks; sweep with -a backend=batched,sm or all backends"
        )
    return contests


@dataclass(frozen=True, slots=True)
class Decision:
    """What to take at a point: `choice`, as good as the `fastest` by the rule of `decide_all`.

    `others` are those that the same rule could choose in another run, with their times over that of `choice`.
    """

    choice: Choice
    fastest: Choice
    others: Mapping[Choice, Comparison]


def decide_all(times: Mapping[Point, Arms]) -> dict[Point, Decision]:
    """Return what to take at every point, from the times of its candidates.

    Of those that lose at most `TIED` to the fastest the one with the fewest SMs is taken, of several the simplest way,
    of several again the choice of a neighbour: that with fewer blocks, else that of the smaller size. Points are taken
    in that order. A candidate that clearly loses more than runs of one build may differ by is not among `others`.
    One with too few visits for a verdict, where others have enough, was given up by a search and is not considered.
    """
    found: dict[Point, Decision] = {}
    for size, count in sorted(times):
        near = (
            max((point for point in found if point[0] == size), default=None),
            max((point for point in found if point[1] == count), default=None),
        )
        found[size, count] = _decide(
            _raced(times[size, count]), [found[point].choice for point in near if point is not None]
        )
    return found


def _raced(arms: Arms) -> Arms:
    enough = min(MIN_PAIRS, max(len(visits) for visits in arms.values()))
    return {choice: visits for choice, visits in arms.items() if len(visits) >= enough}


def _decide(arms: Arms, neighbours: Sequence[Choice]) -> Decision:
    def rank(choice: Choice) -> tuple[int, int, int, str]:
        near = neighbours.index(choice) if choice in neighbours else len(neighbours)
        return *preference(choice), near, str(choice)

    fastest = min(arms, key=lambda choice: (median(arms[choice].values()), str(choice)))
    loss = {choice: compare_visits(arms[fastest], visits, IN_TURN) for choice, visits in arms.items()}
    as_good = [choice for choice in arms if choice == fastest or loss[choice].verdict in _NOT_SLOWER]
    possible = [choice for choice in arms if _least(loss[choice]) <= 1 + BETWEEN_RUNS.fraction]
    chosen = min({*as_good, *(c for c in possible if loss[c].ratio <= 1 + TIED.fraction)}, key=rank)
    certain = min(as_good, key=rank)
    others = {certain, *(choice for choice in possible if rank(choice) < rank(certain))} - {chosen}
    against = {choice: compare_visits(arms[chosen], arms[choice], IN_TURN) for choice in sorted(others, key=rank)}
    return Decision(chosen, fastest, against)


_NOT_SLOWER: Final = (Verdict.SAME, Verdict.FASTER)


def _least(found: Comparison) -> float:
    """Return how much time a candidate may take at least; without an interval its own ratio says it."""
    return found.low if math.isfinite(found.high) else found.ratio


def preference(choice: Choice) -> tuple[int, int]:
    """Return what ties go by, the smaller first: the SMs that a choice takes, then how simple it is."""
    simplicity = _SIMPLEST.index(choice.backend) if choice.backend in _SIMPLEST else len(_SIMPLEST)
    return sms_of(choice), simplicity


def sms_of(choice: Choice) -> int:
    """Return the SMs that a choice names, 0 for none."""
    return int(dict(choice.axes).get("sms", 0))


def machine_of(runs: Sequence[Run]) -> tuple[str, str]:
    """Return the one device and driver of `runs`; raises UsageError where they are of several."""
    pairs = [(run.info.device.get("title"), run.info.identity.get("driver_version")) for run in runs]
    found = {(str(title or "")[:MAX_LINE], str(driver or "")[:MAX_LINE]) for title, driver in pairs}
    if len(found) > 1:
        told = sorted(f"{title or 'a nameless device'} with driver {driver or 'none'}" for title, driver in found)
        raise UsageError(f"an answer is for one device and driver; these runs are of {'; '.join(told)}")
    return found.pop()


def tried(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of a run's table that a policy rests on, `auto` among them: measured or failed."""
    return one_workload(unqueued(frame[frame["status"] != "skipped"]))


def one_workload(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of one workload: memory that the driver allocated, no pause; fresh blocks rather than the same
    again and shuffled ones rather than other patterns, unless there are few; of several pools that of most cells.
    """
    cells = frame[frame["memory"].isna() | (frame["memory"] == "allocated")]
    cells = cells[cells["pause_us"] == 0]
    for axis, usual in (("reuse", Reuse.FRESH.value), ("pattern", str(SHUFFLED))):
        preferred = cells[cells[axis] == usual]
        cells = preferred if len(preferred) >= _FEW * len(cells) else cells[cells[axis] != usual]
    pools = cells["pool_bytes"].mode()
    return cells if pools.empty else cells[cells["pool_bytes"] == pools.max()]


def choice_of(row: Mapping[Any, Any]) -> Choice:
    """Return the choice that a row of a run's table is the result of."""
    return Choice.of(str(row["backend"]), {name: str(row[name]) for name in CHOSEN_AXES if pd.notna(row[name])})


def choice_at(cell: Cell) -> Choice:
    """Return the choice that a cell is of."""
    texts = cell.as_strings()
    return Choice.of(cell.backend, {name: text for name in CHOSEN_AXES if (text := texts.get(name)) is not None})


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
