"""The list of `make mutants` fits the sources."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MUTANTS = tomllib.loads((ROOT / "tests/mutants.toml").read_text())["mutant"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["name"])
def test_a_mutant_changes_one_place_and_has_its_test(mutant: dict[str, Any]) -> None:
    assert (ROOT / mutant["file"]).read_text().count(mutant["old"]) == 1
    test = mutant["test"].partition("::")[0]
    assert (ROOT / (test if "/" in test else f"csrc/tests/{test}.cpp")).exists()
