"""The threshold: batched against the other backends at one number of blocks, and where the faster one changes."""

from collections.abc import Mapping, Sequence
from typing import Final

import pandas as pd

from kvbench.analysis.compare import MIN_PAIRS, Visits, winners
from kvbench.analysis.curves import crossovers
from kvbench.analysis.margins import IN_TURN
from kvbench.report.contests import BATCHED, BackendContest, backend_contests
from kvbench.report.model import DataTable, Finding, Part, Section, Text
from kvbench.report.numbers import bytes_size, count
from kvbench.report.select import Pinned, where
from kvbench.report.tables import (
    INCLUDES,
    MARKS,
    Footnotes,
    a_stream,
    caption,
    family,
    few_visits,
    grouped,
    mark_fastest,
    rate,
    rows_of,
    shown,
    with_sms,
)
from kvbench.report.view import View

USUAL_BLOCKS: Final = 10_000
_MIN_SIZES: Final = 2
_WEIGHT: Final = 0.1  # the first lines of the first page say as much

Times = Mapping[str, Mapping[int, Visits]]  # of swap_us, by backend and block bytes
Winners = Mapping[int, str | None]  # by block bytes


def make(view: View) -> Part | str:
    contests, pinned = backend_contests(view)
    shapes = [(arm.backend, *shape) for contest in contests for arm in contest.arms for shape in arm.times]
    blocks = common_blocks(pd.DataFrame(shapes, columns=["backend", "block_bytes", "blocks"])) if shapes else 0
    tables, told = [], []
    for contest in contests:
        by_backend = {
            arm.backend: {size: visits for (size, number), visits in arm.times.items() if number == blocks}
            for arm in contest.arms
        }
        times = {backend: found for backend, found in by_backend.items() if found}
        heads = {arm.backend: with_sms(where(arm.cells, blocks=blocks), arm.backend) for arm in contest.arms}
        if max((len(_met(times, other)) for other in times), default=0) < _MIN_SIZES:
            continue
        lines = _duels(times, heads)
        tables.append(_table(view, contest, pinned, blocks, times, lines))
        if lines:
            text = f"{contest.direction} on {a_stream(contest.state)}, N = {count(blocks)}: {'; '.join(lines)}."
            told.append(Finding(text, _WEIGHT))
    if tables:
        return Part(tables=tables, told=told)
    return (
        f"it needs {BATCHED} and another backend measured at {_MIN_SIZES} block sizes with the same number of blocks, "
        "direction and stream state"
    )


SECTION = Section("threshold", "Threshold: batched copies against the other backends", make)


def common_blocks(measured: pd.DataFrame) -> int:
    """Return the number of blocks that most backends have: 10 000 if it is one, else that with most sizes, the largest.

    `measured` has the columns backend, block_bytes and blocks and is not empty.
    """
    kinds = measured.groupby("blocks").nunique()
    ranks = zip(kinds["backend"], kinds.index == USUAL_BLOCKS, kinds["block_bytes"], kinds.index, strict=True)
    return int(max(ranks)[-1])


def _met(times: Times, other: str) -> set[int]:
    """Return the sizes that a backend shares with batched, in bytes."""
    return set[int]() if other == BATCHED else times.get(BATCHED, {}).keys() & times[other].keys()


def _duels(times: Times, heads: Mapping[str, str]) -> list[str]:
    """Return what became of batched against each backend that shares sizes with it, told once for the same winners.

    Sizes with too few visits for a verdict are named; a backend with fewer than two others is not told. The backends
    are named as in `heads`.
    """
    judged = {
        backend: {size: visits for size, visits in own.items() if len(visits) >= MIN_PAIRS}
        for backend, own in times.items()
    }
    named: dict[str, tuple[Winners, tuple[int, ...]]] = {}
    for other in times:
        if len(shared := _met(judged, other)) >= _MIN_SIZES:
            found = winners({BATCHED: judged[BATCHED], other: judged[other]}, IN_TURN)
            ends = {size: "" if name == other else name for size, name in found.items()}
            named[heads[other]] = ends, tuple(sorted(_met(times, other) - shared))
    alike = grouped(named, lambda name: (tuple(named[name][0].items()), named[name][1]))
    return [_duel(names, *named[names[0]]) for names in alike.values()]


def _duel(names: list[str], fastest: Winners, few: Sequence[int]) -> str:
    """Return what became of batched against each of `names`, which have all this in common.

    A winner is "batched", "" for the others, None where that is undecided; `few` are the sizes with too few visits.
    """
    others = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    unjudged = f" (too few visits at {', '.join(map(bytes_size, few))})" if few else ""
    decided = [winner for winner in fastest.values() if winner is not None]
    if not decided:
        return f"{BATCHED} and {others} show no clear difference{unjudged}"
    changes = crossovers(fastest)
    verb = "is" if decided[0] or len(names) == 1 else "are"
    first, second = (BATCHED, others) if decided[0] else (others, BATCHED)
    line = f"{first} {verb} faster than {second}"
    if changes:
        turns = (f"{change.after or others} from {bytes_size(change.above_bytes)} on" for change in changes)
        line += f" up to {bytes_size(changes[0].below_bytes)}, {', '.join(turns)}"
    elif len(decided) == len(fastest) and not few:
        line += " at every size"
    unclear = [bytes_size(size) for size, name in fastest.items() if name is None]
    return line + (f" (no clear difference at {', '.join(unclear)})" if unclear else "") + unjudged


def _table(
    view: View, contest: BackendContest, pinned: Pinned, blocks: int, times: Times, duels: list[str]
) -> DataTable:
    """Return GB/s of every backend that has any at `blocks` by block size, with the crossovers below."""
    cells = where(pd.concat([arm.cells for arm in contest.arms if arm.backend in times]), blocks=blocks)
    measured = where(cells, status="ok")
    notes = Footnotes()
    body: list[list[Text]] = []
    for size in sorted({int(size) for size in cells["block_bytes"]}):
        row = {str(row["backend"]): row for row in rows_of(where(cells, block_bytes=size))}
        texts = {backend: shown(row.get(backend), notes, rate) for backend in times}
        here = {backend: found[size] for backend, found in times.items() if size in found}
        body.append([bytes_size(size), *mark_fastest(texts, here).values()])
    return DataTable(
        f"{contest.direction}, {contest.state} stream, N = {count(blocks)}: GB/s",
        ("Block size", *(with_sms(cells, backend) for backend in times)),
        body,
        [*duels, MARKS, *few_visits(measured), *family(len(measured) - len(body)), *notes.lines],
        caption(view, measured, INCLUDES[contest.state], pinned),
    )
