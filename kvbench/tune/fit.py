"""Fit a policy to runs: the fastest measured candidate at every point, with a rule for ties."""

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

# Backends without SMs come first, with the single batched call as the simplest; then kvbench's kernel, then others.
_SIMPLEST: Final = ("batched", "primed", "per_block", "sm", "triton")

# Cells with a smaller share than this do not define the workload of a run.
_FEW: Final = 1 / 3

Point = tuple[int, int]  # block bytes, blocks
Arms = Mapping[Choice, Visits]
Kind = tuple[Direction, StreamState]


def fit_policy(runs: Sequence[Run]) -> Policy:
    """Return the policy of `runs`, which must have the same device and driver; raises UsageError."""
    chosen = {
        kind: {point: decision.choice for point, decision in decide_all(times).items()}
        for kind, times in candidates(runs).items()
    }
    return policy_of(runs, chosen)


def policy_of(runs: Sequence[Run], chosen: Mapping[Kind, Mapping[Point, Choice]]) -> Policy:
    """Return the policy of some choices with its origin; raises UsageError for runs of several devices."""
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
    """Return the times of all candidates of a policy, by direction and stream state, then by point.

    A point is a block size and a number of blocks for which at least two backends other than `auto` were measured. A
    failed cell is not a candidate. Rounds of several runs are numbered consecutively, so that only visits of one run
    are paired. Raises UsageError if there is no point, and for runs of several devices.
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
            "nothing to choose from: the runs have no block size and number of blocks for which two or more backends "
            "were measured on the same blocks; sweep with -a backend=batched,sm or with all backends"
        )
    return contests


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision at a point: `choice`, which ties with the `fastest` by the rule of `decide_all`.

    `others` are the choices that the rule could make in another run, with their times divided by that of `choice`.
    """

    choice: Choice
    fastest: Choice
    others: Mapping[Choice, Comparison]


def decide_all(times: Mapping[Point, Arms]) -> dict[Point, Decision]:
    """Return the decision at every point, from the times of its candidates.

    Among the candidates within `TIED` of the fastest, the one with the fewest SMs wins, then the simplest backend, then
    the choice of an adjacent point: the one with fewer blocks, else the one with the smaller size. Points are decided
    in that order. `others` excludes candidates that lose clearly more than two runs of one build can differ. A
    candidate with too few visits for a verdict, while others have enough, was dropped by a search and is ignored.
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
    """Return the lower end of a candidate's relative time, or its ratio without an interval."""
    return found.low if math.isfinite(found.high) else found.ratio


def preference(choice: Choice) -> tuple[int, int]:
    """Return what ties go by, the smaller first: the SMs that a choice takes, then how simple it is."""
    simplicity = _SIMPLEST.index(choice.backend) if choice.backend in _SIMPLEST else len(_SIMPLEST)
    return sms_of(choice), simplicity


def sms_of(choice: Choice) -> int:
    """Return the SM count of a choice, or 0 if it has none."""
    return int(dict(choice.axes).get("sms", 0))


def machine_of(runs: Sequence[Run]) -> tuple[str, str]:
    """Return the one device and driver of `runs`; raises UsageError where they are of several."""
    pairs = [(run.info.device.get("title"), run.info.identity.get("driver_version")) for run in runs]
    found = {(str(title or "")[:MAX_LINE], str(driver or "")[:MAX_LINE]) for title, driver in pairs}
    if len(found) > 1:
        told = sorted(f"{title or 'an unnamed device'} with driver {driver or 'none'}" for title, driver in found)
        raise UsageError(f"runs must be of one device and driver; these are of {'; '.join(told)}")
    return found.pop()


def tried(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of a run's table that a policy is based on, including `auto`: measured or failed."""
    return one_workload(unqueued(frame[frame["status"] != "skipped"]))


def one_workload(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of one workload: memory allocated by the driver and no pause; fresh blocks before reused ones
    and shuffled blocks before other patterns, unless there are few; and the pool of most cells.
    """
    cells = frame[frame["memory"].isna() | (frame["memory"] == "allocated")]
    cells = cells[cells["pause_us"] == 0]
    for axis, usual in (("reuse", Reuse.FRESH.value), ("pattern", str(SHUFFLED))):
        preferred = cells[cells[axis] == usual]
        cells = preferred if len(preferred) >= _FEW * len(cells) else cells[cells[axis] != usual]
    pools = cells["pool_bytes"].mode()
    return cells if pools.empty else cells[cells["pool_bytes"] == pools.max()]


def choice_of(row: Mapping[Any, Any]) -> Choice:
    """Return the choice that a row of a run's table measured."""
    return Choice.of(str(row["backend"]), {name: str(row[name]) for name in CHOSEN_AXES if pd.notna(row[name])})


def choice_at(cell: Cell) -> Choice:
    """Return the choice that a cell measures."""
    texts = cell.as_strings()
    return Choice.of(cell.backend, {name: text for name in CHOSEN_AXES if (text := texts.get(name)) is not None})


def _table(direction: Direction, state: StreamState, chosen: Mapping[Point, Choice]) -> Table:
    sizes, counts = (tuple(sorted({point[place] for point in chosen})) for place in (0, 1))
    if max(len(sizes), len(counts)) > MAX_VALUES:
        raise UsageError(
            f"the maximum is {MAX_VALUES} block sizes and numbers of blocks per table of a policy; these runs have "
            f"{len(sizes)} and {len(counts)}"
        )
    return Table(
        direction=direction,
        stream_state=state,
        block_bytes=sizes,
        blocks=counts,
        choices=tuple(tuple(str(chosen.get((size, count), "")) for count in counts) for size in sizes),
    )
