"""The cells that records name, each parsed once."""

from kvbench.axes import Cell
from kvbench.results.schema import CellStrings


class CellIndex:
    """The cells of a run's records, each parsed once."""

    def __init__(self) -> None:
        self._cells: dict[tuple[tuple[str, str | None], ...], Cell] = {}
        self._ids: dict[Cell, str] = {}

    def __getitem__(self, strings: CellStrings) -> Cell:
        """Return the cell; raises UsageError for unknown axes or impossible values."""
        key = tuple(strings.items())
        if key not in self._cells:
            self._cells[key] = Cell.from_strings(strings)
        return self._cells[key]

    def id(self, cell: Cell) -> str:
        """Return the cell's id, worked out once."""
        if cell not in self._ids:
            self._ids[cell] = cell.id
        return self._ids[cell]
