"""Comparisons for tests: two runs whose visits were made in turn, with times that follow from what is wanted."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

from kvbench.analysis.compare import Floats
from kvbench.cells.axes import Direction, Order
from kvbench.cells.cell import Cell
from kvbench.gate.judgement import PLAN, Judgement, judge
from kvbench.gate.pairs import Pairs, pair, unknown
from kvbench.results import Control, Failure, Record, Run, Skip, Visit
from tests.synthetic import info, visit

KIB = 1024
CELLS = [
    Cell("batched", direction, blocks, kib * KIB, order=Order.STREAM)
    for direction in Direction
    for blocks in (1024, 10_000)
    for kib in (4, 64)
]
DIRECTIONS: Final[tuple[Literal["h2d", "d2h"], ...]] = ("h2d", "d2h")
# Enough for two looks.
ROUNDS: Final = PLAN[1].pairs
Slowdown = Callable[[Cell], float]


def same(cell: Cell) -> float:
    del cell
    return 1.0


@dataclass(frozen=True)
class Side:
    """How one side behaves: a factor on every cell's time, records beside its visits, cells it leaves out."""

    factor: Slowdown = same
    extra: Sequence[Record] = ()
    without: Sequence[Cell] = ()
    control: float = 1.0


def usual_us(cell: Cell) -> float:
    return 50.0 + cell.swap_bytes / 20e3


def compared(
    base: Side,
    cand: Side,
    rounds: int = ROUNDS,
    noise: float = 0.002,
    cells: Sequence[Cell] = tuple(CELLS),
    time_us: Callable[[Cell], float] = usual_us,
    second_slot: float = 0.0,
) -> tuple[Run, Run]:
    """Return both sides' runs, made in turn: a b, b a, ..."""
    rng = np.random.default_rng(1)
    records: tuple[list[Record], list[Record]] = ([*base.extra], [*cand.extra])
    for number in range(rounds):
        for which in (0, 1):
            side = (base, cand)[which]
            slot = 1 + second_slot * (position(which, number) == 1)
            broken = [record.cell for record in side.extra if isinstance(record, Failure | Skip)]
            for cell in cells:
                if cell not in side.without and cell not in broken:
                    factor = side.factor(cell) * slot * float(np.exp(noise * rng.standard_normal()))
                    records[which].append(visit(cell, time_us(cell) * factor, count=3, noise=0.0, round_=number))
            for direction in DIRECTIONS:
                us = 5000.0 * side.control * slot * float(np.exp(noise / 4 * rng.standard_normal()))
                records[which].append(Control(direction=direction, round=number, copy_bytes=1 << 28, event_us=[us]))
    return made(0, records[0]), made(1, records[1])


def position(which: int, number: int) -> int:
    """Return whether a side comes first or second in a round: a b, b a, ..."""
    return which if number % 2 == 0 else 1 - which


def made(which: int, records: Iterable[Record]) -> Run:
    """Return the run of a side with these records, its visits in turn with the other's and by two processes."""

    def turned(record: Record) -> Record:
        if not isinstance(record, Visit):
            return record
        began_ns = 1000 * (record.round + 1) + 100 * position(which, record.round)
        process = record.process if record.process is not None else 1 + record.round % 2
        return msgspec.structs.replace(record, span_ns=(began_ns, began_ns + 50), process=process)

    return Run(Path(("base", "cand")[which]), info(), [*map(turned, records)], [])


def paired(
    cells: Sequence[Cell], base_us: Floats, cand_us: Floats, order: Floats | None = None, **fields: Any
) -> Pairs:
    """Return pairs whose visits took these times, of shape (cells, rounds), from the fastest sample to the slowest."""
    visits = unknown(2, *base_us.shape)
    visits["fast_us"] = visits["upper_us"] = np.array([base_us, cand_us])
    rounds = base_us.shape[1]
    given = {"controls": {}, "processes": np.arange(rounds) % 2.0, **fields}
    return Pairs(cells, visits, np.zeros(rounds) if order is None else order, **given)


def judge_runs(base: Run, cand: Run, earlier: Judgement | None = None) -> Judgement:
    """Judge two runs of the same backends."""
    cells = [record.cell for run in (base, cand) for record in run.records if isinstance(record, Visit | Failure)]
    return judge(pair(base, cand, {cell: cell for cell in cells}), earlier=earlier)
