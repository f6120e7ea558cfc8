"""How often an interval holds and a verdict is wrong on noise whose truth is known: `python -m tests.simulate_pairs`.

Two arms that take equally long are sampled in turn. Nothing here is a measurement. `--write` puts the table into
docs/measuring.md.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from kvbench.analysis.compare import Floats, compare_visits, median_interval, medians_in_turn
from kvbench.analysis.margins import IN_TURN
from tests.simulate_gate import write_between_markers

MARKERS: Final = ("<!-- coverage: begin -->", "<!-- coverage: end -->")
PAGE: Final = Path(__file__).parents[1] / "docs" / "measuring.md"
SAMPLES: Final = 15
# Noise of a sample and of a visit, as shares of the time.
OF_SAMPLE, OF_VISIT = 0.02, 0.02


@dataclass(frozen=True)
class Noise:
    """What arms share: the `correlation` of successive visits, a `drift` in all, an offset of each `process`; and what
    an arm has for itself in a visit, `own`, of the same correlation.
    """

    name: str
    correlation: float = 0.0
    drift: float = 0.0
    process: float = 0.0
    own: float = 0.0


NOISES: Final = (
    Noise("independent visits"),
    Noise("correlation 0.5, 10% drift, 3% from process to process", 0.5, 0.1, 0.03),
    Noise("the same, and 1% of each arm's own", 0.5, 0.1, 0.03, 0.01),
    Noise("the same, and 3% of each arm's own", 0.5, 0.1, 0.03, 0.03),
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
            of_visits = shared + _visits(noise.own, noise, visits, rng)
            arms.append(np.exp(of_visits[:, None] + rng.normal(0, OF_SAMPLE, (visits, SAMPLES))))
        base, other = zip(*map(medians_in_turn, zip(*arms, strict=True)), strict=True)
        compared = compare_visits(dict(enumerate(base)), dict(enumerate(other)), IN_TURN)
        low, high = median_interval(np.median(arms[0], axis=1))
        hits += compared.low <= 1 <= compared.high, low <= 1 <= high, compared.told_apart
    pairs, alone, apart = (hits / draws).tolist()
    return pairs, alone, apart


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
    return "\n".join(lines)


if __name__ == "__main__":
    made = table()
    print(made)
    if "--write" in sys.argv:
        write_between_markers(PAGE, made, MARKERS)
