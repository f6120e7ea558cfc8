"""Runs: GB/s against the length of the runs in which blocks lie, and the length from which merged copies win."""

import re
from collections.abc import Mapping
from typing import Final

import pandas as pd

from kvbench.analysis.compare import Visits, winners
from kvbench.analysis.curves import Crossover, crossovers
from kvbench.analysis.margins import IN_TURN
from kvbench.cells.backend_facts import MERGED
from kvbench.report.captions import includes_of
from kvbench.report.model import Chart, DataTable, Finding, Part, PartOrReason, Text
from kvbench.report.numbers import TIMES, bytes_size, count
from kvbench.report.rate_curves import RateCurves, curve_chart, curves_over
from kvbench.report.select import Pinned, by_direction, grouped, pin, where
from kvbench.report.table_rows import MARKS, fastest_marked, measured_table, rate, rows_of
from kvbench.report.view import View
from kvbench.text import ends

MIN_LENGTHS: Final = 3
_SHAPE: Final = ["blocks", "block_bytes"]
_WEIGHT: Final = 1.0  # whether copies without an SM win decides which backend to use
_NOTE: Final = (
    "Run: adjacent blocks in the same order on both sides; a run of 1 block is the pattern shuffled. The last run "
    "length at which another backend is fastest and the first at which merged is are the ends of the interval"
)


def make(view: View) -> PartOrReason:
    pinned, measured = _cells_in_runs(view.frame)
    if measured.empty:
        return f"it needs a backend measured at {MIN_LENGTHS} run lengths (pattern=shuffled,runs-8,runs-32) when idle"
    sides = by_direction(measured)
    changes = {direction: _changes(view, cells) for direction, cells in sides.items()}
    counts = sorted({int(blocks) for blocks in measured["blocks"]}, reverse=True)
    return lambda: Part(
        findings=[f"{direction}, {_line(*swap)}." for direction, swaps in changes.items() for swap in swaps.items()],
        charts=[_chart(view, pinned, where(measured, blocks=blocks), blocks) for blocks in counts],
        tables=[_table(view, pinned, *side) for side in sides.items()],
        highlights=[Finding(text, _WEIGHT) for side in changes.items() if (text := _wins(*side))],
    )


def run_length(pattern: str) -> int | None:
    """Return the blocks in a run of a pattern: 1 where none are adjacent, None where runs have no one length."""
    match = re.fullmatch(r"runs-(\d+)", pattern)
    return int(match[1]) if match else 1 if pattern == "shuffled" else None


def _cells_in_runs(frame: pd.DataFrame) -> tuple[Pinned, pd.DataFrame]:
    """Return the cells whose runs have one length, with it as `run_blocks`, and those of them that make a curve."""
    lengths = frame["pattern"].map(run_length, na_action="ignore")
    known = frame[lengths.notna()].assign(run_blocks=lengths.dropna().astype("int64"))
    pinned = pin(where(known, stream_state="idle"), shown=("pattern",))
    measured = where(pinned.cells, status="ok")
    several = measured.groupby(["backend", "direction", *_SHAPE])["run_blocks"].transform("nunique")
    return pinned, measured[several >= MIN_LENGTHS]


def _changes(view: View, cells: pd.DataFrame) -> dict[tuple[int, int], Crossover | None]:
    """Return, by (blocks, block bytes), the change to merged as the fastest; None where that is not so at long runs.

    Where merged is the fastest at every decided length, the change lies at the shortest of these.
    """
    last: dict[tuple[int, int], Crossover | None] = {}
    rows = rows_of(cells[cells["cell_id"].isin(view.visits)])
    for shape, swap_rows in grouped(rows, lambda row: (int(row["blocks"]), int(row["block_bytes"]))).items():
        arms: dict[str, dict[int, Visits]] = {}
        for row in swap_rows:
            arms.setdefault(str(row["backend"]), {})[int(row["run_blocks"])] = view.visits[row["cell_id"]]
        if MERGED in arms and len(arms) > 1:
            fastest = winners(arms, IN_TURN)
            decided = [(length, name) for length, name in fastest.items() if name is not None]
            changes = [Crossover(length, length, MERGED, MERGED) for length, name in decided[:1] if name == MERGED]
            changes += [change for change in crossovers(fastest) if change.after == MERGED]
            last[shape] = changes[-1] if decided and decided[-1][1] == MERGED else None
    return last


def _line(shape: tuple[int, int], change: Crossover | None) -> str:
    head = f"{count(shape[0])} {TIMES} {bytes_size(shape[1])}"
    if change is None:
        return f"{head}: merged is never clearly the fastest at long runs"
    before = f"{change.before} up to {count(change.below_bytes)}"
    rest = "the shortest decided length" if change.before == MERGED else before
    return f"{head}: merged wins from runs of {count(change.above_bytes)} blocks, {rest}"


def _wins(direction: str, changes: Mapping[tuple[int, int], Crossover | None]) -> str:
    lengths = [change.above_bytes for change in changes.values() if change]
    if not lengths:
        return ""
    wins = f"merged copies are the fastest from runs of {ends(lengths, count)} blocks on"
    return f"{direction} on an idle stream: {wins}, in {len(lengths)} of {len(changes)} swaps."


def _chart(view: View, pinned: Pinned, cells: pd.DataFrame, blocks: int) -> Chart:
    curves = RateCurves("run_blocks", curves_over(cells, "block_bytes", "run_blocks"), pinned, cells, blocks)
    rows = {size: f", {bytes_size(size)} blocks" for size in sorted({curve.panel for curve in curves.curves})}
    return curve_chart(view, f"runs-{blocks}", curves, rows, f"GB/s against the run length, N = {count(blocks)} blocks")


def _table(view: View, pinned: Pinned, direction: str, cells: pd.DataFrame) -> DataTable:
    backends = sorted({str(name) for name in cells["backend"]})
    body: list[list[Text]] = []
    rows = grouped(rows_of(cells), lambda row: (int(row["block_bytes"]), int(row["blocks"]), int(row["run_blocks"])))
    for (size, blocks, length), cell_rows in sorted(rows.items(), key=lambda group: group[0]):
        swap = f"{count(blocks)} {TIMES} {bytes_size(size)}"
        body.append([swap, count(length), *fastest_marked(cell_rows, backends, rate, view.visits)])
    header = ("Swap", "Run", *backends)
    title = f"{direction}, idle stream: GB/s by the length of runs"
    compared, notes = len(cells) - len(body), [_NOTE, MARKS]
    return measured_table(view, cells, title, header, body, includes_of("idle"), pinned, notes, compared)
