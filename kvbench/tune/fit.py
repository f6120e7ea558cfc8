"""Fit a policy to runs: the fastest measured candidate at every point, with a rule for ties."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import median, median_low
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvbench.analysis.compare import MIN_PAIRS, Comparison, Visits, compare_visits
from kvbench.analysis.intervals import MAD_TO_SIGMA, Floats
from kvbench.analysis.margins import IN_TURN, OF_A_RUN, TIED
from kvbench.cells.axes import Direction, Reuse, StreamState
from kvbench.cells.backend_facts import BATCHED, MERGED, NO_CHOICES, PER_BLOCK, PRIMED, SM, TRITON, plug_ins_of
from kvbench.cells.cell import AXES, EQUAL
from kvbench.cells.device_facts import BATCH_MAY_USE_SMS_FROM
from kvbench.cells.pattern import AS_PATTERN, SHUFFLED
from kvbench.cells.policy import CHOSEN_AXES, MAX_VALUES, WORKLOAD_AXES, Choice, Policy, Table
from kvbench.errors import UsageError
from kvbench.results import Run
from kvbench.results.frame import unqueued
from kvbench.results.replays import replays_of, trace_of
from kvbench.sweep.installed import engines
from kvbench.text import MAX_LINE, printable

# Backends without SMs come first, with the single batched call as the simplest; then kvbench's kernel, then others.
_SIMPLEST: Final = (BATCHED, PRIMED, PER_BLOCK, SM, TRITON)

_REDRAWS: Final = 2000
_RARE: Final = 0.005
# Of Student's t: the scatter is that of all candidates, so it is known better than from one or two visits.
_LEAST_FREEDOM: Final = 4

# Cells with a smaller share than this do not define the workload of a run.
_FEW: Final = 1 / 3

_USUAL: Final = {
    "pause": "0",
    "reuse": Reuse.FRESH.value,
    "pattern": str(SHUFFLED),
    "host_pattern": str(AS_PATTERN),
    "device_pattern": str(AS_PATTERN),
    "sizes": EQUAL,
}

# A search visits its choices afresh in rounds from this one on; a sweep has fewer.
FRESH_FROM: Final = 1000

Point = tuple[int, int]  # block bytes, blocks
Arms = Mapping[Choice, Visits]
Kind = tuple[Direction, StreamState]
Contests = dict[Kind, dict[Point, Arms]]
SHAPE: Final = ("direction", "stream_state", "block_bytes", "blocks")

# The swaps of a trace in one direction are divided by size into this many parts, or fewer.
PARTS: Final = 4
_SWAPS_OF: Final = ("sha256", "descriptors", *Direction)  # of a trace in a spec: its file, and which of its swaps
_Blocks = npt.NDArray[np.int64]


def kind_text(kind: Kind) -> str:
    """Return a direction and stream state as text: "h2d idle"."""
    return f"{kind[0]} {kind[1]}"


def kind_plain(kind: Kind) -> dict[str, str]:
    return {"direction": kind[0].value, "stream_state": kind[1].value}


def policy_of(runs: Sequence[Run], chosen: Mapping[Kind, Mapping[Point, Choice]]) -> Policy:
    """Return the policy of some choices with its origin; raises UsageError for runs of several devices."""
    device, driver = machine_of(runs)
    newest = max(runs, key=lambda run: run.info.created)
    return Policy(
        device=device,
        driver=driver,
        identity_hash=newest.info.identity_hash[:MAX_LINE],
        made=newest.info.created[:MAX_LINE],
        workload=workload_axes(runs),
        runs=tuple(" ".join(run.info.command)[:MAX_LINE] for run in runs),
        tables=tuple(_table(*kind, choices) for kind, choices in chosen.items()),
    )


def candidates(runs: Sequence[Run], **only: str | None) -> pd.DataFrame:
    """Return the visits of all candidates of a policy: a row each, with `SHAPE`, `choice`, `round`, `us` and
    `caller_us`.

    `only` takes the swaps with these values of axes alone, such as a pause. `fresh` are visits that a search made after
    it had chosen. A shape has at least two backends other than `auto`. A failed cell is not a candidate. Rounds of
    several runs are numbered consecutively, so that only visits of one run are paired. Raises UsageError if there is no
    shape, and for runs of several devices.
    """
    machine_of(runs)
    frames = [run.frame() for run in runs]
    for axis, value in only.items():
        if value is not None:
            frames = [frame[frame[axis].fillna(_USUAL[axis]) == value] for frame in frames]
    kept = tried(pd.concat(frames))["cell_id"]
    parts, first = [], 0
    for run, frame in zip(runs, frames, strict=True):
        cells = frame[frame["cell_id"].isin(kept) & ~frame["backend"].isin(NO_CHOICES)]
        plug_ins = plug_ins_of(run.info.backends)
        choices: list[Any] = [choice_of(row, plug_ins) for row in cells.to_dict("records")]
        cells = cells[[*SHAPE, "cell_id", "backend"]].assign(choice=choices, caller_us=cells["caller_us_median"])
        times = [
            (cell_id, first + number, us, number >= FRESH_FROM)
            for cell_id, visits in run.visit_times().items()
            for number, us in visits.items()
        ]
        parts.append(cells.merge(pd.DataFrame(times, columns=["cell_id", "round", "us", "fresh"]), "left", "cell_id"))
        first += 1 + max(run.samples()["round"], default=0)
    every = pd.concat(parts, ignore_index=True)
    several = every.groupby([*SHAPE])["backend"].transform("nunique") > 1
    measured = every[several & every["us"].notna()]
    if measured.empty:
        names = sorted(set(every["backend"]))
        what = f"{names[0]} alone was measured" if len(names) == 1 else "no shape was measured with two backends"
        raise UsageError(f"nothing to choose from: {what}; measure more, such as -a backend=batched,sm")
    return measured.astype({"round": int, "fresh": bool})


def trace_visits(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the swaps of replays in the form of `candidates`: a row for each choice and swap, `round` is its number.

    A part of the swaps of a direction is a shape. The times are those of a swap of the size that stands for the part,
    at the rate of the swap. Raises UsageError without swaps that every choice made, and for runs of different swaps or
    of several devices.
    """
    machine_of(runs)
    replayed = [{name: (trace_of(run) or {}).get(name) for name in _SWAPS_OF} for run in runs]
    if any(one != replayed[0] for one in replayed):
        paths = (Path(str((trace_of(run) or {}).get("path", ""))) for run in runs)
        names = " and ".join(sorted({path.name or "the trace" for path in paths}))
        raise UsageError(
            printable(f"RUN: the runs replay different swaps, of {names}; give runs of one trace and seed")
        )
    swaps: dict[str, list[pd.DataFrame]] = {}
    for cell, made in (replay for run in runs for replay in replays_of(run).items()):
        if cell.backend not in NO_CHOICES:
            choice: Any = Choice.at(cell)
            swaps.setdefault(cell.direction.value, []).append(made.assign(choice=choice, block_bytes=cell.block_bytes))
    parts = []
    for direction, frames in swaps.items():
        every = pd.concat(frames).groupby(["choice", "number"], sort=False).mean().reset_index()
        by_all = every.groupby("number")["choice"].transform("nunique") == every["choice"].nunique()
        every = every[by_all]
        blocks = every.groupby("number")["blocks"].first()
        for part in parts_of(blocks.to_numpy(dtype=np.int64)):
            label = label_of(blocks.to_numpy(dtype=np.int64)[part])
            rows = every[every["number"].isin(blocks.index[part])]
            us, caller_us = (rows[name] / rows["blocks"] * label for name in ("wall_us", "caller_us"))
            caller_us = caller_us.groupby(rows["choice"], sort=False).transform("median")
            times = rows.assign(us=us, caller_us=caller_us, round=rows["number"], fresh=False)
            parts.append(times.assign(direction=direction, stream_state=StreamState.IDLE.value, blocks=label))
    if not parts:
        raise UsageError("nothing to choose from: no swap of the trace was made by every backend")
    return pd.concat(parts)


def parts_of(blocks: _Blocks) -> list[_Blocks]:
    """Return the indices of the swaps of each part, of swaps with these numbers of blocks, the smallest first.

    The parts have about equal shares of the bytes, so that each counts for about its share of the time. A part without
    the swaps that a verdict needs joins the one below it, or the first the one above; so does one whose middle swap is
    as large.
    """
    order = np.argsort(blocks, kind="stable")
    before = np.cumsum(blocks[order]) - blocks[order]
    part = before * PARTS // max(1, int(blocks.sum()))
    parts: list[_Blocks] = []
    for indices in (order[part == number] for number in range(PARTS)):
        few = bool(parts) and min(len(indices), len(parts[-1])) < MIN_PAIRS
        if few or (parts and label_of(blocks[indices]) == label_of(blocks[parts[-1]])):
            parts[-1] = np.concatenate([parts[-1], indices])
        elif len(indices):
            parts.append(indices)
    return parts


def label_of(blocks: _Blocks) -> int:
    """Return the number of blocks that stands for a part: that of its middle swap."""
    return int(np.sort(blocks)[len(blocks) // 2])


def contests_of(visits: pd.DataFrame) -> Contests:
    """Return the times of some rows of `candidates` or `trace_visits`: by kind, by point, and by choice."""
    contests: Contests = {kind: {} for kind in product(Direction, StreamState)}
    key: Any  # pandas types the keys of a group as Hashable
    for key, rows in visits.groupby([*SHAPE]):
        direction, state, size, count = key
        arms: dict[Any, Visits] = {
            choice: dict(zip(of["round"].tolist(), of["us"].tolist(), strict=True))
            for choice, of in rows.groupby("choice", sort=False)
        }
        contests[Direction(direction), StreamState(state)][int(size), int(count)] = arms
    return {kind: points for kind, points in contests.items() if points}


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision at a point: `choice`, which ties with the `fastest` by the rule of `decide_all`.

    `others` are the choices that the rule could make in another run, with their times divided by that of `choice`;
    `ratios` are the times of the candidates divided by that of the fastest.
    """

    choice: Choice
    fastest: Choice
    others: Mapping[Choice, Comparison]
    ratios: Mapping[Choice, float]


def decide_all(times: Mapping[Point, Arms]) -> dict[Point, Decision]:
    """Return the decision at every point, from the times of its candidates.

    Among the candidates within `TIED` of the fastest, the one with the fewest SMs wins, then the simplest backend, then
    the choice of an adjacent point: the one with fewer blocks, else the one with the smaller size. Points are decided
    in that order. Another run could make a different choice if the same rule makes it for times redrawn within their
    uncertainty in more than `_RARE` of the cases. A candidate that lacks two visits or more for a verdict, while others
    have enough, was dropped by a search, or a busy host spoiled its visits, and is not chosen; one that lacks a single
    visit may be of a run that was interrupted, and is chosen if no other ties with it.
    """
    decisions: dict[Point, Decision] = {}
    for size, count in sorted(times):
        near = (
            max((point for point in decisions if point[0] == size), default=None),
            max((point for point in decisions if point[1] == count), default=None),
        )
        decisions[size, count] = decide(
            times[size, count], [decisions[point].choice for point in near if point is not None]
        )
    return decisions


def decide(arms: Arms, neighbours: Sequence[Choice] = ()) -> Decision:
    """Return the decision at one point; of candidates that tie otherwise, one of `neighbours` wins."""

    def rank(choice: Choice) -> tuple[int, int, int, str]:
        near = neighbours.index(choice) if choice in neighbours else len(neighbours)
        return *preference(choice), near, str(choice)

    ordered = sorted(arms, key=rank)
    enough = min(MIN_PAIRS, max(len(visits) for visits in arms.values()))
    raced = [choice for choice in ordered if len(arms[choice]) >= enough - 1]
    fastest = min(raced, key=lambda choice: (typical(arms[choice].values()), str(choice)))
    ratios = {choice: compare_visits(arms[fastest], visits, IN_TURN).ratio for choice, visits in arms.items()}
    tied = [choice for choice in raced if choice == fastest or ratios[choice] <= 1 + TIED.fraction]
    chosen = next((choice for choice in tied if len(arms[choice]) >= enough), tied[0])
    shares = _redrawn([np.log(list(arms[choice].values())) for choice in ordered])
    others = [choice for choice, share in zip(ordered, shares, strict=True) if share > _RARE and choice != chosen]
    comparisons = {other: compare_visits(arms[chosen], arms[other], IN_TURN) for other in others}
    return Decision(chosen, fastest, comparisons, ratios)


def standard_errors(arms: Arms) -> dict[Choice, float]:
    """Return the relative standard error of the time of every candidate at one point."""
    errors = _errors([np.log(list(visits.values())) for visits in arms.values()])
    return dict(zip(arms, errors.tolist(), strict=True))


def _errors(logs: Sequence[Floats]) -> Floats:
    """Return the standard error of every median: of n visits, 1.25 standard deviations of a visit over the root of n.

    The scatter of a visit is that of all candidates, robustly.
    """
    apart = np.concatenate([np.abs(visits - typical(visits)) for visits in logs])
    sigma = MAD_TO_SIGMA * float(np.median(apart[apart > 0])) if apart.any() else 0.0
    return 1.25 * sigma / np.sqrt([len(visits) for visits in logs])


def _redrawn(logs: Sequence[Floats]) -> Floats:
    """Return how often the rule chooses each candidate when all times are redrawn; `logs` are in the rule's order.

    The error of a median is its standard error times Student's t: few visits tell little of their outliers.
    `OF_A_RUN` is the standard deviation of what a run adds.
    """
    scatter, of_a_run = _random(tuple(max(len(visits) - 1, _LEAST_FREEDOM) for visits in logs))
    draws = [typical(visits) for visits in logs] + _errors(logs) * scatter + math.log1p(OF_A_RUN.fraction) * of_a_run
    ties = draws <= draws.min(axis=1, keepdims=True) + math.log1p(TIED.fraction)
    return np.bincount(ties.argmax(axis=1), minlength=len(logs)) / _REDRAWS


@lru_cache(maxsize=16)  # most points have as many candidates and visits
def _random(freedom: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return draws of Student's t with these degrees of freedom, and of the normal distribution."""
    rng, shape = np.random.default_rng(0), (_REDRAWS, len(freedom))
    return rng.standard_t(freedom, shape), rng.standard_normal(shape)


def typical(times: Collection[float]) -> float:
    """Return the median of some visits; of too few for a verdict the lower middle, since a disturbance only slows."""
    return median(times) if len(times) >= MIN_PAIRS else median_low(times)


def preference(choice: Choice) -> tuple[int, int]:
    """Return what ties go by, the smaller first: the SMs that a choice takes, then how simple it is."""
    simplicity = _SIMPLEST.index(choice.backend) if choice.backend in _SIMPLEST else len(_SIMPLEST)
    return sms_of(choice), simplicity


def sms_of(choice: Choice) -> int:
    """Return the SM count of a choice, or 0 if it has none."""
    return int(dict(choice.axes).get("sms", 0))


def may_take_sms(choice: Choice, driver: int) -> bool:
    """Return whether a driver (13010: CUDA 13.1) may make the copies of a choice with SMs: batched ones without the
    prefer-overlap flag.
    """
    copies = {BATCHED, MERGED, PRIMED, *(engine.same_as for engine in engines().values())}
    asks = dict(choice.axes).get("overlap") == "on"
    return driver >= BATCH_MAY_USE_SMS_FROM and choice.backend in copies and not asks


def driver_of(runs: Sequence[Run]) -> int:
    """Return the newest CUDA version that the driver of some runs supports (13010: 13.1), 0 where it is not known."""
    match = re.fullmatch(r"(\d{1,3})\.(\d)", str(runs[0].info.identity.get("cuda_driver_api")))
    return 1000 * int(match[1]) + 10 * int(match[2]) if match else 0


def machine_of(runs: Sequence[Run]) -> tuple[str, str]:
    """Return the one device and driver of `runs`; raises UsageError where they are of several."""
    pairs = [(run.info.device.get("title"), run.info.identity.get("driver_version")) for run in runs]
    machines = {(str(title or "")[:MAX_LINE], str(driver or "")[:MAX_LINE]) for title, driver in pairs}
    if len(machines) > 1:
        names = sorted(f"{title or 'an unnamed device'} with driver {driver or 'none'}" for title, driver in machines)
        raise UsageError(f"runs must be of one device and driver; these are of {'; '.join(names)}")
    return machines.pop()


def tried(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of a table of runs that a policy is based on, including `auto`: measured or failed."""
    return one_workload(unqueued(frame[frame["status"] != "skipped"]))


def workload_axes(runs: Sequence[Run]) -> dict[str, str]:
    """Return the pool, the reuse and the patterns of most of the swaps that a policy is based on."""
    every = pd.concat(run.frame() for run in runs)
    cells = tried(every)
    cells = every if cells.empty else cells  # swaps of a trace
    return {axis: str(cells[axis].fillna(_USUAL.get(axis)).mode().iloc[0]) for axis in WORKLOAD_AXES}


def one_workload(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of one workload: memory allocated by the driver; no pause before pauses, fresh blocks before
    reused ones, shuffled blocks before other patterns, one pattern for both sides and blocks of one size, unless there
    are few; the pool of most cells.
    """
    cells = frame[frame["memory"].isna() | (frame["memory"] == "allocated")]
    for axis, usual in _USUAL.items():
        values = cells[axis].fillna(usual)
        shares = values.value_counts(normalize=True)
        if shares.get(usual, 0.0) >= min(_FEW, shares.max()):
            cells = cells[values == usual]
        else:  # the shapes of models have layouts of their own
            rarity = values.map({value: rank for rank, value in enumerate(shares.index)})
            cells = cells[rarity == rarity.groupby([cells["block_bytes"], cells["blocks"]]).transform("min")]
    pools = cells["pool_bytes"].mode()
    return cells if pools.empty else cells[cells["pool_bytes"] == pools.max()]


def choice_of(row: Mapping[Any, Any], plug_ins: Collection[str] = ()) -> Choice:
    """Return the choice that a row of a run's table measured; `plug_ins` are the backends of plug-ins."""
    known = {name: row[name] for name in CHOSEN_AXES if pd.notna(row[name])}
    texts = {name: AXES[name].show(int(value)) if AXES[name].number else str(value) for name, value in known.items()}
    backend = str(row["backend"])
    return replace(Choice.of(backend, texts), plug_in=backend in plug_ins)


def _table(direction: Direction, state: StreamState, chosen: Mapping[Point, Choice]) -> Table:
    sizes, counts = (tuple(sorted({point[axis] for point in chosen})) for axis in (0, 1))
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
