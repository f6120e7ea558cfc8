"""What merging adjacent descriptors costs and saves: batched copies with it and without, pattern by pattern."""

from typing import Final

import pandas as pd

from kvbench.analysis.intervals import Quartiles
from kvbench.report.contests import time_ratio
from kvbench.report.model import DataTable, Part, Section
from kvbench.report.numbers import count, figure, size
from kvbench.report.select import SERIES, SIDE_AXES
from kvbench.report.tables import Row, caption, rows_of, swap_quartiles
from kvbench.report.view import View
from kvbench.results.frame import unqueued

_SHAPE: Final = ("blocks", "block_bytes", "pattern")
_SHARED: Final = (*SERIES, *(axis for axis in SIDE_AXES if axis not in (*_SHAPE, "coalesce")))
_NAMED: Final = ("order", "sms", "descriptors_per_call", "kernel")
_WAYS: Final = ("off", "on")
_INCLUDES: Final = (
    "Medians in us of a swap: wall_us on an idle stream, gpu_us on a busy one. Off: as listed. On: after merging what "
    "is adjacent on both sides. Merging: coalesce_us, the host's time for it, before the swap and not in it. Saved: "
    "off less on and merging, as a share of off; ≈ where the quartiles of off and of on with merging overlap"
)


def make(view: View) -> Part | str:
    measured = unqueued(view.measured)
    off, on = (measured[measured["coalesce"] == word] for word in _WAYS)
    pairs = off.merge(on, on=[*_SHARED, *_SHAPE], suffixes=("_off", "_on"))
    if pairs.empty:
        return "it needs cells with coalesce=off and coalesce=on that are alike otherwise"
    tables = [_table(view, measured, group) for _, group in pairs.groupby(list(_SHARED), dropna=False)]
    return Part(tables=sorted(tables, key=lambda table: table.title))


SECTION = Section("merging", "Merging adjacent descriptors: what it costs and saves", make)


def _table(view: View, measured: pd.DataFrame, pairs: pd.DataFrame) -> DataTable:
    one = pairs.iloc[0]
    title = f"{one['direction']}, {one['backend']}, {one['stream_state']} stream"
    header = ("Pattern", "Blocks", "Block size", "Off us", "On us", "Merging us", "Saved")
    rows = [_row(row) for row in rows_of(pairs.sort_values(["block_bytes", "blocks", "pattern"]))]
    shown = measured[measured["cell_id"].isin({*pairs["cell_id_off"], *pairs["cell_id_on"]})]
    others = ", ".join(f"{axis} {one[axis]}" for axis in _NAMED if pd.notna(one[axis]))
    return DataTable(title, header, rows, [], caption(view, shown, "; ".join(filter(None, (_INCLUDES, others)))))


def _row(row: Row) -> list[str]:
    off, on = (swap_quartiles(row, f"_{way}") for way in _WAYS)
    merging = float(row["coalesce_us_median_on"])
    saved = 1 - (on.median + merging) / off.median
    whole = Quartiles(on.low + merging, on.median + merging, on.high + merging)
    return [
        row["pattern"],
        count(row["blocks"]),
        size(row["block_size_off"]),
        *map(figure, (off.median, on.median, merging)),
        f"{'' if time_ratio(whole, off).decided else '≈ '}{saved:+.0%}",
    ]
