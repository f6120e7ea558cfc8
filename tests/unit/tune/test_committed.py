"""The answers of the committed runs, against what other code makes of their journals."""

import json
from pathlib import Path

import pytest

from kvbench.results.rundir import runs_in
from reports.cards import cards
from tests.answer_again import slow_answers, times_of
from tests.command import output

# The cards with swaps alone: what they recommend can be held against what they measured.
CARDS = [card for card in cards() if (card / "runs" / "engine").is_dir()]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_decided_answer_loses_to_nothing_that_was_measured(card: Path) -> None:
    """By more than 5%: also where the other was measured in another run alone."""
    runs = [run for folder in sorted((card / "runs").iterdir()) for run in runs_in(folder)]
    answers = json.loads(output("show", *runs, "--json"))["answers"]
    assert sum(answer["decided"] for answer in answers) > len(answers) / 2
    assert [*slow_answers(answers, times_of(runs))] == []


@pytest.mark.parametrize("names", [("cliff", "sm-ladder"), ("engines", "order")])
def test_runs_that_share_no_round_make_no_methods_equal(names: tuple[str, ...]) -> None:
    for card in cards():
        runs = [card / "runs" / name for name in names if (card / "runs" / name).is_dir()]
        if len(runs) == len(names):
            answers = json.loads(output("show", *runs, "--json"))["answers"]
            assert answers
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
