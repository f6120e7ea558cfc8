"""Two lists of runs, cell by cell and round by round: paired times, what failed, and whether they may be compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

import numpy as np

from kvbench.analysis.intervals import Floats
from kvbench.cells.cell import Cell
from kvbench.errors import MismatchError, UsageError
from kvbench.gate.outcomes import Outcome, outcomes
from kvbench.machine.identity import OF_THE_BUILD, differences
from kvbench.results import Run
from kvbench.text import printable

SideName = Literal["base", "cand"]
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Pairs:
    """The cells of both sides in a fixed order, with `base_us` and `cand_us` (medians of swap_us) of shape (cells,
    rounds), NaN where a round did not measure a cell.

    `failed` has a reason for every cell that failed or is missing anywhere; its times are NaN throughout. `faults` are
    failures of whole runs, `paths` what ran where the effective path changed ("copy engine -> CPU inline").
    """

    cells: Sequence[Cell]
    base_us: Floats
    cand_us: Floats
    failed: Mapping[Cell, str]
    faults: Sequence[str]
    paths: Mapping[Cell, str]


def pair(base: Sequence[Run], cand: Sequence[Run]) -> Pairs:
    """Pair `base[r]` with `cand[r]`; raises UsageError unless both are as long, and not empty.

    A round may measure fewer cells than another, but both sides of it the same ones: a cell that one side lacks failed.
    """
    if len(base) != len(cand) or not base:
        raise UsageError(
            f"{len(base)} runs of the base and {len(cand)} of the candidate: give as many of either, at least one, "
            "in the order of their rounds"
        )
    ours, theirs = [outcomes(run) for run in base], [outcomes(run) for run in cand]
    cells = sorted(_asked_for([*ours, *theirs]), key=_place)
    failed: dict[Cell, list[str]] = {}
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for cell in cells:
            broken = _failures(a.get(cell), b.get(cell))
            failed.setdefault(cell, []).extend(f"{reason}, round {number}" for reason in broken)
    reasons = {cell: _few(found) for cell, found in failed.items() if found}
    return Pairs(
        cells,
        _times(ours, cells, reasons),
        _times(theirs, cells, reasons),
        reasons,
        [*_unfinished("base", base), *_unfinished("cand", cand)],
        _changed_paths(ours, theirs, cells),
    )


def mismatches(base: Sequence[Run], cand: Sequence[Run]) -> list[str]:
    """Return in which fields the runs' machines differ from the first one's; the build may differ between the sides."""
    lines = []
    for runs in (base, cand):
        build = {name: value for name, value in runs[0].info.identity.items() if name == OF_THE_BUILD}
        expected = {**base[0].info.identity, **build}
        for run in runs:
            lines += [f"{run.path}: {text}" for text in differences(expected, run.info.identity)]
    return [printable(line) for line in lines]


def check_identity(base: Sequence[Run], cand: Sequence[Run], *, forced: bool) -> list[str]:
    """Return warnings about runs of different machines; raises MismatchError about them unless `forced`."""
    found = mismatches(base, cand)
    if found and not forced:
        raise MismatchError(f"these runs are not of one kind of machine: {_few(found)}; --force compares them anyway")
    return [f"forced: not one kind of machine: {line}" for line in found]


def slots(base: Sequence[Run], cand: Sequence[Run]) -> Floats:
    """Return for every round 1 where the candidate ran second, -1 where it ran first, 0 where the times do not tell."""
    return np.array([_order(a.info.created, b.info.created) for a, b in zip(base, cand, strict=True)])


def _order(base_created: str, cand_created: str) -> float:
    try:
        first, second = datetime.fromisoformat(base_created), datetime.fromisoformat(cand_created)
        return float(np.sign((second - first).total_seconds()))
    except (ValueError, TypeError):  # a stranger's run, or one time with a zone and one without
        return 0.0


def _asked_for(rounds: Sequence[Mapping[Cell, Outcome]]) -> set[Cell]:
    return {cell for found in rounds for cell, outcome in found.items() if outcome.status != "skipped"}


def _failures(base: Outcome | None, cand: Outcome | None) -> list[str]:
    if all(found is None or found.status == "skipped" for found in (base, cand)):
        return []
    sides: tuple[tuple[SideName, Outcome | None], ...] = (("base", base), ("cand", cand))
    return [_words(side, found) for side, found in sides if found is None or not found.ok]


def _words(side: SideName, found: Outcome | None) -> str:
    return f"{side}: missing" if found is None else f"{side}: {found.status}: {found.reason}"


def _few(reasons: Sequence[str]) -> str:
    more = len(reasons) - _SHOWN
    return "; ".join(reasons[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _times(rounds: Sequence[Mapping[Cell, Outcome]], cells: Sequence[Cell], failed: Mapping[Cell, str]) -> Floats:
    times = np.full((len(cells), len(rounds)), np.nan)
    for number, found in enumerate(rounds):
        for place, cell in enumerate(cells):
            if cell in found and cell not in failed:
                times[place, number] = found[cell].figure("swap_us_median")
    times[times <= 0] = np.nan  # a clock that stood still says nothing of a ratio
    return times


def _unfinished(side: SideName, runs: Sequence[Run]) -> list[str]:
    return [
        f"{side}, round {number}: {printable(run.path)} is {run.info.status}, not complete"
        for number, run in enumerate(runs)
        if run.info.status != "complete"
    ]


def _changed_paths(
    base: Sequence[Mapping[Cell, Outcome]], cand: Sequence[Mapping[Cell, Outcome]], cells: Sequence[Cell]
) -> dict[Cell, str]:
    def paths(rounds: Sequence[Mapping[Cell, Outcome]], cell: Cell) -> str:
        return "; ".join(sorted({found[cell].path for found in rounds if cell in found and found[cell].path}))

    seen = {cell: (paths(base, cell), paths(cand, cell)) for cell in cells}
    return {cell: f"path: {before} -> {after}" for cell, (before, after) in seen.items() if before != after and after}


def _place(cell: Cell) -> tuple[str, ...]:
    return (cell.backend, cell.direction, cell.stream_state, f"{cell.blocks:012}", f"{cell.block_bytes:012}", cell.id)
