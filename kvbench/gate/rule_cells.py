"""What a rule is about: the outcome of every cell of a run, a selection of cells, and the limit of a quantity."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvbench.analysis.compare import Visits
from kvbench.cells.cell import AXES, Cell
from kvbench.cells.filter import Filter
from kvbench.results import CellRecord, Run
from kvbench.results.columns import TIMES

# name in a rule -> column of the summary
QUANTITIES: Final = {"gbps": "gbps", "ceiling_share": "ceiling_share", **{name: f"{name}_median" for name in TIMES}}
MIN_SIZES: Final = 2
CEILING: Final = "ceiling"


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


# Its name, its figure, and its outcome unless it is a number.
Partner = tuple[str, float, CellOutcome | None]


class UnknownError(Exception):
    """A rule that cannot be judged; the message says what is missing."""


class Selection:
    """The cells that meet all of `filters`, at least one."""

    def __init__(self, filters: Sequence[Filter]) -> None:
        self.filters = filters

    def __str__(self) -> str:
        return ",".join(map(str, self.filters))

    def of(self, by_cell: Outcomes) -> Outcomes:
        return {cell: each for cell, each in by_cell.items() if all(one.holds(cell) for one in self.filters)}

    def measured(self, by_cell: Outcomes) -> Outcomes:
        """Return the outcomes of these cells without skipped ones; raises UnknownError if none is left or one failed.

        The outcomes are in the order of `by_cell`.
        """
        chosen = self.of(by_cell)
        ran = {cell: outcome for cell, outcome in chosen.items() if outcome.status != "skipped"}
        if not ran:
            asked = "measured; all are skipped" if chosen else "requested"
            why = next((f": {outcome.reason}" for outcome in chosen.values()), "")
            raise UnknownError(f"no cell of {self} was {asked}{why}")
        for outcome in ran.values():
            if outcome.status != "ok":
                status = "has no figure" if outcome.status == "no figure" else outcome.status
                raise UnknownError(f"{outcome.cell.label} {status}: {outcome.reason}")
        return ran

    def curves(self, by_cell: Outcomes) -> list[list[CellOutcome]]:
        """Return the curves: outcomes that differ only in block size, `MIN_SIZES` or more, by size; raises as above."""
        groups: dict[Cell, list[CellOutcome]] = {}
        for cell, outcome in self.measured(by_cell).items():
            groups.setdefault(replace(cell, block_bytes=1), []).append(outcome)
        ordered = [sorted(group, key=lambda outcome: outcome.cell.block_bytes) for group in groups.values()]
        return [curve for curve in ordered if len(curve) >= MIN_SIZES]


class Limit:
    """The limit of a quantity: `factor` times that of `partner`, or just `factor` if `partner` is None.

    `partner` is `CEILING` (of the cell's direction), or a selection: its cells with the same values on every axis that
    the selection does not set.
    """

    def __init__(self, factor: float, partner: Selection | str | None = None) -> None:
        self.factor = factor
        self.partner = partner

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.factor:.9g}", str(self.partner or ""))))

    def partners(self, outcome: CellOutcome, quantity: str, by_cell: Outcomes) -> list[Partner]:
        """Return the partners of a cell; raises UnknownError if it has none."""
        if self.partner is None:
            return [("the number", 1.0, None)]
        if isinstance(self.partner, str):
            return [(f"the {CEILING}", outcome.figures[CEILING], None)]
        named = {condition.axis for condition in self.partner.filters}
        free = [axis.field for axis in AXES.values() if axis.name not in named]

        def like(other: Cell) -> bool:
            values = ((getattr(outcome.cell, field), getattr(other, field)) for field in free)
            return all(ours == theirs or ours is None or theirs is None for ours, theirs in values)

        alike = {cell: each for cell, each in self.partner.of(by_cell).items() if like(cell)}
        if not alike:
            raise UnknownError(f"{outcome.cell.label} has no partner among {self.partner}")
        ran = self.partner.measured(alike)
        return [(cell.label, each.figures[quantity], each) for cell, each in ran.items()]
