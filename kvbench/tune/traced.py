"""The choices for the swaps of a trace, and what the choices for shuffled blocks would lose with them.

The swaps of a direction are divided by size into parts with equal shares of the bytes, so that each part counts for
about its share of the time. A part is answered for like a shape.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvbench.analysis.compare import MIN_PAIRS
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.backend_facts import NO_CHOICES
from kvbench.cells.policy import Choice
from kvbench.errors import UsageError
from kvbench.results import Run
from kvbench.results.replays import replays_of, trace_name, trace_of
from kvbench.sweep.replay_spec import SIDES
from kvbench.text import printable
from kvbench.tune.fit import Arms, Kind, Point

PARTS: Final = 4
# A choice with more than this multiple of the fastest one's time does not win in another run.
_IN_CONTENTION: Final = 1.5
_SWAPS_OF: Final = ("sha256", "descriptors", *Direction)  # of a trace in a spec: its file, and which of its swaps
_Blocks = npt.NDArray[np.int64]


def parts_of(blocks: _Blocks) -> list[_Blocks]:
    """Return the indices of the swaps of each part, of swaps with these numbers of blocks, the smallest first.

    A part without the swaps that a verdict needs joins the one below it, or the first the one above; so does one whose
    middle swap is as large.
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


def trace_text(runs: Sequence[Run]) -> str:
    """Return which swaps the answers of replays are for."""
    trace = trace_of(runs[0]) or {}
    sides = {title.split()[0].lower(): trace.get(way) for way, title in SIDES.items()}
    swaps = " and ".join(f"{of.get('total')} {name}" for name, of in sides.items() if isinstance(of, dict))
    return printable(f"the swaps of {trace_name(runs[0])}: {swaps}")


Part = tuple[dict[Choice, dict[int, float]], dict[Choice, float]]  # times by swap, and of the thread that submits


def trace_parts(runs: Sequence[Run]) -> dict[Kind, dict[Point, Part]]:
    """Return what the parts of replays take by each choice, a time for each swap.

    It is what a swap of the size that stands for the part would take at the rate of the swap. Swaps are paired by their
    number in the trace, as visits of a cell are. Raises UsageError for runs that replay different swaps.
    """
    replayed = [{name: (trace_of(run) or {}).get(name) for name in _SWAPS_OF} for run in runs]
    if any(one != replayed[0] for one in replayed):
        names = " and ".join(sorted({trace_name(run) for run in runs}))
        raise UsageError(
            printable(f"RUN: the runs replay different swaps, of {names}; give runs of one trace and seed")
        )
    parts: dict[Kind, dict[Point, Part]] = {}
    for direction in Direction:
        swaps = _swaps(runs, direction)
        if not swaps:
            continue
        numbers = reduce(np.intersect1d, (frame["number"].to_numpy() for frame in swaps.values()))
        if not len(numbers):
            continue
        same = {choice: frame[frame["number"].isin(numbers)] for choice, frame in swaps.items()}
        once = next(iter(same.values())).drop_duplicates("number")
        row_bytes = int(once["swap_bytes"].iloc[0] // once["blocks"].iloc[0])
        for part in parts_of(once["blocks"].to_numpy()):
            part_swaps = once.iloc[part]
            blocks = label_of(part_swaps["blocks"].to_numpy())
            inside = {choice: every[every["number"].isin(part_swaps["number"])] for choice, every in same.items()}
            times = {choice: _times(each, blocks, "wall_us") for choice, each in inside.items()}
            caller_us = {
                choice: float(np.median([*_times(each, blocks, "caller_us").values()]))
                for choice, each in inside.items()
            }
            parts.setdefault((direction, StreamState.IDLE), {})[row_bytes, blocks] = times, caller_us
    return parts


def in_contention(arms: Arms) -> Arms:
    """Return the candidates that could be chosen in another run.

    The scatter of all is pooled to say what is open, and that of swaps that the CPU copies is many times larger.
    """
    slower = _over_fastest(arms)
    return {choice: visits for choice, visits in arms.items() if slower[choice] <= _IN_CONTENTION}


def _times(swaps: pd.DataFrame, blocks: int, column: str) -> dict[int, float]:
    sums = swaps.groupby("number")[[column, "blocks"]].sum()
    times = (sums[column] / sums["blocks"] * blocks).to_numpy(dtype=float)
    return dict(zip(sums.index.tolist(), times.tolist(), strict=True))


def _swaps(runs: Sequence[Run], direction: Direction) -> dict[Choice, pd.DataFrame]:
    parts: dict[Choice, list[pd.DataFrame]] = {}
    for run in runs:
        for cell, swaps in replays_of(run).items():
            if cell.backend not in NO_CHOICES and cell.direction is direction:
                parts.setdefault(Choice.at(cell), []).append(swaps)
    return {choice: pd.concat(frames, ignore_index=True) for choice, frames in parts.items()}


def losses_by(
    chosen: Mapping[Direction, Mapping[Point, Choice]], parts: Mapping[Direction, Mapping[Point, Arms]]
) -> Iterator[tuple[Direction, float]]:
    """Yield by direction how much longer all swaps take if each is made by the choice of the nearest shape in `chosen`.

    0.04 is 4% longer than by the fastest choice of each part.
    """
    for direction, points in chosen.items():
        ratios = []
        for (_, blocks), times in parts.get(direction, {}).items():
            nearest = min(points, key=lambda point: abs(np.log(point[1] / blocks)))
            slower = _over_fastest(times)
            ratios += [slower[points[nearest]] - 1] if points[nearest] in slower else []
        if ratios:
            yield direction, float(np.mean(ratios))


def _over_fastest(arms: Arms) -> dict[Choice, float]:
    """Return the time of each candidate divided by that of the fastest."""
    middle = {choice: median(visits.values()) for choice, visits in arms.items()}
    fastest = min(middle.values())
    return {choice: us / fastest for choice, us in middle.items()}
