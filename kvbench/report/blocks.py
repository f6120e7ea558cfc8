"""What a section of a report is made of, and what the charts over sizes and SM counts have in common."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pandas as pd

from kvbench.report.charts.drawing import Picture
from kvbench.report.charts.layout import Grid, Panel, Words, plain
from kvbench.report.charts.palette import Ink
from kvbench.report.charts.plot import LinePlot, MapPlot
from kvbench.report.curves import Curves
from kvbench.report.tables import INCLUDES, Table
from kvbench.report.view import HOST_COPIES, View, ceiling_of, sample_words

DIRECTIONS: Final = ("h2d", "d2h")
_POINT_COLUMNS: Final = (
    "device", "backend", "direction", "stream_state", "blocks", "block_size", "block_bytes", "sms", "gbps", "gbps_q1",
    "gbps_q3", "ceiling_gbps", "ceiling_share", "swap_us_median", "samples", "rounds", "cell_id",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: file stem, text for readers who do not see it, files by suffix (csv), and what draws png and svg.

    `picture` can be pickled: pictures are drawn in processes beside each other. `model` is the same as data, for
    the page that draws it itself; a chart without one stands in that page as it was drawn.
    """

    stem: str
    alternative: str
    files: Mapping[str, bytes]
    picture: Picture
    model: LinePlot | MapPlot | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """What one run adds to a section; `findings` are sentences in Markdown.

    `sentences` are those findings, in Markdown too, that belong into the summary on top; `files` stand beside the
    report and are linked from here, by name.
    """

    findings: Sequence[str]
    charts: Sequence[Chart]
    tables: Sequence[Table]
    sentences: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Section:
    """A section: `make` returns the block of a run, or why that run has none, "" where that goes without saying."""

    name: str
    title: str
    make: Callable[[View, Mapping[str, Ink]], Block | str]


def line_chart(
    name: str,
    subject: str,
    view: View,
    curves: Curves,
    grid: Grid,
    draw: Callable[[Grid, Words, Mapping[str, Ink]], dict[str, bytes]],
    model: Callable[[Grid, Words, str], LinePlot],
    inks: Mapping[str, Ink],
) -> Chart:
    shown = [curve for row in grid for panel in row for curve in panel.curves]
    points = pd.concat([curve.points for curve in shown])
    states = sorted(set(points["stream_state"]), reverse=True)
    lines = [*(INCLUDES[state] for state in states), curves.pinned.words(points)]
    words = words_around(view, subject, f"{sample_words(points)} · band: quartiles", lines)
    picture = partial(draw, grid, words, inks)
    return Chart(
        f"{name}-{view.label}", alternative(view, subject), line_files(grid), picture, model(grid, words, view.label)
    )


def line_files(grid: Grid) -> dict[str, bytes]:
    """Return the CSV behind a chart: a row per point, with the label of the run where several are drawn."""
    points = [
        curve.points[list(_POINT_COLUMNS)].assign(**({} if curve.run is None else {"run": curve.run[1]}))
        for row in grid
        for panel in row
        for curve in panel.curves
    ]
    return {"csv": pd.concat(points).to_csv(index=False).encode()}


def words_around(view: View, title: str, samples: str, footer: Sequence[str]) -> Words:
    """Return what stands around a chart; `samples` says how many and what is drawn of them."""
    return Words(
        title=title,
        subtitle=plain(f"{view.title} · {view.driver} · {view.date} · {samples}"),
        footer=plain("\n".join(footer)),
        warning=HOST_COPIES if view.on_host else "",
    )


def alternative(view: View, subject: str) -> str:
    return f"{subject} ({HOST_COPIES})" if view.on_host else subject


def spread(values: Sequence[int], most: int) -> list[int]:
    """Return at most `most` (2 or more) of the values, evenly spread with both ends."""
    count = min(most, len(values))
    return [values[round(place * (len(values) - 1) / max(1, count - 1))] for place in range(count)]


def panel_row(curves: Curves, panel: int, words: str = "") -> list[Panel]:
    measured = curves.measured
    ways = [way for way in DIRECTIONS if (measured["direction"] == way).any()]
    return [
        Panel(
            f"{way}{words}",
            [curve for curve in curves.at(panel) if curve.direction == way],
            ceiling_of(measured[measured["direction"] == way]),
        )
        for way in ways
    ]
