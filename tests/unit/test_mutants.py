"""The list of `make mutants` fits the sources."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
MUTANTS = tomllib.loads((ROOT / "tests/mutants.toml").read_text())["mutant"]


def test_a_mutant_changes_one_place_and_has_its_test() -> None:
    for mutant in MUTANTS:
        assert (ROOT / mutant["file"]).read_text().count(mutant["old"]) == 1, mutant["name"]
        test = mutant["test"].partition("::")[0]
        assert (ROOT / (test if "/" in test else f"csrc/tests/{test}.cpp")).exists(), mutant["name"]
