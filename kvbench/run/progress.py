"""What a run contains, and so what is still to be measured; and which of its failures were reported."""

from collections import Counter
from collections.abc import Iterable, Iterator

from kvbench.results.schema import Ceiling, Control, Failure, Record, Retry, Roof, Skip, Visit
from kvbench.sweep.plan import PlannedVisit
from kvbench.text import counted


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


class ReportedFailures:
    """The reported failures; two are of the same kind if they have the same source, such as a backend, and message."""

    def __init__(self) -> None:
        self._failed: Counter[tuple[str, str, str]] = Counter()

    def first(self, of: str, failure: Failure) -> bool:
        """Count a failure of `of`; return whether it is the first of its kind."""
        kind = of, failure.kind, failure.message
        self._failed[kind] += 1
        return self._failed[kind] == 1

    def others(self) -> Iterator[str]:
        """Yield a line for every kind that was counted more than once."""
        for (of, kind, message), count in self._failed.items():
            if count > 1:
                yield f"FAILED ({kind}) {counted(count - 1, 'more cell')} of {of}: {message}"
