"""Access order: STREAM against ANY, cells that are equal in all else, visit against visit of the same round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from kvbench.analysis.intervals import MIN_PAIRS, Ratio, paired_ratio
from kvbench.report.model import DataTable, Part, Section
from kvbench.report.numbers import count, figure, size
from kvbench.report.select import DIRECTIONS, Pinned, pin
from kvbench.report.tables import INCLUDES, Row, a_stream, caption, ends, rows_of, settings
from kvbench.report.view import View

_RACE: Final = (
    "† ANY on d2h lets the driver read the source before earlier work on the stream has finished: "
    "right only where nothing still writes it"
)
_DELTA: Final = (
    "Delta: median over rounds of ANY / STREAM - 1, each from the medians of a round's two visits, with its 95% "
    "interval; ≈ where the interval contains 0: no difference beyond the noise of this run"
)


@dataclass(frozen=True, slots=True)
class OrderTime:
    """A time that a table compares: its column, its unit there, its scale from us, and what it is called."""

    column: str
    unit: str
    scale: float
    title: str


_TIMES: Final = (OrderTime("gpu_us", "ms", 1e-3, "GPU time"), OrderTime("submit_us", "us", 1.0, "host submission"))


@dataclass(frozen=True, slots=True)
class OrderPair:
    """One shape: medians in us of STREAM and ANY by time, and ANY over STREAM or why that is undecided."""

    direction: str
    blocks: int
    block_size: str
    medians: Mapping[str, tuple[float, float]]
    changes: Mapping[str, Ratio | str]


@dataclass(frozen=True, slots=True)
class OrderContest:
    """The pairs of one backend and stream state, and the rows behind them."""

    backend: str
    state: str
    pairs: Sequence[OrderPair]
    cells: pd.DataFrame


def make(view: View) -> Part | str:
    pinned = pin(view.measured[view.measured["order"].notna()], shown=("order",))
    contests = _contests(view, pinned)
    if not contests:
        return "it needs cells measured with order stream and with order any that are equal in all else"
    tables = [_table(view, contest, pinned, time) for contest in contests for time in _TIMES]
    return Part(tables=tables, told=[_sentence(contest) for contest in contests])


SECTION = Section("access-order", "Access order: STREAM against ANY", make)


def _contests(view: View, pinned: Pinned) -> list[OrderContest]:
    """Return the cells measured both with STREAM and with ANY."""
    keys = ["backend", "stream_state", "direction", "blocks", "block_bytes", "block_size"]
    arms = {order: pinned.cells[pinned.cells["order"] == order] for order in ("stream", "any")}
    both = arms["stream"].merge(arms["any"], on=keys, suffixes=("_stream", "_any"))
    samples = view.samples({*both["cell_id_stream"], *both["cell_id_any"]})
    found = []
    for (backend, state), group in both.groupby(["backend", "stream_state"], sort=False):
        ordered = group.sort_values(["direction", "block_bytes", "blocks"], ascending=[False, True, True])
        pairs = [_pair(row, *(samples[row[f"cell_id_{arm}"]] for arm in arms)) for row in rows_of(ordered)]
        cells = pd.concat([arm.merge(group[keys], on=keys) for arm in arms.values()])
        found.append(OrderContest(str(backend), str(state), pairs, cells))
    return found


def _pair(row: Row, stream: pd.DataFrame, other: pd.DataFrame) -> OrderPair:
    times = [time.column for time in _TIMES]
    medians = {time: (float(stream[time].median()), float(other[time].median())) for time in times}
    rounds = [arm.groupby("round")[times].median() for arm in (stream, other)]
    changes = {time: _change(*(arm[time] for arm in rounds)) for time in times}
    return OrderPair(str(row["direction"]), int(row["blocks"]), str(row["block_size"]), medians, changes)


def _change(stream: "pd.Series[float]", other: "pd.Series[float]") -> Ratio | str:
    """Return other / stream over the rounds that both have, or why that is undecided.

    Both hold a median for each round, by its number.
    """
    rounds = stream.index.intersection(other.index)
    first, second = (np.asarray(arm[rounds], dtype=np.float64) for arm in (stream, other))
    if len(rounds) < MIN_PAIRS:
        return f"{len(rounds)} rounds of {MIN_PAIRS}"
    if min(first.min(), second.min()) <= 0:
        return "times of 0"
    return paired_ratio(first, second)


def _change_words(found: Ratio | str) -> str:
    """Return a change in percent, marked "≈" inside the noise, or that it is undecided."""
    if isinstance(found, str):
        return f"undecided: {found}"
    low, value, high = ((end - 1) * 100 for end in (found.low, found.value, found.high))
    return f"{'' if found.decided else '≈ '}{value:+.1f}% [{low:+.1f}, {high:+.1f}]"


def _table(view: View, contest: OrderContest, pinned: Pinned, time: OrderTime) -> DataTable:
    rows = [
        [
            pair.direction,
            count(pair.blocks),
            size(pair.block_size),
            *(figure(median * time.scale) for median in pair.medians[time.column]),
            _change_words(pair.changes[time.column]) + ("†" if pair.direction == "d2h" else ""),
        ]
        for pair in contest.pairs
    ]
    return DataTable(
        f"STREAM against ANY: {time.title} ({contest.backend}, {contest.state} stream)",
        ("Dir", "Blocks", "BlkSize", f"STREAM med {time.unit}", f"ANY med {time.unit}", "Delta [95%]"),
        rows,
        [_DELTA, *([_RACE] if any(pair.direction == "d2h" for pair in contest.pairs) else [])],
        caption(view, contest.cells, f"{INCLUDES[time.column]}. {settings(pinned, contest.cells)}"),
    )


def _sentence(contest: OrderContest) -> str:
    """Return what ANY changes against STREAM, beyond the noise."""
    ways = {way: [pair for pair in contest.pairs if pair.direction == way] for way in DIRECTIONS}
    parts = [f"{way} {' and '.join(_changed(pairs, time) for time in _TIMES)}" for way, pairs in ways.items() if pairs]
    return f"ANY instead of STREAM for {contest.backend} on {a_stream(contest.state)}: {'; '.join(parts)}."


def _changed(pairs: Sequence[OrderPair], time: OrderTime) -> str:
    ratios = [change for pair in pairs if isinstance(change := pair.changes[time.column], Ratio)]
    if not ratios:
        return f"{time.title} undecided (too few rounds)"
    beyond = [ratio.value - 1 for ratio in ratios if ratio.decided]
    if not beyond:
        return f"{time.title} within the noise in all {len(ratios)} cells"
    changes = ends(beyond, lambda share: f"{share:+.1%}")
    return f"{time.title} beyond the noise in {len(beyond)} of {len(ratios)} cells ({changes})"
