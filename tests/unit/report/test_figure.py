"""The figure of a chart: its text stays inside."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.lines import Line2D

from kvbench.report.charts.figure import new_canvas, styled
from kvbench.report.charts.plot import ChartText


@pytest.mark.parametrize("columns", [1, 2])
def test_long_text_stays_inside_the_figure(columns: int) -> None:
    long = "Slowdown against the GB/s of all WIDE words, " * 8
    with styled():
        canvas = new_canvas(ChartText(long, long, long, long), [Line2D([], [], label="sm")], [[None] * columns])
        figure = canvas.figure
        renderer = FigureCanvasAgg(figure).get_renderer()
        boxes = [text.get_window_extent(renderer) for text in figure.texts]
        top_of_panels = max(ax.get_window_extent(renderer).y1 for ax, _ in canvas.panels)
    assert max(box.x1 for box in boxes) <= figure.bbox.x1
    assert sum(box.y0 > top_of_panels for box in boxes) > 3  # several lines above the panels
