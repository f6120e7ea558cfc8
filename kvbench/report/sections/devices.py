"""Devices: what swaps keep of their rate while other devices of the host swap too."""

from collections.abc import Sequence

import pandas as pd

from kvbench.cells.cell import AXES
from kvbench.report.model import DataTable, Part, Section, Text
from kvbench.report.numbers import TIMES, figure, noun, size
from kvbench.report.tables import caption, rows_of
from kvbench.report.view import View

_INCLUDES = (
    "GB/s of a cell alone, and while every device swaps its own blocks at the same time. Share: the second over the "
    "first. All: sums over the devices, where the report holds each of them"
)
_KEY = [name for name in AXES if name != "devices"]


def make(view: View) -> Part | str:
    if _pairs(view).empty:
        return "it needs cells that several devices swapped at once (--device cuda:all)"
    runs = [run for run in (*view.earlier, view) if not _pairs(run).empty]
    return Part(tables=[_table(runs[: place + 1], named=len(runs) > 1) for place in range(len(runs))])


SECTION = Section("devices", "Devices: swaps on all of them at once", make, of_all=True)


def _table(runs: Sequence[View], *, named: bool) -> DataTable:
    """Return the table of the last of `runs`, with sums where they are every device's; `named` after its run."""
    view, pairs = runs[-1], [_pairs(run) for run in runs]
    own = pairs[-1]
    count = int(own["devices"].max())
    whole = pairs if len(pairs) == count else []
    body: list[list[Text]] = [_row(row, whole) for row in rows_of(own)]
    header = ("Swaps", "GB/s alone", "GB/s at once", "Share", "All alone", "All at once", "Share of all")
    cells = view.measured[view.measured["cell_id"].isin(own["cell_id"])]
    title = f"{view.run.info.device.get('name')} beside {noun(count - 1, 'other device')}"
    title = f"{view.label}: {title}" if named else title
    return DataTable(title, header, body, [], caption(view, cells, _INCLUDES))


def _pairs(view: View) -> pd.DataFrame:
    """Return the measured cells of several devices with their rate alone, `gbps_alone`."""
    measured = view.measured
    alone = measured[measured["devices"] == 1][[*_KEY, "gbps"]]
    together = measured[measured["devices"] > 1]
    return together.merge(alone, on=_KEY, suffixes=("", "_alone"))


def _row(row: dict[str, object], runs: Sequence[pd.DataFrame]) -> list[Text]:
    cells = [pairs[pairs["cell_id"] == row["cell_id"]] for pairs in runs]
    alone, at_once = float(str(row["gbps_alone"])), float(str(row["gbps"]))
    everywhere = bool(cells) and all(len(found) == 1 for found in cells)
    sums = [sum(float(found[name].iloc[0]) for found in cells) for name in ("gbps_alone", "gbps")]
    total = [*map(figure, sums), f"{sums[1] / sums[0]:.0%}"] if everywhere else ["", "", ""]
    sms = f", {noun(row['sms'], 'SM')}" if isinstance(row["sms"], int) else ""
    beside = f", beside {row['neighbour']}" if isinstance(row["neighbour"], str) else ""
    label = f"{row['backend']}, {row['direction']}, {row['blocks']} {TIMES} {size(str(row['block_size']))}, "
    label += f"{row['stream_state']}{sms}{beside}"
    return [label, figure(alone), figure(at_once), f"{at_once / alone:.0%}", *total]
