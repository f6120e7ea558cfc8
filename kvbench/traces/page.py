"""The page of a trace: what its swaps look like, in Markdown, with charts and the numbers behind them."""

from collections.abc import Mapping
from typing import Final

import pandas as pd

from kvbench.report import markdown
from kvbench.report.charts.panels import draw
from kvbench.report.charts.plot import ChartText, LinePlot, PlotAxis, PlotLine, PlotPanel
from kvbench.results.frame import as_csv
from kvbench.sweep.replay_spec import RUNS_OF, SIDES
from kvbench.traces.statistics import TraceStatistics, rows_of, span_text

_PAGE: Final = "trace.md"
_RUNS: Final = ("trace-runs", "Share of the blocks in extents of at least this length", "blocks in an extent")
_SIZES: Final = ("trace-sizes", "Share of the swaps and of their bytes, by size", "blocks in a swap, at most")


def trace_files(title: str, statistics: TraceStatistics, block_bytes: int) -> dict[str, bytes]:
    """Return the page of a trace as file name -> content: trace.md, and each chart as PNG, SVG and CSV."""
    summary = statistics.summary(block_bytes)
    runs, sizes = {}, {}
    for direction, side in statistics.by_direction.items():
        if side.sizes:
            runs[direction] = {RUNS_OF[where]: _at_least(_blocks(lengths)) for where, lengths in side.runs.items()}
            sizes[direction] = {"swaps": _at_most(side.sizes), "bytes": _at_most(_blocks(side.sizes))}
    files: dict[str, bytes] = {}
    table = markdown.table(["", *SIDES.values()], rows_of(summary))
    parts = [f"# {markdown.inline(title)}", markdown.escape(span_text(summary)), table]
    for (stem, heading, axis), panels in ((_RUNS, runs), (_SIZES, sizes)):
        if panels:
            files |= _chart(stem, heading, axis, title, panels)
            parts += [f"![{heading}]({stem}.png)", f"[SVG]({stem}.svg), [data]({stem}.csv)"]
    return {_PAGE: ("\n\n".join(parts) + "\n").encode(), **files}


def _blocks(lengths: Mapping[int, int]) -> dict[int, int]:
    return {length: length * times for length, times in lengths.items()}


def _at_least(weights: Mapping[int, int]) -> dict[int, float]:
    """Return the share of the weights at each power of two of blocks or more, in percent."""
    steps, total = _powers(max(weights)), sum(weights.values())
    return {at: 100 * sum(weight for blocks, weight in weights.items() if blocks >= at) / total for at in steps}


def _at_most(weights: Mapping[int, int]) -> dict[int, float]:
    """Return the share of the weights at up to each power of two of blocks, in percent."""
    steps, total = _powers(2 * max(weights) - 1), sum(weights.values())
    return {at: 100 * sum(weight for blocks, weight in weights.items() if blocks <= at) / total for at in steps}


def _powers(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]


def _chart(
    stem: str, heading: str, axis: str, title: str, shares: Mapping[str, Mapping[str, Mapping[int, float]]]
) -> dict[str, bytes]:
    panels = [
        PlotPanel(SIDES[direction], [_line(*line, variant) for variant, line in enumerate(lines.items())])
        for direction, lines in shares.items()
    ]
    plot = LinePlot(PlotAxis(axis, "count", "log2"), PlotAxis("share, %", "figure", "linear"), [panels])
    drawn = draw(plot, ChartText(heading, title))
    points = [
        {"direction": direction, "line": name, "blocks": at, "share_percent": share}
        for direction, lines in shares.items()
        for name, steps in lines.items()
        for at, share in steps.items()
    ]
    return {f"{stem}.{kind}": data for kind, data in drawn.files.items()} | {
        f"{stem}.csv": as_csv(pd.DataFrame(points))
    }


def _line(name: str, shares: Mapping[int, float], variant: int) -> PlotLine:
    x, y = list(map(float, shares)), list(shares.values())
    return PlotLine(name, name, x, y, y, y, variant=variant)
