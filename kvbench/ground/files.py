"""Files: safe reads of untrusted files, atomic writes, and what is shipped with kvbench: data files, its commit."""

import errno
import os
import stat
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO, Final

from kvbench.ground.errors import KvbenchError, RunDirectoryError, StorageError, UsageError

MAX_FILE_BYTES: Final = 2**20
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO})


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open `path` for reading if it is a regular file, not a link to one; raises RunDirectoryError.

    FileNotFoundError and NotADirectoryError propagate: the caller decides what they mean.
    """
    try:
        # O_NONBLOCK: to open a pipe that nobody writes to would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        what = "is a symbolic link, which kvbench does not follow" if error.errno == errno.ELOOP else error.strerror
        raise RunDirectoryError(f"{path}: {what}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RunDirectoryError(f"{path} is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def read_capped(path: Path, cap_bytes: int) -> bytes:
    """A regular file's bytes; raises RunDirectoryError when it is larger than `cap_bytes`."""
    with open_regular(path) as file:
        try:
            data = file.read(cap_bytes + 1)
        except OSError as error:
            raise RunDirectoryError(f"{path} cannot be read: {str(error.strerror).lower()}") from None
    if len(data) > cap_bytes:
        raise RunDirectoryError(f"{path} is larger than {cap_bytes >> 20} MiB")
    return data


def write_whole(path: Path, data: bytes, *, wait: bool = True) -> None:
    """Replace the content of `path` with `data` atomically; a link to a file is replaced, not followed.

    A device or a pipe takes the data in its place: who may write to /dev may replace /dev/null.
    The data is on disk on return, unless `wait` is false (for files that can be regenerated). Raises StorageError if
    the disk is full; other OSErrors propagate.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(data)
            return
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o644)  # a temporary file is for its owner alone
                file.write(data)
                file.flush()
                if wait:
                    os.fsync(descriptor)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        if wait:
            sync_folder(path.parent)
    except OSError as error:
        raise_if_no_room(path, error)
        raise


def make_report_folder(out: Path) -> None:
    """Make the folder `out` of a report that is not drawn yet; raises UsageError where no file can be written to it."""
    with or_usage_error(f"cannot write the report to {out}"):
        out.mkdir(parents=True, exist_ok=True)
        # A folder can exist and take no files: a minute of drawing would be lost.
        tempfile.TemporaryFile(dir=out).close()


def write_report(files: Mapping[str, bytes], out: Path) -> list[Path]:
    """Write the files of a report into the folder `out` and return them.

    Raises UsageError when `out` cannot be written, StorageError when there is no room.
    """
    make_report_folder(out)
    with or_usage_error(f"cannot write the report to {out}"):
        for name, data in files.items():
            write_whole(out / name, data, wait=False)
    return [out / name for name in files]


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_output(option: str, path: Path, data: bytes, ours: Callable[[Path], object], *, force: bool) -> None:
    """Write the file that a user named with `option`; a link is followed.

    A file that `ours` cannot read (it raises KvbenchError) is replaced only with `force`, a device or a pipe never.
    Raises UsageError and StorageError.
    """
    target = Path(os.path.realpath(path))
    with or_usage_error(f"{option} {path}: cannot be written"):
        if target.is_symlink() or (target.exists() and not target.is_file()):
            raise UsageError(f"{option} {path}: not a regular file")
        if target.exists() and target.stat().st_size and not force and target.read_bytes() != data:
            try:
                ours(target)
            except KvbenchError:
                raise UsageError(
                    f"{option} {path}: the file exists with other content; add --force to replace it"
                ) from None
        write_whole(target, data)


@contextmanager
def or_usage_error(what: str) -> Iterator[None]:
    """Turn an OSError raised inside into a UsageError: `what`, and the system's reason."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{what}: {str(error.strerror).lower()}") from None


def raise_if_no_room(path: Path, error: OSError) -> None:
    if error.errno in _NO_ROOM:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from None


def shipped_folder() -> Path:
    """The folder of the shipped configs, which also contains the model presets."""
    checkout = Path(__file__).resolve().parents[2]
    # The checkout comes first: an editable install also has a copy, which is as old as the installation.
    if (checkout / "pyproject.toml").is_file() and (checkout / "configs").is_dir():
        return checkout / "configs"
    packaged = resources.files("kvbench") / "configs"
    assert isinstance(packaged, Path)
    return packaged


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a TOML file; raises UsageError, which says why it cannot be read but not its name."""
    with read_as("TOML"):
        if path.is_dir():
            raise UsageError("is a directory, not a TOML file")
        if not path.exists():
            raise UsageError("does not exist")
        if not path.is_file():
            raise UsageError("is not a regular file")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError("is larger than 1 MiB")
        return tomllib.loads(path.read_bytes().decode())


@contextmanager
def read_as(language: str) -> Iterator[None]:
    """Turn errors raised inside, while a file is read and parsed as `language`, into a UsageError."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot be read as {language}: {reason}") from None
    except RecursionError:
        raise UsageError(f"cannot be read as {language}: nested too deeply") from None


def commit(package: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of the package folder: from git in a checkout, else from the file that the build wrote."""
    checkout = package.parent
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        if (checkout / ".git").exists():
            command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=2, check=True)
            return done.stdout.strip() or None
        return (package / "_commit.txt").read_text(encoding="utf-8").strip() or None
    return None
