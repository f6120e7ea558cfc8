"""How every cell of a run ended, as the gate looks at it: by cell, with its figures, skips and failures told apart."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvbench.cells.cell import Cell
from kvbench.results import CellRecord, Run
from kvbench.text import printable

# name in a rule -> column of the summary
QUANTITIES: Final = {
    "gbps": "gbps",
    "ceiling_share": "ceiling_share",
    **{f"{part}_us": f"{part}_us_median" for part in ("swap", "submit", "gpu", "wall", "prepare", "cpu")},
}
_FIGURES: Final = (*QUANTITIES.values(), "gbps_q1", "gbps_q3", "swap_us_q1", "swap_us_q3", "ceiling_gbps")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One cell in one run: `status` is ok, failed or skipped, with its reason; `figures` by column, where it is ok."""

    cell: Cell
    status: str
    reason: str
    path: str
    figures: Mapping[str, float]

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def figure(self, column: str) -> float:
        return self.figures.get(column, math.nan)


def outcomes(run: Run) -> dict[Cell, Outcome]:
    """Return the outcome of every cell that the run's journal names.

    A cell with samples but without a verified byte counts as failed: its times are those of copies nobody compared.
    """
    cells = {record.cell.id: record.cell for record in run.records if isinstance(record, CellRecord)}
    found = {}
    for row in run.frame().to_dict("records"):
        cell = cells[str(row["cell_id"])]
        status, reason = str(row["status"]), "" if row["status"] == "ok" else printable(row["reason"])
        if status == "ok" and int(row["verified_bytes"]) == 0:
            status, reason = "failed", "nothing was verified"
        figures = {name: float(row[name]) for name in _FIGURES} if status == "ok" else {}
        path = printable(row["path"]) if isinstance(row["path"], str) else ""
        found[cell] = Outcome(cell, status, reason, path, figures)
    return found
