"""What names the release names the same one."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from kvbench import __version__
from kvbench.ground.files import commit

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


# The commit that kvbench --version shows


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_checkout_tells_its_commit_and_whether_it_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "kvbench"
    package.mkdir()
    source = package / "source.py"
    source.write_text("1")
    (package / "_commit.txt").write_text("of an older build")
    git(tmp_path, "init")
    assert commit(package) is None
    git(tmp_path, "add", "kvbench/source.py")
    git(tmp_path, "commit", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit(package) == head[:12]
    source.write_text("2")
    assert commit(package) == f"{head[:12]}-dirty"
    monkeypatch.setenv("PATH", "")
    assert commit(package) is None


@pytest.mark.parametrize(
    ("recorded", "sha"), [(b"0123456789ab\n", "0123456789ab"), (b"\n", None), (b"\xff", None), (None, None)]
)
def test_a_build_tells_the_commit_that_it_recorded(tmp_path: Path, recorded: bytes | None, sha: str | None) -> None:
    if recorded is not None:
        (tmp_path / "_commit.txt").write_bytes(recorded)
    assert commit(tmp_path) == sha
