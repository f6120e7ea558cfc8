"""Files that users name: what is there already is written to, refused, or replaced on request, never lost."""

import errno
import os
from pathlib import Path

import pytest

from kvbench.ground.errors import StorageError, UsageError
from kvbench.ground.files import write_output, write_whole
from kvbench.results import RunWriter
from kvbench.sweep.swap_file import Header, write_trace
from tests import synthetic


def ours(path: Path) -> None:
    if path.read_bytes() != b"ours":
        raise UsageError("not ours")


def write(path: Path, *, force: bool = False) -> None:
    write_output("-p", path, b"new", ours, force=force)


def test_a_new_file_and_one_of_ours_are_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path)
    assert path.read_bytes() == b"new"
    path.write_bytes(b"ours")
    write(path)
    assert path.read_bytes() == b"new"


def test_a_file_of_another_kind_is_replaced_on_request_only(tmp_path: Path) -> None:
    path = tmp_path / "thesis.tex"
    path.write_bytes(b"years of work")
    with pytest.raises(UsageError, match="the file exists with other content; add --force to replace it"):
        write(path)
    assert path.read_bytes() == b"years of work"
    write(path, force=True)
    assert path.read_bytes() == b"new"


def test_a_link_stays_a_link_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"ours")
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "loop", tmp_path / "pipe", tmp_path):  # no device of this machine: a fault may replace it
        with pytest.raises(UsageError, match=f"-p {other}: not a regular file"):
            write(other)


def test_a_full_disk_is_said_of_the_file_and_claims_nothing_of_measurements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a report is written."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"/report\.md cannot be written: No space left on device$"):
        write_whole(tmp_path / "report.md", b"text")
    assert not [*tmp_path.iterdir()]


def syncs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, list[str]]]:
    """Return a list that grows with every fsync: what is synced, and the names in `folder` at that time."""
    synced: list[tuple[Path, list[str]]] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), sorted(path.name for path in folder.iterdir())))

    monkeypatch.setattr(os, "fsync", noted)
    return synced


def test_a_file_is_on_disk_before_its_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"old")
    synced = syncs(tmp_path, monkeypatch)
    write_whole(tmp_path / "file", b"new")
    (temporary, before), (folder, after) = synced
    assert temporary.parent == tmp_path
    assert before == sorted([temporary.name, "file"])
    assert (folder, after) == (tmp_path, ["file"])
    write_whole(tmp_path / "file", b"newer", wait=False)
    assert len(synced) == 2


def test_a_pipe_takes_data_and_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with os.fdopen(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK), "rb") as read:
        write_whole(tmp_path / "pipe", b"new")
        assert read.read() == b"new"
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(UsageError, match="pipe: not a regular file"):
        write_trace(tmp_path / "pipe", Header(block_bytes=1), [], {})


def test_a_new_run_directory_is_on_disk_with_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = syncs(tmp_path, monkeypatch)
    RunWriter.create(tmp_path / "run", synthetic.info()).close()
    assert (tmp_path, ["run"]) in synced
    assert (tmp_path / "run", ["run"]) in synced
