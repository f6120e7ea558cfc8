"""A/A floors: how far each cell of a build differs from itself on a machine; a file of `kvbench gate calibrate`."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from kvbench._version import __version__
from kvbench.cells.cell import Cell
from kvbench.errors import KvbenchError, MismatchError, RunDirectoryError, UsageError
from kvbench.files import read_capped, write_output
from kvbench.gate.judgement import Judgement
from kvbench.machine.identity import machine_differences
from kvbench.results import Run, Scalar
from kvbench.text import counted

FLOOR_FILE: Final = "floor.json"
_CAP_BYTES: Final = 64 << 20


class FloorFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`floors` maps a cell's id to the fraction by which its time can differ without a change (0.02: 2%).

    `identity` is that of the machine, `identity_hash` its hash; each floor is based on `rounds` pairs; `created` is ISO
    8601 in UTC.
    """

    schema: Literal[1] = 1
    kvbench: str
    created: str
    identity_hash: str
    identity: dict[str, Scalar]
    rounds: Annotated[int, msgspec.Meta(ge=1)]
    floors: dict[Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{12}$")], Annotated[float, msgspec.Meta(ge=0)]]


def floors_of(judgement: Judgement, run: Run) -> FloorFile:
    """Return the floors of an A/A comparison; `run` is one of its runs.

    A cell's floor is the end of its effect's interval that is further from 1, so that 95% of such comparisons stay
    within it. Raises UsageError if no cell has an interval, because of too few rounds or because all cells failed.
    """
    floors = {
        row.cells[0].id: round(math.expm1(max(abs(row.estimate.low), abs(row.estimate.high))), 5)
        for row in judgement.rows
        if row.kind == "cell" and math.isfinite(row.estimate.low) and math.isfinite(row.estimate.high)
    }
    if not floors:
        raise UsageError(f"no cell has a floor after {judgement.rounds} rounds; use more --minutes")
    return FloorFile(
        kvbench=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        identity_hash=run.info.identity_hash,
        identity=run.info.identity,
        rounds=judgement.rounds,
        floors=floors,
    )


def check_target(path: Path) -> None:
    """Raise UsageError unless `write_floors` can write `path`, so that nothing is measured in vain."""
    if not path.parent.is_dir():
        raise UsageError(f"--floor {path}: its folder does not exist")
    if path.is_file() and path.stat().st_size:
        try:
            read_floors(path)
        except KvbenchError:
            raise UsageError(f"--floor {path}: the file exists with other content; choose another file") from None


def write_floors(path: Path, file: FloorFile) -> None:
    """Write `path`, which must be new, a file of floors, or not a regular file; raises StorageError and UsageError."""
    data = msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"
    write_output("--floor", path, data, read_floors, force=False)


def read_floors(path: Path) -> FloorFile:
    """Read the output of `write_floors`, with strict checks; raises UsageError and RunDirectoryError."""
    try:
        return msgspec.json.decode(read_capped(path, _CAP_BYTES), type=FloorFile)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"--floor {path}: file not found; create one with kvbench gate calibrate") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise RunDirectoryError(f"--floor {path}: not a file of floors: {error}") from None


def check_floors(file: FloorFile, run: Run, cells: Sequence[Cell], *, forced: bool) -> list[str]:
    """Return warnings about floors from a machine other than that of `run`, and about `cells` without a floor.

    Raises MismatchError for another machine unless `forced`, and if none of `cells` has a floor.
    """
    differing = machine_differences(file.identity, run.info.identity)
    text = f"the floors are of another machine: {'; '.join(differing)}"
    if differing and not forced:
        raise MismatchError(f"--floor: {text}; calibrate on this machine, or use them anyway with --force")
    without = [cell.label for cell in cells if cell.id not in file.floors]
    if cells and len(without) == len(cells):
        raise MismatchError(
            f"--floor: none of its {counted(len(file.floors), 'floor')} is for a cell of this comparison, such as "
            f"{without[0]}; calibrate with the same suite, -a and --filter"
        )
    warnings = [f"forced: {text}"] if differing else []
    if without:
        warnings.append(f"{counted(len(without), 'cell')} of {len(cells)} without a floor, for example {without[0]}")
    return warnings
