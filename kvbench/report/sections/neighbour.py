"""Neighbours: what swaps cost the work that runs beside them, and what that work costs the swaps."""

import math
from collections.abc import Sequence
from typing import Final

import pandas as pd

from kvbench.analysis.compare import Verdict, verdict_of
from kvbench.analysis.curves import pareto_edge
from kvbench.analysis.margins import IN_TURN
from kvbench.cells.axis import Role
from kvbench.cells.cell import AXES, axes_of
from kvbench.report.charts.plot import LinePlot, PlotAxis, PlotLine, PlotMark, PlotPanel, told_apart
from kvbench.report.model import Chart, DataTable, Finding, Part, Section, Strong, Text
from kvbench.report.numbers import figure, noun, size, slower_words, two_digits
from kvbench.report.select import DIRECTIONS
from kvbench.report.tables import Footnotes, Row, caption, chart_words, grouped, rows_of, shown
from kvbench.report.view import View, sample_words

# GB/s at which the cheapest ways to swap are held against each other.
RATES: Final = (10, 20, 40)
_INCLUDES: Final = (
    "Slowdown: time of an iteration of the neighbour beside swaps over the time without, medians of visits that "
    "measured both in turn; p99 and worst: all visits together. GB/s: bytes swapped over the whole time, gaps "
    "included. Lost: time that the neighbour lost per GB swapped. One block: wall time of a swap of one block, without "
    "→ with the neighbour"
)
_EDGE: Final = (
    Strong("Bold"),
    ": no other way moves as much at a lower slowdown. ≈: the visits do not decide on which side of "
    f"{1 + IN_TURN.fraction:.2f} it lies",
)
_HEADER: Final = (
    "Swaps", "GB/s alone", "GB/s beside", "Slowdown", "Slowdown p99", "Worst, us", "Lost, us per GB", "One block, us",
)  # fmt: skip
_POINT_COLUMNS: Final = (
    "device", "neighbour", "backend", "direction", "blocks", "block_size", "sms", "launch_bytes", "priority",
    "rate_cap", "burst", "swaps_alone_gbps", "swaps_beside_gbps", "neighbour_alone_us", "neighbour_beside_us",
    "neighbour_p99_us", "neighbour_worst_us", "neighbour_slowdown", "neighbour_slowdown_low", "neighbour_slowdown_high",
    "neighbour_slowdown_p99", "exposure_us_per_gb", "one_block_alone_us", "one_block_beside_us", "rounds", "cell_id",
)  # fmt: skip


def make(view: View) -> Part | str:
    cells = view.frame[view.frame["neighbour"].notna() & (view.frame["status"] != "skipped")]
    if not (cells["neighbour_slowdown"] > 0).any():
        return "it needs swaps that were measured beside a neighbour"
    apart = _apart(cells)
    groups = grouped(rows_of(cells), lambda row: (str(row["neighbour"]), str(row["direction"])))
    names = list(dict.fromkeys(name for name, _ in groups))
    panels = {(name, way): groups.get((name, way), []) for name in names for way in DIRECTIONS}
    tables = [_table(view, cells, f"{name}, {way}", rows, apart) for (name, way), rows in panels.items() if rows]
    told = [found for (name, way), rows in panels.items() if (found := _finding(name, way, rows, apart))]
    grid = [
        [_panel(view, f"{name}, {way}", panels[name, way], apart) for way in DIRECTIONS if panels[name, way]]
        for name in names
    ]
    points = cells[cells["neighbour_slowdown"] > 0]
    words = chart_words(
        view,
        "Slowdown of the neighbour against GB/s of the swaps",
        f"{sample_words(points)} · medians of visits · band: 95% interval · ring: nothing as fast costs less",
        [_INCLUDES],
    )
    x = PlotAxis("GB/s beside the neighbour", "figure", "linear")
    plot = LinePlot(x, PlotAxis("slowdown", "figure", "linear", zero=False), told_apart(grid))
    chart = Chart(f"neighbour-{view.label}", words, plot, points[list(_POINT_COLUMNS)])
    return Part([finding.text for finding in told], [chart], tables, told)


SECTION = Section("neighbour", "Neighbours: what swaps cost the work beside them", make)


def _apart(cells: pd.DataFrame) -> list[str]:
    """Return the axes that tell cells of one backend apart, the SM count not among them."""
    names = [name for name in axes_of(Role.SHAPE, Role.SIDE, Role.BESIDE) if name not in ("sms", "neighbour")]
    values = cells.groupby(["neighbour", "direction", "backend"])[names].nunique(dropna=False).max()
    return [name for name in names if values[name] > 1]


def _way(row: Row, apart: Sequence[str]) -> str:
    """Return who swaps and how, the SM count not said."""
    return ", ".join([str(row["backend"]), *(text for name in apart if (text := _told(name, row[name])))])


def _told(name: str, value: object) -> str:
    """Return the value of a cell on an axis in words, "" where the cell does not use the axis."""
    axis = AXES[name]
    text = axis.show(value) if isinstance(value, int) else value
    used = isinstance(text, str) and text != axis.show(axis.unused)
    return f"{name} {size(str(text))}" if used else ""


def _sms(row: Row) -> int:
    """Return the SM count, 0 where the backend has none."""
    return row["sms"] if isinstance(row["sms"], int) else 0


def _label(row: Row, apart: Sequence[str]) -> str:
    sms = _sms(row)
    return f"{_way(row, apart)}, {noun(sms, 'SM')}" if sms else _way(row, apart)


def _measured(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["neighbour_slowdown"] > 0]


def _edge(rows: Sequence[Row]) -> set[str]:
    """Return the ids of the cells on the Pareto edge."""
    measured = _measured(rows)
    kept = pareto_edge([row["swaps_beside_gbps"] for row in measured], [row["neighbour_slowdown"] for row in measured])
    return {row["cell_id"] for row, on_edge in zip(measured, kept, strict=True) if on_edge}


def _table(view: View, cells: pd.DataFrame, title: str, rows: Sequence[Row], apart: Sequence[str]) -> DataTable:
    notes, edge = Footnotes(), _edge(rows)
    body: list[list[Text]] = []
    for row in sorted(rows, key=lambda row: (_way(row, apart), _sms(row))):
        label = _label(row, apart)
        if row["status"] != "ok" or not row["neighbour_slowdown"] > 0:
            body.append([label, shown(row, notes, lambda _: "no whole iteration"), *[""] * (len(_HEADER) - 2)])
            continue
        body.append(
            [
                Strong(label) if row["cell_id"] in edge else label,
                *(figure(row[name]) for name in ("swaps_alone_gbps", "swaps_beside_gbps")),
                _slowdown(row),
                *(figure(row[name]) for name in ("neighbour_slowdown_p99", "neighbour_worst_us", "exposure_us_per_gb")),
                f"{figure(row['one_block_alone_us'])} → {figure(row['one_block_beside_us'])}",
            ]
        )
    own = cells[cells["cell_id"].isin([row["cell_id"] for row in rows])]
    alone_us = own["neighbour_alone_us"].median()
    title = f"{title}: {figure(alone_us)} us per iteration without swaps" if alone_us > 0 else title
    return DataTable(title, _HEADER, body, [_EDGE, *notes.lines], caption(view, own, _INCLUDES))


def _slowdown(row: Row) -> str:
    """Return the slowdown, marked where the visits do not settle on which side of the margin it lies."""
    low, high = row["neighbour_slowdown_low"], row["neighbour_slowdown_high"]
    known = low > 0 and math.isfinite(high)
    verdict = verdict_of(math.log(low), math.log(high), math.log1p(IN_TURN.fraction)) if known else Verdict.UNDECIDED
    text = f"{row['neighbour_slowdown']:.2f}"
    return f"≈ {text}" if verdict is Verdict.UNDECIDED else text


def _finding(name: str, way: str, rows: Sequence[Row], apart: Sequence[str]) -> Finding | None:
    """Return what the highest of `RATES` that was reached costs at least, and what the cheapest way moves."""
    measured = _measured(rows)
    reached = [rate for rate in RATES if any(row["swaps_beside_gbps"] >= rate for row in measured)]
    if not measured:
        return None
    cheapest = min(measured, key=lambda row: (row["neighbour_slowdown"], -row["swaps_beside_gbps"]))
    least = (
        f"{_label(cheapest, apart)} costs least: {slower_words(cheapest['neighbour_slowdown'])} at "
        f"{two_digits(cheapest['swaps_beside_gbps'])} GB/s"
    )
    if not reached:
        return Finding(f"{name} beside {way} swaps: {least}.", math.log(cheapest["neighbour_slowdown"]))
    fast = [row for row in measured if row["swaps_beside_gbps"] >= reached[-1]]
    best = min(fast, key=lambda row: row["neighbour_slowdown"])
    text = (
        f"{name} beside {way} swaps at {reached[-1]} GB/s or more is {slower_words(best['neighbour_slowdown'])} at "
        f"best, p99 {slower_words(best['neighbour_slowdown_p99'])} ({_label(best, apart)}, "
        f"{two_digits(best['swaps_beside_gbps'])} GB/s)"
    )
    if best is not cheapest:
        text += f"; {least}"
    return Finding(f"{text}.", math.log(best["neighbour_slowdown"]))


def _panel(view: View, title: str, rows: Sequence[Row], apart: Sequence[str]) -> PlotPanel:
    edge = _edge(rows)
    by_way = grouped(_measured(rows), lambda row: _way(row, apart))
    lines = [
        _line(
            view,
            label,
            own,
            edge,
        )
        for label, own in sorted(by_way.items())
    ]
    return PlotPanel(title, lines)


def _line(view: View, label: str, rows: Sequence[Row], edge: set[str]) -> PlotLine:
    ordered = sorted(rows, key=lambda row: row["swaps_beside_gbps"])
    y = [float(row["neighbour_slowdown"]) for row in ordered]
    ends = [
        [float(row[name]) if row[name] > 0 else middle for row, middle in zip(ordered, y, strict=True)]
        for name in ("neighbour_slowdown_low", "neighbour_slowdown_high")
    ]
    on_edge = [row for row in ordered if row["cell_id"] in edge]
    return PlotLine(
        run=view.label,
        label=label,
        backend=str(rows[0]["backend"]),
        x=[float(row["swaps_beside_gbps"]) for row in ordered],
        y=y,
        low=ends[0],
        high=ends[1],
        cell_ids=[str(row["cell_id"]) for row in ordered],
        marks=[PlotMark(row["swaps_beside_gbps"], row["swaps_beside_gbps"], "") for row in on_edge],
    )
