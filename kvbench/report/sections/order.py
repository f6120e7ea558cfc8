"""Access order (T2): STREAM against ANY, cells that are equal in all else, visit against visit of the same round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from kvbench.analysis.intervals import MIN_PAIRS, Ratio, paired_ratio
from kvbench.report import markdown as md
from kvbench.report.select import Pinned, pin
from kvbench.report.tables import INCLUDES, Row, Table, rows_of, settings
from kvbench.report.view import View

_RACE: Final = (
    "† ANY on d2h lets the driver read the source before earlier work on the stream has finished: "
    "right only where nothing still writes it"
)
_DELTA: Final = (
    "Delta: median over rounds of ANY / STREAM - 1, each from the medians of a round's two visits, with its 95% "
    "interval; ≈ where the interval contains 0: no difference beyond the noise of this run"
)

# A time, the unit of its table, its scale from us, and what it is called.
_TIMES: Final = (("gpu_us", "ms", 1e-3, "GPU time"), ("submit_us", "us", 1.0, "host submission"))


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


@dataclass(frozen=True, slots=True)
class OrderContests:
    """All contests of a run; `pinned` says what the axes that are not shown were set to."""

    contests: Sequence[OrderContest]
    pinned: Pinned


def order_contests(view: View) -> OrderContests | str:
    """Return the cells measured both with STREAM and with ANY; or why there are none."""
    pinned = pin(view.measured[view.measured["order"].notna()], shown=("order",))
    keys = ["backend", "stream_state", "direction", "blocks", "block_bytes", "block_size"]
    arms = {order: pinned.cells[pinned.cells["order"] == order] for order in ("stream", "any")}
    both = arms["stream"].merge(arms["any"], on=keys, suffixes=("_stream", "_any"))
    if both.empty:
        return "it needs cells measured with order stream and with order any that are equal in all else"
    samples = view.samples({*both["cell_id_stream"], *both["cell_id_any"]})
    found = []
    for (backend, state), group in both.groupby(["backend", "stream_state"], sort=False):
        ordered = group.sort_values(["direction", "block_bytes", "blocks"], ascending=[False, True, True])
        pairs = [_pair(row, *(samples[row[f"cell_id_{arm}"]] for arm in arms)) for row in rows_of(ordered)]
        cells = pd.concat([arm.merge(group[keys], on=keys) for arm in arms.values()])
        found.append(OrderContest(str(backend), str(state), pairs, cells))
    return OrderContests(found, pinned)


def order_tables(view: View, found: OrderContests) -> list[Table]:
    """Return T2: a table for GPU time and one for host submission, per backend and stream state."""
    return [
        _table(view, contest, found.pinned, time, unit, scale, what)
        for contest in found.contests
        for time, unit, scale, what in _TIMES
    ]


def change(stream: "pd.Series[float]", other: "pd.Series[float]") -> Ratio | str:
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


def change_words(found: Ratio | str) -> str:
    """Return a change in percent, marked "≈" inside the noise, or that it is undecided."""
    if isinstance(found, str):
        return f"undecided: {found}"
    low, value, high = ((end - 1) * 100 for end in (found.low, found.value, found.high))
    return f"{'' if found.decided else '≈ '}{value:+.1f}% [{low:+.1f}, {high:+.1f}]"


def _pair(row: Row, stream: pd.DataFrame, other: pd.DataFrame) -> OrderPair:
    times = [time for time, *_ in _TIMES]
    medians = {time: (float(stream[time].median()), float(other[time].median())) for time in times}
    rounds = [arm.groupby("round")[times].median() for arm in (stream, other)]
    changes = {time: change(*(arm[time] for arm in rounds)) for time in times}
    return OrderPair(str(row["direction"]), int(row["blocks"]), str(row["block_size"]), medians, changes)


def _table(view: View, contest: OrderContest, pinned: Pinned, time: str, unit: str, scale: float, what: str) -> Table:
    rows = [
        [
            pair.direction,
            md.count(pair.blocks),
            md.size(pair.block_size),
            *(md.figure(median * scale) for median in pair.medians[time]),
            change_words(pair.changes[time]) + ("†" if pair.direction == "d2h" else ""),
        ]
        for pair in contest.pairs
    ]
    return Table(
        f"STREAM against ANY: {what} ({md.escape(contest.backend)}, {contest.state} stream)",
        ("Dir", "Blocks", "BlkSize", f"STREAM med {unit}", f"ANY med {unit}", "Delta [95%]"),
        rows,
        [_DELTA, *([_RACE] if any(pair.direction == "d2h" for pair in contest.pairs) else [])],
        view.caption(contest.cells, f"{INCLUDES[time]}. {settings(pinned, contest.cells)}"),
    )
