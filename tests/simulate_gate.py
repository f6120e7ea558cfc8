"""How often the gate is wrong, found out on noise whose truth is known: `python tests/simulate_gate.py`.

Suites of 40 cells are made up and given to the gate's own verdict code, look by look as it takes them. Nothing here is
a measurement. `--write CONTRIBUTING.md` puts the table between its markers there.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from kvbench.analysis.intervals import CONFIDENCE, Floats
from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.gate.judge import Judge
from kvbench.gate.judgement import GateVerdict, Judgement
from kvbench.gate.looks import PLAN
from kvbench.gate.pairs import Pairs

MARKERS: Final = ("<!-- simulation: begin -->", "<!-- simulation: end -->")
SLOWED_CELLS: Final = 8
# Large copies are steadier than small swaps.
CONTROL_NOISE: Final = 0.25
# What another guest on the link costs at most while it copies, and a CPU whose other thread is busy.
BURST: Final = 0.07
# What one of two processes of a build took longer for small copies by the copy engine (H200, driver 580.159.04).
PROCESS: Final = 0.07
SLOW_CPU: Final = 1.6


@dataclass(frozen=True, slots=True)
class Scenario:
    """Noise of a visit, as a share of the time; its law; what the second slot of a pair costs, and how unevenly.

    `bursts` is the share of visits, of cells and controls alike, that another guest makes up to `BURST` slower,
    `slow_cpu` that of cells' visits which a slow CPU makes `SLOW_CPU` times slower; no probe sees either. Of each
    process, the share `processes` of the cells takes longer by `PROCESS` in all visits. From begin to end the machine
    slows down by `drift`.
    """

    noise: float
    heavy_tails: bool = False
    slot_bias: float = 0.01
    uneven_slots: bool = False
    bursts: float = 0.0
    slow_cpu: float = 0.0
    processes: float = 0.0
    drift: float = 0.05

    @property
    def words(self) -> tuple[str, str, str]:
        bias = "0 to 2%, each cell its own" if self.uneven_slots else f"{self.slot_bias:.0%}"
        law = ["Student t, 3 degrees" if self.heavy_tails else "normal"]
        law += [f"bursts in {self.bursts:.0%}"] if self.bursts else []
        law += [f"{self.slow_cpu:.0%} of visits slower by {SLOW_CPU - 1:.0%}"] if self.slow_cpu else []
        law += [f"{self.processes:.1%} of a process's cells slower by {PROCESS:.0%}"] if self.processes else []
        return f"{self.noise:.1%}", ", ".join(law), bias


SCENARIOS: Final = (
    Scenario(0.01),
    Scenario(0.03),
    Scenario(0.03, heavy_tails=True),
    Scenario(0.02, uneven_slots=True),
    Scenario(0.02, bursts=0.15),
    Scenario(0.01, slow_cpu=0.08),
    Scenario(0.01, processes=0.005),
    Scenario(0.03, heavy_tails=True, bursts=0.15, slow_cpu=0.08),
)


@dataclass(frozen=True, slots=True)
class Suite:
    """What became of one made-up suite; the shares are of all rows, `found` is of the slowed cells."""

    verdict: GateVerdict
    same_at_first: float
    same: float
    found: float


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


def simulate(scenario: Scenario, slowdown: float, seed: int) -> Suite:
    """Make up a suite in which some cells of the candidate are slower by `slowdown`, and judge it as `compare` does."""
    rng = np.random.default_rng(seed)
    suite, rounds = cells(), PLAN[-1].pairs
    truth = np.array([true_us(cell) for cell in suite])
    slowed = rng.permutation(len(suite))[:SLOWED_CELLS] if slowdown else np.array([], dtype=int)
    order = np.resize([1.0, -1.0], rounds)
    bias = rng.uniform(0, 0.02, len(suite)) if scenario.uneven_slots else np.full(len(suite), scenario.slot_bias)
    logs = [_visits(scenario, bias, sign * order, rng) for sign in (-1, 1)]
    logs[1][slowed] += math.log1p(slowdown)
    moved = _noise(scenario, CONTROL_NOISE, (2, rounds), rng) - _noise(scenario, CONTROL_NOISE, (2, rounds), rng)
    found: Judgement | None = None
    shares = []
    before, processes, slower = 0, np.zeros(rounds), _slower_cells(scenario, len(suite), rng)
    for look in PLAN:
        if found is not None and any(row.unconfirmed for row in found.rows):
            slower = _slower_cells(scenario, len(suite), rng)
            processes[before:] += 1
        for own, cost in zip(logs, slower, strict=True):
            own[:, before : look.pairs] += cost[:, None]
        before = look.pairs
        base_us, cand_us = (truth[:, None] * np.exp(own) for own in logs)
        controls = {way: moved[place, : look.pairs] for place, way in enumerate(("d2h", "h2d"))}
        seen = base_us[:, : look.pairs], cand_us[:, : look.pairs], order[: look.pairs]
        pairs = Pairs(suite, *seen, controls, in_turn=True, processes=processes[: look.pairs])
        found = Judge().assess(pairs, found)
        shares.append([row.verdict for row in found.rows].count(GateVerdict.SAME) / len(found.rows))
        if all(row.settled for row in found.rows):
            break
    assert found is not None
    caught = {row.cells[0] for row in found.rows if row.kind == "cell" and row.verdict is GateVerdict.SLOWER}
    return Suite(
        verdict=found.verdict,
        same_at_first=shares[0],
        same=shares[-1],
        found=sum(suite[place] in caught for place in slowed) / len(slowed) if len(slowed) else 0.0,
    )


def table(suites: int, workers: int) -> str:
    """Return the table in Markdown and a line about all of it, from `suites` suites for every scenario."""
    lines = [
        "| noise | its law | second of a pair | A/A: falsely slower | A/A: ends with 0 | A/A: SAME at first "
        "| and at the end | +5%: found | +10%: found |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    false, every = 0, 0
    with ProcessPoolExecutor(workers) as pool:
        for number, scenario in enumerate(SCENARIOS):
            results = []
            for place, slowdown in enumerate((0.0, 0.05, 0.10)):
                count = suites if slowdown == 0 else max(1, suites // 5)
                first = 100_000 * (3 * number + place)
                seeds = range(first, first + count)
                results.append(list(pool.map(simulate, [scenario] * count, [slowdown] * count, seeds)))
            lines.append(_line(scenario, *results))
            false += _count(results[0], GateVerdict.SLOWER)
            every += suites
    return "\n".join([*lines, "", f"False alarms, all rows together: {quoted(false, every)} of the suites."])


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


def _line(scenario: Scenario, same: Sequence[Suite], slower: Sequence[Suite], much_slower: Sequence[Suite]) -> str:
    figures = (
        quoted(_count(same, GateVerdict.SLOWER), len(same)),
        f"{sum(suite.verdict.exit_code == 0 for suite in same)} of {len(same)}",
        _share(suite.same_at_first for suite in same),
        _share(suite.same for suite in same),
        _share(suite.found for suite in slower),
        _share(suite.found for suite in much_slower),
    )
    return f"| {' | '.join((*scenario.words, *figures))} |"


def _count(suites: Iterable[Suite], verdict: GateVerdict) -> int:
    return sum(suite.verdict is verdict for suite in suites)


def _share(values: Iterable[float]) -> str:
    return f"{np.mean(list(values)):.1%}"


def _visits(scenario: Scenario, bias: Floats, second: Floats, rng: np.random.Generator) -> Floats:
    """Return the log of what a side's visits take beyond the truth; `second` is above 0 where it comes second."""
    shape = len(bias), len(second)
    drift = scenario.drift * (np.arange(len(second)) + (second > 0) / 2) / len(second)
    slow = np.where(rng.random(shape) < scenario.slow_cpu, math.log(SLOW_CPU), 0.0)
    return np.asarray(drift + np.where(second > 0, bias[:, None], 0.0) + slow + _noise(scenario, 1.0, shape, rng))


def _slower_cells(scenario: Scenario, count: int, rng: np.random.Generator) -> Floats:
    """Return the log of what each cell takes longer in a new process of either side, of shape (2, count)."""
    return np.where(rng.random((2, count)) < scenario.processes, math.log1p(PROCESS), 0.0)


def _noise(scenario: Scenario, share: float, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    drawn = rng.standard_t(3, shape) if scenario.heavy_tails else rng.standard_normal(shape)
    noise = scenario.noise * share * drawn
    if scenario.bursts:
        noise += np.where(rng.random(shape) < scenario.bursts, rng.uniform(0, BURST, shape), 0.0)
    return noise


def write_between_markers(document: Path, text: str) -> None:
    """Replace what stands between the markers of `document`; raises SystemExit when they are not there."""
    before, begin, rest = document.read_text().partition(MARKERS[0])
    _, end, after = rest.partition(MARKERS[1])
    if not (begin and end):
        sys.exit(f"{document} lacks the markers {' and '.join(MARKERS)}")
    document.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suites", type=int, default=300, help="A/A suites a scenario")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers of FILE")
    options = parser.parse_args()
    found = table(options.suites, options.workers)
    print(found)
    if options.write is not None:
        write_between_markers(options.write, found)


if __name__ == "__main__":
    main()
