"""One sweep under way: asks the worker cell by cell, journals every record, and ends in an orderly way."""

import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.cells.facts import CEILING_BYTES
from kvbench.cells.locality import region_bytes
from kvbench.errors import KvbenchError, StorageError, UsageError
from kvbench.machine.observation import observe
from kvbench.results import RunStatus, RunWriter, load_run
from kvbench.results.schema import Ceiling, Control, Failure, Note, Record, Skip, Visit
from kvbench.run.protocol import InTurn, MeasureCeiling, MeasureCell, MeasureControl, Opened
from kvbench.run.worker_process import WorkerLostError, WorkerSlot
from kvbench.sweep.plan import Plan, PlannedVisit, submissions, visits
from kvbench.sweep.spec import SweepSpec
from kvbench.tune.table import AUTO

CEILING_SAMPLES: Final = 4


class Observer(Protocol):
    """Who watches a sweep, to show its progress."""

    def planned(self, plan: Plan, opened: Opened, done: int, total: int) -> None:
        """Tell that the sweep starts, or goes on, with `done` of `total` visits made."""

    def visiting(self, visit: PlannedVisit) -> None:
        """Tell that a visit begins."""

    def recorded(self, record: Record) -> None:
        """Tell that a record is in the journal."""


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended: its status, the reason where it is not complete, and its cells by fate."""

    path: Path
    status: RunStatus
    reason: str | None
    measured: int
    failed: int
    skipped: int


class Progress:
    """What a run holds: visits, ceilings and controls by round; ids of the cells that failed or were skipped."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.visits: set[tuple[str, int]] = set()
        self.ceilings: set[tuple[str, int]] = set()
        self.controls: set[tuple[str, int]] = set()
        self.failed: set[str] = set()
        self.skipped: set[str] = set()
        for record in records:
            self.note(record)

    def note(self, record: Record) -> None:
        match record:
            case Visit():
                self.visits.add((record.cell.id, record.round))
            case Failure():
                self.failed.add(record.cell.id)
            case Skip():
                self.skipped.add(record.cell.id)
            case Ceiling():
                self.ceilings.add((record.direction, record.round))
            case Control():
                self.controls.add((record.direction, record.round))

    def wants(self, visit: PlannedVisit) -> bool:
        """Whether `visit` is still to be made: a failed cell is not visited again."""
        cell_id = visit.cell.id
        return cell_id not in self.failed and cell_id not in self.skipped and (cell_id, visit.round) not in self.visits

    @property
    def measured(self) -> int:
        return len({cell_id for cell_id, _ in self.visits} - self.failed)


@dataclass(frozen=True)
class Execution:
    """A planned sweep, its worker and its journal."""

    spec: SweepSpec
    plan: Plan
    opened: Opened
    writer: RunWriter
    slot: WorkerSlot
    observer: Observer
    progress: Progress

    def run(self) -> Outcome:
        """Measure what is missing. Ctrl-C, a full disk and a worker that cannot be replaced end it with data kept.

        Raises UsageError when the memory that it needs is not to be had.
        """
        return self.finish(*self._attempt())

    def begin(self) -> None:
        """Record that the run begins, and its plan; raises StorageError."""
        self.writer.set_status("running")
        self.slot.log_to(self.writer.path)
        for skip in self.plan.skipped:
            if skip.cell.id not in self.progress.skipped:
                self._record(Skip(cell_text=skip.cell.as_strings(), reason=skip.reason))
        for note in self.opened.notes:
            self._record(Note(text=note))

    def reserve(self, cells: Iterable[Cell]) -> None:
        """Have the worker reserve the memory that `cells`, at least one, take; raises KvbenchError."""
        most = submissions(self.spec.sampling)
        largest = max(region_bytes(cell, most) for cell in cells)
        self.slot.reserve(max(largest, CEILING_BYTES[self.opened.device.kind]))

    def finish(self, status: RunStatus, reason: str | None) -> Outcome:
        """Record how the run ended, and its summary."""
        try:
            self.observe("end")
            self.writer.set_status(status, reason)
            load_run(self.writer.path).write_summary()
        except (KvbenchError, OSError) as error:
            # A full disk may refuse these too; what was measured is in the journal, which readers start from.
            if status == "complete":
                status, reason = "stopped", self._reason(error)
        done = self.progress
        return Outcome(self.writer.path, status, reason, done.measured, len(done.failed), len(done.skipped))

    def _attempt(self) -> tuple[RunStatus, str | None]:
        try:
            self.begin()
            self._measure_missing()
        except KeyboardInterrupt:
            return "interrupted", "interrupted (Ctrl-C)"
        except BrokenPipeError:
            return "interrupted", "whoever read the output has gone"
        except UsageError as error:
            with suppress(StorageError):
                self.writer.set_status("stopped", str(error))
            raise
        except (KvbenchError, OSError) as error:
            return "stopped", self._reason(error)
        return "complete", None

    def _reason(self, error: KvbenchError | OSError) -> str:
        if isinstance(error, OSError):  # the run directory is gone, or its disk fails
            return f"{self.writer.path} cannot be written: {error.strerror}"
        return str(error)

    def _measure_missing(self) -> None:
        every = list(visits(self.plan, self.spec.sampling, self.spec.seed))
        missing = [visit for visit in every if self.progress.wants(visit)]
        self.observer.planned(self.plan, self.opened, len(every) - len(missing), len(every))
        if not missing:
            return
        self.reserve(visit.cell for visit in missing)
        for visit in missing:
            self.measure_ceilings(visit.round)
            self.measure_controls(visit.round)
            if visit is missing[0]:
                # Right behind the large copies: the link of an idle GPU downshifts and would be read wrong.
                self.observe("start")
            if self.progress.wants(visit):
                self.observer.visiting(visit)
                self.visit(visit)

    def measure_ceilings(self, number: int) -> None:
        """Time the ceilings of a round, where that is still to be done."""
        swapped = {cell.direction for cell in self.plan.cells}
        for direction in Direction:
            if direction in swapped and (direction, number) not in self.progress.ceilings:
                ceiling = MeasureCeiling(direction=direction.value, round=number, samples=CEILING_SAMPLES)
                self._record(self.slot.ask(ceiling, Ceiling, self.spec.sampling.deadline_s))

    def measure_controls(self, number: int) -> None:
        """Time the controls of a round, where the sweep has some and that is still to be done."""
        sampling = self.spec.sampling
        for direction in Direction:
            if sampling.controls and (direction, number) not in self.progress.controls:
                request = MeasureControl(direction=direction.value, round=number, samples=sampling.controls)
                self._record(self.slot.ask(request, Control, sampling.deadline_s))

    def visit(self, visit: PlannedVisit, in_turn: InTurn | None = None) -> Visit | Failure:
        """Make a visit and record it; raises KvbenchError where a worker that failed cannot be replaced."""
        answer = self._measure(visit, in_turn)
        self._record(answer)
        if isinstance(answer, Failure) and answer.kind != "mismatch":
            self.slot.replace()
            self._record(Note(text=f"the worker process was replaced after {visit.cell.label} failed"))
        return answer

    def fail(self, visit: PlannedVisit, message: str) -> Failure:
        """Record that a visit cannot be made, or counts for nothing."""
        failure = Failure(
            cell_text=visit.cell.as_strings(),
            round=visit.round,
            kind="error",
            message=message,
            command=self._command(visit.cell),
        )
        self._record(failure)
        return failure

    def _measure(self, visit: PlannedVisit, in_turn: InTurn | None) -> Visit | Failure:
        request = MeasureCell(
            cell=visit.cell.as_strings(),
            round=visit.round,
            seed=self.spec.seed,
            sampling=self.spec.sampling,
            in_turn=in_turn,
        )
        try:
            answer = self.slot.visit(request, self.spec.sampling.deadline_s)
        except WorkerLostError as lost:
            answer = Failure(cell_text=request.cell, round=visit.round, kind=lost.kind, message=str(lost), command="")
        if isinstance(answer, Failure):
            return msgspec.structs.replace(
                answer, cell_text=request.cell, round=visit.round, command=self._command(visit.cell)
            )
        return answer

    def _command(self, cell: Cell) -> str:
        """Return the command that measures `cell` alone, as this sweep does."""
        options = ["--device", self.opened.device.name, "--seed", str(self.spec.seed)]
        for name, value in msgspec.structs.asdict(self.spec.sampling).items():
            options += [f"--{name.replace('_', '-')}", f"{value:g}"]
        if self.spec.fault is not None:
            options += ["--fault", self.spec.fault]
        if self.spec.policy is not None and cell.backend == AUTO:
            options += ["--policy", str(self.writer.path)]
        return f"{cell.command()} {shlex.join(options)}"

    def _record(self, record: Record) -> None:
        self.writer.append(record)
        self.progress.note(record)
        self.observer.recorded(record)

    def observe(self, at: Literal["start", "end"]) -> None:
        """Record what holds on the machine now."""
        found = observe(self.opened.device.name, self.opened.pci_bus_id, own_pids=self.slot.pids)
        self.writer.observe({"at": at, **found, "delay_us": self.opened.delay_us})
