"""Neighbours: what swaps cost the work that runs beside them, and what that work costs the swaps."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Final

import pandas as pd

from kvbench.analysis.compare import Verdict, Visits, compare_visits, verdict_of
from kvbench.analysis.curves import pareto_edge
from kvbench.analysis.margins import IN_TURN
from kvbench.cells.units import two_digits
from kvbench.report.charts.plot import LinePlot, PlotAxis, PlotLine, PlotPanel
from kvbench.report.model import Chart, DataTable, Finding, Part, PartOrReason, Strong, Text
from kvbench.report.numbers import figure, noun
from kvbench.report.tables import caption, chart_text, footnoted, format_cell, line_of, sms_of, with_methods
from kvbench.report.view import DIRECTIONS, Row, View, by_direction, grouped, rows_of, where
from kvbench.results.cost import Cost, at_rate, costs_of
from kvbench.results.frame import as_csv, whole
from kvbench.text import ends

# GB/s at which the methods of swapping are compared.
RATES: Final = (10, 20, 40)
# Findings do not tell smaller slowdowns apart.
_LEAST: Final = 0.01
_WIDE_US_PER_GB: Final = 1000.0
_SLOWDOWN: Final = (
    "Slowdown: mean time of an iteration of the neighbour beside swaps over the mean without, by visits that measured "
    "both in turn"
)
_RATE: Final = "GB/s: bytes swapped over the whole time"
_INCLUDES: Final = (
    f"{_SLOWDOWN}; median, p99 and worst: of the iterations, us without → beside swaps. {_RATE}. Lost: time that the "
    "neighbour lost per GB swapped (95% interval), blank if the interval is wider than the value. Start: how much "
    "later a swap starts because of the neighbour, by swaps of one block; End: how much later it completes"
)
_EDGE: Final = (
    Strong("Bold"),
    ": no other cell moves as much with less slowdown. ≈: undecided whether the slowdown exceeds "
    f"{1 + IN_TURN.fraction:.2f}, or whether any time was lost",
)

_EQUAL_COLUMNS: Final = ("neighbour", "direction", "swaps", "gbps", "slowdown", "slowdown_low", "slowdown_high", "from")
_EQUAL_INCLUDES: Final = (
    "Slowdown as above, at these GB/s: lost time interpolated between the two nearest cells of the method, by SM "
    "count; below its slowest cell, between that and no swaps"
)
_EQUAL_MARKS: Final = (
    Strong("Bold"),
    ": the least at this rate, intervals aside. ≈: below the slowest cell, or too few visits",
)
_DRAWN: Final = ("decode", "gemm")  # of the others a chart says nothing that the table does not
_WORK: Final = {
    "gemm": "A GEMM",
    "decode": "A decode step",
    "swap": "A swap in the other direction",
    "idle": "A GPU thread that only waits",
}
_TIMES: Final = {"Median, us": "p50", "p99, us": "p99", "Worst, us": "worst"}
_AFTER: Final = ("Lost, us per GB", "Start, us later", "End, us later")
_POINT_COLUMNS: Final = (
    "device", "neighbour", "backend", "direction", "blocks", "block_size", "sms",
    "swaps_alone_gbps", "swaps_beside_gbps", "swaps_beside_gbps_low", "swaps_beside_gbps_high",
    "neighbour_alone_us", "neighbour_beside_us", "neighbour_p50_alone_us", "neighbour_p50_us",
    "neighbour_p99_alone_us", "neighbour_p99_us", "neighbour_worst_alone_us", "neighbour_worst_us",
    "neighbour_slowdown",
    "neighbour_slowdown_low", "neighbour_slowdown_high", "neighbour_slowdown_median", "neighbour_slowdown_p99",
    "exposure_us_per_gb", "exposure_us_per_gb_low", "exposure_us_per_gb_high", "one_block_alone_us",
    "one_block_beside_us", "swap_start_delay_us", "swap_delay_us", "rounds", "cell_id",
)  # fmt: skip


def make(view: View) -> PartOrReason:
    cells = view.frame[view.frame["neighbour"].notna() & (view.frame["status"] != "skipped") & whole(view.frame)]
    if not (cells["neighbour_slowdown"] > 0).any():
        return "it needs swaps that were measured beside a neighbour"
    cells = with_methods(cells)
    points = cells[cells["neighbour_slowdown"] > 0]
    costs = costs_of(view.run.visits)
    slowdowns = {cell: {number: cost.slowdown for number, cost in visits.items()} for cell, visits in costs.items()}
    tables: list[DataTable] = []
    findings: list[Finding] = []
    for name, direction in product(cells["neighbour"].unique(), DIRECTIONS):
        group, measured = (where(rows, neighbour=name, direction=direction) for rows in (cells, points))
        tables += [_table(view, f"{name}, {direction}", group, _edge(measured))] if len(group) else []
        decided = rows_of(measured[measured["neighbour_slowdown_high"].notna()])
        findings += [_finding(name, direction, decided, slowdowns)] if decided else []
    files = {}
    if not (equal := _equal_rates(costs, points)).empty:
        tables.append(_equal_table(view, points, equal))
        files[f"neighbour-equal-rates-{view.label}.csv"] = as_csv(equal)
    drawn = [where(points, neighbour=name) for name in points["neighbour"].unique() if name in _DRAWN]
    charts = [_chart(view, side) for side in drawn]
    return lambda: Part(findings, charts, tables, files)


def _edge(points: pd.DataFrame) -> set[str]:
    """Return the ids of the cells on the Pareto edge, of those with the visits of a verdict."""
    points = points[points["neighbour_slowdown_high"].notna()]
    kept = pareto_edge(points["swaps_beside_gbps"].tolist(), points["neighbour_slowdown"].tolist())
    return set(points["cell_id"][kept])


def _table(view: View, title: str, cells: pd.DataFrame, edge: set[str]) -> DataTable:
    body: list[list[Text]] = []
    times = {head: part for head, part in _TIMES.items() if cells[f"neighbour_{part}_us"].notna().any()}
    header = ("Swaps", "GB/s alone", "GB/s beside", "Slowdown", *times, *_AFTER)
    for row in sorted(rows_of(cells), key=lambda row: (row["method"], sms_of(row) or 0)):
        if row["status"] != "ok" or not row["neighbour_slowdown"] > 0:
            body.append([row["label"], format_cell(row, lambda _: "no whole iteration"), *[""] * (len(header) - 2)])
            continue
        both = [[figure(row[f"neighbour_{part}{of}_us"]) for of in ("_alone", "")] for part in times.values()]
        body.append(
            [
                Strong(row["label"]) if row["cell_id"] in edge else row["label"],
                *(figure(row[f"swaps_{of}_gbps"]) for of in ("alone", "beside")),
                f"{'' if _is_decided(row) else '≈ '}{row['neighbour_slowdown']:.2f}",
                *map(" → ".join, both),
                _exposure(row),
                *(_later(row[name]) for name in ("swap_start_delay_us", "swap_delay_us")),
            ]
        )
    alone_us = cells["neighbour_alone_us"].dropna()
    title = f"{title}: {ends(alone_us, figure)} us per iteration without swaps" if len(alone_us) else title
    body, reasons = footnoted(body)
    measured = where(cells, status="ok")
    origin = caption(view, cells if measured.empty else measured, _INCLUDES)
    return DataTable(title, header, body, [_EDGE, *reasons], origin)


def _is_decided(row: Row) -> bool:
    """Return whether the visits settle on which side of the margin the slowdown lies."""
    low, high = row["neighbour_slowdown_low"], row["neighbour_slowdown_high"]
    known = low > 0 and math.isfinite(high)
    margin = math.log1p(IN_TURN.fraction)
    return known and verdict_of(math.log(low), math.log(high), margin) is not Verdict.UNDECIDED


def _later(us: float) -> str:
    """Return a difference of times; tenths of a microsecond are noise."""
    return f"{us:z.1f}" if abs(us) < 100 else figure(us)


def _exposure(row: Row) -> str:
    """Return the time lost per GB with its interval, marked where that holds 0; "" where that is wide."""
    low, high = row["exposure_us_per_gb_low"], row["exposure_us_per_gb_high"]
    if high - low >= max(abs(row["exposure_us_per_gb"]), _WIDE_US_PER_GB):
        return ""
    text = _lost(row["exposure_us_per_gb"])
    if not math.isfinite(low):
        return f"≈ {text}"
    return f"{'≈ ' if low <= 0 <= high else ''}{text} ({_lost(low)} to {_lost(high)})"


def _lost(us_per_gb: float) -> str:
    """Return microseconds per GB with three digits; nanoseconds are noise."""
    return figure(float(f"{round(us_per_gb, 3) + 0.0:.2e}"))  # no -0


def _finding(neighbour: str, direction: str, measured: Sequence[Row], slowdowns: Mapping[str, Visits]) -> Finding:
    """Return what the highest of `RATES` that was reached costs at least, and what the cheapest cell moves."""
    reached, fast = _fast(measured)
    best, rivals = _cheapest(fast, slowdowns)
    at_least = "at least " if best["neighbour_slowdown"] >= 1 + _LEAST else ""
    rate = f" at {reached} GB/s or more" if reached else ""
    text = (
        f"{_WORK[neighbour]} takes {at_least}{_slowdown_text(best)} beside {direction} swaps{rate}: {_swaps(best)}"
        f"{rivals}; {_tail(best)}."
    )
    cheapest, rivals = _cheapest(measured, slowdowns)
    if cheapest is not best:
        text += f" Beside {_swaps(cheapest)} it takes {_slowdown_text(cheapest)}{rivals}."
    return Finding(text, math.log(best["neighbour_slowdown"]))


def _swaps(row: Row) -> str:
    return f"{row['label']} at {two_digits(row['swaps_beside_gbps'])} GB/s"


def _tail(row: Row) -> str:
    """Return by how much the slowest iterations are longer: their p99, or the longest where there are too few."""
    if math.isfinite(row["neighbour_slowdown_p99"]):
        return f"p99 {_longer(row['neighbour_slowdown_p99'])}"
    longest, alone = (figure(row[f"neighbour_worst{of}_us"]) for of in ("", "_alone"))
    return f"longest iteration {longest} us, {alone} us without swaps"


def _fast(rows: Sequence[Row]) -> tuple[int, Sequence[Row]]:
    """Return the highest of `RATES` that was reached, with the rows that reached it; 0 with all if none was."""
    reached = max((rate for rate in RATES if any(row["swaps_beside_gbps"] >= rate for row in rows)), default=0)
    return reached, [row for row in rows if row["swaps_beside_gbps"] >= reached]


def _cheapest(rows: Sequence[Row], slowdowns: Mapping[str, Visits]) -> tuple[Row, str]:
    """Return the row with the smallest slowdown, and text on how many others it is not clearly smaller than."""
    least = min(rows, key=lambda row: (row["neighbour_slowdown"], -row["swaps_beside_gbps"]))
    against = (slowdowns[row["cell_id"]] for row in rows if row is not least)
    visits = slowdowns[least["cell_id"]]
    unclear = sum(compare_visits(visits, other, IN_TURN).verdict is not Verdict.SLOWER for other in against)
    return least, f", no clear difference from {noun(unclear, 'other')}" if unclear else ""


def _slowdown_text(row: Row) -> str:
    return f"{_longer(row['neighbour_slowdown'])}{'' if _is_decided(row) else ' (undecided)'}"


def _longer(slowdown: float) -> str:
    """Return a slowdown as text, "20% longer" or "2.4x as long"; nothing finer than what repeats."""
    if slowdown < 1 + _LEAST:
        return f"less than {_LEAST:.0%} longer"
    return f"{two_digits(slowdown)}x as long" if slowdown >= 1.95 else f"{two_digits((slowdown - 1) * 100)}% longer"


def _chart(view: View, points: pd.DataFrame) -> Chart:
    panels, name, keys = [], points["neighbour"].iloc[0], _keys(points["method"])
    for direction, side in by_direction(points).items():
        edge = _edge(side)
        lines = [_line(*keys[str(method)], rows_of(cells), edge) for method, cells in side.groupby("method")]
        panels.append(PlotPanel(direction, lines))
    title = f"Slowdown of {name} against GB/s of the swaps beside it"
    text = chart_text(view, title, f"{_SLOWDOWN}. {_RATE}. Band: 95% interval. Ring: nothing as fast costs less")
    x = PlotAxis("GB/s of the swaps", "figure", "linear")
    plot = LinePlot(x, PlotAxis("slowdown", "figure", "linear", zero=False), [panels])
    return Chart(f"neighbour-{name}-{view.label}", text, plot, points[list(_POINT_COLUMNS)])


def _keys(methods: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the key of the legend of each method and what tells it apart at its points: a backend has one key."""
    keys: dict[str, tuple[str, str]] = {}
    for backend, alike in grouped(sorted(set(methods)), lambda method: method.partition(", ")[0]).items():
        settings = [method.partition(", ")[2] for method in alike]
        last = [setting.rpartition(", ")[2] for setting in settings]
        notes = last if len(set(last)) == len(last) else settings
        several = len(alike) > 1
        keys |= {one: (backend, note) if several else (one, "") for one, note in zip(alike, notes, strict=True)}
    return keys


def _line(key: str, note: str, rows: Sequence[Row], edge: set[str]) -> PlotLine:
    """Return the line of a method through its SM counts, which stand at the points."""
    ordered = sorted(rows, key=lambda row: (sms_of(row) or 0, row["swaps_beside_gbps"]))
    sms = [noun(number, "SM") if (number := sms_of(row)) else "" for row in ordered]
    x = [float(row["swaps_beside_gbps"]) for row in ordered]
    rings = [gbps for gbps, row in zip(x, ordered, strict=True) if row["cell_id"] in edge]
    columns = [f"neighbour_slowdown{end}" for end in ("", "_low", "_high")]
    notes = [", ".join(filter(None, (one, note))) for one in sms]
    return line_of(key, x, ordered, columns, notes=notes, rings=rings)


def _equal_rates(costs: Mapping[str, Mapping[int, Cost]], cells: pd.DataFrame) -> pd.DataFrame:
    equal = []
    for key, members in with_methods(cells).groupby(["neighbour", "direction", "method"], sort=False):
        by_id = {str(row["cell_id"]): row for row in rows_of(members)}
        known = {cell: costs[cell] for cell in by_id if cell in costs}
        for rate in RATES:
            if at := at_rate(rate, known):
                between = ", ".join("no swaps" if cell is None else _point(by_id[cell]) for cell in at.between)
                equal.append((*key, rate, at.slowdown, at.low, at.high, between))
    rows = pd.DataFrame(equal, columns=list(_EQUAL_COLUMNS))
    return rows.sort_values(["neighbour", "direction", "gbps", "slowdown"], ignore_index=True, kind="stable")


def _equal_table(view: View, cells: pd.DataFrame, equal: pd.DataFrame) -> DataTable:
    body: list[list[Text]] = []
    again = equal.duplicated(["neighbour", "direction", "gbps"])
    for row, is_least in zip(rows_of(equal), ~again, strict=True):
        known = row["slowdown_low"] > 0
        interval = f" ({row['slowdown_low']:.2f} to {row['slowdown_high']:.2f})" if known else ""
        mark = "" if known and not row["from"].startswith("no swaps") else "≈ "
        slowdown = f"{mark}{row['slowdown']:.2f}{interval}"
        cells_of_row = (row["neighbour"], row["direction"], row["swaps"], row["from"], f"{row['gbps']:.0f}")
        body.append([*cells_of_row, Strong(slowdown) if is_least and known else slowdown])
    header = ("Neighbour", "Dir", "Swaps", "From", "GB/s", "Slowdown (95%)")
    origin = caption(view, cells, _EQUAL_INCLUDES)
    return DataTable("Slowdown at equal GB/s", header, body, [_EQUAL_MARKS], origin, left=4)


def _point(row: Row) -> str:
    """Return a cell that a slowdown comes from: "1 SM at 20 GB/s"."""
    gbps = f"{two_digits(row['swaps_beside_gbps'])} GB/s"
    return f"{noun(sms, 'SM')} at {gbps}" if (sms := sms_of(row)) else gbps
