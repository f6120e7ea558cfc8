"""Which visits a sweep makes, and in which order: those of its schedule that the run does not have yet."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from operator import attrgetter
from typing import Final, Protocol

from kvbench.cells.cell import Cell
from kvbench.results import Ceiling, Control, Failure, Record, Skip, Visit
from kvbench.results.attempts import Ceilings
from kvbench.results.schema import Retry, Roof
from kvbench.sweep.plan import Plan, PlannedVisit, by_package, visits
from kvbench.sweep.spec import SweepSpec

# The maximum repeats of a disturbed visit, and the limit per round (one visit in this many) on a host that is never
# quiet.
MAX_REPEATS: Final = 2
# Attempts of a visit; those of a round that is measured again have the numbers after them, up to twice. The time for
# that, relative to what the visits took.
ATTEMPTS: Final = 1 + MAX_REPEATS
AGAIN_SHARE: Final = 0.5
VISITS_A_REPEAT: Final = 5


class Progress:
    """The content of a run: visits, large copies of every kind by round; ids of the failed and skipped cells."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        # By cell, round and attempt: whether it was disturbed and can be repeated.
        self.visits: dict[tuple[str, int, int], bool] = {}
        self.copies: set[tuple[type[Record], str, int, int]] = set()
        self.ceilings = Ceilings(())
        # By direction, round, and whether the round was repeated.
        self.took_ms: defaultdict[tuple[str, int, bool], float] = defaultdict(float)
        self.failed: set[str] = set()
        self.copies_failed = 0
        self.skipped: set[str] = set()
        self.processes = 0  # worker processes that made visits
        for record in records:
            self.note(record)

    def note(self, record: Record) -> None:
        match record:
            case Visit(cell=cell, round=number, attempt=attempt):
                self.visits[cell.id, number, attempt] = bool(record.disturbed) and cell.devices == 1
                self.took_ms[cell.direction, number, attempt >= ATTEMPTS] += record.took_ms or 0.0
                self.processes = max(self.processes, record.process or 0)
            case Failure():
                self.failed.add(record.cell.id)
            case Retry():
                self.failed.discard(record.cell.id)
            case Skip():
                self.skipped.add(record.cell.id)
            case Ceiling() | Roof() | Control():
                self.copies.add((type(record), record.direction, record.round, getattr(record, "attempt", 0)))
                self.ceilings.note(record)

    def left_of(self, visit: PlannedVisit) -> PlannedVisit | None:
        """The visit to make: None if the run has every arm that did not fail, otherwise all of these."""
        cells = tuple(cell for cell in visit.cells if cell.id not in self.failed | self.skipped)
        missing = [cell for cell in cells if (cell.id, visit.round, visit.attempt) not in self.visits]
        return replace(visit, cells=cells) if missing else None

    def left(self, planned: Sequence[PlannedVisit], plan: Plan, first: int = 0) -> Iterator[PlannedVisit]:
        """Yield the visits of a round that the run lacks, with attempts from `first` on; each is made before the next.

        Repeats come after all other visits of the round, when the disturbance may be over.
        """
        repeats = max(1, len(planned) // VISITS_A_REPEAT)
        for attempt in range(first, first + ATTEMPTS):
            planned = by_package([replace(visit, attempt=attempt) for visit in planned], plan.plug_ins)
            yield from filter(None, map(self.left_of, planned))
            again = {key[:2] for key, disturbed in self.visits.items() if disturbed and key[2] == attempt}
            planned = [visit for visit in planned if again & {(cell.id, visit.round) for cell in visit.cells}][:repeats]
            repeats -= len(planned)

    def has_time_for(self, direction: str, number: int) -> bool:
        """Whether there is time to repeat the visits of a round: half of what all took at first."""
        again_ms = sum(ms for (*_, again), ms in self.took_ms.items() if again)
        first_ms = sum(self.took_ms.values()) - again_ms
        return again_ms + self.took_ms[direction, number, False] <= AGAIN_SHARE * first_ms

    @property
    def measured(self) -> int:
        return len({cell_id for cell_id, *_ in self.visits} - self.failed)


class Schedule(Protocol):
    """Decides from the results so far which cells of a plan are visited next."""

    @property
    def command(self) -> str | None:
        """The command that makes the schedule as it goes, and that can use its run."""

    @property
    def measures_roofs_once(self) -> bool:
        """Whether the stages are too short to measure the roofs in each."""

    @property
    def made(self) -> int:
        """The number of visits that the run already has."""

    @property
    def expected_visits(self) -> int:
        """The estimated number of visits, with those made."""

    def stages(self) -> Iterator[list[tuple[int, Cell]]]:
        """Yield the visits (round, cell) stage by stage; each stage depends on the results of all before it."""

    def note(self, visit: Visit) -> None:
        """Record a visit."""


class Rounds:
    """The schedule of a plain sweep: in every round each cell of the plan once, but for rounds that the run has."""

    command = None
    measures_roofs_once = False

    def __init__(self, plan: Plan, spec: SweepSpec, progress: Progress) -> None:
        every = list(visits(plan, spec.sampling, spec.seed))
        self.expected_visits = sum(len(visit.cells) for visit in every)
        self.made = self.expected_visits - sum(len(visit.cells) for visit in every if progress.left_of(visit))
        rounds = ([*of_round] for _, of_round in groupby(every, key=attrgetter("round")))
        left = (of_round for of_round in rounds if any(progress.left(of_round, plan)))
        singly = (chain.from_iterable(visit.singly() for visit in of_round) for of_round in left)
        self._stages = [[(visit.round, visit.cell) for visit in of_round] for of_round in singly]

    def stages(self) -> Iterator[list[tuple[int, Cell]]]:
        return iter(self._stages)

    def note(self, visit: Visit) -> None:
        """Nothing depends on the results."""
