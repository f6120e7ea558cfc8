"""Charts as figures of the page: data for the script that draws lines, else the picture itself."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.report.blocks import Chart
from kvbench.report.charts.palette import Ink
from kvbench.report.charts.plot import Axis, Line, LinePanel, LinePlot, MapPlot
from kvbench.report.html.maps import map_figure
from kvbench.report.html.templates import template


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure's HTML, and the data that the page's script draws it from, None where it needs no script."""

    html: str
    data: Mapping[str, Any] | None = None


def figure_of(chart: Chart, pictures: Mapping[str, bytes], inks: Mapping[str, Ink]) -> Figure:
    """Return the figure of `chart`; `pictures` are the drawn charts by file name, `inks` the colours of backends.

    A picture is asked for only where the chart has no data of its own, since drawing takes long.
    """
    match chart.model:
        case LinePlot() as plot:
            html = template("lines.html").render(stem=chart.stem, words=plot.words)
            return Figure(html, {"stem": chart.stem, **_plot_data(plot, inks)})
        case MapPlot() as plot:
            return Figure(map_figure(plot, chart.stem))
        case None:
            picture = base64.b64encode(pictures[f"{chart.stem}.svg"]).decode()
            return Figure(template("picture.html").render(stem=chart.stem, words=chart.alternative, picture=picture))


def _plot_data(plot: LinePlot, inks: Mapping[str, Ink]) -> Mapping[str, Any]:
    return {
        "title": plot.words.title,
        "x": _axis(plot.x),
        "y": _axis(plot.y),
        "grid": [[_panel(panel, inks) for panel in row] for row in plot.grid],
    }


def _axis(axis: Axis) -> Mapping[str, str]:
    return {"label": axis.label, "unit": axis.unit, "scale": axis.scale}


def _panel(panel: LinePanel, inks: Mapping[str, Ink]) -> Mapping[str, Any]:
    lines = [_line(line, inks[line.backend]) for line in panel.lines]
    return {"title": panel.title, "ceiling": panel.ceiling, "lines": lines}


def _line(line: Line, ink: Ink) -> Mapping[str, Any]:
    return {
        "run": line.run,
        "label": line.label,
        "colour": ink.colour,
        "marker": ink.marker,
        "dash": line.dash,
        "x": list(line.x),
        "y": _numbers(line.y),
        "low": _numbers(line.low),
        "high": _numbers(line.high),
        "cells": list(line.cell_ids),
        "marks": [{"low": mark.low, "high": mark.high, "words": mark.words} for mark in line.marks],
    }


def _numbers(values: Sequence[float]) -> list[float | None]:
    """Return the values for JSON, which has no NaN and needs no sixteen digits."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]
