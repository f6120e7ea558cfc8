"""Devices: what swaps keep of their rate while other devices of the host swap too."""

from collections.abc import Sequence

import pandas as pd

from kvbench.cells.backend_facts import method_label
from kvbench.cells.cell import AXES
from kvbench.report.captions import caption
from kvbench.report.model import DataTable, Part, PartOrReason, Text
from kvbench.report.numbers import TIMES, figure, noun, size
from kvbench.report.table_rows import Row, comma_separated, rows_of, sms_of
from kvbench.report.view import View

_INCLUDES = (
    "GB/s of a cell alone, and while every device swaps its own blocks at the same time. Share: the second over the "
    "first. All: sums over the devices, where the report holds each of them"
)
_KEY = [name for name in AXES if name != "devices"]


def make(view: View) -> PartOrReason:
    if _pairs(view).empty:
        return "it needs cells that several devices swapped at once (--device cuda:all)"
    runs = [run for run in (*view.earlier, view) if not _pairs(run).empty]
    return lambda: Part(tables=[_table(runs[:number], named=len(runs) > 1) for number in range(1, len(runs) + 1)])


def _table(runs: Sequence[View], *, named: bool) -> DataTable:
    """Return the table of the last of `runs`, with sums where they are every device's; `named` after its run."""
    view, pairs = runs[-1], [_pairs(run) for run in runs]
    cells = pairs[-1]
    count = int(cells["devices"].max())
    rates = pd.concat(pairs).groupby("cell_id")[["gbps_alone", "gbps"]]
    sums = rates.sum()[(rates.size() == count) & (len(pairs) == count)].add_suffix("_all")
    body: list[list[Text]] = [_row(row) for row in rows_of(cells.join(sums, on="cell_id"))]
    header = ("Swaps", "GB/s alone", "GB/s at once", "Share", "All alone", "All at once", "Share of all")
    measured = view.measured[view.measured["cell_id"].isin(cells["cell_id"])]
    label = f"{view.label}: " if named else ""
    title = f"{label}{view.run.info.device.get('name')} beside {noun(count - 1, 'other device')}"
    return DataTable(title, header, body, [], caption(view, measured, _INCLUDES))


def _pairs(view: View) -> pd.DataFrame:
    """Return the measured cells of several devices with their rate alone, `gbps_alone`, where there are any."""
    together = view.measured[view.measured["devices"] > 1]
    if together.empty:
        return together
    alone = view.measured[view.measured["devices"] == 1][[*_KEY, "gbps"]]
    return together.merge(alone, on=_KEY, suffixes=("", "_alone"))


def _row(row: Row) -> list[Text]:
    swap = f"{row['blocks']} {TIMES} {size(row['block_size'])}"
    beside = f"beside {row['neighbour']}" if isinstance(row["neighbour"], str) else ""
    method = method_label(row["backend"], sms_of(row))
    label = comma_separated(method, row["direction"], swap, row["stream_state"], beside)
    return [label, *_share(row["gbps_alone"], row["gbps"]), *_share(row["gbps_alone_all"], row["gbps_all"])]


def _share(alone: float, at_once: float) -> list[str]:
    return [figure(alone), figure(at_once), f"{at_once / alone:.0%}"] if alone > 0 else ["", "", ""]
