"""The threshold (T4): batched against the other backends at one number of blocks, and where the faster one changes."""

from collections.abc import Mapping
from typing import Final

import pandas as pd

from kvbench.crossovers import crossovers, leaders, winners
from kvbench.report import markdown as md
from kvbench.report.contest import BATCHED, Arm, Contest, contests
from kvbench.report.selection import Pinned
from kvbench.report.tables import INCLUDES, Footnotes, Table, rate, rows_of, settings, shown
from kvbench.report.view import View
from kvbench.stats import Quartiles
from kvbench.units import format_size

USUAL_BLOCKS: Final = 10_000
_MIN_SIZES: Final = 2
_MARKS: Final = (
    "**Bold**: the fastest of its row. ≈: undecided, the quartiles of the fastest and of this one overlap "
    "(differences between two processes or two days are not in them)"
)


def threshold_tables(view: View) -> list[Table] | str:
    """Return T4, a table per direction and stream state with the crossovers below it; or why there is none."""
    found = contests(view)
    shapes = [(arm.backend, *shape) for contest in found.contests for arm in contest.arms for shape in arm.times]
    if shapes:
        blocks = common_blocks(pd.DataFrame(shapes, columns=["backend", "block_bytes", "blocks"]))
        tables = [_table(view, contest, blocks, found.pinned) for contest in found.contests if _meets(contest, blocks)]
        if tables:
            return tables
    return (
        f"it needs {BATCHED} and another backend measured at {_MIN_SIZES} block sizes with the same number of blocks, "
        "direction and stream state"
    )


def common_blocks(measured: pd.DataFrame) -> int:
    """Return the number of blocks that most backends have: 10 000 if it is one, else that with most sizes, the largest.

    `measured` has the columns backend, block_bytes and blocks and is not empty.
    """
    groups = {int(cells["blocks"].iloc[0]): cells for _, cells in measured.groupby("blocks")}
    backends = {blocks: cells["backend"].nunique() for blocks, cells in groups.items()}
    sizes = {blocks: cells["block_bytes"].nunique() for blocks, cells in groups.items()}
    return max(backends, key=lambda blocks: (backends[blocks], blocks == USUAL_BLOCKS, sizes[blocks], blocks))


def crossover_words(one: str, other: str, fastest: Mapping[int, str | None]) -> str:
    """Return in Markdown between which sizes the faster of two arms changes, from `winners` of their times."""
    decided = sorted({name for name in fastest.values() if name is not None})
    open_sizes = [size for size, name in sorted(fastest.items()) if name is None]
    head = f"{md.escape(one)} against {md.escape(other)}: "
    if not decided:
        return f"{head}undecided at {_sizes(open_sizes)}"
    changes = [
        f"from {md.escape(change.before)} to {md.escape(change.after)} between {_size(change.below_bytes)} and "
        f"{_size(change.above_bytes)}"
        for change in crossovers(fastest)
    ]
    where = "wherever it is decided" if open_sizes else "at every size"
    found = ", ".join(changes) if changes else f"none, {md.escape(decided[0])} is faster {where}"
    return f"{head}{found}{f'; undecided at {_sizes(open_sizes)}' if open_sizes else ''}"


def _table(view: View, contest: Contest, blocks: int, pinned: Pinned) -> Table:
    times = {arm.backend: _at(arm, blocks) for arm in contest.arms}
    # an arm without any figure at this number of blocks has nothing to say
    arms = [arm for arm in contest.arms if times[arm.backend]]
    cells = pd.concat([arm.cells[arm.cells["blocks"] == blocks] for arm in arms])
    notes = Footnotes()
    body = []
    for size in sorted({int(size) for size in cells["block_bytes"]}):
        row = {str(row["backend"]): row for row in rows_of(cells[cells["block_bytes"] == size])}
        texts = {arm.backend: shown(row.get(arm.backend), notes, rate) for arm in arms}
        here = {label: found[size] for label, found in times.items() if size in found}
        marked = leaders(here) if len(here) > 1 else []
        for label in marked:
            texts[label] = f"**{texts[label]}**" if len(marked) == 1 else f"≈ {texts[label]}"
        body.append([_size(size), *texts.values()])
    measured = cells[cells["status"] == "ok"]
    head = f"{contest.direction}, {BATCHED} on {'an idle' if contest.state == 'idle' else 'a busy'} stream"
    lines = [*_crossover_lines(contest, times), _MARKS, *notes.lines]
    includes = f"{INCLUDES[contest.state]}. {settings(pinned, measured)}"
    return Table(
        f"{head}, N = {md.count(blocks)}: GB/s",
        ("Block size", *(md.escape(arm.backend) for arm in arms)),
        body,
        lines,
        view.caption(measured, includes),
    )


def _crossover_lines(contest: Contest, times: Mapping[str, Mapping[int, Quartiles]]) -> list[str]:
    first, *others = [arm.backend for arm in contest.arms]
    pairs = {other: winners({first: times[first], other: times[other]}) for other in others}
    return [f"Faster, {crossover_words(first, other, fastest)}" for other, fastest in pairs.items() if len(fastest) > 1]


def _meets(contest: Contest, blocks: int) -> bool:
    first, *others = [set(_at(arm, blocks)) for arm in contest.arms]
    return any(len(first & other) >= _MIN_SIZES for other in others)


def _at(arm: Arm, blocks: int) -> dict[int, Quartiles]:
    return {size: times for (size, count), times in arm.times.items() if count == blocks}


def _size(size_bytes: int) -> str:
    return md.size(format_size(size_bytes))


def _sizes(sizes: list[int]) -> str:
    return ", ".join(map(_size, sizes))
