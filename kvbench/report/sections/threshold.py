"""The threshold: batched against the other backends at one number of blocks, and where the faster one changes."""

from collections.abc import Mapping
from typing import Final

import pandas as pd

from kvbench.analysis.compare import Visits, winners
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
        if duels := _duels(times, heads):
            lines = [_duel(others, fastest) for others, fastest in duels]
            tables.append(_table(view, contest, pinned, blocks, times, lines))
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


def _duels(times: Times, heads: Mapping[str, str]) -> list[tuple[list[str], Winners]]:
    """Return the others that share two sizes with batched, and the winner at each: those with the same ones together.

    The others are named as in `heads`. A winner is "batched", "" for the others, None where that is undecided.
    """
    others = [backend for backend in times if backend != BATCHED] if BATCHED in times else []
    found = {other: winners({BATCHED: times[BATCHED], other: times[other]}, IN_TURN) for other in others}
    named = {
        heads[other]: tuple((size, "" if name == other else name) for size, name in fastest.items())
        for other, fastest in found.items()
        if len(fastest) >= _MIN_SIZES
    }
    return [(names, dict(key)) for key, names in grouped(named, lambda other: named[other]).items()]


def _duel(names: list[str], fastest: Winners) -> str:
    """Return what became of batched against each of `names`, which all have these winners."""
    others = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    decided = [winner for winner in fastest.values() if winner is not None]
    if not decided:
        return f"{BATCHED} and {others} show no clear difference"
    changes = crossovers(fastest)
    verb = "is" if decided[0] or len(names) == 1 else "are"
    first, second = (BATCHED, others) if decided[0] else (others, BATCHED)
    line = f"{first} {verb} faster than {second}"
    if changes:
        turns = (f"{change.after or others} from {bytes_size(change.above_bytes)} on" for change in changes)
        line += f" up to {bytes_size(changes[0].below_bytes)}, {', '.join(turns)}"
    elif len(decided) == len(fastest):
        line += " at every size"
    unclear = [bytes_size(size) for size, name in fastest.items() if name is None]
    return line + (f" (no clear difference at {', '.join(unclear)})" if unclear else "")


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
