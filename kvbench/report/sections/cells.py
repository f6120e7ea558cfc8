"""All cells of a short run: what a report shows where no other section has a table of them."""

from typing import Final

from kvbench.cells.facts import method_label
from kvbench.report.model import DataTable, Part, PartOrReason
from kvbench.report.numbers import bytes_size, count, figure
from kvbench.report.tables import INCLUDES, format_cell, measured_table, milliseconds, rate, sms_of
from kvbench.report.view import Row, View, rows_of

_MOST: Final = 64
_HEADER: Final = ("Method", "Dir", "Stream", "Blocks", "Block size", "ms", "GB/s", "Thread us")


def make(view: View) -> PartOrReason:
    if not len(view.measured) > 0 or len(view.frame) > _MOST:
        return ""
    return lambda: Part(tables=[_table(view)])


def _table(view: View) -> DataTable:
    body = [_line(row) for row in rows_of(view.frame[view.frame["status"] != "skipped"])]
    return measured_table(view, view.measured, INCLUDES["swap_us"], "Every cell", _HEADER, body, left=3)


def _line(row: Row) -> list[str]:
    shape = (row["direction"], row["stream_state"], count(row["blocks"]), bytes_size(row["block_bytes"]))
    thread = format_cell(row, lambda cell: figure(cell["caller_us_median"]))
    return [
        method_label(row["backend"], sms_of(row)),
        *shape,
        format_cell(row, milliseconds),
        format_cell(row, rate),
        thread,
    ]
