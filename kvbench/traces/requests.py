"""Readers of request traces: JSON lines of token counts, times and an id for every N tokens of a prefix.

Equal ids mean equal prefixes. The traces of Mooncake, Bailian, dynamo and AIPerf have a request a line, under several
names of fields; those of Weka (AgentX) a conversation a line, whose ids count in it alone.
"""

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from kvbench.errors import UsageError
from kvbench.sweep.swap_file import lines_of
from kvbench.text import printable, short

# From this line on, a file of which fewer than one line in GOOD_LINE_IN is a request has another format, or is a bomb.
LINES_TO_DECIDE: Final = 100
GOOD_LINE_IN: Final = 100
# A trace of which more than this share is left out is refused.
MOST_LEFT_OUT: Final = 0.01
MOST_TOKENS: Final = 10_000_000
MOST_IDS: Final = 1 << 27
# The sizes that are tried where a file does not say how many tokens an id is for.
_POWERS: Final = tuple(1 << power for power in range(15))
# Names of fields, in lower case and without underscores.
_NAMES: Final = {
    "time": "timestamp t createdtime createdat arrivaltime arrivedat arrival starttime time ts",
    "delay": "delay delayms",
    "input": "inputlength inputtokens inputlen in isl promptlength prompttokens promptlen numinputtokens",
    "output": "outputlength outputtokens outputlen out osl completiontokens generatedtokens numoutputtokens",
    "ids": "hashids blockhashes hashes blockids prefixhashes blockhashids kvblockhashes prefixids",
    "session": "sessionid conversationid session conversation",
    "tokens": "blocksize hashblocksize hashidblocksize traceblocksize kvblocksize hashtokens tokensperid tokensperhash",
    "requests": "requests turns",
}
_FIELD_OF: Final = {name: known for known, names in _NAMES.items() for name in names.split()}
# Ids that are not small whole numbers get numbers from here on.
_FIRST_NUMBER: Final = 1 << 53


class Request(msgspec.Struct, frozen=True):
    """A request: when it came, its tokens, and one id for each `hash_tokens` tokens of its input."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: Sequence[int]
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
        if block_tokens % self.hash_tokens:
            raise UsageError(f"chunks of {block_tokens} tokens do not fit an id for every {self.hash_tokens} tokens")
        step = block_tokens // self.hash_tokens
        return list(self.hash_ids[step - 1 :: step][:full])


@dataclass
class Requests:
    """The requests of a file in order of time, and the lines left out, by reason."""

    requests: list[Request] = field(default_factory=list)
    hash_tokens: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    first_skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, number: int, reason: str) -> None:
        # Reasons name a position of an id; a hostile file must not make millions of them.
        reason = reason if reason in self.skipped or len(self.skipped) < LINES_TO_DECIDE else "other reasons"
        self.skipped[reason] += 1
        self.first_skipped.setdefault(reason, number)


@dataclass(slots=True)
class _Turn:
    """A request as a line has it: a time in seconds, or a delay behind the turn before of its session."""

    line: int
    time_s: float | None
    delay_s: float
    session: object
    input_tokens: int
    output_tokens: int
    ids: "array[int]"


def check_block(block_tokens: int, hash_tokens: int) -> None:
    """Raise UsageError unless blocks of `block_tokens` divide the `hash_tokens` tokens of an id."""
    if hash_tokens % block_tokens:
        fit = [str(size) for size in range(8, hash_tokens + 1) if hash_tokens % size == 0]
        raise UsageError(
            f"--block-tokens: blocks of {block_tokens} tokens do not fit a trace with an id for every {hash_tokens} "
            f"tokens; choose {', '.join(fit[-8:] or [str(hash_tokens)])}"
        )


def read_requests(
    path: Path, hash_tokens: int | None = None, turn_s: Callable[[int], float] = lambda _: 0.0
) -> Requests:
    """Return the requests of a file in order of time; `hash_tokens` are the tokens of an id, if they are known.

    A turn that has a delay in place of a time comes that long after the turn before, which takes
    `turn_s` for its output.
    Raises UsageError for a file that cannot be read, for one of another format, and if more than 1% is left out.
    """
    made = Requests()
    reader = _Reader(made)
    for number, text in enumerate(lines_of(path), start=1):
        line = text.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else text.strip()
        if number == 1 and re.fullmatch(rb"[^{\[\x00-\x1f\x7f-\xff][ -~]*,[ -~]*", line):
            raise UsageError(
                f"{path}: a CSV has no ids of prefixes, so nothing in it can be found again; use JSON lines"
            )
        if line:
            reader.read(number, line)
        if number >= LINES_TO_DECIDE:
            _refuse_if_fewer(path, made, reader, number // GOOD_LINE_IN)
    _refuse_if_fewer(path, made, reader, 1)
    made.hash_tokens = hash_tokens or reader.hash_tokens or _tokens_of_an_id(path, reader.turns)
    arrivals = _arrivals(reader.turns, turn_s)
    for turn, arrival_s in sorted(zip(reader.turns, arrivals, strict=True), key=lambda pair: pair[1]):
        if len(turn.ids) < turn.input_tokens // made.hash_tokens:
            made.skip(turn.line, f"fewer ids than input tokens / {made.hash_tokens}")
        elif hash_tokens and len(turn.ids) > -(-turn.input_tokens // hash_tokens):
            made.skip(turn.line, f"more ids than input tokens / {hash_tokens} of --hash-tokens")
        else:
            made.requests.append(Request(arrival_s, turn.input_tokens, turn.output_tokens, turn.ids, made.hash_tokens))
    everything = len(made.requests) + made.skipped.total()
    if made.skipped.total() > MOST_LEFT_OUT * everything:
        why = "; ".join(
            f"{count}: {reason}, the first in line {made.first_skipped[reason]}"
            for reason, count in made.skipped.most_common(3)
        )
        raise UsageError(
            f"{path}: {made.skipped.total()} of {everything} requests would be left out ({printable(why)})"
        )
    return made


class _Reader:
    """Reads lines into turns."""

    def __init__(self, made: Requests) -> None:
        self.turns: list[_Turn] = []
        self.hash_tokens: int | None = None
        self._made = made
        self._numbers: dict[tuple[object, str], int] = {}
        self._ids = 0

    def read(self, number: int, line: bytes) -> None:
        """Read a line: a request, a conversation of requests, or a header."""
        try:
            plain = msgspec.json.decode(line)
            fields = _named(plain)
            if isinstance(inner := fields.get("requests"), list):
                scope = None if plain.get("hash_id_scope") == "global" else number
                self._conversation(number, fields, inner, scope)
            elif number == 1 and not {"ids", "input", "time"} & fields.keys():
                below = (_named(value) for value in plain.values() if isinstance(value, dict))
                for tokens in (one["tokens"] for one in (fields, *below) if "tokens" in one):
                    self._found(tokens)
            else:
                if "tokens" in fields:
                    self._found(fields["tokens"])
                self.turns.append(self._turn(number, fields, None, None))
        except (ValueError, RecursionError, TypeError) as error:
            self._made.skip(number, short(printable(error), 100))

    def _found(self, tokens: object) -> None:
        size = _whole("tokens of an id", tokens, 1)
        if self.hash_tokens not in (None, size):
            raise ValueError(f"an id is for {size} tokens here, for {self.hash_tokens} before")
        self.hash_tokens = size

    def _conversation(self, number: int, fields: Mapping[str, Any], inner: list[Any], scope: object) -> None:
        """Read the requests of a conversation, and of those that it started; times are in seconds."""
        if "tokens" in fields:
            self._found(fields["tokens"])
        for entry in inner:
            try:
                named = _named(entry)
                if isinstance(further := named.get("requests"), list):
                    self._conversation(number, {}, further, scope)
                else:
                    self.turns.append(self._turn(number, named, scope, scope if scope is not None else number))
            except (ValueError, TypeError) as error:
                self._made.skip(number, short(printable(error), 100))

    def _turn(self, number: int, fields: Mapping[str, Any], scope: object, session: object) -> _Turn:
        """Return the turn of an object; raises ValueError, which says why it is bad."""
        in_seconds = scope is not None or session is not None or "chat_id" in fields
        per_second = 1.0 if in_seconds else 1e3
        session = fields.get("session", session)
        time, delay = (_seconds(fields.get(name), per_second, name) for name in ("time", "delay"))
        if time is None and delay is None and session is None:
            raise ValueError("no time of arrival")
        tokens = _whole("input tokens", fields.get("input"), 1), _whole("output tokens", fields.get("output"), 0)
        ids = fields.get("ids")
        if not isinstance(ids, list) or not ids:
            raise ValueError("no ids of its prefix")
        numbers = array("q", (self._number(one, scope) for one in ids))
        if len(set(numbers)) < len(numbers):
            raise ValueError("an id repeats in the request")
        self._ids += len(numbers)
        if self._ids > MOST_IDS:
            raise UsageError(f"line {number}: more than {MOST_IDS} ids in all are not read; give a part of the file")
        return _Turn(number, time, delay or 0.0, session, *tokens, numbers)

    def _number(self, one: object, scope: object) -> int:
        """Return the number of an id: its own if it is a small one of the whole file."""
        if scope is None and type(one) is int and 0 <= one < _FIRST_NUMBER:
            return one
        if not isinstance(one, int | float | str):
            raise ValueError("an id is not a number or text")
        return self._numbers.setdefault((scope, repr(one)), _FIRST_NUMBER + len(self._numbers))


def _named(plain: object) -> dict[str, Any]:
    """Return the fields of a line under the names of `_NAMES`, and `chat_id`; raises ValueError for no object."""
    if not isinstance(plain, dict):
        raise ValueError("not a JSON object")
    fields: dict[str, Any] = {"chat_id": True} if plain.get("chat_id") is not None else {}
    for name, value in plain.items():
        known = _FIELD_OF.get(name.replace("_", "").lower())
        if known is not None and value is not None:
            fields.setdefault(known, value)
    return fields


def _whole(name: str, value: object, least: int) -> int:
    if type(value) is not int or not least <= value <= MOST_TOKENS:
        raise ValueError(f"{name}: not a whole number from {least} to {MOST_TOKENS}")
    return value


def _seconds(value: object, per_second: float, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):  # a date
        return datetime.fromisoformat(value).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e15:
        raise ValueError(f"{name}: not a number from 0 to 1e15")
    return value / per_second


def _refuse_if_fewer(path: Path, made: Requests, reader: _Reader, requests: int) -> None:
    if len(reader.turns) < requests:
        first = next(iter(made.skipped), "the file is empty")
        lines = len(reader.turns) + made.skipped.total()
        raise UsageError(
            f"{path}: not a request trace: {len(reader.turns)} of {lines} lines are requests ({first}); a line must "
            "be a JSON object with timestamp, input_length, output_length and hash_ids, as in the traces of Mooncake "
            "and Bailian, or a conversation with requests"
        )


def _tokens_of_an_id(path: Path, turns: Sequence[_Turn]) -> int:
    """Return the tokens of an id, from the numbers of ids of the requests; raises UsageError if that is open."""
    pairs = Counter((turn.input_tokens, len(turn.ids)) for turn in turns)
    enough = (1 - MOST_LEFT_OUT) * len(turns)
    fit = [size for size in _POWERS if _fitting(pairs, size) >= enough]
    if not fit:  # not a power of two: then the one size that all requests allow
        low = max(-(-tokens // count) for tokens, count in pairs)
        high = min(((tokens - 1) // (count - 1) for tokens, count in pairs if count > 1), default=0)
        fit = list(range(low, high + 1))
    if len(fit) != 1:
        found = f"{' and '.join(map(str, fit[:3]))} are possible" if fit else "no size fits all requests"
        raise UsageError(f"{path}: for how many tokens an id is cannot be told ({found}); name it with --hash-tokens")
    return fit[0]


def _fitting(pairs: Mapping[tuple[int, int], int], size: int) -> int:
    return sum(times for (tokens, count), times in pairs.items() if count == -(-tokens // size))


def _arrivals(turns: Sequence[_Turn], turn_s: Callable[[int], float]) -> Iterator[float]:
    """Yield when each turn comes: at its time, or after the turn before of its session."""
    free_s: dict[object, float] = {}
    for turn in turns:
        key = repr(turn.session)
        at_s = free_s.get(key, 0.0) + turn.delay_s if turn.time_s is None else turn.time_s
        if turn.session is not None:
            free_s[key] = at_s + turn_s(turn.output_tokens)
        yield at_s
