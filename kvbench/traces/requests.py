"""Reads request traces: lines of times, token counts and an id for every N tokens of a prefix.

There is one format, Mooncake's, as JSON lines with an optional header or as a CSV (docs/how-to/trace.md); other files
are refused by what they are. Equal ids mean equal prefixes.
"""

import csv
import re
from array import array
from collections.abc import Iterable, Sequence
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from kvbench.ground.errors import UsageError
from kvbench.ground.text import convert, located, printable, quoted, short
from kvbench.sweep.swap_file import MOST_LINE_BYTES, lines_of

MOST_TOKENS: Final = 10_000_000
MOST_IDS: Final = 1 << 27
MOST_HASH_TOKENS: Final = 1 << 20
# Without a header, an id is for as many tokens as in Mooncake's traces.
MOONCAKE_TOKENS: Final = 512
_BOM: Final = b"\xef\xbb\xbf"
_HEADER: Final = re.compile(rb'\{\s*"(hash_tokens|time_unit)"')
_HOW_TO: Final = "docs/how-to/trace.md"
_SCRIPT: Final = "docs/how-to/convert_traces.py"
_PAGE: Final = f"{_SCRIPT} converts it"
_NUMBERED: Final = f"Prefixes in {_SCRIPT} gives others a number"
_LOOKUPS: Final = f"record its lookups (--lookup-hash-log-dir): {_SCRIPT} converts them"
_CSV: Final = re.compile(rb"[^{\[\x00-\x1f\x7f-\xff][\t -~]*[,;\t][\t -~]*")
_FORMAT: Final = "a request has timestamp, input_length, output_length and hash_ids"
# What a file is that begins with these bytes.
_MAGIC: Final = {
    b"PAR1": "Parquet", b"ARROW1": "Arrow", b"PK\x03\x04": "a zip archive", b"\x28\xb5\x2f\xfd": "zstd",
    b"SQLite": "a SQLite database", b"\x80\x04": "a pickle", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16",
}  # fmt: skip
# What a file is whose lines, or the objects in them, have one of these keys.
_KINDS: Final = {
    "swaps, which kvbench trace show and kvbench sweep --trace read": {"kvbench_trace"},
    f"dynamo's request log; {_PAGE}": {"event_type", "trace_block_size", "input_sequence_hashes"},
    f"Weka's (AgentX's) conversations; {_PAGE}": {"requests", "hash_id_scope"},
    f"sessions of AIPerf or guidellm, whose turns follow each other; {_PAGE}": {"delay", "delay_ms", "turns"},
    "KV-cache events, which do not say what the requests were": (
        {"events", "block_hashes", "parent_block_hash", "stored", "removed", "BlockStored", "BlockRemoved"}
    ),
    "a benchmark's result, which does not list what was sent": (
        {"completed", "benchmarks", "metrics", "input_lens", "request_throughput", "output_throughput", "ttfts"}
        | {"results", "mean_ttft_ms"}
    ),
    f"lookups of LMCache; {_PAGE}": {"chunk_hashes", "chunk_size"},
    f"prompts as tokens; Prefixes in {_SCRIPT} gives their blocks a number": (
        {"prompt_token_ids", "token_ids", "input_ids"}
    ),
    "spans of OpenTelemetry, which tell usage and have no ids of prefixes": (
        {"traceId", "spanId", "trace_id", "span_id", "resourceSpans", "scopeSpans", "startTimeUnixNano"}
    ),
    "a usage log, which has no ids of prefixes": (
        {"usage", "prompt_tokens", "completion_tokens", "cached_tokens", "cache_read_input_tokens"}
    ),
    "texts, which have no ids of prefixes": {"messages", "conversations", "prompt", "text", "text_input", "body"},
    "a load generator's result (lifecycle metrics), which has no ids of prefixes": (
        {"start_time", "end_time", "output_token_times"}
    ),
}


class TimeUnit(StrEnum):
    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"

    @property
    def per_second(self) -> float:
        return {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[self]


class RequestHeader(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a trace's first line or the user says of it: the tokens of an id, and the unit of times."""

    hash_tokens: Annotated[int, msgspec.Meta(ge=1, le=MOST_HASH_TOKENS)] | None = None
    time_unit: TimeUnit | None = None


class Request(msgspec.Struct, frozen=True):
    """A request: when it came, its tokens, and one id for each `hash_tokens` tokens of its input."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: Sequence[int]
    hash_tokens: int

    def keys(self, block_tokens: int) -> list[int]:
        """One key for each full block; equal keys are equal prefixes. Blocks divide the tokens of an id."""
        full, per = self.input_tokens // block_tokens, self.hash_tokens // block_tokens
        needed = self.hash_ids[: -(-full // per)]
        return [first * per + block for first in needed for block in range(per)][:full]


_Time = Annotated[float, msgspec.Meta(ge=0, le=1e19)] | Annotated[int, msgspec.Meta(ge=0)]
_Id = Annotated[int, msgspec.Meta(ge=0, extra={"meaning": f"a whole number from 0 to 2^64 - 1 ({_NUMBERED})"})]


class _Line(msgspec.Struct):
    """A request as a line has it; other fields are passed over."""

    timestamp: Annotated[_Time, msgspec.Meta(extra={"meaning": "a number from 0"})]
    input_length: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
    output_length: Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
    hash_ids: Annotated[list[_Id], msgspec.Meta(min_length=1)]
    session_id: Any = None


class _Row(NamedTuple):
    """A request with the number of its line; its ids take little memory."""

    number: int
    time: float
    input_tokens: int
    output_tokens: int
    ids: "array[int]"
    session: str | None

    def fits(self, hash_tokens: int, least: int) -> bool:
        """Whether it has an id for every `hash_tokens` tokens; with `least` 0, the last, if not full, may have none."""
        full, rest = divmod(self.input_tokens, hash_tokens)
        return full + bool(rest) * least <= len(self.ids) <= full + bool(rest)


def check_block(block_tokens: int, hash_tokens: int) -> None:
    """Raise UsageError unless blocks of `block_tokens` divide the `hash_tokens` tokens of an id."""
    if hash_tokens % block_tokens:
        fit = [str(size) for size in range(8, hash_tokens + 1) if hash_tokens % size == 0]
        raise UsageError(
            f"--block-tokens: blocks of {block_tokens} tokens do not fit a trace with an id for every {hash_tokens} "
            f"tokens; choose {', '.join(fit[-8:] or [str(hash_tokens)])}"
        )


def read_requests(path: Path, given: RequestHeader | None = None) -> list[Request]:
    """The requests of a file in order of time, one or more; what is `given` goes before the file's header.

    Raises UsageError for a file that cannot be read, that has another format, or that leaves a unit open.
    """
    given = given or RequestHeader()
    lines = lines_of(path)
    with located(str(path)):
        header, rows = _rows(lines)
        hash_tokens = given.hash_tokens or header.hash_tokens
        _check_ids(rows, hash_tokens)
        hash_tokens = hash_tokens or MOONCAKE_TOKENS
        _refuse_additions(rows, hash_tokens)
        unit = given.time_unit or header.time_unit or _milliseconds([row.time for row in rows])
    return [
        Request(row.time / unit.per_second, row.input_tokens, row.output_tokens, row.ids, hash_tokens) for row in rows
    ]


def share_nothing(requests: Sequence[Request]) -> bool:
    ids = [request.hash_ids for request in requests]
    return len(set().union(*ids)) == sum(map(len, ids))


def _rows(lines: Iterable[bytes]) -> tuple[RequestHeader, list[_Row]]:
    """The header and one or more requests, in order of time; raises UsageError."""
    header, rows, ids, columns = RequestHeader(), list[_Row](), 0, list[str]()
    for number, text in enumerate(lines, start=1):
        line = text.removeprefix(_BOM).strip() if number == 1 else text.strip()
        with located(f"line {number}"):
            if number == 1 and _HEADER.match(line):
                header = convert(_decoded(line), RequestHeader)
            elif number == 1 and _CSV.fullmatch(line) and "hash_ids" in (names := _cells(line)):
                columns = names
            elif line:
                rows.append(_row(number, line, columns))
                ids += len(rows[-1].ids)
            if ids > MOST_IDS:
                raise UsageError(f"more than {MOST_IDS} ids in all are not read; give a part of the file")
    if not rows:
        raise UsageError("the file is empty" if header == RequestHeader() else "no request follows the header")
    return header, sorted(rows, key=attrgetter("time"))


def _row(number: int, text: bytes, columns: Sequence[str] = ()) -> _Row:
    """The request of a line, of a CSV with these columns; raises UsageError, which says what another line is."""
    try:
        line = _converted(_of_cells(text, columns)) if columns else msgspec.json.decode(text, type=_Line)
    except (ValueError, RecursionError):
        line = _converted(_decoded(text))
    if max(line.hash_ids) >= 1 << 64 or len(set(line.hash_ids)) < len(line.hash_ids):
        raise UsageError("an id repeats in the request, or is above 2^64 - 1")
    session = None if line.session_id is None else short(repr(line.session_id))
    ids = array("Q", line.hash_ids)
    return _Row(number, line.timestamp, line.input_length, line.output_length, ids, session)


def _cells(text: bytes) -> list[str]:
    csv.field_size_limit(MOST_LINE_BYTES)  # a list of ids is longer than the default
    try:
        return next(csv.reader([text.decode("utf-8", "replace")]), [])
    except csv.Error as error:
        raise UsageError(f"not a line of a CSV: {error}") from None


def _of_cells(text: bytes, columns: Sequence[str]) -> dict[str, Any]:
    """The line of a CSV as an object: its numbers and lists are written as in JSON. Raises UsageError."""
    cells = _cells(text)
    if len(cells) != len(columns):
        raise UsageError(f"{len(cells)} cells, but the first line names {len(columns)} columns")
    plain: dict[str, Any] = {}
    for name, cell in zip(columns, cells, strict=True):
        try:
            plain[name] = msgspec.json.decode(cell)
        except (ValueError, RecursionError):
            plain[name] = cell
    return plain


def _decoded(text: bytes) -> dict[str, Any]:
    """The JSON object of a line; raises UsageError."""
    try:
        plain = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        if _CSV.fullmatch(text):
            why = "a CSV without a column hash_ids (between commas) has no ids of prefixes, so nothing is found again"
            raise UsageError(f"{why}; if it is BurstGPT's, {_PAGE}") from None
        if b"LMCT" in text[:40]:
            raise UsageError(f"not a request trace but LMCache's trace of its storage or events; {_LOOKUPS}") from None
        kind = next(
            (kind for magic, kind in _MAGIC.items() if text.startswith(magic)), quoted(text[:40].decode("latin1"))
        )
        kind = "the beginning of a document, such as a benchmark's result" if text in (b"{", b"[") else kind
        raise UsageError(f"not a JSON object but {kind}; {_FORMAT}") from None
    if not isinstance(plain, dict):
        _refuse_known(plain[0] if isinstance(plain, list) and plain else None)
        raise UsageError(f"{'an array' if isinstance(plain, list) else 'a value'}, not a JSON object; {_FORMAT}")
    return plain


def _refuse_known(plain: object) -> None:
    """Raise UsageError for an object of a kind that is known, which it names."""
    values = list(plain.values()) if isinstance(plain, dict) else []
    keys = {*(plain if isinstance(plain, dict) else ()), *(value for value in values if isinstance(value, str))}
    keys.update(*(value for value in values if isinstance(value, dict)))
    for kind, marks in _KINDS.items():
        if keys & marks:
            raise UsageError(f"not a request trace but {kind}")


def _converted(plain: dict[str, Any]) -> _Line:
    """An object as a request; raises UsageError, which says what it is."""
    missing = [name for name in _Line.__struct_fields__[:-1] if name not in plain]
    if missing:
        _refuse_known(plain)
        has = short(printable(", ".join(plain)), 100)
        raise UsageError(f"no {', '.join(missing)} but {has or 'nothing'}; {_FORMAT} under these names: see {_HOW_TO}")
    return convert(plain, _Line)


def _check_ids(rows: Sequence[_Row], hash_tokens: int | None) -> None:
    """Raise UsageError unless each request has an id for every `hash_tokens` tokens; if that is None, for every 512."""
    size, least = (hash_tokens, 0) if hash_tokens else (MOONCAKE_TOKENS, 1)
    wrong = next((row for row in rows if not row.fits(size, least)), None)
    if wrong is None:
        return
    sizes = [1 << power for power in range(3, 13)]
    fit = [str(fitting) for fitting in sizes if all(row.fits(fitting, 0) for row in rows)]
    raise UsageError(
        f"line {wrong.number} has {len(wrong.ids)} ids for {wrong.input_tokens} input tokens, not one for "
        f"every {size}; {' or '.join(fit) or 'no power of two'} would fit all lines: say how many tokens an id is for "
        f'with --hash-tokens {fit[0] if fit else "N"} or a first line {{"hash_tokens": {fit[0] if fit else "N"}}}'
    )


def _refuse_additions(rows: Sequence[_Row], hash_tokens: int) -> None:
    """Raise UsageError if most turns of sessions do not begin as the turn before, so that they hold what they add."""
    before: dict[str, _Row] = {}
    later = adding = 0
    for row in rows:
        if row.session is None or row.input_tokens < hash_tokens:
            continue
        if (earlier := before.get(row.session)) is not None:
            later += 1
            adding += row.ids[0] != earlier.ids[0]
        before[row.session] = row
    if adding > later / 2:
        raise UsageError(
            f"{adding} of {later} later turns of sessions begin with another id than the turn before: the rows "
            f"hold what a turn adds, not its whole prompt; {_PAGE} (if the rows are whole, leave out session_id)"
        )


def _milliseconds(times: Sequence[float]) -> TimeUnit:
    """Milliseconds, if sorted times can only be that; raises UsageError, which shows what two units would mean.

    Otherwise times in seconds would be too close, or times in microseconds too far apart.
    """
    first, span, month = times[0], times[-1] - times[0], 30 * 86_400_000
    a_second = 1e3 * len(times) / span if span else 1e9
    if first >= 1e8:  # since 1970: today's seconds have 10 digits, milliseconds 13
        certain = 1e11 <= first < 1e14
    else:
        usual = (a_second < 5 and span >= 20_000) or (a_second < 1000 and span >= 1_000_000)
        certain = all(isinstance(time, int) for time in times) and (len(times) < 10 or (usual and span <= month))
    if certain:
        return TimeUnit.MILLISECONDS
    other = TimeUnit.MICROSECONDS if span > month else TimeUnit.SECONDS
    if first >= 1e8:
        other = next((unit for unit in TimeUnit if 1e8 <= first / unit.per_second < 1e10), other)
    units = TimeUnit.MILLISECONDS, other
    readings = " or ".join(
        f"{span / unit.per_second:.4g} s ({len(times) * unit.per_second / (span or 1):.3g} a second) in {unit}"
        for unit in units
    )
    raise UsageError(
        f"{len(times)} requests come within {readings}: choose with --time-unit {' or '.join(units)}, or with "
        f'a first line such as {{"time_unit": "{units[1]}"}}'
    )
