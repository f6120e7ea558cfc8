"""The threshold (T4): batched against the other backends at one number of blocks, and where the faster one changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from kvbench.analysis.curves import crossovers, winners
from kvbench.analysis.intervals import Quartiles
from kvbench.report import markdown as md
from kvbench.report.contest import BACK_TO_BACK, BATCHED, Arm, Contest, back_to_back, contests
from kvbench.report.select import Pinned
from kvbench.report.tables import INCLUDES, Footnotes, Table, mark_fastest, rate, rows_of, settings, shown
from kvbench.report.view import View

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
    "**Bold**: the fastest of its row. ≈: undecided, the quartiles of the fastest and of this one overlap "
    "(differences between two processes or two days are not in them)"
)


@dataclass(frozen=True, slots=True)
class Duels:
    """The contests of a run that meet at `blocks` blocks."""

    contests: Sequence[Contest]
    blocks: int
    pinned: Pinned

    def times(self, contest: Contest) -> dict[str, dict[int, Quartiles]]:
        """Return backend -> block bytes -> swap_us; batched first, without backends that have no figure here."""
        return {arm.backend: found for arm in contest.arms if (found := _at(arm, self.blocks))}


def threshold_duels(view: View) -> Duels | str:
    """Return what T4 compares; or why there is nothing to compare."""
    found = view.once(contests)
    shapes = [(arm.backend, *shape) for contest in found.contests for arm in contest.arms for shape in arm.times]
    if shapes:
        blocks = common_blocks(pd.DataFrame(shapes, columns=["backend", "block_bytes", "blocks"]))
        meeting = [contest for contest in (*found.contests, *back_to_back(view)) if _meets(contest, blocks)]
        if meeting:
            return Duels(meeting, blocks, found.pinned)
    return (
        f"it needs {BATCHED} and another backend measured at {_MIN_SIZES} block sizes with the same number of blocks, "
        "direction and stream state"
    )


def threshold_tables(view: View, duels: Duels) -> list[Table]:
    """Return T4, a table per direction and stream state with the crossovers below it."""
    return [_table(view, contest, duels) for contest in duels.contests]


def common_blocks(measured: pd.DataFrame) -> int:
    """Return the number of blocks that most backends have: 10 000 if it is one, else that with most sizes, the largest.

    `measured` has the columns backend, block_bytes and blocks and is not empty.
    """
    groups = {int(cells["blocks"].iloc[0]): cells for _, cells in measured.groupby("blocks")}
    backends = {blocks: cells["backend"].nunique() for blocks, cells in groups.items()}
    sizes = {blocks: cells["block_bytes"].nunique() for blocks, cells in groups.items()}
    return max(backends, key=lambda blocks: (backends[blocks], blocks == USUAL_BLOCKS, sizes[blocks], blocks))


def duel_winners(times: Mapping[str, Mapping[int, Quartiles]]) -> dict[str, dict[int, str | None]]:
    """Return for every other backend the winner between it and batched, by block bytes, where they share two sizes."""
    pairs = {
        other: winners({BATCHED: times[BATCHED], other: found})
        for other, found in times.items()
        if other != BATCHED and BATCHED in times
    }
    return {other: fastest for other, fastest in pairs.items() if len(fastest) >= _MIN_SIZES}


def crossover_words(one: str, other: str, fastest: Mapping[int, str | None]) -> str:
    """Return in Markdown between which sizes the faster of two arms changes, from `winners` of their times."""
    decided = sorted({name for name in fastest.values() if name is not None})
    open_sizes = [size for size, name in sorted(fastest.items()) if name is None]
    head = f"{md.escape(one)} against {md.escape(other)}: "
    if not decided:
        return f"{head}undecided at {_sizes(open_sizes)}"
    changes = [
        f"from {md.escape(change.before)} to {md.escape(change.after)} between {md.bytes_size(change.below_bytes)} and "
        f"{md.bytes_size(change.above_bytes)}"
        for change in crossovers(fastest)
    ]
    where = "wherever it is decided" if open_sizes else "at every size"
    found = ", ".join(changes) if changes else f"none, {md.escape(decided[0])} is faster {where}"
    return f"{head}{found}{f'; undecided at {_sizes(open_sizes)}' if open_sizes else ''}"


def _table(view: View, contest: Contest, duels: Duels) -> Table:
    blocks, times = duels.blocks, duels.times(contest)
    # an arm without any figure at this number of blocks has nothing to say
    arms = [arm for arm in contest.arms if arm.backend in times]
    cells = pd.concat([arm.cells[arm.cells["blocks"] == blocks] for arm in arms])
    notes = Footnotes()
    body = []
    for size in sorted({int(size) for size in cells["block_bytes"]}):
        row = {str(row["backend"]): row for row in rows_of(cells[cells["block_bytes"] == size])}
        texts = {arm.backend: shown(row.get(arm.backend), notes, rate) for arm in arms}
        here = {label: found[size] for label, found in times.items() if size in found}
        body.append([md.bytes_size(size), *mark_fastest(texts, here).values()])
    measured = cells[cells["status"] == "ok"]
    head = f"{contest.direction}, {BATCHED} {_HEADS[contest.state]}"
    lines = [*_crossover_lines(times), _MARKS, *notes.lines]
    includes = f"{_INCLUDES[contest.state]}. {settings(duels.pinned, measured)}"
    return Table(
        f"{head}, N = {md.count(blocks)}: GB/s",
        ("Block size", *(md.escape(arm.backend) for arm in arms)),
        body,
        lines,
        view.caption(measured, includes),
    )


def _crossover_lines(times: Mapping[str, Mapping[int, Quartiles]]) -> list[str]:
    found = duel_winners(times)
    return [f"Faster, {crossover_words(BATCHED, other, fastest)}" for other, fastest in found.items()]


def _meets(contest: Contest, blocks: int) -> bool:
    first, *others = [set(_at(arm, blocks)) for arm in contest.arms]
    return any(len(first & other) >= _MIN_SIZES for other in others)


def _at(arm: Arm, blocks: int) -> dict[int, Quartiles]:
    return {size: times for (size, count), times in arm.times.items() if count == blocks}


def _sizes(sizes: list[int]) -> str:
    return ", ".join(map(md.bytes_size, sizes))
