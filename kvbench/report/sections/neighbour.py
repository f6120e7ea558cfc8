"""Neighbours: what swaps cost the work that runs beside them, against the GB/s that they move."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Final

import pandas as pd

from kvbench.analysis.compare import Verdict, Visits, compare_visits, verdict_of
from kvbench.analysis.curves import pareto_edge
from kvbench.analysis.margins import IN_TURN
from kvbench.cells.axes import Neighbour
from kvbench.cells.blocks import is_whole
from kvbench.cells.facts import method_label
from kvbench.cells.units import two_digits
from kvbench.report.model import Chart, DataTable, LinePlot, Part, PartOrReason, PlotAxis, PlotPanel, Strong, Text
from kvbench.report.numbers import TIMES, bytes_size, count, figure, noun
from kvbench.report.tables import chart_text, format_cell, line_of, measured_table, sms_of, with_methods
from kvbench.report.view import DIRECTIONS, Row, View, by_direction, grouped, rows_of, where
from kvbench.text import ends

# GB/s at which the methods of swapping are compared.
RATES: Final = (10, 20, 40)
# Findings do not tell smaller slowdowns apart.
_LEAST: Final = 0.01
_WORKLOAD: Final = ["blocks", "block_bytes", "pattern", "host_pattern"]
_CLOCK: Final = "GB/s: bytes over the whole time, host clock. Slower: mean time of an iteration beside swaps over alone"
_DETAILS: Final = f"{_CLOCK}. Median, p90 and p99: of the iterations, us alone → beside swaps"
_WORK: Final = {
    "prefill": "A prefill layer",
    "decode": "A decode step",
    "idle": "A GPU thread that only waits",
}
_COLUMNS: Final = (str(Neighbour.DECODE), str(Neighbour.PREFILL))
_TIMES: Final = {"Median, us": "p50", "p90, us": "p90", "p99, us": "p99"}
_SLOWER: Final = ("neighbour_slowdown", "neighbour_slowdown_low", "neighbour_slowdown_high")


def make(view: View) -> PartOrReason:
    tried = view.frame[view.frame["status"] != "skipped"]
    cells = view.only(tried, lambda cell: cell.neighbour != Neighbour.NONE and is_whole(cell))
    points = cells[cells["neighbour_slowdown"] > 0]
    if points.empty:
        return "it needs swaps that were measured beside a neighbour"
    return partial(_part, view, with_methods(cells), with_methods(points))


def _part(view: View, cells: pd.DataFrame, points: pd.DataFrame) -> Part:
    shown = _one_workload(points)
    tables, found = [_table(view, shown)], dict[str, list[str]]()
    slowdowns = {
        cell.id: {number: cost.slowdown for number, cost in outcome.costs.items()}
        for cell, outcome in view.run.outcomes.items()
    }
    for name, direction in product(cells["neighbour"].unique(), DIRECTIONS):
        group, measured = (where(rows, neighbour=name, direction=direction) for rows in (cells, points))
        tables += [_details(view, f"{name}, {direction}", group, _edge(measured))] if len(group) else []
        decided = rows_of(measured[measured["neighbour_slowdown_high"].notna()])
        if decided and name in _COLUMNS:
            rate, text = _least_cost(direction, decided, slowdowns)
            found.setdefault(f"{_WORK[name]} beside swaps{rate} takes", []).append(text)
    drawn = next((name for name in _COLUMNS if name in set(shown["neighbour"])), "")
    charts = [_chart(view, where(shown, neighbour=drawn))] if drawn else []
    return Part([f"{work} {', '.join(texts)}." for work, texts in found.items()], charts, tables)


def _one_workload(points: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of the swaps that most were measured with: what moves other bytes cannot stand beside them."""
    sizes = points.groupby(_WORKLOAD, dropna=False)["cell_id"].transform("size")
    most = points[sizes == sizes.max()]
    first = most[_WORKLOAD].iloc[0]
    return pd.DataFrame(most[(most[_WORKLOAD].fillna("") == first.fillna("")).all(axis="columns")])


def _table(view: View, cells: pd.DataFrame) -> DataTable:
    """Return a line for each method of swapping in a direction, with what it costs each kind of work."""
    names = [name for name in _COLUMNS if name in set(cells["neighbour"])] or sorted(set(cells["neighbour"]))
    tails = {name: _tail(where(cells, neighbour=name)) for name in names}
    order = sorted(rows_of(cells), key=lambda row: (row["direction"] != DIRECTIONS[0], row["method"], sms_of(row) or 0))
    body: list[list[Text]] = []
    for (direction, method), rows in grouped(order, lambda row: (str(row["direction"]), str(row["label"]))).items():
        by_name = {str(row["neighbour"]): row for row in rows}
        gbps = ends([row["swaps_beside_gbps"] for row in rows], figure)
        slower = (text for name in names for text in _slower(by_name.get(name), tails[name]))
        body.append([direction, method, gbps, *slower])
    heads = (head for name in names for head in (f"{name} slower", f"{name} {tails[name]}"))
    header = ("Dir", "Method", "GB/s beside", *heads)
    title = (
        f"Slowdown of work beside swaps of {count(order[0]['blocks'])} {TIMES} {bytes_size(order[0]['block_bytes'])}"
    )
    return measured_table(view, cells, _CLOCK, title, header, body, left=2)


def _tail(cells: pd.DataFrame) -> str:
    """Return the highest percentile that most of these cells have the iterations for."""
    return "p99" if cells["neighbour_slowdown_p99"].notna().mean() > 0.5 else "p90"


def _slower(row: Row | None, tail: str = "p99") -> tuple[str, str]:
    if row is None:
        return "", ""
    slower = row[f"neighbour_slowdown_{tail}"]
    mark = "" if _is_decided(row) else "≈ "
    return f"{mark}{row['neighbour_slowdown']:.2f}x", f"{slower:.2f}x" if math.isfinite(slower) else ""


def _edge(points: pd.DataFrame) -> set[str]:
    """Return the ids of the cells on the Pareto edge, of those with the visits of a verdict."""
    points = points[points["neighbour_slowdown_high"].notna()]
    kept = pareto_edge(points["swaps_beside_gbps"].tolist(), points["neighbour_slowdown"].tolist())
    return set(points["cell_id"][kept])


def _details(view: View, title: str, cells: pd.DataFrame, edge: set[str]) -> DataTable:
    body: list[list[Text]] = []
    times = {head: part for head, part in _TIMES.items() if cells[f"neighbour_{part}_us"].notna().any()}
    header = ("Swaps", "GB/s alone", "GB/s beside", "Slower", *times)
    for row in sorted(rows_of(cells), key=lambda row: (row["method"], sms_of(row) or 0)):
        if row["status"] != "ok" or not row["neighbour_slowdown"] > 0:
            body.append([row["label"], format_cell(row, lambda _: "no whole iteration"), *[""] * (len(header) - 2)])
            continue
        both = [[figure(row[f"neighbour_{part}{of}_us"]) for of in ("_alone", "")] for part in times.values()]
        body.append(
            [
                Strong(row["label"]) if row["cell_id"] in edge else row["label"],
                *(figure(row[f"swaps_{of}_gbps"]) for of in ("alone", "beside")),
                _slower(row)[0],
                *map(" → ".join, both),
            ]
        )
    alone_us = cells["neighbour_alone_us"].dropna()
    title = f"{title}: {ends(alone_us, figure)} us per iteration without swaps" if len(alone_us) else title
    measured = where(cells, status="ok")
    return measured_table(
        view,
        cells if measured.empty else measured,
        _DETAILS,
        title,
        header,
        body,
        bold="no other moves as much with less slowdown",
    )


def _is_decided(row: Row) -> bool:
    """Return whether the visits settle on which side of the margin the slowdown lies."""
    low, high = row["neighbour_slowdown_low"], row["neighbour_slowdown_high"]
    margin = math.log1p(IN_TURN.fraction)
    return 0 < low <= high < math.inf and verdict_of(math.log(low), math.log(high), margin) is not Verdict.UNDECIDED


def _least_cost(direction: str, measured: Sequence[Row], slowdowns: Mapping[str, Visits]) -> tuple[str, str]:
    """Return the highest of `RATES` that was reached, and what it costs at least."""
    reached = max((rate for rate in RATES if any(row["swaps_beside_gbps"] >= rate for row in measured)), default=0)
    fast = [row for row in measured if row["swaps_beside_gbps"] >= reached]
    best = min(fast, key=lambda row: (row["neighbour_slowdown"], -row["swaps_beside_gbps"]))
    others = (slowdowns[row["cell_id"]] for row in fast if row is not best)
    visits = slowdowns[best["cell_id"]]
    unclear = sum(compare_visits(visits, other, IN_TURN).verdict is not Verdict.SLOWER for other in others)
    rivals = f"; no clear difference from {noun(unclear, 'other')}" if unclear else ""
    at_least = "at least " if best["neighbour_slowdown"] >= 1 + _LEAST else ""
    swaps = f"{direction}: {best['label']} at {two_digits(best['swaps_beside_gbps'])} GB/s{rivals}"
    rate = f" at {reached} GB/s or more" if reached else ""
    return rate, f"{at_least}{_longer(best['neighbour_slowdown'])} ({swaps})"


def _longer(slowdown: float) -> str:
    """Return a slowdown as text, "20% longer" or "2.4x as long"; nothing finer than what repeats."""
    if slowdown < 1 + _LEAST:
        return f"less than {_LEAST:.0%} longer"
    return f"{two_digits(slowdown)}x as long" if slowdown >= 1.95 else f"{two_digits((slowdown - 1) * 100)}% longer"


def _chart(view: View, points: pd.DataFrame) -> Chart:
    """Return the slowdown of one kind of work against the GB/s of one workload, a line for each backend."""
    panels, name = [], points["neighbour"].iloc[0]
    for direction, side in by_direction(points).items():
        lines = []
        for backend, cells in side.sort_values(["sms", "swaps_beside_gbps"]).groupby("backend"):
            rows = rows_of(cells)
            notes = [noun(number, "SM") if (number := sms_of(row)) else "" for row in rows]
            x = [float(row["swaps_beside_gbps"]) for row in rows]
            label = str(backend) if len(rows) > 1 else method_label(str(backend), sms_of(rows[0]))
            lines.append(line_of(label, x, rows, _SLOWER, notes=notes if len(rows) > 1 else ()))
        panels.append(PlotPanel(direction, lines))
    plot = LinePlot(PlotAxis("GB/s of the swaps"), PlotAxis(f"slowdown of {name}", zero=False), panels)
    text = chart_text(view, f"Interference: slowdown of {name} against GB/s of the swaps", f"{_CLOCK}. Band: 95%")
    return Chart(f"beside-{view.label}", text, plot)
