"""Line charts as pictures: lines that lie on one another are both seen."""

import io

import numpy as np
import pytest
from PIL import Image

from kvbench.report.charts.line_chart import draw_lines
from kvbench.report.charts.palette import inks, rgb_of
from kvbench.report.charts.plot import ChartText, LinePlot, PlotAxis, PlotLine, PlotPanel

X = [1024.0, 4096.0, 16384.0]


def line(backend: str, y: list[float]) -> PlotLine:
    return PlotLine("run", backend, backend, X, y, y, y, ["", "", ""])


def inked(backend: str, lines: list[PlotLine]) -> int:
    """Return how many pixels of a chart's panel have about the colour of a backend."""
    axes = PlotAxis("block size", "bytes", "log2"), PlotAxis("GB/s", "figure", "linear")
    drawn = draw_lines(LinePlot(*axes, [[PlotPanel("h2d", lines)]]), ChartText("title", "", [], ""), inks([]))
    pixels = np.asarray(Image.open(io.BytesIO(drawn["png"])).convert("RGB")) / 255
    panel = pixels[: int(0.8 * len(pixels))]  # without the legend
    near = np.abs(panel - rgb_of(inks([])[backend].colour)).max(axis=2) < 0.1
    return int(near.sum())


@pytest.mark.parametrize("other", ["batched", "sm", "triton"])
@pytest.mark.parametrize("first", [True, False])
def test_auto_and_the_line_below_it_are_both_visible(other: str, first: bool) -> None:
    y = [10.0, 30.0, 20.0]
    auto, beside = line("auto", [value / 2 for value in y]), line(other, y)
    on = [line("auto", y), beside] if first else [beside, line("auto", y)]
    for name in ("auto", other):
        assert inked(name, on) > 0.4 * inked(name, [auto, beside]) > 100, name
