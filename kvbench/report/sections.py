"""The sections of a report: each takes a run and gives its tables and charts, or the reason why it cannot."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from kvbench.report import charts
from kvbench.report import markdown as md
from kvbench.report.contest import Contests, contests
from kvbench.report.curves import MIN_SIZES, Curve, Curves, cliff_curves, ladder_curves
from kvbench.report.heatmap import ratio_chart
from kvbench.report.layout import Grid, Panel, Words, plain
from kvbench.report.palette import Ink
from kvbench.report.ratios import RatioMap, ratio_maps
from kvbench.report.stages import stage_tables
from kvbench.report.tables import INCLUDES, Table, cliff_tables, cliff_words, ladder_tables, order_tables
from kvbench.report.threshold import threshold_tables
from kvbench.report.view import HOST_COPIES, View, sample_words
from kvbench.units import format_size

DIRECTIONS: Final = ("h2d", "d2h")
_POINT_COLUMNS: Final = (
    "device", "backend", "direction", "stream_state", "blocks", "block_size", "block_bytes", "sms", "gbps", "gbps_q1",
    "gbps_q3", "ceiling_gbps", "ceiling_share", "swap_us_median", "samples", "rounds", "cell_id",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart: file stem, text for readers who do not see it, files by suffix (png, svg, csv)."""

    stem: str
    alternative: str
    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Block:
    """What one run adds to a section; `findings` are sentences in Markdown."""

    findings: Sequence[str]
    charts: Sequence[Chart]
    tables: Sequence[Table]


@dataclass(frozen=True, slots=True)
class Section:
    """A section: `make` returns the block of a run, or why that run has none."""

    name: str
    title: str
    make: Callable[[View, Mapping[str, Ink]], Block | str]


def order_section(view: View, _: Mapping[str, Ink]) -> Block | str:
    tables = order_tables(view)
    return tables if isinstance(tables, str) else Block([], [], tables)


def threshold_section(view: View, _: Mapping[str, Ink]) -> Block | str:
    tables = threshold_tables(view)
    return tables if isinstance(tables, str) else Block([], [], tables)


def map_section(view: View, _: Mapping[str, Ink]) -> Block | str:
    found = contests(view)
    maps = ratio_maps(found)
    if isinstance(maps, str):
        return maps
    return Block([], [_map(view, kernel, panels, found) for kernel, panels in maps.items()], [])


def stage_section(view: View, _: Mapping[str, Ink]) -> Block | str:
    tables = stage_tables(view)
    return tables if isinstance(tables, str) else Block([], [], tables)


def cliff_section(view: View, inks: Mapping[str, Ink]) -> Block | str:
    curves = cliff_curves(view)
    if isinstance(curves, str):
        return curves
    subject = f"GB/s against block size, N = {md.count(curves.main)} blocks"
    drawn = [_chart("cliff", subject, view, curves, [_row(curves, curves.main)], charts.cliff_chart, inks)]
    several = [panel for panel in curves.panels() if any(len(curve.x) >= MIN_SIZES for curve in curves.at(panel))]
    if len(several) > 1:
        grid = [_row(curves, panel, f", N = {md.count(panel)}") for panel in several]
        subject = "GB/s against block size, by number of blocks"
        drawn.append(_chart("cliff-by-blocks", subject, view, curves, grid, charts.cliff_chart, inks))
    findings = [_cliff_finding(curve, found) for curve in curves.curves if (found := cliff_words(curve))]
    nothing = f"No jump of {md.TIMES}1.5 or more beyond the noise and the ratio of the sizes between neighbours."
    return Block(findings or [nothing], drawn, cliff_tables(view, curves))


def ladder_section(view: View, inks: Mapping[str, Ink]) -> Block | str:
    curves = ladder_curves(view)
    if isinstance(curves, str):
        return curves
    grid = [_row(curves, size, f", {md.size(format_size(size))} blocks") for size in curves.panels()]
    subject = f"GB/s against the SM count, N = {md.count(curves.main)} blocks"
    drawn = _chart("sm-ladder", subject, view, curves, grid, charts.sm_chart, inks)
    return Block([], [drawn], ladder_tables(view, curves))


SECTIONS: Final = (
    Section("T3", "Cliff: throughput against block size", cliff_section),
    Section("T4", "Threshold: batched copies against the other backends", threshold_section),
    Section("T6", "Crossover map: time of batched copies over time of a kernel", map_section),
    Section("T2", "Access order: STREAM against ANY", order_section),
    Section("T5", "SM ladder: throughput against SM count", ladder_section),
    Section("T8", "Where the time goes: prepare, submit, execute", stage_section),
)


def _chart(
    name: str,
    subject: str,
    view: View,
    curves: Curves,
    grid: Grid,
    draw: Callable[[Grid, Words, Mapping[str, Ink]], dict[str, bytes]],
    inks: Mapping[str, Ink],
) -> Chart:
    shown = [curve for row in grid for panel in row for curve in panel.curves]
    points = pd.concat([curve.points for curve in shown])
    states = sorted(set(points["stream_state"]), reverse=True)
    lines = [*(INCLUDES[state] for state in states), curves.pinned.words(points)]
    words = _words(view, subject, f"{sample_words(points)} · band: quartiles", lines)
    files = draw(grid, words, inks) | {"csv": points[list(_POINT_COLUMNS)].to_csv(index=False).encode()}
    return Chart(f"{name}-{view.label}", _alternative(view, subject), files)


def _map(view: View, kernel: str, panels: Sequence[RatioMap], found: Contests) -> Chart:
    subject = f"Time of batched copies over time of {kernel}, by block size and number of blocks"
    points = pd.concat([panel.points for panel in panels])
    arms = pd.concat([arm.cells for panel in panels for arm in (panel.contest.arms[0], panel.kernel)])
    measured = arms[arms["status"] == "ok"]
    states = sorted(set(points["stream_state"]), reverse=True)
    lines = [
        *(INCLUDES[state].replace("GB/s", "Time", 1) for state in states),
        f"{found.pinned.words(measured)}; reproduced by {md.clean(view.command, 300)}",
    ]
    words = _words(view, f"Time of batched / time of {kernel}", f"{sample_words(measured)} · medians", lines)
    ways = [[panel for panel in panels if panel.contest.direction == way] for way in DIRECTIONS]
    files = ratio_chart([row for row in ways if row], words) | {"csv": points.to_csv(index=False).encode()}
    return Chart(f"crossover-map-{kernel}-{view.label}", _alternative(view, md.escape(subject)), files)


def _words(view: View, title: str, samples: str, footer: Sequence[str]) -> Words:
    """Return what stands around a chart; `samples` says how many and what is drawn of them."""
    return Words(
        title=title,
        subtitle=plain(f"{view.title} · {view.driver} · {view.date} · {samples}"),
        footer=plain("\n".join(footer)),
        warning=HOST_COPIES if view.on_host else "",
    )


def _alternative(view: View, subject: str) -> str:
    return f"{subject} ({HOST_COPIES})" if view.on_host else subject


def _row(curves: Curves, panel: int, words: str = "") -> list[Panel]:
    measured = curves.measured
    ways = [way for way in DIRECTIONS if (measured["direction"] == way).any()]
    return [
        Panel(f"{way}{words}", [curve for curve in curves.at(panel) if curve.direction == way], ceiling)
        for way in ways
        for ceiling in [_ceiling(measured[measured["direction"] == way])]
    ]


def _ceiling(cells: pd.DataFrame) -> float | None:
    known = cells["ceiling_gbps"].dropna()
    return None if known.empty else float(known.iloc[0])


def _cliff_finding(curve: Curve, found: str) -> str:
    cliff = curve.cliff
    assert cliff is not None
    paths = curve.points.set_index("block_bytes")["path"]
    below, above = (md.escape(paths[size]) for size in (cliff.below_bytes, cliff.above_bytes))
    path = f"effective path {below}" if below == above else f"effective path {below} below, {above} above"
    return (
        f"{md.escape(curve.backend)} {curve.direction}, {curve.state} stream, N = {md.count(curve.panel)}: {found} "
        f"({md.figure(cliff.below_gbps)} to {md.figure(cliff.above_gbps)} GB/s), {path}."
    )
