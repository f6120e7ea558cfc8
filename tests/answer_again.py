"""Recompute what the committed runs measured for every answer, with no code of `kvbench.tune`.

`python -m tests.answer_again RUN...` prints each shape whose answer is called decided although a method that was
measured there took less time by more than 5%.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from kvbench.cells.cell import Cell
from kvbench.results import load_run
from kvbench.results.rundir import runs_in
from tests.command import output

MOST: Final = 0.05
_AXES: Final = ("order", "sms", "descriptors_per_call", "overlap")
_DEFAULTS: Final = ("off", "all")

# Run and round of a visit -> the median time of its swaps in microseconds.
Times = dict[tuple[int, int], float]
Shape = tuple[str, str, int, int]


class Slow(NamedTuple):
    """An answer and a method that took `share` less time than it, by the pairs of a round or by all visits."""

    shape: Shape
    choice: str
    other: str
    share: float


def _is_usual(cell: Cell) -> bool:
    """Whether a cell is a single swap of fresh shuffled blocks, out of a tight loop, with nothing beside it."""
    texts = cell.as_strings()
    usual = {
        "reuse": "fresh", "pattern": "shuffled", "pool": "16GiB", "memory": "allocated", "list": "host", "queued": "0",
        "streams": "1", "pause": "0", "neighbour": "none", "sizes": "equal", "host_pattern": "as-pattern",
        "device_pattern": "as-pattern", "sequence": "whole", "devices": "1", "layers": "0",
    }  # fmt: skip
    return all((texts.get(axis) or value) == value for axis, value in usual.items())


def times_of(folders: Sequence[Path]) -> dict[Shape, dict[str, Times]]:
    """Return the times of all methods for every shape, by their names in a policy."""
    times: dict[Shape, dict[str, Times]] = defaultdict(lambda: defaultdict(dict))
    for number, folder in enumerate(folders):
        run = load_run(folder)
        failed = {cell for cell, outcome in run.outcomes.items() if outcome.status != "ok"}
        for visit in run.visits:
            cell = visit.cell
            if visit.swap_times_us and _is_usual(cell) and cell not in failed:
                texts = cell.as_strings()
                axes = {name: texts.get(name) for name in _AXES}
                named = [f"{name}={value}" for name, value in axes.items() if value and value not in _DEFAULTS]
                shape = (cell.direction.value, cell.stream_state.value, cell.blocks, cell.block_bytes)
                times[shape][" ".join((cell.backend, *named))][number, visit.round] = median(visit.swap_times_us)
    return times


def slow_answers(answers: Sequence[dict[str, Any]], times: dict[Shape, dict[str, Times]]) -> Iterator[Slow]:
    """Yield the decided answers that lose more than `MOST` against a candidate of theirs."""
    for answer in answers:
        shape = (answer["direction"], answer["stream_state"], answer["blocks"], answer["block_bytes"])
        measured = times[shape]
        assert measured, shape
        own = measured[answer["choice"]]
        for other in (candidate["choice"] for candidate in answer["candidates"]):
            if answer["decided"] and (share := 1 - _ratio(own, measured[other])) > MOST:
                yield Slow(shape, answer["choice"], other, share)


def _ratio(own: Times, other: Times) -> float:
    """Return the time of the other over the own: by visits of the same round, else by all."""
    common = own.keys() & other.keys()
    if common:
        return median(other[visit] / own[visit] for visit in common)
    return median(other.values()) / median(own.values())


if __name__ == "__main__":
    paths = [found for name in sys.argv[1:] for found in runs_in(Path(name))]
    answered = json.loads(output("show", *paths, "--json"))["answers"]
    slow = [*slow_answers(answered, times_of(paths))]
    print(f"{len(answered)} answers, {sum(one['decided'] for one in answered)} decided, {len(slow)} of them slower")
    for one in sorted(slow, key=lambda found: -found.share):
        print(one)
