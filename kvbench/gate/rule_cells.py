"""What a rule is about: a selection of cells, and the limit of a quantity."""

from collections.abc import Sequence
from typing import Final

from kvbench.cells.cell import AXES, Cell
from kvbench.cells.filter import Filter
from kvbench.gate.outcomes import CellOutcome, Outcomes, curves_of

CEILING: Final = "ceiling"
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
        """Return the curves: outcomes that differ only in block size, at least two each, by size; raises as above."""
        measured = self.measured(by_cell)
        return [[measured[cell] for cell in curve] for curve in curves_of(measured)]


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
