"""The outcome of every cell of a run: its status, figures and visits; and the curves that cells make."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvbench.analysis.compare import Visits
from kvbench.cells.cell import Cell
from kvbench.results import CellRecord, Run
from kvbench.results.columns import TIMES

# name in a rule -> column of the summary
QUANTITIES: Final = {"gbps": "gbps", "ceiling_share": "ceiling_share", **{name: f"{name}_median" for name in TIMES}}
MIN_SIZES: Final = 2


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """One cell in one run: `status` is ok, no figure, failed or skipped, with its reason.

    `figures` are the cell's quantities and its ceiling (GB/s), and `visits` the same quantities by visit: name -> round
    -> the visit's median. Figures are NaN and visits empty unless ok.
    """

    cell: Cell
    status: str
    reason: str
    figures: Mapping[str, float]
    visits: Mapping[str, Visits]


Outcomes = Mapping[Cell, CellOutcome]


def outcomes(run: Run) -> dict[Cell, CellOutcome]:
    """Return the outcome of every cell in the run's journal.

    A cell with samples but without verified bytes counts as failed, because its copies were never compared.
    """
    cells = {record.cell.id: record.cell for record in run.records if isinstance(record, CellRecord)}
    times = {name: run.visit_times(name) for name in TIMES}
    by_cell = {}
    for row in run.frame().to_dict("records"):
        cell = cells[str(row["cell_id"])]
        status, reason = str(row["status"]), "" if row["status"] == "ok" else str(row["reason"])
        if status == "ok" and int(row["verified_bytes"]) == 0:
            status, reason = "failed", "no bytes were verified"
        ok = status == "ok"
        columns = {**QUANTITIES, "ceiling": "ceiling_gbps"}
        figures = {name: float(row[column]) if ok else math.nan for name, column in columns.items()}
        visits = {name: by_cell_id.get(cell.id, {}) if ok else {} for name, by_cell_id in times.items()}
        visits["gbps"] = {number: cell.swap_bytes / us / 1e3 for number, us in visits["swap_us"].items()}
        visits["ceiling_share"] = {number: gbps / figures["ceiling"] for number, gbps in visits["gbps"].items()}
        by_cell[cell] = CellOutcome(cell, status, reason, figures, visits)
    return by_cell


def curves_of(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Return the curves: cells that differ only in block size, at least `MIN_SIZES` each, sorted by size."""
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(replace(cell, block_bytes=1), []).append(cell)
    ordered = [sorted(group, key=lambda cell: cell.block_bytes) for group in groups.values()]
    return [curve for curve in ordered if len(curve) >= MIN_SIZES]
