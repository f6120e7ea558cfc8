"""The sections of a report: each takes a run and gives its tables and charts, or the reason why it cannot."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import pandas as pd

from kvbench.report import markdown as md
from kvbench.report import summary
from kvbench.report.blocks import (
    DIRECTIONS,
    Block,
    Chart,
    Section,
    alternative,
    line_chart,
    panel_row,
    spread,
    words_around,
)
from kvbench.report.charts import pictures
from kvbench.report.charts.palette import Ink
from kvbench.report.charts.plot import MapPlot, ladder_plot, queue_plot, size_plot
from kvbench.report.contest import Contests, contests
from kvbench.report.curves import MIN_SIZES, Curve, cliff_curves, ladder_curves
from kvbench.report.ratios import RatioMap, ratio_maps
from kvbench.report.sections import queue_depth as queue
from kvbench.report.sections.auto import auto_block
from kvbench.report.sections.comparison import with_comparison
from kvbench.report.sections.merging import coalescing_block
from kvbench.report.sections.models import model_findings, model_rows, model_tables
from kvbench.report.sections.order import order_contests, order_tables
from kvbench.report.sections.stages import stage_tables
from kvbench.report.sections.threshold import threshold_duels, threshold_tables
from kvbench.report.tables import INCLUDES, cliff_tables, cliff_words, ladder_tables
from kvbench.report.view import View, sample_words


def order_section(view: View, _: Mapping[str, Ink]) -> Block | str:
    found = order_contests(view)
    if isinstance(found, str):
        return found
    return Block([], [], order_tables(view, found), summary.order_sentences(found.contests))


def threshold_section(view: View, _: Mapping[str, Ink]) -> Block | str:
    duels = threshold_duels(view)
    if isinstance(duels, str):
        return duels
    return Block([], [], threshold_tables(view, duels), summary.threshold_sentences(duels))


def map_section(view: View, _: Mapping[str, Ink]) -> Block | str:
    found = view.once(contests)
    maps = ratio_maps(found)
    if isinstance(maps, str):
        return maps
    return Block([], [_map(view, kernel, panels, found) for kernel, panels in maps.items()], [])


def stage_section(view: View, _: Mapping[str, Ink]) -> Block | str:
    tables = stage_tables(view)
    return tables if isinstance(tables, str) else Block([], [], tables)


def cliff_section(view: View, inks: Mapping[str, Ink]) -> Block | str:
    curves = cliff_curves(view.frame)
    if isinstance(curves, str):
        return curves
    subject = f"GB/s against block size, N = {md.count(curves.main)} blocks"
    row = panel_row(curves, curves.main)
    drawn = [line_chart("cliff", subject, view, curves, [row], pictures.cliff_chart, size_plot, inks)]
    several = [panel for panel in curves.panels() if any(len(curve.x) >= MIN_SIZES for curve in curves.at(panel))]
    if len(several) > 1:
        grid = [panel_row(curves, panel, f", N = {md.count(panel)}") for panel in spread(several, _MOST_ROWS)]
        subject = f"GB/s against block size, by number of blocks{_left_out(several, _MOST_ROWS)}"
        drawn.append(line_chart("cliff-by-blocks", subject, view, curves, grid, pictures.cliff_chart, size_plot, inks))
    findings = [_cliff_finding(curve, found) for curve in curves.curves if (found := cliff_words(curve))]
    nothing = f"No jump of {md.TIMES}1.5 or more beyond the noise and the ratio of the sizes between neighbours."
    tables = cliff_tables(view, curves)
    return Block(findings or [nothing], drawn, tables, summary.cliff_sentences(curves.curves))


def ladder_section(view: View, inks: Mapping[str, Ink]) -> Block | str:
    curves = ladder_curves(view.frame)
    if isinstance(curves, str):
        return curves
    sizes = curves.panels()
    grid = [panel_row(curves, size, f", {md.bytes_size(size)} blocks") for size in spread(sizes, _MOST_LADDERS)]
    left_out = _left_out(sizes, _MOST_LADDERS)
    subject = f"GB/s against the SM count, N = {md.count(curves.main)} blocks{left_out}"
    drawn = line_chart("sm-ladder", subject, view, curves, grid, pictures.sm_chart, ladder_plot, inks)
    return Block([], [drawn], ladder_tables(view, curves), summary.ladder_sentences(curves))


def queue_section(view: View, inks: Mapping[str, Ink]) -> Block | str:
    queues = queue.queue_lines(view)
    if isinstance(queues, str):
        return queues
    findings = queue.queue_findings(queues)
    chart = _queue_chart(view, queues, inks)
    return Block(findings or [queue.NO_KNEE], [chart], queue.queue_tables(view, queues), findings)


def coalescing_section(view: View, _: Mapping[str, Ink]) -> Block | str:
    return coalescing_block(view)


def auto_section(view: View, _: Mapping[str, Ink]) -> Block | str:
    return auto_block(view)


def model_section(view: View, _: Mapping[str, Ink]) -> Block | str:
    found = model_rows(view)
    if isinstance(found, str):
        return found
    findings = [text for rows in found for text in model_findings(rows)]
    return Block([], [], [table for rows in found for table in model_tables(rows)], findings)


# More rows of panels than these take longer to draw than to read: the tables have them all.
_MOST_ROWS: Final = 4
_MOST_LADDERS: Final = 4

SECTIONS: Final = (
    Section("T1", "Models: copy by copy against batched", model_section),
    Section("T3", "Cliff: throughput against block size", cliff_section),
    Section("T5", "SM ladder: throughput against SM count", ladder_section),
    Section("T4", "Threshold: batched copies against the other backends", threshold_section),
    Section("T6", "Crossover map: time of batched copies over time of a kernel", map_section),
    Section("T2", "Access order: STREAM against ANY", order_section),
    Section("T7", "Queue depth: submission time against queued swaps", queue_section),
    Section("T8", "Where the time goes: prepare, submit, execute", stage_section),
    Section("coalescing", "Merging adjacent descriptors: what it costs and saves", coalescing_section),
    Section("auto", "The backend auto against the best of the others", auto_section),
)


def sections_of(views: Sequence[View]) -> Sequence[Section]:
    """Return the sections of a report on these runs: those of every run, and a comparison where runs share cells."""
    return with_comparison(SECTIONS, views)


def _left_out(rows: Sequence[int], most: int) -> str:
    return f" ({most} of {len(rows)}, the tables have all)" if len(rows) > most else ""


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
    words = words_around(view, f"Time of batched / time of {kernel}", f"{sample_words(measured)} · medians", lines)
    ways = [[panel for panel in panels if panel.contest.direction == way] for way in DIRECTIONS]
    grid = [row for row in ways if row]
    files = {"csv": points.to_csv(index=False).encode()}
    stem = f"crossover-map-{kernel}-{view.label}"
    picture = partial(pictures.ratio_chart, grid, words)
    return Chart(stem, alternative(view, md.escape(subject)), files, picture, MapPlot(words, grid))


def _queue_chart(view: View, queues: queue.Queues, inks: Mapping[str, Ink]) -> Chart:
    subject = "Time of one more submission against swaps that are queued already"
    points = queues.measured
    samples = f"{sample_words(points)} · medians · band: quartiles"
    words = words_around(view, subject, samples, [queue.INCLUDES, queues.pinned.words(points)])
    files = {"csv": points[list(queue.POINT_COLUMNS)].to_csv(index=False).encode()}
    grid = queues.grid()
    picture, model = partial(pictures.queue_chart, grid, words, inks), queue_plot(grid, words, view.label)
    return Chart(f"queue-depth-{view.label}", alternative(view, subject), files, picture, model)


def _cliff_finding(curve: Curve, found: str) -> str:
    cliff = curve.cliff
    assert cliff is not None
    return (
        f"{md.escape(curve.backend)} {curve.direction}, {curve.state} stream, N = {md.count(curve.panel)}: {found} "
        f"({md.figure(cliff.below_gbps)} to {md.figure(cliff.above_gbps)} GB/s), {summary.path_words([curve])}."
    )
