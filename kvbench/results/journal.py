"""The journal: one record per line, written before the next is measured and sealed by a running checksum.

A line is in the file once it is appended, so that a killed process loses none, and on disk with the first line that is
appended a second or more after the last flush, or at the end.
A line is the record's JSON with a last field `crc`: the CRC-32 of that JSON without the field, started from the
checksum of the previous line. This detects lines that were changed, removed or moved. A kill or a full disk can leave a
last line without a newline: readers drop it, and it is removed before more lines are appended.
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

from kvbench.ground.errors import RunDirectoryError, StorageError, UsageError
from kvbench.ground.files import raise_if_no_room
from kvbench.ground.text import printable, printable_tree
from kvbench.results.schema import CellRecord, Record, Retry

_SEAL: Final = b',"crc":"%08x"}\n'
_SEAL_BYTES: Final = len(_SEAL % 0)
# Limits for both writing and reading, so that everything written can be read again.
MAX_LINE_BYTES: Final = 64 << 20
MAX_JOURNAL_BYTES: Final = 1 << 30
# Waiting for the disk takes as long as a visit of a small cell.
SYNC_EVERY_S: Final = 1.0
_ENCODER: Final = msgspec.json.Encoder(enc_hook=list)  # of a run that was read, samples are arrays
_DECODER: Final[msgspec.json.Decoder[Record]] = msgspec.json.Decoder(Record)


@dataclass(frozen=True, slots=True)
class Position:
    """The valid part of a journal: lines, bytes, the checksum for the next line, bytes of an incomplete last line."""

    lines: int = 0
    size_bytes: int = 0
    crc: int = 0
    torn_bytes: int = 0


def seal(record: Record, crc: int) -> tuple[bytes, int]:
    body = _ENCODER.encode(record)
    crc = zlib.crc32(body, crc)
    return body[:-1] + _SEAL % crc, crc


def unseal(line: bytes, number: int, crc: int, path: Path) -> tuple[Record, int]:
    """The record of a complete line, with its cell checked, and its checksum; raises RunDirectoryError."""
    body = line[:-_SEAL_BYTES] + b"}"
    checksum = zlib.crc32(body, crc)
    if line[-_SEAL_BYTES:] != _SEAL % checksum:
        raise RunDirectoryError(
            f"{path}: journal line {number} was changed after it was written, or an earlier line was removed"
        )
    try:
        # An ASCII line without escapes holds only printable characters.
        if b"\\" not in body and body.isascii():
            record = _DECODER.decode(body)
        else:
            record = msgspec.convert(printable_tree(msgspec.json.decode(body)), Record)
        if isinstance(record, CellRecord | Retry):
            _ = record.cell
        return record, checksum
    except (msgspec.MsgspecError, RecursionError, UnicodeError, UsageError) as error:
        why = printable(error)
        raise RunDirectoryError(f"{path}: journal line {number} is not a record of this schema: {why}") from None


def read_lines(lines: Iterable[bytes], path: Path) -> Iterator[tuple[Record | None, Position]]:
    """Yield each record with the position after it, and None for an incomplete last line, with its bytes counted."""
    end = Position()
    for line in lines:
        if not line.endswith(b"\n"):
            yield None, Position(end.lines, end.size_bytes, end.crc, len(line))
            return
        record, crc = unseal(line, end.lines + 1, end.crc, path)
        end = Position(end.lines + 1, end.size_bytes + len(line), crc)
        yield record, end


class JournalWriter:
    """Appends records to an open file; after an error the file is truncated to its last complete line."""

    def __init__(self, descriptor: int, path: Path, end: Position) -> None:
        self._descriptor = descriptor
        self._path = path
        self.end = end
        self._synced_s = time.monotonic()
        if end.torn_bytes:
            os.ftruncate(descriptor, end.size_bytes)

    def append(self, record: Record) -> None:
        """Write one line; a second after the last flush, wait for the disk. Raises StorageError if that is full."""
        line, crc = seal(record, self.end.crc)
        if len(line) > MAX_LINE_BYTES or self.end.size_bytes + len(line) > MAX_JOURNAL_BYTES:
            raise StorageError(f"{self._path} would exceed the size that kvbench can read; everything measured is kept")
        try:
            left = memoryview(line)
            while left:
                left = left[os.write(self._descriptor, left) :]
            if time.monotonic() >= self._synced_s + SYNC_EVERY_S:
                self.sync()
        except BaseException as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self.end.size_bytes)
            if isinstance(error, OSError):
                raise_if_no_room(self._path, error)
            raise
        self.end = Position(self.end.lines + 1, self.end.size_bytes + len(line), crc)

    def close(self) -> None:
        with suppress(OSError):  # the lines are written: what else could be done for them?
            self.sync()
        os.close(self._descriptor)

    def sync(self) -> None:
        os.fsync(self._descriptor)
        self._synced_s = time.monotonic()
