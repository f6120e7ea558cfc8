"""Backends are told apart by readers who see colours differently, and by marks where colours do not help.

Text has a contrast of 4.5 (WCAG 2, AA) with what it stands on, lines have one of 3.
"""

import re
from importlib import resources
from importlib.metadata import entry_points
from itertools import combinations, product

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.colors import to_rgb

from kvbench.report.charts.figure import KNOWN, RATIO_OCTAVES, contrast, ink_of, is_dark, ratio_colour

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
    """Return CIELAB of linear RGB."""
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


def schemes() -> list[dict[str, str]]:
    """Return the colours of the page by name, light and dark."""
    css = (resources.files("kvbench.report") / "assets" / "page.css").read_text()
    return [
        dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block))
        for block in re.findall(r":root[^{]*\{(.*?)\}", css, re.DOTALL)
    ]


@pytest.mark.parametrize("colours", schemes(), ids=["light", "dark"])
def test_text_and_lines_of_the_page_have_enough_contrast(colours: dict[str, str]) -> None:
    grounds = [colours["page"], colours["raised"]]
    texts = [colours[name] for name in ("text", "faint", "link", "warning")]
    pairs = product(texts, grounds)
    assert min(contrast(to_rgb(text), to_rgb(ground)) for text, ground in pairs) >= 4.5


def test_lines_and_labels_have_enough_contrast_on_paper() -> None:
    drawn = [ink_of(name) for name in (*KNOWN, *STRANGERS)]
    assert min(contrast(to_rgb(ink.colour), (1, 1, 1)) for ink in drawn) >= 3
    assert min(contrast(to_rgb(ink.text), (1, 1, 1)) for ink in drawn) >= 4.5


def test_figures_of_a_map_have_enough_contrast_on_every_tile() -> None:
    for octave in np.linspace(-RATIO_OCTAVES, RATIO_OCTAVES, 25):
        tile = ratio_colour(float(2**octave))
        assert contrast((1, 1, 1) if is_dark(tile) else (0, 0, 0), tile) >= 4.5
