"""The threshold: batched against the other backends at one number of blocks, and where the faster one changes."""

from collections.abc import Mapping, Sequence
from typing import Final

import pandas as pd

from kvbench.analysis.curves import crossovers, winners
from kvbench.analysis.intervals import Quartiles
from kvbench.report.contests import BATCHED, Arm, BackendContest, arm_of, backend_contests
from kvbench.report.model import DataTable, Part, Section, Strong, Text
from kvbench.report.numbers import bytes_size, count
from kvbench.report.select import QUEUE, Pinned, pin, where
from kvbench.report.tables import INCLUDES, Footnotes, a_stream, caption, mark_fastest, rate, rows_of, shown
from kvbench.report.view import View

# A state of contests besides those of the stream: batched behind another swap of its kind, the others on a busy stream.
BACK_TO_BACK: Final = "back-to-back"
USUAL_BLOCKS: Final = 10_000
_MIN_SIZES: Final = 2
_HEADS: Final = {
    "idle": "on an idle stream",
    "busy": "on a busy stream",
    BACK_TO_BACK: "back to back, the others on a busy stream",
}
_INCLUDES: Final = INCLUDES | {
    BACK_TO_BACK: f"{INCLUDES['busy']}. {BATCHED}: behind one queued swap of its kind, whose execution hides what it "
    "can of the submission"
}
_MARKS: Final = (
    Strong("Bold"),
    ": the fastest of its row. ≈: undecided, the quartiles of the fastest and of this one overlap "
    "(differences between two processes or two days are not in them)",
)
_OTHER: Final = ""  # stands for the one that batched is held against

Times = Mapping[str, Mapping[int, Quartiles]]  # of swap_us, by backend and block bytes
Winners = Mapping[int, str | None]  # by block bytes


def make(view: View) -> Part | str:
    contests, pinned = backend_contests(view)
    shapes = [(arm.backend, *shape) for contest in contests for arm in contest.arms for shape in arm.times]
    blocks = common_blocks(pd.DataFrame(shapes, columns=["backend", "block_bytes", "blocks"])) if shapes else 0
    tables, told = [], []
    for contest in (*contests, *_back_to_back(view.frame, contests)):
        by_backend = {arm.backend: _at(arm, blocks) for arm in contest.arms}
        times = {backend: found for backend, found in by_backend.items() if found}
        if fastest := _winners(times):
            tables.append(_table(view, contest, pinned, blocks, times, fastest))
            told.append(_sentence(contest, blocks, fastest))
    if tables:
        return Part(tables=tables, told=told)
    return (
        f"it needs {BATCHED} and another backend measured at {_MIN_SIZES} block sizes with the same number of blocks, "
        "direction and stream state"
    )


SECTION = Section("threshold", "Threshold: batched copies against the other backends", make)


def _back_to_back(frame: pd.DataFrame, contests: Sequence[BackendContest]) -> list[BackendContest]:
    """Return the contests on a busy stream once more, with batched behind one queued swap, where that was measured."""
    cells = pin(where(frame, queued=1, streams=1, backend=BATCHED, stream_state="busy"), shown=QUEUE).cells
    return [
        BackendContest(contest.direction, BACK_TO_BACK, [arm, *contest.arms[1:]])
        for contest in contests
        if contest.state == "busy" and (arm := arm_of(where(cells, direction=contest.direction), BATCHED))
    ]


def common_blocks(measured: pd.DataFrame) -> int:
    """Return the number of blocks that most backends have: 10 000 if it is one, else that with most sizes, the largest.

    `measured` has the columns backend, block_bytes and blocks and is not empty.
    """
    kinds = measured.groupby("blocks").nunique()
    ranks = zip(kinds["backend"], kinds.index == USUAL_BLOCKS, kinds["block_bytes"], kinds.index, strict=True)
    return int(max(ranks)[-1])


def _at(arm: Arm, blocks: int) -> dict[int, Quartiles]:
    return {size: times for (size, number), times in arm.times.items() if number == blocks}


def _winners(times: Times) -> dict[str, Winners]:
    """Return for every other backend the winner between it and batched, where they share two sizes."""
    others = [backend for backend in times if backend != BATCHED] if BATCHED in times else []
    pairs = {other: winners({BATCHED: times[BATCHED], other: times[other]}) for other in others}
    return {other: fastest for other, fastest in pairs.items() if len(fastest) >= _MIN_SIZES}


def _table(
    view: View, contest: BackendContest, pinned: Pinned, blocks: int, times: Times, duels: Mapping[str, Winners]
) -> DataTable:
    """Return GB/s of every backend that has any at `blocks` by block size, with the crossovers below."""
    cells = where(pd.concat([arm.cells for arm in contest.arms if arm.backend in times]), blocks=blocks)
    notes = Footnotes()
    body: list[list[Text]] = []
    for size in sorted({int(size) for size in cells["block_bytes"]}):
        row = {str(row["backend"]): row for row in rows_of(where(cells, block_bytes=size))}
        texts = {backend: shown(row.get(backend), notes, rate) for backend in times}
        here = {backend: found[size] for backend, found in times.items() if size in found}
        body.append([bytes_size(size), *mark_fastest(texts, here).values()])
    crossings = [f"Faster, {_crossover_words(other, fastest)}" for other, fastest in duels.items()]
    return DataTable(
        f"{contest.direction}, {BATCHED} {_HEADS[contest.state]}, N = {count(blocks)}: GB/s",
        ("Block size", *times),
        body,
        [*crossings, _MARKS, *notes.lines],
        caption(view, where(cells, status="ok"), _INCLUDES[contest.state], pinned),
    )


def _crossover_words(other: str, fastest: Winners) -> str:
    """Return between which sizes the faster of batched and another changes."""
    decided = sorted({name for name in fastest.values() if name is not None})
    open_sizes = ", ".join(bytes_size(size) for size, name in sorted(fastest.items()) if name is None)
    head = f"{BATCHED} against {other}: "
    if not decided:
        return f"{head}undecided at {open_sizes}"
    changes = [
        f"from {change.before} to {change.after} between {bytes_size(change.below_bytes)} and "
        f"{bytes_size(change.above_bytes)}"
        for change in crossovers(fastest)
    ]
    extent = "wherever it is decided" if open_sizes else "at every size"
    found = ", ".join(changes) if changes else f"none, {decided[0]} is faster {extent}"
    return f"{head}{found}{f'; undecided at {open_sizes}' if open_sizes else ''}"


def _sentence(contest: BackendContest, blocks: int, duels: Mapping[str, Winners]) -> str:
    """Return where the faster of batched and another changes; those with the same winners are named together."""
    alike: dict[tuple[tuple[int, str | None], ...], list[str]] = {}
    for other, fastest in duels.items():
        named = ((size, _OTHER if name == other else name) for size, name in fastest.items())
        alike.setdefault(tuple(named), []).append(other)
    parts = [_duel(dict(fastest), names) for fastest, names in alike.items()]
    stream = a_stream(contest.state) + (f", {BATCHED} back to back" if contest.state == BACK_TO_BACK else "")
    return f"{contest.direction} on {stream}, N = {count(blocks)}: {'; '.join(parts)}."


def _duel(fastest: Winners, names: Sequence[str]) -> str:
    """Return what became of batched against each of `names`, which all have these winners."""
    *first_names, last = names
    others = f"{', '.join(first_names)} and {last}" if first_names else last
    decided = [winner for winner in fastest.values() if winner is not None]
    changes = crossovers(fastest)
    if not decided:
        return f"{BATCHED} and {others} are not told apart"
    before = f"{others} {'are' if first_names else 'is'} faster than {BATCHED}"
    if (changes[0].before if changes else decided[0]) == BATCHED:
        before = f"{BATCHED} is faster than {others}"
    if not changes:
        return f"{before} {'at every size' if len(decided) == len(fastest) else 'wherever the noise lets it be told'}"
    after = ", ".join(
        f"{others if change.after == _OTHER else BATCHED} from {bytes_size(change.above_bytes)} on"
        for change in changes
    )
    return f"{before} up to {bytes_size(changes[0].below_bytes)}, {after}"
