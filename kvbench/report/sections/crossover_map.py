"""The crossover map: the time of batched copies over that of a kernel, by block size and number of blocks."""

from typing import Final

import pandas as pd

from kvbench.cells.facts import BATCHED
from kvbench.report.charts.plot import MapPanel, MapPlot, MapTile
from kvbench.report.model import Chart, Part, PartOrReason
from kvbench.report.tables import INCLUDES, chart_text, label_of
from kvbench.report.view import DIRECTIONS, Row, View, rows_of

MIN_CELLS: Final = 4
_AXES: Final = ["block_bytes", "blocks"]
_FIGURES: Final = ["samples", "rounds", "swap_us_median", "swap_us_low", "swap_us_high", "cell_id"]


def make(view: View) -> PartOrReason:
    kernels = {
        backend for arms in view.contests.values() for backend, cells in arms.items() if cells["sms"].notna().any()
    }
    charts = [chart for kernel in sorted(kernels) if (chart := _chart(view, kernel))]
    if not charts:
        return f"it needs {BATCHED} and a kernel backend measured at {MIN_CELLS} cells, with two block sizes and two N"
    return lambda: Part(charts=charts)


def _chart(view: View, kernel: str) -> Chart | None:
    """Return the maps of a kernel, one per direction and state of batched; None where there are too few cells."""
    maps = []
    for arms in (arms for arms in view.contests.values() if kernel in arms):
        cells = _ratios(view, arms[BATCHED], arms[kernel])
        if len(cells) >= MIN_CELLS and (cells[_AXES].nunique() > 1).all():
            maps.append(cells)
    if not maps:
        return None
    points = pd.concat(maps)
    name = label_of(kernel, points)
    title = f"Time of {BATCHED} copies over time of {name}, by block size and number of blocks"
    text = chart_text(view, title, INCLUDES["swap_us"])
    rows = [[_panel(cells) for cells in maps if cells["direction"].iloc[0] == direction] for direction in DIRECTIONS]
    return Chart(f"crossover-map-{kernel}-{view.label}", text, MapPlot([row for row in rows if row]), points)


def _ratios(view: View, *arms: pd.DataFrame) -> pd.DataFrame:
    """Return a row per cell that batched and a kernel share, with both times and their ratio."""
    batched, kernel = (cells[cells["cell_id"].isin(view.visits)] for cells in arms)
    batched = batched[["device", "direction", "stream_state", "block_size", *_AXES, *_FIGURES]]
    cells = batched.merge(kernel[[*_AXES, "sms", *_FIGURES]], on=_AXES, suffixes=("_batched", "_kernel"))
    cells.insert(1, "kernel", kernel["backend"].iloc[0])
    ratios = [view.compare(row["cell_id_kernel"], row["cell_id_batched"]) for row in rows_of(cells)]
    cells = cells.assign(ratio=[ratio.ratio for ratio in ratios], decided=[ratio.told_apart for ratio in ratios])
    return cells.sort_values(_AXES)


def _panel(cells: pd.DataFrame) -> MapPanel:
    rows = rows_of(cells)
    kernel = label_of(rows[0]["kernel"], cells)
    title = f"{rows[0]['direction']}, {rows[0]['stream_state']} stream: {BATCHED} / {kernel}"
    return MapPanel(title, {(row["block_bytes"], row["blocks"]): _tile(row) for row in rows})


def _tile(row: Row) -> MapTile:
    return MapTile(row["ratio"], row["decided"])
