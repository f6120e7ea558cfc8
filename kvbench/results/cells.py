"""The cells that records name, each parsed once."""

from kvbench.axes import Cell, id_of
from kvbench.results.schema import CellStrings


class CellIndex:
    """The cells of a run's records, each parsed once."""

    def __init__(self) -> None:
        self._cells: dict[tuple[tuple[str, str | None], ...], Cell] = {}
        # A record asks several times; what it holds stays alive here, so that an address names one of them.
        self._asked: dict[int, tuple[CellStrings, Cell]] = {}
        self._known: dict[int, tuple[Cell, CellStrings, str]] = {}

    def __getitem__(self, strings: CellStrings) -> Cell:
        """Return the cell; raises UsageError for unknown axes or impossible values."""
        asked = self._asked.get(id(strings))
        if asked is not None:
            return asked[1]
        key = tuple(strings.items())
        if key not in self._cells:
            self._cells[key] = Cell.from_strings(strings)
        self._asked[id(strings)] = strings, self._cells[key]
        return self._cells[key]

    def id(self, cell: Cell) -> str:
        """Return the id of a cell of this index, worked out once."""
        return self._about(cell)[2]

    def strings(self, cell: Cell) -> CellStrings:
        """Return `as_strings` of a cell of this index, worked out once."""
        return self._about(cell)[1]

    def _about(self, cell: Cell) -> tuple[Cell, CellStrings, str]:
        known = self._known.get(id(cell))
        if known is None:
            strings = cell.as_strings()
            known = self._known[id(cell)] = cell, strings, id_of(strings)
        return known
