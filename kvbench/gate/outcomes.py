"""The outcome of every cell of a run: its status and figures."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvbench.analysis.compare import Visits
from kvbench.cells.cell import Cell
from kvbench.results import CellRecord, Run

# name in a rule -> column of the summary
QUANTITIES: Final = {
    "gbps": "gbps",
    "ceiling_share": "ceiling_share",
    **{f"{part}_us": f"{part}_us_median" for part in ("swap", "caller", "gpu", "wall", "cpu")},
}
_FIGURES: Final = (*QUANTITIES.values(), "gbps_q1", "gbps_q3", "ceiling_gbps")


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """One cell in one run: `status` is ok, failed or skipped, with its reason; `figures` by column, NaN unless ok.

    `visits` are the medians of swap_us in microseconds by round, empty unless ok.
    """

    cell: Cell
    status: str
    reason: str
    figures: Mapping[str, float]
    visits: Visits


Outcomes = Mapping[Cell, CellOutcome]


def outcomes(run: Run) -> dict[Cell, CellOutcome]:
    """Return the outcome of every cell in the run's journal.

    A cell with samples but without verified bytes counts as failed, because its copies were never compared.
    """
    cells = {record.cell.id: record.cell for record in run.records if isinstance(record, CellRecord)}
    visits = run.visit_times()
    found = {}
    for row in run.frame().to_dict("records"):
        cell = cells[str(row["cell_id"])]
        status, reason = str(row["status"]), "" if row["status"] == "ok" else str(row["reason"])
        if status == "ok" and int(row["verified_bytes"]) == 0:
            status, reason = "failed", "no bytes were verified"
        ok = status == "ok"
        figures = {name: float(row[name]) if ok else math.nan for name in _FIGURES}
        found[cell] = CellOutcome(cell, status, reason, figures, visits.get(cell.id, {}) if ok else {})
    return found
