"""Access order: STREAM against ANY, cells that are equal in all else, visit against visit of the same round."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pandas as pd

from kvbench.analysis.intervals import MIN_PAIRS, Ratio, paired_ratio
from kvbench.report.model import DataTable, Part, Section
from kvbench.report.numbers import count, figure, size
from kvbench.report.select import DIRECTIONS, Pinned, pin, where
from kvbench.report.tables import INCLUDES, Row, a_stream, caption, ends, rows_of
from kvbench.report.view import View

_RACE: Final = (
    "† ANY on d2h lets the driver read the source before earlier work on the stream has finished: "
    "right only where nothing still writes it"
)
_DELTA: Final = (
    "Delta: median over rounds of ANY / STREAM - 1, each from the medians of a round's two visits, with its 95% "
    "interval; ≈ where the interval contains 0: no difference beyond the noise of this run"
)
_TIMES: Final = {"gpu_us": "GPU time", "submit_us": "host submission"}
_KEYS: Final = ["backend", "stream_state", "direction", "blocks", "block_bytes", "block_size"]
_IDS: Final = ["cell_id_stream", "cell_id_any"]

Changes = Mapping[str, Ratio | str]  # by time: ANY over STREAM, or why that is undecided


def make(view: View) -> Part | str:
    pinned = pin(view.measured[view.measured["order"].notna()], shown=("order",))
    stream, other = (where(pinned.cells, order=order) for order in ("stream", "any"))
    both = stream.merge(other, on=_KEYS, suffixes=("_stream", "_any"))
    if both.empty:
        return "it needs cells measured with order stream and with order any that are equal in all else"
    samples = view.samples({*both[_IDS[0]], *both[_IDS[1]]})
    tables, told = [], []
    for _, group in both.groupby(["backend", "stream_state"], sort=False):
        rows = rows_of(group.sort_values(["direction", "block_bytes", "blocks"], ascending=[False, True, True]))
        arms = [[samples[row[name]] for name in _IDS] for row in rows]
        changes = [{time: _change(pair, time) for time in _TIMES} for pair in arms]
        for time in _TIMES:
            medians = [[float(arm[time].median()) for arm in pair] for pair in arms]
            tables.append(_table(view, pinned, time, rows, medians, [change[time] for change in changes]))
        told.append(_sentence(rows, changes))
    return Part(tables=tables, told=told)


SECTION = Section("access-order", "Access order: STREAM against ANY", make)


def _change(arms: Sequence[pd.DataFrame], time: str) -> Ratio | str:
    """Return ANY over STREAM, over the rounds that both have, or why that is undecided.

    `arms` are the samples of two cells: with STREAM, with ANY.
    """
    medians = [arm.groupby("round")[time].median() for arm in arms]
    rounds = medians[0].index.intersection(medians[1].index)
    first, second = (np.asarray(arm[rounds], dtype=np.float64) for arm in medians)
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


def _table(
    view: View,
    pinned: Pinned,
    time: str,
    rows: Sequence[Row],
    medians_us: Sequence[Sequence[float]],
    changes: Sequence[Ratio | str],
) -> DataTable:
    unit, scale = ("ms", 1e-3) if time == "gpu_us" else ("us", 1.0)
    body = []
    for row, pair, change in zip(rows, medians_us, changes, strict=True):
        cell = [row["direction"], count(row["blocks"]), size(row["block_size"])]
        mark = "†" if row["direction"] == "d2h" else ""
        body.append([*cell, *(figure(median * scale) for median in pair), f"{_change_words(change)}{mark}"])
    cells = pinned.cells[pinned.cells["cell_id"].isin({row[name] for row in rows for name in _IDS})]
    return DataTable(
        f"STREAM against ANY: {_TIMES[time]} ({rows[0]['backend']}, {rows[0]['stream_state']} stream)",
        ("Dir", "Blocks", "BlkSize", f"STREAM med {unit}", f"ANY med {unit}", "Delta [95%]"),
        body,
        [_DELTA, *([_RACE] if any(row["direction"] == "d2h" for row in rows) else [])],
        caption(view, cells, INCLUDES[time], pinned),
    )


def _sentence(rows: Sequence[Row], changes: Sequence[Changes]) -> str:
    """Return what ANY changes against STREAM, beyond the noise."""
    parts = []
    for way in DIRECTIONS:
        if own := [change for row, change in zip(rows, changes, strict=True) if row["direction"] == way]:
            times = (_changed([change[time] for change in own], title) for time, title in _TIMES.items())
            parts.append(f"{way} {' and '.join(times)}")
    return f"ANY instead of STREAM for {rows[0]['backend']} on {a_stream(rows[0]['stream_state'])}: {'; '.join(parts)}."


def _changed(changes: Sequence[Ratio | str], title: str) -> str:
    ratios = [change for change in changes if isinstance(change, Ratio)]
    if not ratios:
        return f"{title} undecided (too few rounds)"
    beyond = [ratio.value - 1 for ratio in ratios if ratio.decided]
    if not beyond:
        return f"{title} within the noise in all {len(ratios)} cells"
    changed = ends(beyond, lambda share: f"{share:+.1%}")
    return f"{title} beyond the noise in {len(beyond)} of {len(ratios)} cells ({changed})"
