"""The run directory: create it, append to it, reopen it, and read it back with strict checks."""

import errno
import fcntl
import gzip
import os
import re
import shlex
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self

import msgspec

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.cells.facts import plug_ins_of
from kvbench.cells.units import gigabytes_per_second
from kvbench.ground.errors import RunDirectoryError, StorageError, UsageError, brief
from kvbench.ground.files import open_regular, raise_if_no_room, read_capped, sync_folder, write_whole
from kvbench.ground.text import check_keys, printable, printable_tree, short
from kvbench.results.attempts import Ceilings, visits_that_count
from kvbench.results.journal import MAX_JOURNAL_BYTES, MAX_LINE_BYTES, JournalWriter, Position, read_lines
from kvbench.results.schema import SCHEMA, Ceiling, Failure, Record, Retry, RunInfo, RunStatus, Visit

if TYPE_CHECKING:
    import pandas as pd

    from kvbench.results.outcomes import Outcome

RUN_FILE: Final = "run.json"
JOURNAL_FILE: Final = "journal.jsonl"
_ONE_OF_SEVERAL: Final = re.compile(r"(cpu|cuda|rank)-\d{1,6}")
PACKED_JOURNAL_FILE: Final = f"{JOURNAL_FILE}.gz"
SUMMARY_FILE: Final = "summary.csv"
_MOST_NAMED: Final = 8
_INFO_CAP_BYTES: Final = 16 << 20


class _Version(msgspec.Struct):
    schema: int


@dataclass(frozen=True)
class Run:
    """A run as read from `path`; `warnings` lists what was missing or dropped. Each call makes a new table.

    To iterate over `records` reads the journal: their samples take most of the memory, so a run does not hold them.
    """

    path: Path
    info: RunInfo
    records: Iterable[Record]
    warnings: Sequence[str]

    def __repr__(self) -> str:
        device = self.info.device.get("title") or self.info.device.get("name")
        about = f"{self.info.spec.get('name')}, {self.info.status}, {device}, {self.info.created[:10]}"
        return f"<Run {printable(self.path)}: {short(printable(about))}>"

    def reproducing(self) -> list[str]:
        """The command of the run, without the folder that it wrote, and with the policy that the run recorded in
        place of a file: that may change.
        """
        words = _without(self.info.command, "--out", "-o")
        if not self.info.spec.get("policy") or words[1:2] != ["sweep"]:
            return words
        words = _without(words, "--policy")
        folder = Path.cwd()  # a path below it reads the same for everyone with this folder
        path = self.path.relative_to(folder) if self.path.is_relative_to(folder) else self.path
        return [*words, "--policy", str(path)]

    @property
    def trace(self) -> Mapping[str, Any]:
        """The trace that the run replays, as its spec has it; empty without one."""
        trace = self.info.spec.get("trace")
        return trace if isinstance(trace, dict) else {}

    @property
    def plug_ins(self) -> Mapping[str, str]:
        """The backends of other packages, and the packages."""
        return plug_ins_of(self.info.backends)

    @property
    def visits(self) -> Sequence[Visit]:
        """The visits that count, in journal order; not kept, since their samples take most of the memory."""
        return visits_that_count([*self.records])

    @cached_property
    def low_rounds(self) -> dict[str, dict[int, float]]:
        """Direction -> round -> by what share its ceiling lay below the best, of rounds whose visits count."""
        ceilings, low = Ceilings(self.others), dict[str, dict[int, float]]()
        for cell, outcome in self.outcomes.items():
            for number, attempt in outcome.attempts.items():
                if share := ceilings.low_by(cell.direction, number, attempt):
                    low.setdefault(cell.direction, {})[number] = share
        return low

    def frame(self, *more: str) -> "pd.DataFrame":
        """The tidy table: one row per cell, axes first, then its usual figures, and `more` columns by name.

        Raises UsageError for a name that no column has.
        """
        from kvbench.results.columns import TYPES, USUAL

        check_keys(more, list(TYPES))
        return self.table[[name for name in TYPES if name in USUAL or name in more]].copy()

    @cached_property
    def table(self) -> "pd.DataFrame":
        """The same with every column, as it is held, not to be changed."""
        from kvbench.results.frame import summarize

        return summarize(self.info, self.others, [*self.outcomes.values()], self.visits, self.ceilings_gbps)

    def samples(self) -> "pd.DataFrame":
        """Every raw sample, also of failed cells: cell_id, the axes of the cell, round, sample, and the times in
        microseconds.
        """
        from kvbench.results.frame import long_samples

        return long_samples(self.visits)

    @cached_property
    def outcomes(self) -> "Mapping[Cell, Outcome]":
        from kvbench.results.outcomes import outcomes_of

        visits_made = (record for record in self.records if isinstance(record, Visit))
        return outcomes_of(visits_made, self.visits, self.others, self.plug_ins)

    @cached_property
    def others(self) -> Sequence[Record]:
        """The records that are no visits."""
        return [record for record in self.records if not isinstance(record, Visit)]

    def visit_times(self, time: str = "swap_us") -> dict[str, Mapping[int, float]]:
        """Cell id -> round -> median of a time of the visit in microseconds, for every cell with a figure.

        This is the input of `kvbench.analysis.compare`; `time` is one of `kvbench.results.columns.TIMES`.
        """
        times = {cell.id: outcome.times(time) for cell, outcome in self.outcomes.items()}
        return {cell_id: by_round for cell_id, by_round in times.items() if by_round}

    @cached_property
    def ceiling_rates(self) -> "Mapping[Direction, Sequence[float]]":
        """The GB/s of every large copy for the ceiling, in journal order, of each direction that has some."""
        rates: dict[Direction, list[float]] = {}
        for record in self.others:
            if isinstance(record, Ceiling):
                gbps = [gigabytes_per_second(record.swap_bytes, us) for us in record.event_us if us > 0]
                rates.setdefault(Direction(record.direction), []).extend(gbps)
        return {direction: gbps for direction, gbps in rates.items() if gbps}

    @cached_property
    def ceilings_gbps(self) -> "Mapping[Direction, float]":
        """The median of these rates."""
        return {direction: median(gbps) for direction, gbps in self.ceiling_rates.items()}

    def write_summary(self) -> Path:
        """Write `summary.csv` into the run directory and return its path; raises StorageError."""
        with _as_storage_error(self.path):
            return self.to_csv(self.path / SUMMARY_FILE)

    def to_csv(self, path: Path | str) -> Path:
        """Write every column of the table, as in `summary.csv`, into a file, and return its path; raises OSError."""
        from kvbench.results.frame import as_csv

        write_whole(Path(path), as_csv(self.table))
        return Path(path)


class _JournalReader(Iterable[Record]):
    """Reads the records that count from a run's journal, at each iteration; those of the last one read are held.

    Read again, a run ends at the `end` where it ended at first: one that goes on appends more.
    """

    end: Position | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        _, self.end, _ = _read(self)

    def __iter__(self) -> Iterator[Record]:
        return iter(_read(self)[-1])


@lru_cache(maxsize=1)  # of one run at a time: its samples take most of the memory
def _read(journal: _JournalReader) -> tuple[str, Position, Sequence[Record]]:
    """The name of a journal's file, the end of what was read of it, and its records that count."""
    first_end, end, records = journal.end, Position(), list[Record]()
    with _open_journal(journal.path) as (file, name):
        path = journal.path / name
        for record, position in islice(read_lines(_lines(file, path), path), first_end.lines if first_end else None):
            if isinstance(record, Visit):
                record.samples.pack()
            records += [] if record is None else [record]
            end = position
    if first_end and (first_end.lines, first_end.crc) != (end.lines, end.crc):
        raise RunDirectoryError(f"{path} was changed since it was first read")
    return name, end, _without_retried(records)


def load_run(path: Path | str) -> Run:
    """Read a run directory. Executes nothing in it and follows no path in it. Raises RunDirectoryError."""
    path = Path(path)
    info, records = _read_info(path), _JournalReader(path)
    name, end, _ = _read(records)
    if info.status == "complete" and end == Position():
        raise RunDirectoryError(f"{path / name} is empty, but the run was complete: the run is damaged")
    warnings = []
    if end.lines < info.journal_lines:
        warnings = [f"{name} was cut: {end.lines} lines are left of the {info.journal_lines} of the ended run"]
    elif end.torn_bytes:
        warnings = [f"the last line of {name} is incomplete, because of a kill or a full disk, and was dropped"]
    return Run(path, info, records, warnings)


def _without(words: Sequence[str], *options: str) -> list[str]:
    """A command without some options and their values."""
    kept, skip = list[str](), False
    for word in words:
        name, _, value = word.partition("=")
        if not skip and name not in options:
            kept.append(word)
        skip = not skip and name in options and not value
    return kept


def _without_retried(records: list[Record]) -> list[Record]:
    """The records without the failures of cells that were retried later."""
    retried = {record.cell: index for index, record in enumerate(records) if isinstance(record, Retry)}
    return [
        record
        for index, record in enumerate(records)
        if not isinstance(record, Failure) or index > retried.get(record.cell, -1)
    ]


def runs_in(path: Path) -> list[Path]:
    """The runs in a folder: one per device or rank of a sweep on several of them, else `path` itself."""
    inner = (file.parent for file in path.glob(f"*/{RUN_FILE}"))
    return sorted(folder for folder in inner if _ONE_OF_SEVERAL.fullmatch(folder.name)) or [path]


def runs_below(path: Path) -> list[Path]:
    """The runs that a folder stands for: its own, or all runs that lie in it; else `path` itself."""
    runs = runs_in(path)
    if runs != [path] or (path / RUN_FILE).exists() or not path.is_dir():
        return runs
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
    inner = chain.from_iterable(map(runs_in, folders))
    return [run for run in inner if (run / RUN_FILE).exists()] or [path]


def check_new_run(path: Path) -> None:
    """Raise UsageError if the run directory `path` cannot be created; creates nothing."""
    with _as_usage_error(path):
        if path.exists():
            _check_empty(path)
        nearest = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
        if not nearest.is_dir():
            raise UsageError(f"{path} cannot be written: {nearest} is a file")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise UsageError(f"{path} cannot be written: {nearest} is not writable")


def _check_empty(path: Path) -> None:
    if any(path.iterdir()):
        resume = f", or continue its run with --resume {shlex.quote(str(path))}"
        raise UsageError(f"{path} is not empty; choose another folder{resume if (path / RUN_FILE).exists() else ''}")


class RunWriter:
    """The only writer of a run directory; as a context manager it closes the journal."""

    def __init__(self, path: Path, info: RunInfo, journal: JournalWriter) -> None:
        self.path = path
        self.info = info
        self._journal = journal

    @classmethod
    def create(cls, path: Path, info: RunInfo) -> Self:
        """Create the run directory `path`, which must be missing or empty; raises UsageError, StorageError."""
        if not str(path).isprintable():
            raise UsageError(f"{brief(str(path))}: the name of a run directory must be one line of printable text")
        with _as_usage_error(path):
            if not path.is_dir():
                path.mkdir(parents=True, exist_ok=True)
                sync_folder(path.parent)
            _check_empty(path)
            # First: of two processes that start here, only one succeeds.
            journal = _lock_journal(path, os.O_CREAT | os.O_EXCL)
            try:
                write_whole(path / RUN_FILE, _encode(info))
            except BaseException:
                journal.close()
                (path / JOURNAL_FILE).unlink()
                raise
            return cls(path, info, journal)

    @classmethod
    def reopen(cls, path: Path) -> Self:
        """Open a run directory for appending, without an incomplete last line; raises UsageError, RunDirectoryError."""
        _read_info(path)
        if not os.path.lexists(path / JOURNAL_FILE):
            raise UsageError(f"{path} has no {JOURNAL_FILE} to append to; decompress a compressed journal first")
        with _as_usage_error(path):
            journal = _lock_journal(path, 0)
            try:
                return cls(path, _read_info(path), journal)  # again: its last writer may just have ended
            except BaseException:
                journal.close()
                raise

    def append(self, record: Record) -> None:
        """Append a record to the journal; raises StorageError, with the journal intact."""
        with _as_storage_error(self.path):
            self._journal.append(record)

    def set_status(self, status: RunStatus, reason: str | None = None) -> None:
        """Record the status of the run, and of one that ended how long its journal is; raises StorageError."""
        if status == "running":
            self._replace(status=status, status_reason=reason)
            return
        with _as_storage_error(self.path):
            self._journal.sync()
        self._replace(status=status, status_reason=reason, journal_lines=self._journal.end.lines)

    def observe(self, observation: dict[str, Any]) -> None:
        """Add an observed environment (with `at` = "start" or "end"); raises StorageError."""
        self._replace(observed=[*self.info.observed, observation])

    def close(self) -> None:
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _replace(self, **changes: Any) -> None:
        info = msgspec.structs.replace(self.info, **changes)
        with _as_storage_error(self.path):
            write_whole(self.path / RUN_FILE, _encode(info))
        self.info = info


def _encode(info: RunInfo) -> bytes:
    data = msgspec.json.format(msgspec.json.encode(info), indent=2) + b"\n"
    if len(data) > _INFO_CAP_BYTES:
        raise StorageError(f"{RUN_FILE} would exceed {_INFO_CAP_BYTES >> 20} MiB, the maximum that kvbench reads")
    return data


def _read_info(path: Path) -> RunInfo:
    file = path / RUN_FILE
    try:
        data = read_capped(file, _INFO_CAP_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise RunDirectoryError(f"{path} is not a run directory: {_why_no_run(path)}") from None
    try:
        schema = msgspec.json.decode(data, type=_Version).schema
        if schema > SCHEMA:
            raise RunDirectoryError(
                f"{path} was written by a newer kvbench (schema {schema}; this one reads {SCHEMA}): upgrade kvbench"
            )
        if schema < 1:
            raise RunDirectoryError(f"{file}: schema {schema} does not exist")
        return msgspec.convert(printable_tree(msgspec.json.decode(data)), RunInfo)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise RunDirectoryError(f"{file} cannot be read: {printable(error)}") from None


def _why_no_run(path: Path) -> str:
    if path.is_file():
        return "it is a file"
    if not path.is_dir():
        return "folder not found"
    files = chain.from_iterable(path.glob(f"{depth}/{RUN_FILE}") for depth in ("*", "runs/*", "*/runs/*"))
    below = sorted(file.parent for file in files)
    if len(below) > _MOST_NAMED:
        below = [folder / "*" for folder in sorted({run.parent for run in below})][:_MOST_NAMED]
    return f"it has no {RUN_FILE}" + (f"; runs below it: {', '.join(map(str, below))}" if below else "")


@contextmanager
def _open_journal(path: Path) -> Iterator[tuple[BinaryIO | gzip.GzipFile, str]]:
    names = JOURNAL_FILE, PACKED_JOURNAL_FILE
    existing = [name for name in names if os.path.lexists(path / name)]
    if len(existing) != 1:
        # With both, nothing says which of them is the run's.
        problem = "both {} and {}" if existing else "neither {} nor {}"
        raise RunDirectoryError(f"{path} has {problem.format(*names)}")
    (name,) = existing
    with open_regular(path / name) as file:
        yield gzip.GzipFile(fileobj=file) if name == PACKED_JOURNAL_FILE else file, name


def _lines(file: BinaryIO | gzip.GzipFile, path: Path) -> Iterator[bytes]:
    total = 0
    try:
        while line := file.readline(MAX_LINE_BYTES + 1):
            total += len(line)
            if len(line) > MAX_LINE_BYTES:
                raise RunDirectoryError(f"{path} has a line of more than {MAX_LINE_BYTES >> 20} MiB")
            if total > MAX_JOURNAL_BYTES:
                raise RunDirectoryError(f"{path} is larger than {MAX_JOURNAL_BYTES >> 30} GiB")
            yield line
    except (EOFError, zlib.error, OSError) as error:
        raise RunDirectoryError(f"{path} cannot be read: {error}") from None


def _lock_journal(path: Path, flags: int) -> JournalWriter:
    file = path / JOURNAL_FILE
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open_regular(file) as reading:
            last = deque(read_lines(_lines(reading, file), file), maxlen=1)
        return JournalWriter(descriptor, file, last[0][1] if last else Position())
    except BaseException:
        os.close(descriptor)
        raise


@contextmanager
def _as_storage_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # the run directory is gone, or its disk failed
        raise StorageError(f"{path} cannot be written: {error.strerror}") from None


@contextmanager
def _as_usage_error(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        if error.filename == str(path / JOURNAL_FILE):
            raise UsageError(f"{path}: another kvbench process is writing to it") from None
        raise UsageError(f"{path} is not a folder") from None
    except BlockingIOError:
        raise UsageError(f"{path}: another kvbench process is writing to it") from None
    except OSError as error:
        raise_if_no_room(path, error)
        why = "its file system is read-only" if error.errno == errno.EROFS else str(error.strerror).lower()
        raise UsageError(f"{path} cannot be written: {why}") from None
