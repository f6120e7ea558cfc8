"""Readers of request traces: Mooncake's and Alibaba's (Bailian), both JSON lines of token counts and prefix hashes.

In both formats equal hash ids mean equal prefixes. Mooncake (github.com/kvcache-ai/Mooncake): times in milliseconds, an
id for every 512 tokens. Bailian (github.com/alibaba-edu/qwen-bailian-usagetraces-anon): times in seconds, an id for
every 16 tokens, and chat ids.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec

from kvbench.errors import UsageError
from kvbench.text import printable, short
from kvbench.traces.json_lines import lines_of

# From this line on, a file of which fewer than one line in GOOD_LINE_IN is a request has another format, or is a bomb.
LINES_TO_DECIDE: Final = 100
GOOD_LINE_IN: Final = 100
Tokens = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    input_length: Tokens
    output_length: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
    hash_ids: Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=2**53)]], msgspec.Meta(min_length=1)]
    chat_id: int | str | None = None


class Request(msgspec.Struct, frozen=True):
    """A request: when it came, its tokens, and one id for each `hash_tokens` tokens of its input."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: list[int]
    hash_tokens: int

    def keys(self, block_tokens: int) -> list[int]:
        """Return one key for each full block of `block_tokens` tokens; equal keys are equal prefixes.

        Raises UsageError unless one of `block_tokens` and `hash_tokens` divides the other.
        """
        full = self.input_tokens // block_tokens
        if self.hash_tokens % block_tokens == 0:
            per = self.hash_tokens // block_tokens
            needed = self.hash_ids[: -(-full // per)]
            return [first * per + at for first in needed for at in range(per)][:full]
        if block_tokens % self.hash_tokens == 0:
            step = block_tokens // self.hash_tokens
            return self.hash_ids[step - 1 :: step][:full]
        raise UsageError(
            f"blocks of {block_tokens} tokens do not fit a trace that has an id for every {self.hash_tokens} tokens; "
            "one must divide the other"
        )


class RequestReader:
    """The requests of a file, in order; after iteration, `skipped` counts bad lines by reason.

    Raises UsageError while it is iterated: for a file that cannot be read, and for one of another format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read = 0
        self.skipped: Counter[str] = Counter()
        self.first_skipped: dict[str, int] = {}

    def __iter__(self) -> Iterator[Request]:
        decoder = msgspec.json.Decoder(_Line)
        latest_s = 0.0
        for number, text in enumerate(lines_of(self.path), start=1):
            try:
                request = _request(decoder.decode(text), latest_s)
            except (ValueError, RecursionError) as error:
                self._skip(number, short(printable(error), 100))
                continue
            latest_s = request.arrival_s
            self.read += 1
            yield request
        self._refuse_if_fewer(1)

    def _skip(self, number: int, reason: str) -> None:
        # Reasons name a position of an id; a hostile file must not make millions of them.
        reason = reason if reason in self.skipped or len(self.skipped) < LINES_TO_DECIDE else "other reasons"
        self.skipped[reason] += 1
        self.first_skipped.setdefault(reason, number)
        if number >= LINES_TO_DECIDE:
            self._refuse_if_fewer(number // GOOD_LINE_IN)

    def _refuse_if_fewer(self, requests: int) -> None:
        if self.read < requests:
            first = next(iter(self.skipped), "the file is empty")
            lines = self.read + self.skipped.total()
            raise UsageError(
                f"{self.path}: not a request trace: {self.read} of {lines} lines are requests ({first}); a line must "
                "be a JSON object with timestamp, input_length, output_length and hash_ids, as in the traces of "
                "Mooncake and Bailian"
            )


def _request(line: _Line, latest_s: float) -> Request:
    """Return the request of a line; raises ValueError, which says why the line is bad."""
    bailian = line.chat_id is not None
    hash_tokens, arrival_s = (16, line.timestamp) if bailian else (512, line.timestamp / 1e3)
    if arrival_s < latest_s:
        raise ValueError("earlier than the line before")
    if len(line.hash_ids) * hash_tokens < line.input_length:
        raise ValueError(f"fewer hash_ids than input_length / {hash_tokens}")
    if len(set(line.hash_ids)) < len(line.hash_ids):
        raise ValueError("a hash id repeats in the request")
    return Request(arrival_s, line.input_length, line.output_length, line.hash_ids, hash_tokens)
