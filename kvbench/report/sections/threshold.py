"""The threshold: batched against the other backends at one number of blocks, and where the faster one changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from kvbench.analysis.curves import crossovers, winners
from kvbench.analysis.intervals import Quartiles
from kvbench.report.contests import BATCHED, Arm, BackendContest, BackendContests, arm_of, backend_contests
from kvbench.report.model import DataTable, Part, Section, Strong, Text
from kvbench.report.numbers import bytes_size, count
from kvbench.report.select import QUEUE, Pinned, pin, where
from kvbench.report.tables import INCLUDES, Footnotes, a_stream, caption, mark_fastest, rate, rows_of, settings, shown
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

Winners = dict[int, str | None]  # by block bytes


@dataclass(frozen=True, slots=True)
class Duels:
    """The contests of a run that meet at `blocks` blocks."""

    contests: Sequence[BackendContest]
    blocks: int
    pinned: Pinned

    def times(self, contest: BackendContest) -> dict[str, dict[int, Quartiles]]:
        """Return backend -> block bytes -> swap_us; batched first, without backends that have no figure here."""
        return {arm.backend: found for arm in contest.arms if (found := _at(arm, self.blocks))}


def make(view: View) -> Part | str:
    duels = _duels(view)
    if isinstance(duels, str):
        return duels
    tables = [_table(view, contest, duels) for contest in duels.contests]
    return Part(tables=tables, told=[text for contest in duels.contests if (text := _sentence(contest, duels))])


SECTION = Section("threshold", "Threshold: batched copies against the other backends", make)


def _duels(view: View) -> Duels | str:
    found = backend_contests(view)
    shapes = [(arm.backend, *shape) for contest in found.contests for arm in contest.arms for shape in arm.times]
    if shapes:
        blocks = common_blocks(pd.DataFrame(shapes, columns=["backend", "block_bytes", "blocks"]))
        meeting = [
            contest for contest in (*found.contests, *_back_to_back(view.frame, found)) if _meets(contest, blocks)
        ]
        if meeting:
            return Duels(meeting, blocks, found.pinned)
    return (
        f"it needs {BATCHED} and another backend measured at {_MIN_SIZES} block sizes with the same number of blocks, "
        "direction and stream state"
    )


def _back_to_back(frame: pd.DataFrame, found: BackendContests) -> list[BackendContest]:
    """Return the contests on a busy stream once more, with batched behind one queued swap, where that was measured."""
    cells = pin(where(frame, queued=1, streams=1, backend=BATCHED), shown=QUEUE).cells
    return [
        BackendContest(contest.direction, BACK_TO_BACK, [arm, *contest.arms[1:]])
        for contest in found.contests
        if contest.state == "busy"
        and (arm := arm_of(where(cells, direction=contest.direction), BATCHED, contest.state))
    ]


def common_blocks(measured: pd.DataFrame) -> int:
    """Return the number of blocks that most backends have: 10 000 if it is one, else that with most sizes, the largest.

    `measured` has the columns backend, block_bytes and blocks and is not empty.
    """
    groups = {int(cells["blocks"].iloc[0]): cells for _, cells in measured.groupby("blocks")}
    backends = {blocks: cells["backend"].nunique() for blocks, cells in groups.items()}
    sizes = {blocks: cells["block_bytes"].nunique() for blocks, cells in groups.items()}
    return max(backends, key=lambda blocks: (backends[blocks], blocks == USUAL_BLOCKS, sizes[blocks], blocks))


def _table(view: View, contest: BackendContest, duels: Duels) -> DataTable:
    """Return GB/s of every backend by block size, with the crossovers below."""
    blocks, times = duels.blocks, duels.times(contest)
    # an arm without any figure at this number of blocks has nothing to say
    arms = [arm for arm in contest.arms if arm.backend in times]
    cells = where(pd.concat([arm.cells for arm in arms]), blocks=blocks)
    notes = Footnotes()
    body: list[list[Text]] = []
    for size in sorted({int(size) for size in cells["block_bytes"]}):
        row = {str(row["backend"]): row for row in rows_of(where(cells, block_bytes=size))}
        texts = {arm.backend: shown(row.get(arm.backend), notes, rate) for arm in arms}
        here = {backend: found[size] for backend, found in times.items() if size in found}
        body.append([bytes_size(size), *mark_fastest(texts, here).values()])
    measured = where(cells, status="ok")
    crossings = [f"Faster, {_crossover_words(other, fastest)}" for other, fastest in _winners(times).items()]
    return DataTable(
        f"{contest.direction}, {BATCHED} {_HEADS[contest.state]}, N = {count(blocks)}: GB/s",
        ("Block size", *(arm.backend for arm in arms)),
        body,
        [*crossings, _MARKS, *notes.lines],
        caption(view, measured, f"{_INCLUDES[contest.state]}. {settings(duels.pinned, measured)}"),
    )


def _winners(times: Mapping[str, Mapping[int, Quartiles]]) -> dict[str, Winners]:
    """Return for every other backend the winner between it and batched, where they share two sizes."""
    pairs = {
        other: winners({BATCHED: times[BATCHED], other: found})
        for other, found in times.items()
        if other != BATCHED and BATCHED in times
    }
    return {other: fastest for other, fastest in pairs.items() if len(fastest) >= _MIN_SIZES}


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


def _sentence(contest: BackendContest, duels: Duels) -> str:
    """Return where the faster of batched and another changes; those with the same winners are named together."""
    alike: dict[tuple[tuple[int, str | None], ...], list[str]] = {}
    for other, fastest in _winners(duels.times(contest)).items():
        named = ((size, _OTHER if name == other else name) for size, name in fastest.items())
        alike.setdefault(tuple(named), []).append(other)
    parts = [_duel(dict(fastest), names) for fastest, names in alike.items()]
    stream = a_stream(contest.state) + (f", {BATCHED} back to back" if contest.state == BACK_TO_BACK else "")
    return f"{contest.direction} on {stream}, N = {count(duels.blocks)}: {'; '.join(parts)}." if parts else ""


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


def _meets(contest: BackendContest, blocks: int) -> bool:
    first, *others = [set(_at(arm, blocks)) for arm in contest.arms]
    return any(len(first & other) >= _MIN_SIZES for other in others)


def _at(arm: Arm, blocks: int) -> dict[int, Quartiles]:
    return {size: times for (size, number), times in arm.times.items() if number == blocks}
