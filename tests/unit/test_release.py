"""What names the release names the same one."""

import re
import tomllib
from pathlib import Path

from kvbench import __version__

ROOT = Path(__file__).parents[2]
CONSTRAINTS = (ROOT / "constraints.txt").read_text().splitlines()


def test_changelog_and_citation_are_of_this_version() -> None:
    newest = re.search(r"^## \[(.+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = dict(re.findall(r"^(version|date-released): (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    assert newest is not None
    assert newest.groups() == (cited["version"], cited["date-released"])
    assert cited["version"] == __version__


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = [project["build-system"]["requires"], project["project"]["dependencies"]]
    groups += project["project"]["optional-dependencies"].values()
    names = {re.split(r"[<>=]", line, maxsplit=1)[0] for group in groups for line in group}
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in CONSTRAINTS}
    assert names <= pinned
