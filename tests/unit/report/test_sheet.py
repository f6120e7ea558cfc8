"""The sheet of a chart: its words stay on it."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.lines import Line2D

from kvbench.report.charts.plot import ChartWords
from kvbench.report.charts.sheet import new_sheet, styled


@pytest.mark.parametrize("columns", [1, 2])
def test_long_words_stay_on_the_sheet(columns: int) -> None:
    long = "Slowdown against the GB/s of all WIDE words, " * 8
    with styled():
        sheet, axes = new_sheet(ChartWords(long, long, [long], long), [Line2D([], [], label="sm")], [[None] * columns])
        renderer = FigureCanvasAgg(sheet).get_renderer()
        boxes = [text.get_window_extent(renderer) for text in sheet.texts]
        top_of_panels = max(ax.get_window_extent(renderer).y1 for ax in axes[0])
    assert max(box.x1 for box in boxes) <= sheet.bbox.x1
    assert sum(box.y0 > top_of_panels for box in boxes) > 3  # several lines above the panels
