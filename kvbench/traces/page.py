"""The page of a trace: what its swaps look like, in Markdown, with charts and the numbers behind them."""

from collections.abc import Mapping
from typing import Any, Final

import pandas as pd

from kvbench.report import markdown
from kvbench.report.charts.panels import draw
from kvbench.report.charts.plot import ChartText, LinePlot, PlotAxis, PlotLine, PlotPanel
from kvbench.report.numbers import count, figure
from kvbench.results.frame import as_csv
from kvbench.sweep.replay_spec import RUNS_BY, RUNS_OF, SIDES
from kvbench.traces.statistics import TraceStatistics

_PAGE: Final = "trace.md"
_RUNS: Final = ("trace-runs", "Share of the blocks in runs of at least this length", "blocks in a run")
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
    parts = [f"# {markdown.inline(title)}", _span(summary), _table(summary)]
    for (stem, heading, axis), panels in ((_RUNS, runs), (_SIZES, sizes)):
        if panels:
            files |= _chart(stem, heading, axis, title, panels)
            parts += [f"![{heading}]({stem}.png)", f"[SVG]({stem}.svg), [data]({stem}.csv)"]
    return {_PAGE: ("\n\n".join(parts) + "\n").encode(), **files}


def _span(summary: Mapping[str, Any]) -> str:
    flight = summary["mean_in_flight"]
    texts = [f"{summary['span_s']:.1f} s, up to {count(summary['most_swaps_in_a_second'])} swaps in a second"]
    texts += [f"{flight:.2f} swaps in flight on average"] if flight is not None else []
    return markdown.escape("; ".join(texts))


def _table(summary: Mapping[str, Any]) -> str:
    rows: dict[str, list[str]] = {}
    for direction in SIDES:
        side = summary[direction]
        left = side["share_left_by_merging"]
        values = {
            "Swaps": count(side["swaps"]),
            "Swaps a second": figure(side["swaps_per_second"]),
            "GB/s": figure(side["gbps"]),
            "Blocks a swap, p10, p50, p90, p99": _quantiles(side["blocks_per_swap"]),
            "Descriptors that merging leaves": "-" if left is None else f"{left:.1%}",
            **{
                f"Run length of {RUNS_OF[where]}, by {noun}, p10, p50, p90, p99": _quantiles(lengths[by])
                for where, lengths in side["runs"].items()
                for by, noun in RUNS_BY.items()
            },
        }
        for name, value in values.items():
            rows.setdefault(name, [name]).append(value)
    return markdown.table(["", *SIDES.values()], rows.values())


def _quantiles(values: Mapping[str, int]) -> str:
    return ", ".join(map(count, values.values())) or "-"


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
    drawn = draw(plot, ChartText(heading, title, (), ""))
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
