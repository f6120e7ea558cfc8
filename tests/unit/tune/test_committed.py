"""The answers of the committed runs, against what other code makes of their journals."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import pytest

from kvbench.cells.cell import Cell
from kvbench.results import load_run
from kvbench.results.rundir import runs_in
from reports.cards import cards
from tests.command import output

# The cards with swaps alone: what they recommend can be held against what they measured.
CARDS = [card for card in cards() if (card / "runs" / "engine").is_dir()]
MOST: Final = 0.05
_AXES: Final = ("order", "sms", "descriptors_per_call", "overlap")
_DEFAULTS: Final = ("off", "all")

# Run and round of a visit -> the median time of its swaps in microseconds.
Times = dict[tuple[int, int], float]
Shape = tuple[str, str, int, int]


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


def slow_answers(answers: Sequence[dict[str, Any]], times: dict[Shape, dict[str, Times]]) -> Iterator[object]:
    """Yield the decided answers that lose more than `MOST` against a candidate of theirs, which took so much less."""
    for answer in answers:
        shape = (answer["direction"], answer["stream_state"], answer["blocks"], answer["block_bytes"])
        measured = times[shape]
        assert measured, shape
        own = measured[answer["choice"]]
        for other in (candidate["choice"] for candidate in answer["candidates"]):
            if answer["decided"] and (share := 1 - _ratio(own, measured[other])) > MOST:
                yield shape, answer["choice"], other, share


def _ratio(own: Times, other: Times) -> float:
    """Return the time of the other over the own: by visits of the same round, else by all."""
    common = own.keys() & other.keys()
    if common:
        return median(other[visit] / own[visit] for visit in common)
    return median(other.values()) / median(own.values())


# All runs of a card, and some that share no round: those make no methods equal.
@pytest.mark.parametrize("names", [(), ("cliff", "sm-ladder"), ("engines", "order")], ids=["all", "cliff", "engines"])
@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_decided_answer_loses_to_nothing_that_was_measured(card: Path, names: Sequence[str]) -> None:
    """By more than 5%: also where the other was measured in another run alone."""
    folders = [card / "runs" / name for name in names] or sorted((card / "runs").iterdir())
    if not all(folder.is_dir() for folder in folders):
        pytest.skip("the card has not both runs")
    runs = [run for folder in folders for run in runs_in(folder)]
    answers = json.loads(output("show", *runs, "--json"))["answers"]
    assert sum(answer["decided"] for answer in answers) > len(answers) / 2 or (names and answers)
    assert [*slow_answers(answers, times_of(runs))] == []


def test_the_answer_for_a_block_size_is_that_of_every_run_that_has_it() -> None:
    """One card, one answer: what a run lacks are other sizes, which decide nothing of this one."""
    for card in CARDS:
        folder = card / "runs"
        whole = [run for name in sorted(folder.iterdir()) for run in runs_in(name)]
        chosen = [_choices(runs) for runs in (whole, [folder / "engine"])]
        assert len(chosen[0]) == 2 * 5
        assert chosen[0] == chosen[1]


def _choices(runs: list[Path]) -> dict[tuple[str, int], str]:
    """Return what swaps on an idle stream take, for blocks of 16 KiB, by direction and number."""
    rule = [
        part
        for part in json.loads(output("show", *runs, "--json"))["rule"]
        if part["stream_state"] == "idle" and _has(part["block_bytes"], 16 * 1024)
    ]
    return {
        (part["direction"], blocks): part["choice"]
        for blocks in (16, 64, 256, 1024, 10_000)
        for part in rule
        if _has(part["blocks"], blocks)
    }


def _has(ends: list[int | None], value: int) -> bool:
    low, high = ends
    return (low or value) <= value <= (high or value)
