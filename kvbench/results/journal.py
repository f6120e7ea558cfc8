"""The journal: one record a line, written before the next is measured; every line sealed by a running checksum.

A line is in the file once it is appended, so that a killed process loses none. It is on disk a second later at most.
A line is the record's JSON with a last field `crc`: CRC-32 of that JSON without the field, started from the checksum
of the line before. So a line that was changed, removed or moved is noticed. A last line without its newline is what a
kill or a full disk leaves behind: it is dropped, and cut away before more is appended.
"""

import os
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kvbench.errors import RunDirectoryError, StorageError, UsageError
from kvbench.files import raise_if_no_room
from kvbench.results.schema import CellRecord, Record, Retry
from kvbench.text import printable, printable_tree

_SEAL: Final = b',"crc":"%08x"}\n'
_SEAL_BYTES: Final = len(_SEAL % 0)
# What is written can be read again: both go by these.
MAX_LINE_BYTES: Final = 64 << 20
MAX_JOURNAL_BYTES: Final = 1 << 30
# To wait for the disk takes as long as a visit of a small cell does.
SYNC_EVERY_S: Final = 1.0
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final[msgspec.json.Decoder[Record]] = msgspec.json.Decoder(Record)


@dataclass(frozen=True, slots=True)
class Position:
    """How far a journal is whole: lines, bytes, the checksum that the next line starts from, bytes of a torn tail."""

    lines: int = 0
    size_bytes: int = 0
    crc: int = 0
    torn_bytes: int = 0


def seal(record: Record, crc: int) -> tuple[bytes, int]:
    """Return the record's line and its checksum."""
    body = _ENCODER.encode(record)
    crc = zlib.crc32(body, crc)
    return body[:-1] + _SEAL % crc, crc


def unseal(line: bytes, number: int, crc: int, where: Path) -> tuple[Record, int]:
    """Return the record of a whole line, its cell checked, and its checksum; raises RunDirectoryError with the line."""
    body = line[:-_SEAL_BYTES] + b"}"
    found = zlib.crc32(body, crc)
    if line[-_SEAL_BYTES:] != _SEAL % found:
        raise RunDirectoryError(
            f"{where}: journal line {number} was changed after it was written, or a line before it was removed"
        )
    try:
        # A line without an escape and in ASCII holds no character that does not print.
        if b"\\" not in body and body.isascii():
            record = _DECODER.decode(body)
        else:
            record = msgspec.convert(printable_tree(msgspec.json.decode(body)), Record)
        if isinstance(record, CellRecord | Retry):
            _ = record.cell
        return record, found
    except (msgspec.MsgspecError, RecursionError, UnicodeError, UsageError) as error:
        why = printable(error)
        raise RunDirectoryError(f"{where}: journal line {number} is no record of this schema: {why}") from None


def read_lines(lines: Iterable[bytes], where: Path) -> Iterator[tuple[Record | None, Position]]:
    """Yield each record with the position after it; a torn last line is yielded as None with its bytes counted."""
    at = Position()
    for line in lines:
        if not line.endswith(b"\n"):
            yield None, Position(at.lines, at.size_bytes, at.crc, len(line))
            return
        record, crc = unseal(line, at.lines + 1, at.crc, where)
        at = Position(at.lines + 1, at.size_bytes + len(line), crc)
        yield record, at


class JournalWriter:
    """Appends records to an open file; after an error the file ends at the last whole line again."""

    def __init__(self, descriptor: int, path: Path, at: Position) -> None:
        self._descriptor = descriptor
        self._path = path
        self._size_bytes = at.size_bytes
        self._crc = at.crc
        self._synced_s = time.monotonic()
        if at.torn_bytes:
            os.ftruncate(descriptor, at.size_bytes)

    def append(self, record: Record) -> None:
        """Write one line, and wait once a second until all are on disk; raises StorageError when there is no room."""
        line, crc = seal(record, self._crc)
        if len(line) > MAX_LINE_BYTES or self._size_bytes + len(line) > MAX_JOURNAL_BYTES:
            raise StorageError(f"{self._path} would grow beyond what can be read again; what was measured is kept")
        try:
            left = memoryview(line)
            while left:
                left = left[os.write(self._descriptor, left) :]
            if time.monotonic() >= self._synced_s + SYNC_EVERY_S:
                self._sync()
        except BaseException as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size_bytes)
            if isinstance(error, OSError):
                raise_if_no_room(self._path, error)
            raise
        self._size_bytes += len(line)
        self._crc = crc

    def close(self) -> None:
        with suppress(OSError):  # the lines are written: what else could be done for them?
            self._sync()
        os.close(self._descriptor)

    def _sync(self) -> None:
        os.fsync(self._descriptor)
        self._synced_s = time.monotonic()
