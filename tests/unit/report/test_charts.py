"""Backends are told apart by readers who see colours differently, and by marks where colours do not help."""

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from kvbench.report.drawing import KNOWN, draw, ink_of
from kvbench.report.model import ChartText, LinePlot, PlotAxis, PlotLine, PlotPanel

Floats = npt.NDArray[np.float64]
# Colour-vision deficiencies at full severity, on linear RGB: Machado, Oliveira and Fernandes 2009, table 1.
SIGHTS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
SRGB_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = SRGB_TO_XYZ.sum(axis=1)
# CIE76; 2.3 is a difference that is just seen side by side.
CLEARLY_APART = 15.0


def linear(colour: str) -> Floats:
    channels = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb: Floats) -> Floats:
    x, y, z = np.cbrt(np.maximum(SRGB_TO_XYZ @ np.clip(rgb, 0, 1) / WHITE, 1e-6))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHTS)
def test_colour_blind_readers_can_distinguish_the_known_backends(sight: str) -> None:
    seen = {name: lab(SIGHTS[sight] @ linear(ink_of(name).colour)) for name in KNOWN}
    distances = {(a, b): float(np.linalg.norm(seen[a] - seen[b])) for a, b in combinations(seen, 2)}
    assert min(distances.values()) > CLEARLY_APART, min(distances, key=lambda pair: distances[pair])


STRANGERS = [f"stranger{number}" for number in range(200)]


def test_every_backend_of_kvbench_has_a_colour_and_a_mark_of_its_own() -> None:
    registered = {entry.name for entry in entry_points(group="kvbench.backends") if entry.value.startswith("kvbench.")}
    assert registered <= set(KNOWN)
    drawn = [ink_of(name) for name in KNOWN]
    assert len({ink.colour for ink in drawn}) == len({ink.marker for ink in drawn}) == len(drawn)


def test_a_plug_in_is_never_drawn_as_a_known_backend() -> None:
    known = [ink_of(name) for name in KNOWN]
    for ink in map(ink_of, STRANGERS):
        assert ink.colour not in {other.colour for other in known}
        assert ink.marker not in {other.marker for other in known}
    assert len({(ink.colour, ink.marker) for ink in map(ink_of, STRANGERS)}) > 20


# Charts as pictures: what lies on one another is seen, what is written does not touch


TEXT = ChartText("title", "")
X = [1024.0, 4096.0, 16384.0]


def line(backend: str, y: list[float]) -> PlotLine:
    return PlotLine(backend, backend, X, y, y, y)


def inked(backends: Sequence[str], lines: list[PlotLine]) -> list[int]:
    """Return how many pixels of a chart's panel have about the colour of each backend."""
    pixels = np.asarray(Image.open(io.BytesIO(draw(plot_of(lines), TEXT).png)).convert("RGB")) / 255
    panel = pixels[: int(0.8 * len(pixels))]  # without the legend
    colours = [to_rgb(ink_of(backend).colour) for backend in backends]
    return [int((np.abs(panel - colour).max(axis=2) < 0.1).sum()) for colour in colours]


@pytest.mark.parametrize(("other", "first"), [("batched", True), ("sm", False)])
def test_auto_and_the_line_below_it_are_both_visible(other: str, first: bool) -> None:
    y = [10.0, 30.0, 20.0]
    auto, beside = line("auto", [value / 2 for value in y]), line(other, y)
    on = [line("auto", y), beside] if first else [beside, line("auto", y)]
    names = ("auto", other)
    for name, covered, whole in zip(names, inked(names, on), inked(names, [auto, beside]), strict=True):
        assert covered > 0.4 * whole > 100, name


def plot_of(lines: Sequence[PlotLine], x: PlotAxis | None = None, **more: float) -> LinePlot:
    axis = x or PlotAxis("block size", octaves=True, in_kib=True)
    return LinePlot(axis, PlotAxis("GB/s"), [PlotPanel("h2d", lines, **more)])  # type: ignore[arg-type]


def svg_of(plot: LinePlot) -> str:
    return draw(plot, TEXT).svg.decode()


def ticks_of(plot: LinePlot) -> list[tuple[str, float, float]]:
    """Return the labels of the x axis with their left and right ends, in points, as wide as the font can make them."""
    svg = svg_of(plot)
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


def texts_of(svg: str) -> dict[str, tuple[float, float]]:
    """Return the texts of a chart with the points at which they are written, from its top left."""
    found = re.findall(
        r"<text [^>]*?(?:x=\"([\d.]+)\" y=\"([\d.]+)\"|translate\(([\d.]+) ([\d.]+)\))[^>]*>([^<]*)<", svg
    )
    return {text: (float(left or moved), float(top or down)) for left, top, moved, down, text in found}


def test_notes_stand_where_nothing_is_drawn_or_written_or_are_left_out() -> None:
    x = [1.0, 2.0, 4.0, *(4.01 + 0.01 * number for number in range(6))]
    one = PlotLine("sm", "sm", x, x, x, x, notes=[f"note {number}" for number in range(len(x))], rings=[2.0])
    beside = replace(one, backend="batched", y=[0.95 * y for y in x], notes=())
    alone, both = (texts_of(svg_of(plot_of(lines, PlotAxis("SMs", octaves=True)))) for lines in ([one], [one, beside]))
    assert ["note 1" in alone, *(note in alone for note in one.notes[3:-1])] == [True] + [False] * 5, "a crowd"
    assert both["note 1"][1] < alone["note 1"][1]  # above its point, where the line below it is not


def test_panels_stand_in_rows_with_ratios_from_one_and_a_ceiling_across() -> None:
    x, y = [14.5, 28.0, 47.0], [1.02, 1.05, 4.4]
    one = PlotLine("sm by SM count", "sm", x, y, y, y, notes=("1 SM", "2 SMs", "4 SMs"))
    panels = [PlotPanel(title, [one], x_ceiling=55.3) for title in ("first", "second", "third")]
    axes = PlotAxis("GB/s of the swaps"), PlotAxis("a step takes", zero=False, ratios=True)
    svg = svg_of(LinePlot(*axes, panels, in_a_row=2))
    at = texts_of(svg)
    assert at["first"][1] == at["second"][1] < at["third"][1]
    assert at["first"][0] == at["third"][0] < at["second"][0]
    assert {"1x", "2x", "4x"} <= at.keys()
    assert svg.count(">ceiling 55.3<") == 3
    assert "0.5x" not in at
