"""A/A floors: how far a cell of a build differs from itself on a machine, from `kvbench gate calibrate`, in a file."""

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from kvbench._version import __version__
from kvbench.errors import MismatchError, RunDirectoryError, UsageError
from kvbench.files import read_capped, write_output
from kvbench.gate.judgement import Judgement
from kvbench.machine.identity import machine_differences
from kvbench.results import Run, Scalar

FLOOR_FILE: Final = "floor.json"
_CAP_BYTES: Final = 64 << 20

_Floor = Annotated[float, msgspec.Meta(ge=0)]
_CellId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{12}$")]


class FloorFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`floors` maps a cell's id to the fraction by which its time may differ with nothing changed (0.02: 2%).

    `identity` is that of the machine, hashed in `identity_hash`; `rounds` pairs are behind each floor; `created` is
    ISO 8601 in UTC.
    """

    schema: Literal[1] = 1
    kvbench: str
    created: str
    identity_hash: str
    identity: dict[str, Scalar]
    rounds: Annotated[int, msgspec.Meta(ge=1)]
    floors: dict[_CellId, _Floor]


def floors_of(judgement: Judgement, run: Run) -> FloorFile:
    """Return the floors that an A/A comparison found; `run` is one of its runs.

    A cell's floor is the end of its effect's interval that lies further from 1, so that 95% of such comparisons stay
    within it. Raises UsageError where no cell has an interval: for want of rounds, or since all failed.
    """
    floors = {
        row.cells[0].id: round(math.expm1(max(abs(math.log(row.low)), abs(math.log(row.high)))), 5)
        for row in judgement.rows
        if row.kind == "cell" and row.low > 0 and math.isfinite(row.high)
    }
    if not floors:
        raise UsageError(f"no cell has a floor after {judgement.rounds} rounds: give it more --minutes")
    return FloorFile(
        kvbench=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        identity_hash=run.info.identity_hash,
        identity=run.info.identity,
        rounds=judgement.rounds,
        floors=floors,
    )


def write_floors(path: Path, file: FloorFile) -> None:
    """Write `path`, which is new, one of floors, or no regular file; raises StorageError and UsageError."""
    data = msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"
    write_output("--floor", path, data, read_floors, force=False)


def read_floors(path: Path) -> FloorFile:
    """Read what `write_floors` wrote, strictly; raises UsageError and RunDirectoryError."""
    try:
        return msgspec.json.decode(read_capped(path, _CAP_BYTES), type=FloorFile)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"--floor {path}: no such file; kvbench gate calibrate makes one") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise RunDirectoryError(f"--floor {path} is no file of floors: {error}") from None


def check_floors(file: FloorFile, run: Run, *, forced: bool) -> list[str]:
    """Return warnings about floors of another machine than that of `run`; raises MismatchError unless `forced`."""
    found = machine_differences(file.identity, run.info.identity)
    text = f"the floors are of another machine: {'; '.join(found)}"
    if found and not forced:
        raise MismatchError(f"--floor: {text}; calibrate here, or --force takes them anyway")
    return [f"forced: {text}"] if found else []
