"""Read the lines of untrusted text files, plain or gzip, in bounded memory."""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kvbench.errors import UsageError
from kvbench.files import open_regular

# A request of ten million tokens in blocks of 16 tokens fits into a line.
MOST_LINE_BYTES: Final = 8 << 20
# A day of production is 1 GB of text; a gzip bomb is more.
MOST_TEXT_BYTES: Final = 16 << 30


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a plain or gzip file; raises UsageError for what cannot be read, and for too much text."""
    number = size_bytes = 0
    try:
        with open_regular(path.resolve()) as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream = io.BufferedReader(gzip.GzipFile(fileobj=file), 1 << 20) if packed else file
            while line := stream.readline(MOST_LINE_BYTES + 1):
                number += 1
                size_bytes += len(line)
                if len(line) > MOST_LINE_BYTES or size_bytes > MOST_TEXT_BYTES:
                    what = "longer than 8 MiB" if len(line) > MOST_LINE_BYTES else "beyond 16 GiB of text"
                    raise UsageError(f"{path}: line {number} is {what}")
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UsageError(f"{path}: the gzip data are damaged or incomplete after line {number}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {str(error.strerror).lower()}") from None
