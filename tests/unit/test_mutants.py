"""The list of `make mutants` fits the sources."""

import tomllib
from pathlib import Path

from tests.mutants import Mutant, in_turn

ROOT = Path(__file__).parents[2]
MUTANTS = tomllib.loads((ROOT / "tests/mutants.toml").read_text())["mutant"]


def test_a_mutant_changes_one_place_and_has_its_test() -> None:
    for mutant in MUTANTS:
        assert (ROOT / mutant["file"]).read_text().count(mutant["old"]) == 1, mutant["name"]
        test = mutant["test"].partition("::")[0]
        assert (ROOT / (test if "/" in test else f"csrc/tests/{test}.cpp")).exists(), mutant["name"]


def test_mutants_in_turn_are_all_of_them_after_enough_turns() -> None:
    mutants = [Mutant(**each) for each in MUTANTS]
    turns = [in_turn(mutants, 10, turn) for turn in range(20_000, 20_000 + len(mutants))]
    assert {len(turn) for turn in turns} == {10}
    assert {mutant for turn in turns[: -(-len(mutants) // 10)] for mutant in turn} == {*mutants}
    assert in_turn(mutants[:3], 10, 5) != []
