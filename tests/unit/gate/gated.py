"""Comparisons for tests: two lists of runs, one a round, whose times follow from what is wanted."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from kvbench.analysis.intervals import Floats
from kvbench.cells.axes import Direction, Order
from kvbench.cells.cell import Cell
from kvbench.gate.floors import FloorFile
from kvbench.gate.judge import Judge
from kvbench.gate.judgement import Judgement, Margins
from kvbench.gate.pairs import Pairs
from kvbench.gate.visit_times import unknown
from kvbench.results import Ceiling, Control, Failure, Record, Run, Skip
from tests.synthetic import info, visit, write_run

KIB = 1024
CELLS = [
    Cell("batched", direction, blocks, kib * KIB, order=Order.STREAM)
    for direction in Direction
    for blocks in (1024, 10_000)
    for kib in (4, 16, 64)
]
Slowdown = Callable[[Cell], float]


def same(cell: Cell) -> float:
    del cell
    return 1.0


DIRECTIONS: Final[tuple[Literal["h2d", "d2h"], ...]] = ("h2d", "d2h")


@dataclass(frozen=True)
class Side:
    """How one side behaves: a factor on every cell's time, records beside its visits, cells it leaves out."""

    factor: Slowdown = same
    extra: Sequence[Record] = ()
    without: Sequence[Cell] = ()
    control: float = 1.0
    controls: bool = True
    changes: dict[str, object] = field(default_factory=dict)


def usual_us(cell: Cell) -> float:
    return 50.0 + cell.swap_bytes / 20e3


def compared(
    base: Side,
    cand: Side,
    rounds: int = 8,
    noise: float = 0.002,
    cells: Sequence[Cell] = tuple(CELLS),
    time_us: Callable[[Cell], float] = usual_us,
    second_slot: float = 0.0,
) -> tuple[list[Run], list[Run]]:
    """Return both sides' runs, made in turn: a b, b a, ..."""
    rng = np.random.default_rng(1)
    runs: tuple[list[Run], list[Run]] = ([], [])
    for number in range(rounds):
        for position, which in enumerate((0, 1) if number % 2 == 0 else (1, 0)):
            side, slot = (base, cand)[which], 1 + position * second_slot

            def records(side: Side = side, slot: float = slot) -> Iterable[Record]:
                broken = [record.cell for record in side.extra if isinstance(record, Failure | Skip)]
                for cell in cells:
                    if cell not in side.without and cell not in broken:
                        factor = side.factor(cell) * slot * float(np.exp(noise * rng.standard_normal()))
                        yield visit(cell, time_us(cell) * factor, count=3, noise=0.0)
                yield from side.extra
                for direction in DIRECTIONS:
                    us = 5000.0 * side.control * slot * float(np.exp(noise / 4 * rng.standard_normal()))
                    if side.controls:
                        yield Control(direction=direction, round=0, copy_bytes=1 << 28, gpu_us=[us])
                    yield Ceiling(direction=direction, round=0, swap_bytes=1 << 28, gpu_us=[us])

            created = f"2026-11-20T10:{2 * number + position:02}:00Z"
            path = Path(f"{number:02}-{'ab'[which]}")
            fields: dict[str, Any] = {"created": created, "device": {"name": "cuda:0", "kind": "cuda"}}
            runs[which].append(Run(path, info(**(fields | side.changes)), list(records()), []))
    return runs


def paired(
    cells: Sequence[Cell], base_us: Floats, cand_us: Floats, order: Floats | None = None, **fields: Any
) -> Pairs:
    """Return pairs whose visits took these times, of shape (cells, rounds), from the fastest sample to the slowest."""
    visits = unknown(2, *base_us.shape)
    visits["fast_us"] = visits["upper_us"] = np.array([base_us, cand_us])
    rounds = base_us.shape[1]
    fields.setdefault("controls", {})
    return Pairs(cells, visits, np.zeros(rounds) if order is None else order, **fields)


def written(folder: Path, runs: Sequence[Run]) -> list[Path]:
    """Write runs into `folder` and return where each is."""
    return [write_run(folder / run.path, run.records, run.info) for run in runs]


def judge(
    base: Sequence[Run],
    cand: Sequence[Run],
    *,
    floors: FloorFile | None = None,
    margins: Margins | None = None,
    forced: bool = False,
) -> Judgement:
    return Judge(margins or Margins(), floors, forced).judge(base, cand)


def floors(cell: Cell, floor: float, run: Run) -> FloorFile:
    """Return what a calibration on the machine of `run` would give for one cell."""
    return FloorFile(
        kvbench="0.1.0",
        created="2026-11-20T10:00:00Z",
        identity_hash=run.info.identity_hash,
        identity=run.info.identity,
        rounds=8,
        floors={cell.id: floor},
    )
