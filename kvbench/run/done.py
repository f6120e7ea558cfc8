"""What a run contains: the visits that were made, and those that are still to be made."""

from collections.abc import Iterable

from kvbench.results.schema import Ceiling, Control, Failure, Record, Retry, Roof, Skip, Visit
from kvbench.sweep.plan import PlannedVisit


class Progress:
    """The content of a run: visits, large copies of every kind by round; ids of the failed and skipped cells."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.visits: set[tuple[str, int, int]] = set()
        self.copies: set[tuple[type[Record], str, int]] = set()
        self.failed: set[str] = set()
        self.copies_failed = 0
        self.skipped: set[str] = set()
        for record in records:
            self.note(record)

    def note(self, record: Record) -> None:
        match record:
            case Visit():
                self.visits.add((record.cell.id, record.round, record.attempt))
            case Failure():
                self.failed.add(record.cell.id)
            case Retry():
                self.failed.discard(record.cell.id)
            case Skip():
                self.skipped.add(record.cell.id)
            case Ceiling() | Roof() | Control():
                self.copies.add((type(record), record.direction, record.round))

    def wants(self, visit: PlannedVisit) -> bool:
        cell_id = visit.cell.id
        made = (cell_id, visit.round, visit.attempt) in self.visits
        return not made and cell_id not in self.failed and cell_id not in self.skipped

    @property
    def measured(self) -> int:
        return len({cell_id for cell_id, *_ in self.visits} - self.failed)
