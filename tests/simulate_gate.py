"""How often the gate is wrong, found out on noise whose truth is known: `python tests/simulate_gate.py`.

Suites of 200 cells are made up, given to the gate's own verdict code, and measured again as it asks. Nothing here is a
measurement. `--write CONTRIBUTING.md` puts the table between its markers there.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from kvbench.analysis.intervals import Floats
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import Cell
from kvbench.gate.judge import Judge
from kvbench.gate.judgement import GateVerdict, Judgement
from kvbench.gate.pairs import Pairs

MARKERS: Final = ("<!-- simulation: begin -->", "<!-- simulation: end -->")
ROUNDS: Final = 8
SLOWED_CELLS: Final = 20
# Large copies are steadier than small swaps.
CONTROL_NOISE: Final = 0.25
# What another guest on the link costs at most while it copies.
BURST: Final = 0.07


@dataclass(frozen=True, slots=True)
class Scenario:
    """Noise of a round and side, as a share of the time; its law; what the second slot costs, and how unevenly.

    `bursts` is the share of visits, of cells and controls alike, that another guest makes up to `BURST` slower. Every
    job has a speed of its own, normal around the usual one by `drift`, and drifts by as much from start to end.
    """

    noise: float
    heavy_tails: bool = False
    slot_bias: float = 0.02
    uneven_slots: bool = False
    bursts: float = 0.0
    drift: float = 0.05

    @property
    def words(self) -> tuple[str, str, str]:
        bias = "0 to 4%, each cell its own" if self.uneven_slots else f"{self.slot_bias:.0%}"
        law = "Student t, 3 degrees" if self.heavy_tails else "normal"
        return f"{self.noise:.1%}", f"{law}, bursts in {self.bursts:.0%}" if self.bursts else law, bias


SCENARIOS: Final = (
    Scenario(0.005),
    Scenario(0.01),
    Scenario(0.02),
    Scenario(0.01, heavy_tails=True),
    Scenario(0.02, heavy_tails=True),
    Scenario(0.01, uneven_slots=True),
    Scenario(0.01, bursts=0.15),
)


@dataclass(frozen=True, slots=True)
class Suite:
    """What became of one made-up suite; the shares are of all rows, `found` is of the slowed cells."""

    regressed: bool
    contaminated: bool
    unclear_first: float
    unclear: float
    found: float


def cells() -> list[Cell]:
    """Return 200 cells in 40 curves: a backend with a cliff on an idle stream and one without."""
    sizes = [kib * 1024 for kib in (4, 16, 24, 32, 64)]
    return [
        Cell(backend, way, blocks, size, state)
        for backend in ("batched", "sm")
        for way in Direction
        for state in StreamState
        for blocks in (1024, 2048, 4096, 10_000, 20_000)
        for size in sizes
    ]


def true_us(cell: Cell) -> float:
    """Return a made-up time in microseconds, at least 50: below the absolute floor nothing is found by intention."""
    if cell.backend == "sm":
        gbps = 45.0
    elif cell.direction is Direction.H2D and cell.stream_state is StreamState.IDLE and cell.block_bytes <= 24 * 1024:
        gbps = 5.0
    else:
        gbps = 8.0 + 0.7 * cell.block_bytes / 1024
    return 50.0 + cell.swap_bytes / gbps / 1e3


def simulate(scenario: Scenario, slowdown: float, seed: int, rounds: int = ROUNDS) -> Suite:
    """Make up a suite in which some cells of the candidate are slower by `slowdown`, and judge it as `compare` does."""
    rng = np.random.default_rng(seed)
    suite = cells()
    truth = np.array([true_us(cell) for cell in suite])
    slowed = rng.permutation(len(suite))[:SLOWED_CELLS] if slowdown else np.array([], dtype=int)
    factor = np.ones(len(suite))
    factor[slowed] += slowdown
    order = np.resize([1.0, -1.0], 2 * rounds)
    bias = rng.uniform(0, 0.04, len(suite)) if scenario.uneven_slots else np.full(len(suite), scenario.slot_bias)
    machine = _machine(scenario, order, rng)
    base_us = truth[:, None] * np.exp(machine[0] + _slots(bias, -order) + _noise(scenario, 1.0, len(suite), order, rng))
    cand_us = truth[:, None] * np.exp(machine[1] + _slots(bias, order) + _noise(scenario, 1.0, len(suite), order, rng))
    cand_us *= factor[:, None]
    usual = np.full(2, scenario.slot_bias)
    controls = [
        machine[side] + _slots(usual, sign * order) + _noise(scenario, CONTROL_NOISE, 2, order, rng)
        for side, sign in ((0, -1), (1, 1))
    ]
    moved = controls[1] - controls[0]
    first = _judge(suite, base_us[:, :rounds], cand_us[:, :rounds], moved[:, :rounds], order[:rounds])
    again = set(first.to_measure_again())
    left_out = [place for place, cell in enumerate(suite) if cell not in again]
    for times in (base_us, cand_us):
        times[left_out, rounds:] = np.nan
    last = _judge(suite, base_us, cand_us, moved, order) if again else first
    caught = {row.cells[0] for row in last.rows if row.kind == "cell" and row.verdict is GateVerdict.SLOWER}
    return Suite(
        regressed=last.verdict is GateVerdict.SLOWER,
        contaminated=last.verdict is GateVerdict.CONTAMINATED,
        unclear_first=first.count(GateVerdict.UNDECIDED) / len(first.rows),
        unclear=last.count(GateVerdict.UNDECIDED) / len(last.rows),
        found=sum(suite[place] in caught for place in slowed) / len(slowed) if len(slowed) else 0.0,
    )


def table(suites: int, workers: int) -> str:
    """Return the table in Markdown, from `suites` suites for every scenario and slowdown."""
    lines = [
        "| noise | its law | second slot | A/A: falsely slower | A/A: contaminated "
        "| A/A: UNDECIDED at first | and at the end | +5%: found | +10%: found |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    with ProcessPoolExecutor(workers) as pool:
        for number, scenario in enumerate(SCENARIOS):
            results = []
            for place, slowdown in enumerate((0.0, 0.05, 0.10)):
                count = suites if slowdown == 0 else max(1, suites // 5)
                first = 100_000 * (3 * number + place)
                seeds = range(first, first + count)
                results.append(list(pool.map(simulate, [scenario] * count, [slowdown] * count, seeds)))
            lines.append(_line(scenario, *results))
    return "\n".join(lines)


def _line(scenario: Scenario, same: Sequence[Suite], slower: Sequence[Suite], much_slower: Sequence[Suite]) -> str:
    figures = (
        f"{sum(suite.regressed for suite in same)} of {len(same)}",
        f"{sum(suite.contaminated for suite in same)} of {len(same)}",
        _share(suite.unclear_first for suite in same),
        _share(suite.unclear for suite in same),
        _share(suite.found for suite in slower),
        _share(suite.found for suite in much_slower),
    )
    return f"| {' | '.join((*scenario.words, *figures))} |"


def _share(values: Iterable[float]) -> str:
    return f"{np.mean(list(values)):.1%}"


def _judge(suite: Sequence[Cell], base_us: Floats, cand_us: Floats, moved: Floats, order: Floats) -> Judgement:
    controls = dict(zip(("d2h", "h2d"), moved, strict=True))
    return Judge().assess(Pairs(suite, base_us, cand_us, order, controls, failed={}, faults=[], paths={}))


def _machine(scenario: Scenario, order: Floats, rng: np.random.Generator) -> Floats:
    """Return the log speed of the machine of shape (sides, rounds): one for the job, and a drift through its slots."""
    job = rng.normal(0, scenario.drift)
    slot = 2 * np.arange(len(order)) + np.array([order < 0, order > 0])
    return np.asarray(job + scenario.drift * slot / (2 * len(order)))


def _slots(bias: Floats, order: Floats) -> Floats:
    return np.where(order > 0, bias[:, None], 0.0)


def _noise(scenario: Scenario, share: float, rows: int, order: Floats, rng: np.random.Generator) -> Floats:
    shape = (rows, len(order))
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
    parser.add_argument("--suites", type=int, default=100, help="A/A suites a scenario")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers of FILE")
    options = parser.parse_args()
    found = table(options.suites, options.workers)
    print(found)
    if options.write is not None:
        write_between_markers(options.write, found)


if __name__ == "__main__":
    main()
