"""Trace files: a header, a line for every swap, and an end (docs/how-to/trace.md); and which swaps are replayed."""

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import median_low
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from kvbench.cells.axes import Direction
from kvbench.ground.errors import UsageError, brief
from kvbench.ground.files import open_regular, or_usage_error, raise_if_no_room
from kvbench.ground.text import convert, printable, short
from kvbench.sweep.spec import Replay, SwapsOfDirection

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
        raise UsageError(f"{path}: cannot be read: {str(error.strerror).lower()}") from None


FORMAT: Final = 1
MOST_BLOCKS: Final = 1 << 22
_Ids = npt.NDArray[np.int64]
_Run = Annotated[int, msgspec.Meta(ge=-MOST_BLOCKS, le=2**40)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=2**50)]


class Swap(NamedTuple):
    """A swap: its time, direction and block ids; `host[i]` and `gpu[i]` belong together."""

    at_s: float
    direction: str
    job: int
    host: Sequence[int] | _Ids
    gpu: Sequence[int] | _Ids
    done_s: float | None = None


_Version = Annotated[int, msgspec.Meta(ge=FORMAT, le=FORMAT, extra={"meaning": f"{FORMAT}, the version read here"})]


class Header(msgspec.Struct, kw_only=True):
    """The first line: the format, bytes of a block over all layers, and, if kvbench made the file, from what."""

    kvbench_trace: _Version = FORMAT
    block_bytes: _Positive
    descriptors: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 1
    made_from: dict[str, Any] = {}


class _SwapLine(msgspec.Struct, omit_defaults=True):
    t: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    d: Literal["h2d", "d2h"]
    job: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    host: Annotated[list[_Run], msgspec.Meta(min_length=2)]
    gpu: Annotated[list[_Run], msgspec.Meta(min_length=2)]
    done: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None


class _EndLine(msgspec.Struct):
    end: dict[str, Any]


def write_trace(path: Path, header: Header, swaps: Iterable[Swap], end: dict[str, Any]) -> None:
    """Write a gzip trace; `end` is read once the swaps are written. A file that cannot be finished is removed.

    Raises UsageError and StorageError.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"-o {path}: not a regular file")
    encoder = msgspec.json.Encoder()
    lines: Iterator[Any] = chain([header], map(_line, swaps))
    part = path.with_name(f"{path.name}.part")
    try:
        with gzip.open(part, "wb", compresslevel=1) as file:
            for line in lines:
                file.write(encoder.encode(line) + b"\n")
            file.write(encoder.encode({"end": end}) + b"\n")
        part.replace(path)
    except OSError as error:
        raise_if_no_room(path, error)
        raise UsageError(f"-o {path}: cannot be written: {str(error.strerror).lower()}") from None
    finally:
        part.unlink(missing_ok=True)


class TraceReader:
    """The swaps of a trace file, checked; `end` is what its last line says, empty if the file just stops.

    Raises UsageError, at once for a file that is not a trace, and while it is iterated for a bad line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.end: dict[str, Any] = {}
        self._lines = lines_of(path)
        first = next(self._lines, b"")  # its errors name the path
        try:
            self.header: Header = convert(msgspec.json.decode(first), Header)
        except (UsageError, ValueError, RecursionError) as error:
            why = short(printable(error), 100)
            raise UsageError(f"{path}: not a trace of kvbench ({why}); make one with kvbench trace make") from None

    def __iter__(self) -> Iterator[Swap]:
        decoder = msgspec.json.Decoder(_SwapLine)
        latest_s = 0.0
        for number, text in enumerate(self._lines, start=2):
            try:
                if text.startswith(b'{"end"'):
                    self.end = msgspec.json.decode(text, type=_EndLine).end
                    return
                swap = _swap(decoder.decode(text), latest_s)
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{self.path}: line {number}: {brief(printable(error))}") from None
            latest_s = swap.at_s
            yield swap


def _line(swap: Swap) -> _SwapLine:
    host, gpu = runs_of(np.asarray(swap.host)), runs_of(np.asarray(swap.gpu))
    return _SwapLine(round(swap.at_s, 6), swap.direction, swap.job, host, gpu, swap.done_s)  # type: ignore[arg-type]


def _swap(line: _SwapLine, latest_s: float) -> Swap:
    if line.t < latest_s:
        raise ValueError("earlier than the line before")
    if line.done is not None and line.done < line.t:
        raise ValueError("done before it began")
    host, gpu = ids_of(line.host), ids_of(line.gpu)
    if len(host) != len(gpu):
        raise ValueError(f"{len(host)} host ids and {len(gpu)} GPU ids")
    if len(np.unique(host)) < len(host) or len(np.unique(gpu)) < len(gpu):
        raise ValueError("an id repeats in the swap")
    return Swap(line.t, line.d, line.job, host, gpu, line.done)


def runs_of(ids: _Ids) -> list[int]:
    """[first, count, first, count, ...]: ids that ascend by one, or that descend where the count is negative."""
    # A run begins behind a jump (step 0), and where its direction changes; the first step of a run may be either.
    steps = np.diff(ids)
    steps[np.abs(steps) != 1] = 0
    begins = np.ones(len(ids), dtype=bool)
    begins[1:] = steps == 0
    begins[2:] |= (steps[:-1] != 0) & (steps[1:] != steps[:-1])
    first = np.flatnonzero(begins)
    counts = np.diff(first, append=len(ids))
    falls = np.append(steps, 0)[first] < 0
    signs = np.where(falls & (counts > 1), -1, 1)
    flat: list[int] = np.stack([ids[first], counts * signs], axis=1).ravel().tolist()
    return flat


def ids_of(runs: Sequence[int]) -> _Ids:
    """The ids that `runs_of` made runs of; raises ValueError for what cannot be runs."""
    flat = np.array(runs, dtype=np.int64)
    first, signed = flat[::2], flat[1::2]
    if len(first) != len(signed) or not signed.all():
        raise ValueError("runs are pairs of a first id and a count other than 0")
    counts = np.abs(signed)
    total = int(counts.sum())
    if total > MOST_BLOCKS:
        raise ValueError(f"{total} blocks in a swap; at most {MOST_BLOCKS} are read")
    offsets = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    ids: _Ids = np.repeat(first, counts) + offsets * np.repeat(np.sign(signed), counts)
    if (ids < 0).any():
        raise ValueError("a block id below 0")
    return ids


Swaps = TypeVar("Swaps")


class Numbered(NamedTuple):
    """A swap and its number among those of its direction, from 0."""

    number: int
    swap: Swap


def choose(path: Path, swaps: int, seed: int) -> Replay:
    """The swaps to replay of a trace: at most about `swaps` of each direction; `seed` chooses the first.

    Raises UsageError for a file that is not a trace, or that has no swap.
    """
    reader = TraceReader(path)
    header: Header = reader.header
    if header.block_bytes % header.descriptors:
        parts = f"{header.descriptors} equal parts"
        raise UsageError(f"--trace {path}: its blocks of {header.block_bytes} bytes cannot be divided into {parts}")
    blocks: dict[str, list[int]] = {str(direction): [] for direction in Direction}
    last_s = 0.0
    for swap in reader:
        blocks[swap.direction].append(len(swap.gpu))
        last_s = swap.at_s
    if not any(blocks.values()):
        raise UsageError(f"--trace {path}: it has no swaps")
    rng, chosen = np.random.default_rng(seed), {}
    for direction, counts in blocks.items():
        total, step = len(counts), max(1, -(-len(counts) // swaps))
        # From a random one on: every `step`-th from the first would always be the same part of a trace with a period.
        first = int(rng.integers(min(step, max(1, total))))
        median, least = median_low(counts) if counts else 0, min(counts, default=0)
        chosen[direction] = SwapsOfDirection(total=total, blocks=median, first=first, step=step, least=least)
    return Replay(
        str(path.absolute()),
        _sha256(path),
        header.block_bytes,
        header.descriptors,
        **chosen,
        swaps=swaps,
        origin=_origin(header, last_s),
    )


def _origin(header: Header, span_s: float) -> str:
    """The origin of a trace: "60 min of conversation_trace.jsonl, llama-3-8b, vllm"; "" if unknown."""
    made_from = [str(header.made_from.get(name, "")) for name in ("requests", "model", "allocator")]
    return short(printable(f"{span_s / 60:.0f} min of {', '.join(made_from)}")) if all(made_from) else ""


def selected(replay: Replay) -> dict[str, list[Numbered]]:
    """The swaps to replay by direction, in order; raises UsageError if the file has changed."""
    path = Path(replay.path)
    if not path.is_file() or _sha256(path) != replay.sha256:
        raise UsageError(f"--trace {path}: the file is not the one that the run began with")
    numbers = dict.fromkeys(map(str, Direction), 0)
    swaps: dict[str, list[Numbered]] = {str(direction): [] for direction in Direction}
    for swap in TraceReader(path):
        number, chosen = numbers[swap.direction], replay.swaps_of(swap.direction)
        numbers[swap.direction] += 1
        if number >= chosen.first and (number - chosen.first) % chosen.step == 0:
            swaps[swap.direction].append(Numbered(number, swap))
    return swaps


def chunk(swaps: list[Swaps], number: int, rounds: int) -> list[Swaps]:
    """The swaps of visit `number` of `rounds`: the trace in as many blocks of time, of equally many swaps.

    Fewer swaps than visits come again.
    """
    index, many = number % rounds, len(swaps)
    if many < rounds:
        return swaps[index % many :][:1] if many else []
    return swaps[many * index // rounds : many * (index + 1) // rounds]


def _sha256(path: Path) -> str:
    with or_usage_error(f"--trace {path}"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
