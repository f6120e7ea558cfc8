"""Where the time of a swap goes: the part that holds its thread, and the rest, backend by backend."""

import math
from collections.abc import Collection, Mapping
from itertools import product
from typing import Final

import pandas as pd

from kvbench.cells.backend_facts import method_label
from kvbench.report.captions import caption
from kvbench.report.model import DataTable, Part, PartOrReason
from kvbench.report.numbers import bytes_size, count, figure, size
from kvbench.report.select import Pinned, by_direction, pin, where
from kvbench.report.table_rows import rows_of, sms_of
from kvbench.report.view import View
from kvbench.units import KIB

Swap = tuple[int, int]  # N, block bytes

WANTED: Final = tuple(product((16, 256, 10_000), (4 * KIB, 16 * KIB, 32 * KIB)))
# A cell stands for a wanted one when neither its N nor its block size is further away than this.
NEAR: Final = 4.0
_KEY: Final = ["blocks", "block_bytes", "backend"]
_INCLUDES: Final = (
    "Medians in us on an idle stream. Caller: host time from the list of blocks to the return of the last call: "
    "preparation and submission; includes what the GPU does meanwhile. Rest: wall_us - caller_us of each sample, until "
    "the host sees completion"
)
_BUSY: Final = (
    "GPU, busy: gpu_us of the same swap on a busy stream, between the events around it; without preparation and "
    "submission"
)


def make(view: View) -> PartOrReason:
    pinned = pin(view.measured, shown=())
    idle = where(pinned.cells, stream_state="idle")
    near = nearest({(int(blocks), int(size)) for blocks, size in zip(idle["blocks"], idle["block_bytes"], strict=True)})
    if not near:
        return "it needs cells on an idle stream near N = 16, 256 or 10 000 with blocks of 4, 16 or 32 KiB"
    shapes = pd.DataFrame(sorted(set(near.values())), columns=["blocks", "block_bytes"])
    cells = pinned.cells.merge(shapes, on=["blocks", "block_bytes"])
    sides = [where(cells, direction=direction) for direction in by_direction(where(cells, stream_state="idle"))]
    return lambda: Part(tables=[_table(view, side, near, pinned) for side in sides])


def nearest(shapes: Collection[Swap]) -> dict[Swap, Swap]:
    """Return for every wanted (N, block bytes) the nearest that there is, by ratios; those without a near one fail."""
    stand_ins = {}
    for wanted in WANTED:
        distances = {shape: [abs(math.log(a / b)) for a, b in zip(shape, wanted, strict=True)] for shape in shapes}
        near = {shape: sum(by) for shape, by in distances.items() if max(by) <= math.log(NEAR) + 1e-9}
        if near:
            # of equally near ones the larger
            stand_ins[wanted] = min(near, key=lambda shape: (round(near[shape], 9), -shape[0], -shape[1]))
    return stand_ins


def _table(view: View, cells: pd.DataFrame, near: Mapping[Swap, Swap], pinned: Pinned) -> DataTable:
    idle = where(cells, stream_state="idle").sort_values(_KEY)
    busy = {tuple(row[name] for name in _KEY): row for row in rows_of(where(cells, stream_state="busy"))}
    samples = view.run.samples()
    samples = samples[samples["cell_id"].isin(idle["cell_id"])]
    rest_us = (samples["wall_us"] - samples["caller_us"]).groupby(samples["cell_id"]).median()
    rows = []
    for row in rows_of(idle):
        times = (row["caller_us_median"], float(rest_us[row["cell_id"]]), row["wall_us_median"])
        name = method_label(row["backend"], sms_of(row))
        line = [name, count(row["blocks"]), size(row["block_size"]), *map(figure, times)]
        if busy:
            same = busy.get(tuple(row[name] for name in _KEY))
            line.append(figure(same["swap_us_median"]) if same else "")
        rows.append(line)
    header = ("Backend", "Blocks", "Block size", "Caller us", "Rest us", "Wall us")
    origin = caption(view, cells, f"{_INCLUDES}. {_BUSY}", pinned) if busy else caption(view, idle, _INCLUDES, pinned)
    title = f"{idle['direction'].iloc[0]}: us per swap"
    return DataTable(title, (*header, "GPU us, busy") if busy else header, rows, _stand_ins(near), origin)


def _stand_ins(near: Mapping[Swap, Swap]) -> list[str]:
    """Return which cells the table shows instead of those that the run does not hold, and which have none near."""
    text = {swap: f"N = {count(swap[0])} of {bytes_size(swap[1])}" for swap in (*WANTED, *near.values())}
    others = "; ".join(f"{text[cell]} instead of {text[wanted]}" for wanted, cell in near.items() if cell != wanted)
    absent = "; ".join(text[wanted] for wanted in WANTED if wanted not in near)
    lines = [f"Nearest measured cells: {others}" if others else "", f"Nothing near {absent}" if absent else ""]
    return [line for line in lines if line]
