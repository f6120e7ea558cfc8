"""Files that may come from a stranger, read without following anything; files written whole or not at all."""

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from kvbench.errors import RunDirectoryError, StorageError

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO})


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open `path` to read if it is a regular file itself, not a link to one; raises RunDirectoryError.

    FileNotFoundError passes: its meaning is the caller's.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        what = "is a symbolic link; it is not followed" if error.errno == errno.ELOOP else error.strerror
        raise RunDirectoryError(f"{path}: {what}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RunDirectoryError(f"{path} is no regular file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def read_capped(path: Path, cap_bytes: int) -> bytes:
    """Return a regular file's bytes; raises RunDirectoryError when it is larger than `cap_bytes`."""
    with open_regular(path) as file:
        data = file.read(cap_bytes + 1)
    if len(data) > cap_bytes:
        raise RunDirectoryError(f"{path} is larger than {cap_bytes >> 20} MiB")
    return data


def write_whole(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step, on disk when this returns; a link there is replaced, not followed.

    Raises StorageError when there is no room; other OSErrors pass.
    """
    _replace(path, data, os.fsync)


def write_again(path: Path, data: bytes) -> None:
    """Do as `write_whole` with what can be made again: in one step, but not waiting for the disk."""
    _replace(path, data, lambda _: None)


def _replace(path: Path, data: bytes, settle: Callable[[int], None]) -> None:
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o644)
                file.write(data)
                file.flush()
                settle(descriptor)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise_if_no_room(path, error)
        raise


def raise_if_no_room(path: Path, error: OSError) -> None:
    """Raise StorageError if `error` means that the disk takes no more."""
    if error.errno in _NO_ROOM:
        raise StorageError(f"{path} cannot be written: {error.strerror}; what was measured before is kept") from None


def printable(text: object) -> str:
    """Return `text` as one line that is safe on a terminal: what does not print becomes U+FFFD."""
    return "".join(char if char.isprintable() else "\ufffd" for char in str(text))
