"""Baselines: verified runs kept in a folder, by the identity of their machine, with who added them, when and of what.

STORE/<identity hash>/<time>-<name>/baseline.json     who, when, commit, and which runs
                                    00/, 01/, ...     run directories, their journals compressed
"""

import gzip
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec

from kvbench.errors import MismatchError, RunDirectoryError, UsageError
from kvbench.files import open_regular, raise_if_no_room, read_capped, write_whole
from kvbench.machine.identity import machine_differences
from kvbench.results import Failure, Run, RunInfo, Visit, load_run
from kvbench.results.rundir import JOURNAL_FILE, PACKED_JOURNAL_FILE, RUN_FILE, SUMMARY_FILE
from kvbench.text import NAME_PATTERN, printable

BASELINE_FILE: Final = "baseline.json"
_CAP_BYTES: Final = 1 << 20
_MAX_RUNS: Final = 100
_HASH: Final = re.compile(r"[0-9a-f]{16}")
_ENTRY: Final = re.compile(rf"[0-9]{{8}}T[0-9]{{6}}Z-{NAME_PATTERN}")


class Origin(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """baseline.json: who added a baseline, when (ISO 8601, UTC), of which commit ("" where unknown), and its runs."""

    who: str
    when: str
    commit: str
    runs: Annotated[int, msgspec.Meta(ge=1, le=_MAX_RUNS)]


@dataclass(frozen=True, slots=True)
class Baseline:
    """One baseline of a store."""

    path: Path
    origin: Origin

    @property
    def key(self) -> str:
        """Its place in the store: "<identity hash>/<time>-<name>"."""
        return f"{self.path.parent.name}/{self.path.name}"

    def runs(self) -> list[Run]:
        """Read its runs; raises RunDirectoryError."""
        return [load_run(self.path / f"{number:02d}") for number in range(self.origin.runs)]


def add(store: Path, runs: Sequence[Run], name: str, who: str, commit: str) -> Baseline:
    """Copy `runs` into the store as one baseline, whole or not at all.

    Raises UsageError for runs that may not be one: of several kinds of machine, not complete, with failed cells, or
    with bytes that nobody compared.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise UsageError(f"--name {name!r} is not 1 to 64 letters, digits, '_', '.' or '-'")
    _check(runs)
    when = datetime.now(UTC)
    folder = store / runs[0].info.identity_hash
    path = folder / f"{when:%Y%m%dT%H%M%SZ}-{name}"
    origin = Origin(
        who=printable(who), when=when.isoformat(timespec="seconds"), commit=printable(commit), runs=len(runs)
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".adding-") as made:
            for number, run in enumerate(runs):
                _copy(run, Path(made) / "baseline" / f"{number:02d}")
            write_whole(Path(made) / "baseline" / BASELINE_FILE, msgspec.json.encode(origin) + b"\n")
            _publish(Path(made) / "baseline", path)
    except OSError as error:
        raise_if_no_room(path, error)
        raise UsageError(f"--store {store} cannot be written: {error.strerror}") from None
    return Baseline(path, origin)


def baselines(store: Path) -> list[Baseline]:
    """Return every baseline of the store, the newest first; raises UsageError and RunDirectoryError."""
    try:
        folders = [path for path in store.iterdir() if _HASH.fullmatch(path.name) and not path.is_symlink()]
        entries = [
            path
            for folder in folders
            for path in folder.iterdir()
            if _ENTRY.fullmatch(path.name) and not path.is_symlink()
        ]
    except OSError as error:
        raise UsageError(
            f"--store {store}: {str(error.strerror).lower()}; kvbench gate baseline add makes one"
        ) from None
    newest_first = sorted(entries, key=lambda path: (path.name, path.parent.name), reverse=True)
    return [Baseline(path, _origin(path)) for path in newest_first]


def find(store: Path, key: str) -> Baseline:
    """Return the baseline with this key, or whose key begins with it; raises UsageError unless there is just one."""
    found = [entry for entry in baselines(store) if entry.key.startswith(key) or entry.path.name.startswith(key)]
    exact = [entry for entry in found if key in (entry.key, entry.path.name)]
    if len(exact or found) == 1:
        return (exact or found)[0]
    raise UsageError(
        f"{printable(key)}: {len(found)} baselines of {store} begin so; kvbench gate baseline list shows all"
    )


def newest_for(store: Path, info: RunInfo) -> Baseline:
    """Return the newest baseline of the machine that `info` is of, whichever build of the engine it was.

    Raises MismatchError where the store has none, with what the nearest one differs in.
    """
    nearest: list[str] | None = None
    for entry in baselines(store):
        found = machine_differences(entry.runs()[0].info.identity, info.identity)
        if not found:
            return entry
        if nearest is None or len(found) < len(nearest):
            nearest = found
    why = f"the nearest one differs: {printable('; '.join(nearest))}" if nearest else "it is empty"
    raise MismatchError(f"--baseline {store} has no baseline of this machine; {why}")


def _check(runs: Sequence[Run]) -> None:
    if not 1 <= len(runs) <= _MAX_RUNS:
        raise UsageError(f"a baseline is made of 1 to {_MAX_RUNS} runs; {len(runs)} given")
    for run in runs:
        reason = _why_not(run)
        if reason:
            raise UsageError(f"{run.path} cannot be a baseline: {reason}")
        if run.info.identity_hash != runs[0].info.identity_hash:
            raise UsageError(
                f"{run.path} cannot be in one baseline with {runs[0].path}: their machines or builds differ"
            )


def _why_not(run: Run) -> str | None:
    if run.info.status != "complete":
        return f"it is {run.info.status}, not complete"
    if not _HASH.fullmatch(run.info.identity_hash):
        return "its identity hash is none"
    if run.warnings:
        return printable(run.warnings[0])
    failed = sum(isinstance(record, Failure) for record in run.records)
    if failed:
        return f"{failed} of its cells failed"
    visits = [record for record in run.records if isinstance(record, Visit)]
    unverified = sum(visit.verified_bytes == 0 for visit in visits)
    if not visits or unverified:
        return f"{unverified} of its {len(visits)} visits were not verified" if visits else "it has no measured cell"
    return None


def _copy(run: Run, to: Path) -> None:
    to.mkdir(parents=True)
    _copy_file(run.path / RUN_FILE, to / RUN_FILE)
    if (run.path / SUMMARY_FILE).is_file():
        _copy_file(run.path / SUMMARY_FILE, to / SUMMARY_FILE)
    packed = to / PACKED_JOURNAL_FILE
    if (run.path / PACKED_JOURNAL_FILE).is_file():
        _copy_file(run.path / PACKED_JOURNAL_FILE, packed)
        return
    with open_regular(run.path / JOURNAL_FILE) as journal, gzip.open(packed, "wb") as out:
        shutil.copyfileobj(journal, out)


def _copy_file(source: Path, to: Path) -> None:
    with open_regular(source) as file, to.open("wb") as out:
        shutil.copyfileobj(file, out)


def _publish(made: Path, path: Path) -> None:
    for file in made.rglob("*"):
        if file.is_file():
            with file.open("rb") as written:
                os.fsync(written.fileno())
    try:
        made.rename(path)
    except OSError as error:
        if path.exists():
            raise UsageError(f"{path} is there already; choose another --name") from error
        raise


def _origin(path: Path) -> Origin:
    file = path / BASELINE_FILE
    try:
        origin = msgspec.json.decode(read_capped(file, _CAP_BYTES), type=Origin)
    except (FileNotFoundError, NotADirectoryError):
        raise RunDirectoryError(f"{path} is no baseline: it has no {BASELINE_FILE}") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RunDirectoryError(f"{file} cannot be read: {printable(error)}") from None
    return msgspec.structs.replace(
        origin, who=printable(origin.who), when=printable(origin.when), commit=printable(origin.commit)
    )
