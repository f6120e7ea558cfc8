"""How often the gate is wrong, found out on noise whose truth is known: `python tests/simulate_gate.py`.

Suites of 40 cells are made up and given to the gate's own verdict code, look by look as it takes them. Nothing here is
a measurement. `--write docs/design/gate.md` puts the table between its markers there.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from kvbench.analysis.compare import CONFIDENCE, Floats
from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.gate.judgement import PLAN, GateVerdict, Judgement, judge
from kvbench.gate.pairs import FAST_SHARE, UPPER_SHARE, Pairs, VisitValues, unknown

MARKERS: Final = ("<!-- simulation: begin -->", "<!-- simulation: end -->")
SLOWED_CELLS: Final = 8
# Large copies are steadier than small swaps.
CONTROL_NOISE: Final = 0.25
# What another guest on the link costs at most while it copies, and a CPU whose other thread is busy.
BURST: Final = 0.07
# What one of two processes of a build took longer for small copies by the copy engine (H200, driver 580.159.04).
PROCESS: Final = 0.07
SLOW_CPU: Final = 1.6
# How much longer a swap takes at most that other work hits, and how much the swaps of a visit scatter.
SPIKE: Final = 3.0
WITHIN_VISIT: Final = 0.02
# The fewest and the most samples of a visit in the config gate-suite.
SAMPLES: Final = (5, 15)
# Pairs that are too few for an interval.
FEW: Final = (1, 2, 5)
# Of the suites of A/A: those with cells slower by 5%, by 10%, and with half of the swaps doubled.
SHARES: Final = (1, 1 / 5, 1 / 5, 1 / 3)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Noise of a visit, as a share of the time; its law; what the second slot of a pair costs, and how unevenly.

    `bursts` is the share of visits, of cells and controls alike, that another guest makes up to `BURST` slower,
    `slow_cpu` that of cells' visits which a slow CPU makes `SLOW_CPU` times slower; no probe sees either. Of each
    process, the share `processes` of the cells takes longer by `PROCESS` in all visits. The share `spikes` of all swaps
    takes up to `SPIKE` times as long. From begin to end the machine slows down by `drift`.
    """

    noise: float
    heavy_tails: bool = False
    slot_bias: float = 0.01
    uneven_slots: bool = False
    bursts: float = 0.0
    slow_cpu: float = 0.0
    processes: float = 0.0
    spikes: float = 0.0
    drift: float = 0.05

    @property
    def labels(self) -> tuple[str, str, str]:
        bias = "0 to 2%, each cell its own" if self.uneven_slots else f"{self.slot_bias:.0%}"
        law = ["Student t, 3 degrees" if self.heavy_tails else "normal"]
        law += [f"bursts in {self.bursts:.0%}"] if self.bursts else []
        law += [f"{self.slow_cpu:.0%} of visits slower by {SLOW_CPU - 1:.0%}"] if self.slow_cpu else []
        law += [f"{self.processes:.1%} of a process's cells slower by {PROCESS:.0%}"] if self.processes else []
        law += [f"{self.spikes:.0%} of swaps up to {SPIKE:.0f} times as long"] if self.spikes else []
        return f"{self.noise:.1%}", ", ".join(law), bias


SCENARIOS: Final = (
    Scenario(0.01),
    Scenario(0.03),
    Scenario(0.03, heavy_tails=True),
    Scenario(0.02, uneven_slots=True),
    Scenario(0.02, bursts=0.15),
    Scenario(0.01, slow_cpu=0.08),
    Scenario(0.01, processes=0.005),
    Scenario(0.02, spikes=0.1),
    Scenario(0.02, spikes=0.3),
    Scenario(0.03, heavy_tails=True, bursts=0.15, slow_cpu=0.08, spikes=0.1),
)


class Change(StrEnum):
    """What is slower in the `SLOWED_CELLS` of a candidate: nothing, every swap by a share, or half of the swaps."""

    NONE = "A/A"
    BY_5 = "+5%"
    BY_10 = "+10%"
    EVERY_SECOND = "every second swap doubled"
    AT_RANDOM = "half of the swaps doubled at random"
    SECOND_HALF = "the second half of a visit doubled"

    def factors(self, shape: tuple[int, ...], rng: np.random.Generator) -> Floats | float:
        """Return how many times as long swaps take, of a `shape` whose last axis has the swaps of a visit in order."""
        swaps = np.arange(shape[-1])
        match self:
            case Change.EVERY_SECOND:
                return np.asarray(1.0 + swaps % 2)
            case Change.SECOND_HALF:
                return np.asarray(1.0 + (swaps >= (shape[-1] + 1) // 2))
            case Change.AT_RANDOM:
                return rng.integers(1, 3, shape).astype(float)
        return {Change.BY_5: 1.05, Change.BY_10: 1.10}.get(self, 1.0)


HALVES: Final = (Change.EVERY_SECOND, Change.AT_RANDOM, Change.SECOND_HALF)


@dataclass(frozen=True, slots=True)
class Suite:
    """What became of one made-up suite; the shares are of all rows, `detected` is of the slowed cells."""

    verdict: GateVerdict
    passed: bool
    same_at_first: float
    same: float
    detected: float

    @property
    def false_alarm(self) -> bool:
        """Whether a suite of equal builds would end a job."""
        return self.verdict in (GateVerdict.SLOWER, GateVerdict.UNCONFIRMED)


def cells() -> list[Cell]:
    """Return 40 cells in 8 curves: a backend with a cliff one way and one without."""
    return [
        Cell(backend, way, blocks, kib * 1024)
        for backend in ("batched", "sm")
        for way in Direction
        for blocks in (1024, 10_000)
        for kib in (4, 16, 24, 32, 64)
    ]


def true_us(cell: Cell) -> float:
    """Return a made-up time in microseconds, at least 50: below the absolute floor nothing is found by intention."""
    if cell.backend == "sm":
        gbps = 45.0
    elif cell.direction is Direction.H2D and cell.block_bytes <= 24 * 1024:
        gbps = 5.0
    else:
        gbps = 8.0 + 0.7 * cell.block_bytes / 1024
    return 50.0 + cell.swap_bytes / gbps / 1e3


def simulate(scenario: Scenario, change: Change, seed: int, most: int = PLAN[-1].pairs) -> Suite:
    """Make up a suite in which some cells of the candidate have a `change`, and judge it as `compare` does, which has
    time for `most` pairs.
    """
    rng = np.random.default_rng(seed)
    suite, rounds = cells(), PLAN[-1].pairs
    slowed = rng.permutation(len(suite))[:SLOWED_CELLS]
    order = np.resize([1.0, -1.0], rounds)
    bias = rng.uniform(0, 0.02, len(suite)) if scenario.uneven_slots else np.full(len(suite), scenario.slot_bias)
    logs = [_visits(scenario, bias, sign * order, rng) for sign in (-1, 1)]
    visits = _halves(scenario, change, slowed, rng)
    moved = _noise(scenario, CONTROL_NOISE, (2, rounds), rng) - _noise(scenario, CONTROL_NOISE, (2, rounds), rng)
    judgement: Judgement | None = None
    shares = []
    before, processes, slower = 0, np.zeros(rounds), _slower_cells(scenario, len(suite), rng)
    for look in PLAN:
        if judgement is not None and any(row.decisive.unconfirmed for row in judgement.rows):
            slower = _slower_cells(scenario, len(suite), rng)
            processes[before:] += 1
        count = min(look.pairs, most)
        for log, cost in zip(logs, slower, strict=True):
            log[:, before:count] += cost[:, None]
        before = count
        seen = visits[:, :, :count].copy()
        for name in ("fast_us", "upper_us"):
            seen[name] *= np.exp(np.array(logs)[:, :, :count])
        controls = {way: moved[index, :count] for index, way in enumerate(("d2h", "h2d"))}
        made = Pairs(suite, seen, order[:count], processes[:count], controls)
        judgement = judge(made, earlier=judgement)
        shares.append([row.verdict for row in judgement.rows].count(GateVerdict.SAME) / len(judgement.rows))
        if count == most or all(row.settled for row in judgement.rows):
            break
    assert judgement is not None
    caught = {row.cells[0] for row in judgement.rows if row.verdict is GateVerdict.SLOWER}
    return Suite(
        verdict=judgement.verdict,
        passed=judgement.exit_code == 0,
        same_at_first=shares[0],
        same=shares[-1],
        detected=sum(suite[index] in caught for index in slowed) / len(slowed),
    )


def table(suites: int, workers: int) -> str:
    """Return the table in Markdown and a line about all of it, from `suites` suites for every scenario."""
    lines = [
        "| noise | its law | second of a pair | A/A: false alarm | A/A: ends with 0 | A/A: SAME at first "
        "| and at the end | +5%: found | +10%: found | half doubled: found | half doubled: ends SLOWER |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    false, every, few = 0, 0, list[Suite]()
    with ProcessPoolExecutor(workers) as pool:
        for number, scenario in enumerate(SCENARIOS):
            results = []
            for index, changes in enumerate(((Change.NONE,), (Change.BY_5,), (Change.BY_10,), HALVES)):
                count = max(1, round(suites * SHARES[index]))
                first = 100_000 * (4 * number + index)
                seeds = range(first, first + count)
                results.append(list(pool.map(simulate, [scenario] * count, islice(cycle(changes), count), seeds)))
            lines.append(_line(scenario, *results))
            false += sum(suite.false_alarm for suite in results[0])
            every += suites
            for most in FEW:
                made = range(suites // 10)
                few += pool.map(simulate, [scenario] * len(made), [Change.NONE] * len(made), made, [most] * len(made))
    alarms = sum(suite.false_alarm for suite in few)
    pairs = f"{', '.join(map(str, FEW[:-1]))} or {FEW[-1]}"
    return "\n".join([
        *lines, "", f"False alarms, all rows together: {quoted(false, every)} of the suites. "
        f"Where the time ends after {pairs} pairs: {quoted(alarms, len(few))}.",
    ])  # fmt: skip


def quoted(count: int, of: int) -> str:
    """Return a count with its bound: "0 of 700: below 0.5%", the end of the interval of 95% rounded up."""
    return f"{count} of {of}: below {math.ceil(1000 * upper_bound(count, of)) / 10:.1f}%"


def upper_bound(count: int, of: int) -> float:
    """Return the upper end of the one-sided interval of a share, by Clopper and Pearson."""
    low, high = count / of, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        fewer = math.fsum(math.comb(of, k) * middle**k * (1 - middle) ** (of - k) for k in range(count + 1))
        low, high = (middle, high) if fewer > 1 - CONFIDENCE else (low, middle)
    return high


def _line(scenario: Scenario, same: Sequence[Suite], *slower: Sequence[Suite]) -> str:
    figures = (
        _share(suite.false_alarm for suite in same),
        _share(suite.passed for suite in same),
        _share(suite.same_at_first for suite in same),
        _share(suite.same for suite in same),
        *(_share(suite.detected for suite in suites) for suites in slower),
        _share(suite.verdict is GateVerdict.SLOWER for suite in slower[-1]),
    )
    return f"| {' | '.join((*scenario.labels, *figures))} |"


def _share(values: Iterable[float]) -> str:
    return f"{np.mean(list(values)):.1%}"


def _visits(scenario: Scenario, bias: Floats, second: Floats, rng: np.random.Generator) -> Floats:
    """Return the log of what a side's visits take beyond the truth; `second` is above 0 where it comes second."""
    shape = len(bias), len(second)
    drift = scenario.drift * (np.arange(len(second)) + (second > 0) / 2) / len(second)
    slow = np.where(rng.random(shape) < scenario.slow_cpu, math.log(SLOW_CPU), 0.0)
    return np.asarray(drift + np.where(second > 0, bias[:, None], 0.0) + slow + _noise(scenario, 1.0, shape, rng))


def _halves(scenario: Scenario, change: Change, slowed: npt.NDArray[np.int64], rng: np.random.Generator) -> VisitValues:
    """Return the lower tenths and upper halves of visits that nothing but their own swaps disturbs."""
    suite, rounds = cells(), PLAN[-1].pairs
    visits = unknown(2, len(suite), rounds)
    for index, cell in enumerate(suite):
        shape = 2, rounds, int(rng.integers(SAMPLES[0], SAMPLES[1] + 1))
        swaps_us = true_us(cell) * np.exp(WITHIN_VISIT * np.abs(rng.standard_normal(shape)))
        swaps_us *= np.where(rng.random(shape) < scenario.spikes, rng.uniform(1, SPIKE, shape), 1.0)
        if index in slowed:
            swaps_us[1] *= change.factors(shape[1:], rng)
        for name, share in (("fast_us", FAST_SHARE), ("upper_us", UPPER_SHARE)):
            visits[name][:, index] = np.quantile(swaps_us, share, axis=-1)
    return visits


def _slower_cells(scenario: Scenario, count: int, rng: np.random.Generator) -> Floats:
    return np.where(rng.random((2, count)) < scenario.processes, math.log1p(PROCESS), 0.0)


def _noise(scenario: Scenario, share: float, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    drawn = rng.standard_t(3, shape) if scenario.heavy_tails else rng.standard_normal(shape)
    noise = scenario.noise * share * drawn
    if scenario.bursts:
        noise += np.where(rng.random(shape) < scenario.bursts, rng.uniform(0, BURST, shape), 0.0)
    return noise


def write_between_markers(document: Path, text: str, markers: tuple[str, str] = MARKERS) -> None:
    """Replace what stands between the markers of `document`; raises SystemExit when they are not there."""
    before, begin, rest = document.read_text().partition(markers[0])
    _, end, after = rest.partition(markers[1])
    if not (begin and end):
        sys.exit(f"{document} lacks the markers {' and '.join(markers)}")
    document.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suites", type=int, default=300, help="A/A suites a scenario")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers of FILE")
    options = parser.parse_args()
    rows = table(options.suites, options.workers)
    print(rows)
    if options.write is not None:
        write_between_markers(options.write, rows)


if __name__ == "__main__":
    main()
