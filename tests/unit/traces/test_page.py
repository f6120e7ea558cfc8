"""The page of a trace: its table, its charts and the numbers behind them."""

from functools import cache
from io import BytesIO

import pandas as pd

from kvbench.sweep.swap_file import Swap
from kvbench.traces.statistics import TraceStatistics, trace_files

# Two loads: 4 blocks in one run on both sides, and 12 in the same order on the host alone.
LOADS = [
    Swap(0.0, "h2d", 0, [*range(4)], [*range(10, 14)]),
    Swap(2.0, "h2d", 1, [*range(20, 32)], [*range(100, 124, 2)]),
]


@cache
def made(title: str = "one") -> dict[str, bytes]:
    return trace_files(title, TraceStatistics(LOADS), 1_000_000)


def shares(name: str) -> dict[tuple[str, int], float]:
    points = pd.read_csv(BytesIO(made()[name]))
    return {(row.line, row.blocks): row.share_percent for row in points.itertuples()}


def test_a_trace_page_has_charts_and_their_csv_files() -> None:
    charts = [f"trace-{name}.{kind}" for name in ("runs", "sizes") for kind in ("png", "svg", "csv")]
    assert list(made()) == ["trace.md", *charts]
    page = made()["trace.md"].decode()
    assert all(f"({chart})" in page for chart in charts)


def test_the_chart_of_runs_has_the_share_of_blocks_at_each_run_length_or_more() -> None:
    percent = shares("trace-runs.csv")
    assert percent["host ids", 8] == 75.0
    assert percent["both sides", 4] == 25.0
    assert percent["GPU ids", 1] == 100.0


def test_the_chart_of_sizes_has_the_shares_of_swaps_and_bytes_up_to_each_size() -> None:
    percent = shares("trace-sizes.csv")
    assert (percent["swaps", 2], percent["swaps", 4], percent["swaps", 16]) == (0.0, 50.0, 100.0)
    assert (percent["bytes", 4], percent["bytes", 16]) == (25.0, 100.0)


def test_a_trace_without_swaps_has_no_chart() -> None:
    assert list(trace_files("none", TraceStatistics([]), 4096)) == ["trace.md"]
