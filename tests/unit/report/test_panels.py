"""Charts as pictures: what lies on one another is seen, what is written does not touch."""

import io
import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from kvbench.report.charts.figure import ink_of
from kvbench.report.charts.panels import draw
from kvbench.report.charts.plot import ChartText, LinePlot, PlotAxis, PlotLine, PlotPanel

TEXT = ChartText("title", "")
X = [1024.0, 4096.0, 16384.0]


def line(backend: str, y: list[float]) -> PlotLine:
    return PlotLine(backend, backend, X, y, y, y)


def inked(backend: str, lines: list[PlotLine]) -> int:
    """Return how many pixels of a chart's panel have about the colour of a backend."""
    axes = PlotAxis("block size", "bytes", "log2"), PlotAxis("GB/s", "figure", "linear")
    drawn = draw(LinePlot(*axes, [[PlotPanel("h2d", lines)]]), TEXT)
    pixels = np.asarray(Image.open(io.BytesIO(drawn.png)).convert("RGB")) / 255
    panel = pixels[: int(0.8 * len(pixels))]  # without the legend
    near = np.abs(panel - to_rgb(ink_of(backend).colour)).max(axis=2) < 0.1
    return int(near.sum())


@pytest.mark.parametrize("other", ["batched", "sm", "triton"])
@pytest.mark.parametrize("first", [True, False])
def test_auto_and_the_line_below_it_are_both_visible(other: str, first: bool) -> None:
    y = [10.0, 30.0, 20.0]
    auto, beside = line("auto", [value / 2 for value in y]), line(other, y)
    on = [line("auto", y), beside] if first else [beside, line("auto", y)]
    for name in ("auto", other):
        assert inked(name, on) > 0.4 * inked(name, [auto, beside]) > 100, name


def plot_of(lines: Sequence[PlotLine], x: PlotAxis | None = None, **more: float) -> LinePlot:
    axis = x or PlotAxis("block size", "bytes", "log2")
    return LinePlot(axis, PlotAxis("GB/s", "figure", "linear"), [[PlotPanel("h2d", lines, **more)]])  # type: ignore[arg-type]


def ticks_of(plot: LinePlot) -> list[tuple[str, float, float]]:
    """Return the labels of the x axis with their left and right ends, in points, as wide as the font can make them."""
    svg = draw(plot, TEXT).svg.decode()
    axis = svg[svg.index('id="matplotlib.axis_1"') : svg.index('id="matplotlib.axis_2"')]
    texts = re.findall(r'text-anchor: (\w+)[^>]*? x="([\d.]+)"[^>]*>([^<]*)<', axis)[:-1]  # the last is the axis' label
    ticks = []
    for anchor, x, label in texts:
        width = 8 * 0.6 * len(label)
        left = float(x) - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
        ticks.append((label.strip("\N{NO-BREAK SPACE}"), left, left + width))
    return sorted(ticks, key=lambda tick: tick[1])


def test_sizes_are_labelled_in_kib_and_no_two_labels_touch() -> None:
    sizes = [1024.0 * kib for kib in (1, 2, 4, 8, 16, 20, 24, 24.5, 28, 32, 64, 256)]
    ticks = ticks_of(plot_of([PlotLine("batched", "batched", sizes, sizes, sizes, sizes)]))
    assert {"1", "4", "16", "24", "256"} <= {label for label, _, _ in ticks}
    assert all(right + 4 <= left for (_, _, right), (_, left, _) in pairwise(ticks))


def test_notes_that_would_touch_are_left_out() -> None:
    x = [1.0, 2.0, 4.0, 4.01]
    one = PlotLine("sm", "sm", x, x, x, x, notes=("first", "second", "third", "fourth"), rings=[2.0])
    svg = draw(plot_of([one], PlotAxis("SMs", "count", "log2")), TEXT).svg.decode()
    assert [f">{note}<" in svg for note in one.notes] == [True, True, False, True]
