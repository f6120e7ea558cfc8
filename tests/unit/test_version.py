"""The commit that `kvbench --version` shows: of a checkout, of a build, of neither."""

import shutil
import subprocess
from pathlib import Path

import pytest

from kvbench._version import commit

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    package = tmp_path / "kvbench"
    package.mkdir()
    return package


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@needs_git
def test_a_checkout_tells_its_commit_and_whether_it_was_changed(package: Path) -> None:
    source = package / "source.py"
    source.write_text("1")
    (package / "_commit.txt").write_text("of an older build")
    git(package.parent, "init")
    git(package.parent, "add", "kvbench/source.py")
    git(package.parent, "commit", "-m", "first")
    head = git(package.parent, "rev-parse", "HEAD")
    assert commit(package) == head[:12]
    source.write_text("2")
    assert commit(package) == f"{head[:12]}-dirty"


@needs_git
def test_a_checkout_without_a_commit_has_none(package: Path) -> None:
    git(package.parent, "init")
    assert commit(package) is None


def test_a_checkout_that_git_cannot_read_has_none(package: Path) -> None:
    (package.parent / ".git").write_text("gitdir: nowhere")
    assert commit(package) is None


def test_a_checkout_has_no_commit_without_git(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package.parent / ".git").mkdir()
    monkeypatch.setenv("PATH", "")
    assert commit(package) is None


@pytest.mark.parametrize(("recorded", "sha"), [(b"0123456789ab\n", "0123456789ab"), (b"\n", None), (b"\xff", None)])
def test_a_build_tells_the_commit_that_it_recorded(package: Path, recorded: bytes, sha: str | None) -> None:
    (package / "_commit.txt").write_bytes(recorded)
    assert commit(package) == sha


def test_a_build_without_a_recorded_commit_has_no_commit(package: Path) -> None:
    assert commit(package) is None
