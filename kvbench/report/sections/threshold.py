"""The threshold: batched against the other backends at one number of blocks, and where the faster one changes."""

from collections.abc import Mapping, Sequence
from typing import Final

import pandas as pd

from kvbench.analysis.compare import MIN_PAIRS, Visits, winners
from kvbench.analysis.curves import crossovers
from kvbench.analysis.margins import IN_TURN
from kvbench.cells.backend_facts import BATCHED
from kvbench.report.captions import includes_of
from kvbench.report.model import DataTable, Finding, Part, PartOrReason, Text
from kvbench.report.numbers import bytes_size, count
from kvbench.report.select import where
from kvbench.report.table_rows import MARKS, fastest_marked, label_of, measured_table, rate, rows_of
from kvbench.report.view import View
from kvbench.text import a_stream

USUAL_BLOCKS: Final = 10_000
_MIN_SIZES: Final = 2
_WEIGHT: Final = 0.1  # the first lines of the first page say as much
_NEEDED: Final = (
    f"it needs {BATCHED} and another backend measured at {_MIN_SIZES} block sizes with the same number of blocks, "
    "direction and stream state"
)

Times = Mapping[str, Mapping[int, Visits]]  # of swap_us, by backend and block bytes
Winners = Mapping[int, str | None]  # by block bytes


def make(view: View) -> PartOrReason:
    cells = [arm for arms in view.contests.values() for arm in arms.values()]
    if not cells:
        return _NEEDED
    measured = pd.concat(cells)
    blocks = common_blocks(measured[measured["cell_id"].isin(view.visits)])
    tables, highlights = [], []
    for (direction, state), arms in view.contests.items():
        rows = {backend: where(cells, blocks=blocks) for backend, cells in arms.items()}
        times = {backend: visits for backend, cells in rows.items() if (visits := _times(view, cells))}
        if max((len(_shared_sizes(times, other)) for other in times), default=0) < _MIN_SIZES:
            continue
        heads = {backend: label_of(backend, rows[backend]) for backend in times}
        lines = _compare_with_batched(times, heads)
        title = f"{direction}, {state} stream, N = {count(blocks)}: GB/s"
        tables.append(_table(view, title, pd.concat([rows[backend] for backend in times]), times, heads, lines))
        if lines:
            text = f"{direction} on {a_stream(state)}, N = {count(blocks)}: {'; '.join(lines)}."
            highlights.append(Finding(text, _WEIGHT))
    return (lambda: Part(tables=tables, highlights=highlights)) if tables else _NEEDED


def common_blocks(measured: pd.DataFrame) -> int:
    """Return the number of blocks that most backends have: 10 000 if it is one, else that with most sizes, the largest.

    `measured` has the columns backend, block_bytes and blocks and is not empty.
    """
    kinds = measured.groupby("blocks").nunique()
    ranks = zip(kinds["backend"], kinds.index == USUAL_BLOCKS, kinds["block_bytes"], kinds.index, strict=True)
    return int(max(ranks)[-1])


def _times(view: View, cells: pd.DataFrame) -> dict[int, Visits]:
    rows = rows_of(cells[cells["cell_id"].isin(view.visits)])
    return {int(row["block_bytes"]): view.visits[row["cell_id"]] for row in rows}


def _shared_sizes(times: Times, other: str) -> set[int]:
    return set[int]() if other == BATCHED else times.get(BATCHED, {}).keys() & times[other].keys()


def _compare_with_batched(times: Times, heads: Mapping[str, str]) -> list[str]:
    """Return how batched compares with each backend that shares sizes with it, once for backends with the same winners.

    A backend with fewer than two sizes with the visits of a verdict is left out.
    """
    alike: dict[tuple[tuple[tuple[int, str | None], ...], tuple[int, ...]], list[str]] = {}
    for other in times:
        shared = _shared_sizes(times, other)
        visits = {size: min(len(times[name][size]) for name in (BATCHED, other)) for size in shared}
        few = tuple(sorted(size for size in shared if visits[size] < MIN_PAIRS))
        if len(shared) - len(few) >= _MIN_SIZES:
            judged = {name: {size: times[name][size] for size in shared.difference(few)} for name in (BATCHED, other)}
            ends = tuple((size, "" if name == other else name) for size, name in winners(judged, IN_TURN).items())
            alike.setdefault((ends, few), []).append(heads[other])
    return [_comparison_text(names, dict(ends), few) for (ends, few), names in alike.items()]


def _comparison_text(names: list[str], fastest: Winners, few: Sequence[int]) -> str:
    """Return how batched compares with `names`; a winner is "batched", "" for these, None where undecided."""
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
    unclear = ", ".join(bytes_size(size) for size, name in fastest.items() if name is None)
    return line + (f" (no clear difference at {unclear})" if unclear else "") + unjudged


def _table(
    view: View, title: str, cells: pd.DataFrame, times: Times, heads: Mapping[str, str], comparisons: list[str]
) -> DataTable:
    measured = where(cells, status="ok")
    body: list[list[Text]] = []
    for size in sorted({int(size) for size in cells["block_bytes"]}):
        rows = rows_of(where(cells, block_bytes=size))
        body.append([bytes_size(size), *fastest_marked(rows, times, rate, view.visits)])
    header, included = ("Block size", *heads.values()), includes_of(str(cells["stream_state"].iloc[0]))
    compared = len(measured) - len(body)
    return measured_table(view, measured, title, header, body, included, view.pinned, [*comparisons, MARKS], compared)
