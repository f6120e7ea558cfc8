"""Kernels that copy: GB/s against their SMs, against batched copies at one number of blocks, and over all sizes."""

from collections.abc import Iterable
from functools import partial
from typing import Final

import pandas as pd

from kvbench.analysis.margins import KNEE
from kvbench.cells.backend_facts import BATCHED
from kvbench.report.charts.plot import MapPanel, MapPlot, MapTile
from kvbench.report.model import Chart, Finding, Part, PartOrReason, Strong, Text
from kvbench.report.numbers import bytes_size, count
from kvbench.report.sections.cliff import RateCurve, curve_chart, evenly_spaced, knee_text, ladder_curves, left_out
from kvbench.report.sections.contrast import SIZE, Contrast, ContrastSide, Figure, Key, backends, turns
from kvbench.report.tables import INCLUDES, chart_text, includes, label_of, rate
from kvbench.report.view import DIRECTIONS, Pinned, Row, View, rows_of, where
from kvbench.text import a_stream

USUAL_BLOCKS: Final = 10_000
_MIN_SIZES: Final = 2
_KNEE_WEIGHT: Final = 0.2  # a sentence on what suffices shows no effect
_THRESHOLD_WEIGHT: Final = 0.1  # the first lines of the first page say as much
MIN_CELLS: Final = 4
_AXES: Final = ["block_bytes", "blocks"]
_FIGURES: Final = ["samples", "rounds", "swap_us_median", "swap_us_low", "swap_us_high", "cell_id"]


def _ladders(view: View) -> Pinned | None:
    curves = ladder_curves(view.frame)
    if curves is None:
        return None
    drawn = {(curve.backend, curve.state, curve.direction, curve.panel) for curve in curves.curves}
    kept = [
        (row["backend"], row["stream_state"], row["direction"], row["block_bytes"]) in drawn
        for row in rows_of(curves.cells)
    ]
    cells = curves.cells[kept]
    arms = [_ladder_arm(row["direction"], row["block_bytes"]) for row in rows_of(cells)]
    return Pinned(cells.assign(arm=arms), curves.pinned.hidden)


def _ladder_arm(direction: str, block_bytes: int) -> str:
    return f"{direction} {bytes_size(block_bytes)}"


def _curves_of(side: ContrastSide) -> dict[str, RateCurve]:
    curves = ladder_curves(side.view.frame)
    assert curves
    backend, state = side.first["backend"], side.first["stream_state"]
    mine = [curve for curve in curves.curves if (curve.backend, curve.state) == (backend, state)]
    return {_ladder_arm(curve.direction, curve.panel): curve for curve in mine}


def _ladder_columns(side: ContrastSide) -> list[Figure]:
    def show(knee: int | None, row: Row) -> Text:
        return Strong(rate(row)) if row["sms"] == knee else rate(row)

    return [Figure(arm, arm, partial(show, curve.knee)) for arm, curve in _curves_of(side).items()]


def _ladder_charts(view: View, _: Pinned) -> list[Chart]:
    curves = ladder_curves(view.frame)
    assert curves
    sizes = sorted({curve.panel for curve in curves.curves})
    rows = {size: f", {bytes_size(size)} blocks" for size in evenly_spaced(sizes)}
    title = f"GB/s against the SM count, N = {count(curves.main)} blocks{left_out(sizes)}"
    return [curve_chart(view, "sm-ladder", curves, rows, title)]


def _knees(side: ContrastSide) -> Iterable[Finding]:
    knees: dict[str, list[str]] = {}
    for arm, curve in sorted(_curves_of(side).items(), key=lambda pair: pair[1].knee or 0):
        if curve.knee:
            knees.setdefault(knee_text(curve), []).append(arm)
    if knees:
        parts = (f"{text} ({', '.join(curves)})" for text, curves in knees.items())
        head = f"{side.first['backend']} on {a_stream(side.first['stream_state'])}, N = {count(side.first['blocks'])}"
        yield Finding(f"{head}: knee: {', '.join(parts)}.", _KNEE_WEIGHT)


SM_LADDER: Final = Contrast(
    needed="it needs a kernel backend measured at 3 SM counts or more",
    select=_ladders,
    apart=("backend", "stream_state"),
    keys=(Key("SMs", ("sms",), lambda row: str(row["sms"])),),
    title=lambda side: (
        f"{side.first['backend']}, {side.first['stream_state']} stream, N = {count(side.first['blocks'])}: GB/s "
        "against the SM count"
    ),
    columns=_ladder_columns,
    includes=lambda side: INCLUDES[side.first["stream_state"]],
    last=lambda side: ("knee", {arm: knee_text(curve) or "none" for arm, curve in _curves_of(side).items()}),
    notes=lambda _: [
        (
            Strong("Bold"),
            f": the knee, the smallest SM count within {KNEE.fraction:.0%} of the best of its column, interval "
            f"included: {KNEE.reason}. None where GB/s still rise at the largest count",
        )
    ],
    find=_knees,
    charts=_ladder_charts,
)


def _contests(view: View) -> Pinned | None:
    """Return batched copies and the other backends at the number of blocks that most of them have."""
    arms = [arm for arms in view.contests.values() for arm in arms.values()]
    if not arms:
        return None
    measured = pd.concat(arms)
    blocks = common_blocks(measured[measured["cell_id"].isin(view.visits)])
    cells = where(measured, blocks=blocks)
    sizes = cells.groupby(["direction", "stream_state", "backend"])["block_bytes"].transform("nunique")
    several = cells[sizes >= _MIN_SIZES]
    both = several.groupby(["direction", "stream_state"])["backend"].transform("nunique") > 1
    return Pinned(several[both], view.pinned.hidden) if both.any() else None


def common_blocks(measured: pd.DataFrame) -> int:
    """Return the number of blocks that most backends have: 10 000 if it is one, else that with most sizes, the largest.

    `measured` has the columns backend, block_bytes and blocks and is not empty.
    """
    kinds = measured.groupby("blocks").nunique()
    ranks = zip(kinds["backend"], kinds.index == USUAL_BLOCKS, kinds["block_bytes"], kinds.index, strict=True)
    return int(max(ranks)[-1])


THRESHOLD: Final = Contrast(
    needed=f"it needs {BATCHED} and another backend measured at {_MIN_SIZES} block sizes with the same number of "
    "blocks, direction and stream state",
    select=_contests,
    apart=("direction", "stream_state"),
    keys=(SIZE,),
    title=lambda side: (
        f"{side.first['direction']}, {side.first['stream_state']} stream, N = {count(side.first['blocks'])}: GB/s"
    ),
    columns=backends,
    includes=lambda side: INCLUDES[side.first["stream_state"]],
    arm="backend",
    fastest=True,
    find=lambda side: turns(side, SIZE, _THRESHOLD_WEIGHT, f"N = {count(side.first['blocks'])}"),
)


def make_map(view: View) -> PartOrReason:
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
    text = chart_text(view, title, ". ".join(includes(points["stream_state"], "Time")))
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
