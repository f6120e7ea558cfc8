"""Backends are told apart by readers who see colours differently, and by marks where colours do not help."""

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from kvbench.report.charts.palette import inks

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
    channels = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb: Floats) -> Floats:
    """Return CIELAB of linear RGB."""
    x, y, z = np.cbrt(np.maximum(SRGB_TO_XYZ @ np.clip(rgb, 0, 1) / WHITE, 1e-6))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHTS)
def test_the_colours_of_the_built_in_backends_stay_apart(sight: str) -> None:
    seen = {name: lab(SIGHTS[sight] @ linear(ink.colour)) for name, ink in inks([]).items()}
    distances = {(a, b): float(np.linalg.norm(seen[a] - seen[b])) for a, b in combinations(seen, 2)}
    assert min(distances.values()) > CLEARLY_APART, min(distances, key=lambda pair: distances[pair])


def test_no_two_backends_share_a_mark() -> None:
    marks = [ink.marker for ink in inks(["alpha", "zebra"]).values()]
    assert len(set(marks)) == len(marks)
