"""How often an interval holds and a verdict is wrong on noise whose truth is known: `python -m tests.simulate_pairs`.

Two arms that take equally long are sampled in turn, at one shape of swaps or at several: at some the first is faster,
at as many the second. Nothing here is a measurement. `--write` puts the tables into docs/design/intervals.md.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from kvbench.analysis.compare import Floats, compare_over, compare_visits, median_interval, medians_in_turn
from kvbench.analysis.margins import IN_TURN, TIED
from tests.simulate_gate import write_between_markers

MARKERS: Final = ("<!-- coverage: begin -->", "<!-- coverage: end -->")
PAGE: Final = Path(__file__).parents[1] / "docs" / "design" / "intervals.md"
SAMPLES: Final = 15
# Noise of a sample and of a visit, as shares of the time.
OF_SAMPLE, OF_VISIT = 0.02, 0.02
# By how much longer a slow visit takes.
SLOWER: Final = 0.4
# The largest difference of the arms at one of several shapes.
APART: Final = 0.1
SHAPES: Final = (5, 16, 40)


@dataclass(frozen=True)
class Noise:
    """What arms share: the `correlation` of successive visits, a `drift` in all, an offset of each `process`; and what
    an arm has for itself in a visit, `own`, of the same correlation, or in a whole run, `start`. `slow` is the share of
    an arm's visits that take `SLOWER` longer.
    """

    name: str
    correlation: float = 0.0
    drift: float = 0.0
    process: float = 0.0
    own: float = 0.0
    slow: float = 0.0
    start: float = 0.0


NOISES: Final = (
    Noise("independent visits"),
    Noise("independent visits, one in six slower by 40%", slow=1 / 6),
    Noise("correlation 0.5, 10% drift, 3% from process to process", 0.5, 0.1, 0.03),
    Noise("the same, and 1% of each arm's own", 0.5, 0.1, 0.03, 0.01),
    Noise("the same, and 3% of each arm's own", 0.5, 0.1, 0.03, 0.03),
    Noise("independent visits, and 3% of each arm's own in the whole run", start=0.03),
)


def simulate(noise: Noise, visits: int, draws: int) -> tuple[float, float, float]:
    """Return how often the intervals of pairs and of one arm hold the truth, and how often arms are told apart."""
    rng = np.random.default_rng(visits)
    hits = np.zeros(3)
    for _ in range(draws):
        shared = _visits(OF_VISIT, noise, visits, rng) + np.linspace(0, noise.drift, visits)
        shared += np.repeat(rng.normal(0, noise.process, -(-visits // 3)), 3)[:visits]  # a process makes three
        arms = []
        for _ in range(2):
            of_visits = shared + _own(noise, visits, rng)
            arms.append(np.exp(of_visits[:, None] + rng.normal(0, OF_SAMPLE, (visits, SAMPLES))))
        base, other = zip(*map(medians_in_turn, zip(*arms, strict=True)), strict=True)
        compared = compare_visits(dict(enumerate(base)), dict(enumerate(other)), IN_TURN)
        low, high = median_interval(np.median(arms[0], axis=1))
        hits += compared.low <= 1 <= compared.high, low <= 1 <= high, compared.significant
    pairs, alone, apart = (hits / draws).tolist()
    return pairs, alone, apart


def simulate_over(noise: Noise, visits: int, shapes: int, draws: int) -> tuple[float, float]:
    """Return how often the interval over several shapes holds the truth, and how often equal methods are told apart.

    What arms share cancels in their pairs; each shape has noise of its own.
    """
    rng = np.random.default_rng(visits * shapes)
    differences = np.linspace(-APART, APART, shapes)
    hits = np.zeros(2)
    for _ in range(draws):
        arms = [[_own(noise, visits, rng) for _ in range(shapes)] for _ in range(2)]
        samples = rng.normal(0, OF_SAMPLE * np.sqrt(2), (shapes, visits, SAMPLES))
        pairs = np.subtract(arms[1], arms[0]) + np.median(samples, axis=2) + differences[:, None]
        compared = compare_over(pairs.tolist(), TIED)
        hits += compared.low <= 1 <= compared.high, compared.significant
    holds, apart = (hits / draws).tolist()
    return holds, apart


def _own(noise: Noise, visits: int, rng: np.random.Generator) -> Floats:
    """Return deviations that an arm shares with no other."""
    slow = np.log1p(SLOWER) * (rng.random(visits) < noise.slow)
    return _visits(noise.own, noise, visits, rng) + slow + rng.normal(0, noise.start)


def _visits(share: float, noise: Noise, visits: int, rng: np.random.Generator) -> Floats:
    """Return deviations of visits of this share, each correlated with the one before."""
    values = rng.normal(0, share, visits)
    for at in range(1, visits):
        values[at] = noise.correlation * values[at - 1] + np.sqrt(1 - noise.correlation**2) * values[at]
    return values


def table(draws: int = 2000) -> str:
    lines = [
        "| noise | visits | pairs in turn hold | equal arms told apart | one arm alone holds |",
        "|---|---|---|---|---|",
    ]
    for noise in NOISES:
        for visits in (6, 12):
            pairs, alone, apart = simulate(noise, visits, draws)
            lines.append(f"| {noise.name} | {visits} | {pairs:.0%} | {apart:.1%} | {alone:.0%} |")
    heads = " | ".join(f"{shapes} shapes hold | told apart" for shapes in SHAPES)
    lines += ["", f"| noise | visits of each shape | {heads} |", "|---|---|" + "---|---|" * len(SHAPES)]
    for noise in NOISES:
        for visits in (2, 6, 12):
            over = (simulate_over(noise, visits, shapes, draws) for shapes in SHAPES)
            figures = " | ".join(f"{holds:.0%} | {apart:.1%}" for holds, apart in over)
            lines.append(f"| {noise.name} | {visits} | {figures} |")
    return "\n".join(lines)


if __name__ == "__main__":
    made = table()
    print(made)
    if "--write" in sys.argv:
        write_between_markers(PAGE, made, MARKERS)
