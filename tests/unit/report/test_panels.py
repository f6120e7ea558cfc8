"""Charts as pictures: what lies on one another is seen, what is written does not touch."""

import io
import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from kvbench.report.charts.palette import ink_of, rgb_of
from kvbench.report.charts.panels import draw
from kvbench.report.charts.plot import (
    ChartText,
    DotPanel,
    DotPlot,
    LinePlot,
    PlotAxis,
    PlotDot,
    PlotLine,
    PlotMark,
    PlotPanel,
)
from kvbench.report.numbers import count

TEXT = ChartText("title", "", [], "")
X = [1024.0, 4096.0, 16384.0]


def line(backend: str, y: list[float]) -> PlotLine:
    return PlotLine(backend, backend, X, y, y, y)


def inked(backend: str, lines: list[PlotLine]) -> int:
    """Return how many pixels of a chart's panel have about the colour of a backend."""
    axes = PlotAxis("block size", "bytes", "log2"), PlotAxis("GB/s", "figure", "linear")
    drawn = draw(LinePlot(*axes, [[PlotPanel("h2d", lines)]]), TEXT)
    pixels = np.asarray(Image.open(io.BytesIO(drawn.png)).convert("RGB")) / 255
    panel = pixels[: int(0.8 * len(pixels))]  # without the legend
    near = np.abs(panel - rgb_of(ink_of(backend).colour)).max(axis=2) < 0.1
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
    return LinePlot(axis, PlotAxis("GB/s", "figure", "rate"), [[PlotPanel("h2d", lines, **more)]])  # type: ignore[arg-type]


def ticks_of(plot: LinePlot | DotPlot) -> list[tuple[str, float, float]]:
    """Return the labels of the x axis with their left and right ends, in points, as wide as the font can make them."""
    svg = next(iter(draw(plot, TEXT).views.values())).svg.decode()
    axis = svg[svg.index('id="matplotlib.axis_1"') : svg.index('id="matplotlib.axis_2"')]
    texts = re.findall(r'text-anchor: (\w+)[^>]*? x="([\d.]+)"[^>]*>([^<]*)<', axis)[:-1]  # the last is the axis' label
    ticks = []
    for anchor, x, label in texts:
        width = 8 * 0.6 * len(label)
        left = float(x) - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
        ticks.append((label.strip("\N{NO-BREAK SPACE}"), left, left + width))
    return sorted(ticks, key=lambda tick: tick[1])


def test_the_sizes_of_a_jump_have_one_label_and_no_two_labels_touch() -> None:
    sizes = [1024.0 * kib for kib in (1, 2, 4, 8, 16, 20, 24, 24.5, 28, 32, 64, 256)]
    rates = [5.0 if size <= 24 * 1024 else 20.0 for size in sizes]
    jump = PlotMark(24 * 1024, 24.5 * 1024, "4x")
    ticks = ticks_of(plot_of([PlotLine("batched", "batched", sizes, rates, rates, rates, [jump])]))
    assert "24\N{NO-BREAK SPACE}KiB \N{RIGHTWARDS ARROW} 24.5\N{NO-BREAK SPACE}KiB" in {label for label, _, _ in ticks}
    assert len(ticks) >= 4
    assert all(right + 4 <= left for (_, _, right), (_, left, _) in pairwise(ticks))


def test_ticks_of_what_a_trace_holds_are_round() -> None:
    values = [239.0, 610.0, 1403.0, 3782.0, 30720.0, 64510.0, 105500.0, 110200.0, 245760.0]
    line = PlotLine("sm", "sm", values, values, values, values)
    labels = [label for label, _, _ in ticks_of(plot_of([line], PlotAxis("descriptors", "count", "log2")))]
    assert labels == [count(value) for value in (300, 1000, 3000, 10_000, 30_000, 100_000)]


def test_rates_have_a_linear_and_a_logarithmic_view_and_small_ones_are_seen_first() -> None:
    wide, narrow = (draw(plot_of([line("sm", y)]), TEXT) for y in ([0.8, 5.0, 50.0], [20.0, 30.0, 50.0]))
    assert list(wide.views) == ["log10", "linear"]
    assert list(narrow.views) == ["linear", "log10"]
    assert wide.files["svg"] == wide.views["log10"].svg


def test_lines_seen_as_one_share_a_name() -> None:
    states = {"idle": 1.0, "opened": 1.02, "busy": 3.0, "gated": 3.05}
    lines = [
        PlotLine(f"batched, {state} stream", "batched", X, [y * f for y in (2.0, 4.0, 8.0)], X, X, variant=number)
        for number, (state, f) in enumerate(states.items())
    ]
    svg = draw(plot_of(lines), TEXT).files["svg"].decode()
    assert ">idle and opened: within 12%<" in svg
    assert ">busy and gated: within 12%<" in svg


def test_a_key_shows_a_stroke_only_where_points_are_joined() -> None:
    lone = PlotLine("sm", "sm", [1024.0], [20.0], [20.0], [20.0])
    svg = draw(plot_of([line("batched", [10.0, 20.0, 30.0]), lone]), TEXT).files["svg"].decode()
    joined, single = (svg[svg.index(f'id="key-{number}"') :].partition("</g>\n  </g>")[0] for number in (0, 1))
    assert re.search(r'<path d="M [\d. ]+\nL [^"]*" style="fill: none; stroke: #2c60dd', joined)
    assert not re.search(r'<path d="M [\d. ]+\nL [^"]*" style="fill: none; stroke: #a553ab', single)


@pytest.mark.parametrize("reach", [1.05, 1.3, 1.6, 2.5, 4.0, 12.0, 50.0])
def test_ticks_of_ratios_do_not_touch(reach: float) -> None:
    dot = PlotDot("sm", "sm", reach, 1 / reach, reach, decided=True)
    ticks = ticks_of(DotPlot([[DotPanel("h2d", [dot]), DotPanel("d2h", [dot])]]))
    assert len(ticks) >= 3
    assert all(right + 4 <= left for (_, _, right), (_, left, _) in pairwise(ticks))


def test_variants_of_a_backend_have_its_mark_and_differ_in_the_stroke() -> None:
    lines = [PlotLine(f"sm {n}", "sm", X, [n * y for y in X], X, X, variant=n) for n in range(1, 7)]
    svg = draw(plot_of(lines), TEXT).files["svg"].decode()
    keys = [svg[svg.index(f'id="key-{number}"') :].partition("</g>\n  </g>")[0] for number in range(6)]
    marks, strokes = (
        {re.search(mark, key)[1] for key in keys}
        for mark in (r'<use [^>]*style="([^"]*)"', r'L [^"]*" style="([^"]*)"')
    )  # type: ignore[index]
    assert (len(marks), len(strokes)) == (1, 6)


def boxes_of(svg: str, texts: set[str]) -> list[tuple[float, float, float, float]]:
    """Return about where texts stand: left, right, top and bottom, in points."""
    found = re.findall(r'text-anchor: (\w+)[^>]*? x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)<', svg)
    boxes = []
    for anchor, x, y, text in found:
        width = 7.5 * 0.6 * len(text)
        left = float(x) - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
        boxes += [(left, left + width, float(y) - 6, float(y))] if text in texts else []
    return boxes


def test_notes_stand_beside_each_other_and_leave_rings_alone() -> None:
    """A knee of one backend beside that of another, as on an H100 at d2h of 16 KiB."""
    x = [1.0, 2.0, 3.0, 4.0, 8.0, 16.0, 48.0]
    sm = PlotLine("sm", "sm", x, [24.0, 48, 49, 50, 51, 51, 48], X, X, [PlotMark(4, 4, "4 SMs")])
    triton = PlotLine("triton", "triton", x[4:], [48.0, 48, 49], X, X, [PlotMark(8, 8, "at most 8 SMs")])
    lines = [PlotLine(one.label, one.backend, one.x, one.y, one.y, one.y, one.marks) for one in (sm, triton)]
    view = draw(plot_of(lines, PlotAxis("SMs", "count", "log2"), ceiling=55.0), TEXT).files["svg"].decode()
    one, other = boxes_of(view, {"4 SMs", "at most 8 SMs"})
    rings = re.findall(r'd="M 0 5\.5 .*?<use [^>]*x="([\d.]+)" y="([\d.]+)"', view, re.DOTALL)
    assert len(rings) == 2
    for left, right, top, bottom in (one, other):
        assert not any(
            left < float(x) + 5 and right > float(x) - 5 and top < float(y) + 5 and bottom > float(y) - 5
            for x, y in rings
        )
    assert one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]


def test_a_lone_point_beside_another_line_of_its_backend_has_its_name() -> None:
    lone = PlotLine("sm, at once", "sm", [4096.0], [20.0], [20.0], [20.0], variant=1)
    svg = draw(plot_of([line("sm", [10.0, 30.0, 40.0]), lone]), TEXT).files["svg"].decode()
    assert svg.count(">sm, at once<") == 2  # at the point, and in the legend


def test_ratios_say_which_side_is_slower() -> None:
    dots = [
        PlotDot("sm 64", "sm", 1.5, 1.2, 1.9, decided=True),
        PlotDot("merged 64", "merged", 0.5, 0.4, 0.6, decided=True),
    ]
    view = draw(DotPlot([[DotPanel("h2d", dots)]]), TEXT).views["dots"]
    svg = view.svg.decode()
    places = {text: float(x) for x, text in re.findall(r' x="([\d.]+)"[^>]*>([^<]*(?:slower|faster)[^<]*)<', svg)}
    (faster, left), (slower, right) = sorted(places.items(), key=lambda one: one[1])
    assert "faster" in faster
    assert "slower" in slower
    assert left < right
    assert [title for titles in view.titles.values() for title in titles] == [
        "sm 64\n1.50 (1.20 to 1.90)",
        "merged 64\n0.500 (0.400 to 0.600)",
    ]
