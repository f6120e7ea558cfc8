"""One sweep under way: asks the worker cell by cell, journals every record, and ends in an orderly way."""

import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, Self

import msgspec

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.cells.facts import CEILING_BYTES
from kvbench.errors import KvbenchError, StorageError, UsageError
from kvbench.machine.observation import observe
from kvbench.results import (
    Ceiling,
    Control,
    Failure,
    FailureKind,
    Note,
    Record,
    RunStatus,
    RunWriter,
    Skip,
    Visit,
    load_run,
)
from kvbench.run.protocol import MeasureCeiling, MeasureCell, MeasureControl, Opened
from kvbench.run.worker_process import WorkerHungError, WorkerLostError, WorkerSlot
from kvbench.sweep.plan import Plan, PlannedVisit, visits
from kvbench.sweep.spec import SweepSpec
from kvbench.tune.table import AUTO

CEILING_SAMPLES: Final = 4


class Observer(Protocol):
    """Who watches a sweep, to show its progress."""

    def planned(self, plan: Plan, opened: Opened, done: int, total: int) -> None:
        """Tell that the sweep starts, or goes on, with `done` of `total` visits made."""
        ...

    def visiting(self, visit: PlannedVisit) -> None:
        """Tell that a visit begins."""
        ...

    def recorded(self, record: Record) -> None:
        """Tell that a record is in the journal."""
        ...


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended: its status, the reason where it is not complete, and its cells by fate."""

    path: Path
    status: RunStatus
    reason: str | None
    measured: int
    failed: int
    skipped: int


@dataclass
class Progress:
    """What a run holds: visits, ceilings and controls by round; ids of the cells that failed or were skipped."""

    visits: set[tuple[str, int]] = field(default_factory=set)
    ceilings: set[tuple[str, int]] = field(default_factory=set)
    controls: set[tuple[str, int]] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, records: Iterable[Record]) -> Self:
        progress = cls()
        for record in records:
            progress.note(record)
        return progress

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
            case Note():
                pass

    def wants(self, visit: PlannedVisit) -> bool:
        """Whether `visit` is still to be made: a failed cell is not visited again."""
        cell_id = visit.cell.id
        return cell_id not in self.failed and cell_id not in self.skipped and (cell_id, visit.round) not in self.visits

    @property
    def measured(self) -> int:
        return len({cell_id for cell_id, _ in self.visits} - self.failed)


class Execution:
    """A planned sweep, its worker and its journal."""

    def __init__(
        self,
        spec: SweepSpec,
        plan: Plan,
        opened: Opened,
        writer: RunWriter,
        slot: WorkerSlot,
        observer: Observer,
        progress: Progress,
    ) -> None:
        self._spec = spec
        self._plan = plan
        self._opened = opened
        self._writer = writer
        self._slot = slot
        self._observer = observer
        self._progress = progress

    def run(self) -> Outcome:
        """Measure what is missing. Ctrl-C, a full disk and a worker that cannot be replaced end it with data kept.

        Raises UsageError when the memory that it needs is not to be had.
        """
        status, reason = self._attempt()
        try:
            self._observe("end")
            self._writer.set_status(status, reason)
            load_run(self._writer.path).write_summary()
        except (KvbenchError, OSError) as error:
            # A full disk may refuse these too; what was measured is in the journal, which readers start from.
            if status == "complete":
                status, reason = "stopped", self._reason(error)
        progress = self._progress
        return Outcome(
            self._writer.path, status, reason, progress.measured, len(progress.failed), len(progress.skipped)
        )

    def _attempt(self) -> tuple[RunStatus, str | None]:
        try:
            self._writer.set_status("running")
            self._slot.log_to(self._writer.path)
            self._record_plan()
            self._measure_missing()
        except KeyboardInterrupt:
            return "interrupted", "interrupted (Ctrl-C)"
        except BrokenPipeError:
            return "interrupted", "whoever read the output has gone"
        except UsageError as error:
            with suppress(StorageError):
                self._writer.set_status("stopped", str(error))
            raise
        except (KvbenchError, OSError) as error:
            return "stopped", self._reason(error)
        return "complete", None

    def _reason(self, error: KvbenchError | OSError) -> str:
        if isinstance(error, OSError):  # the run directory is gone, or its disk fails
            return f"{self._writer.path} cannot be written: {error.strerror}"
        return str(error)

    def _record_plan(self) -> None:
        for skip in self._plan.skipped:
            if skip.cell.id not in self._progress.skipped:
                self._record(Skip(cell_text=skip.cell.as_strings(), reason=skip.reason))
        for note in self._opened.notes:
            self._record(Note(text=note))

    def _measure_missing(self) -> None:
        every = list(visits(self._plan, self._spec.sampling, self._spec.seed))
        missing = [visit for visit in every if self._progress.wants(visit)]
        self._observer.planned(self._plan, self._opened, len(every) - len(missing), len(every))
        if not missing:
            return
        largest = max(visit.cell.pool_bytes for visit in missing)
        self._slot.reserve(max(largest, CEILING_BYTES[self._opened.device.kind]))
        observed = False
        for visit in missing:
            self._measure_ceilings(visit.round)
            self._measure_controls(visit.round)
            if not observed:
                # Right behind the large copies: the link of an idle GPU downshifts and would be read wrong.
                self._observe("start")
                observed = True
            if self._progress.wants(visit):
                self._observer.visiting(visit)
                self._visit(visit)

    def _measure_ceilings(self, number: int) -> None:
        directions = {cell.direction for cell in self._plan.cells}
        for direction in Direction:
            if direction in directions and (direction.value, number) not in self._progress.ceilings:
                request = MeasureCeiling(direction=direction.value, round=number, samples=CEILING_SAMPLES)
                self._record(self._slot.ask(request, Ceiling, self._spec.sampling.deadline_s))

    def _measure_controls(self, number: int) -> None:
        sampling = self._spec.sampling
        for direction in Direction:
            if sampling.controls and (direction.value, number) not in self._progress.controls:
                request = MeasureControl(direction=direction.value, round=number, samples=sampling.controls)
                self._record(self._slot.ask(request, Control, sampling.deadline_s))

    def _visit(self, visit: PlannedVisit) -> None:
        answer = self._measure(visit)
        self._record(answer)
        if isinstance(answer, Failure) and answer.kind != "mismatch":
            self._slot.replace()
            self._record(Note(text=f"the worker process was replaced after {visit.cell.label} failed"))

    def _measure(self, visit: PlannedVisit) -> Visit | Failure:
        request = MeasureCell(
            cell=visit.cell.as_strings(), round=visit.round, seed=self._spec.seed, sampling=self._spec.sampling
        )
        try:
            answer = self._slot.visit(request, self._spec.sampling.deadline_s)
        except WorkerLostError as lost:
            kind: FailureKind = "timeout" if isinstance(lost, WorkerHungError) else "crash"
            answer = Failure(cell_text=request.cell, round=visit.round, kind=kind, message=str(lost), command="")
        if isinstance(answer, Failure):
            return msgspec.structs.replace(answer, command=self._command(visit.cell))
        return answer

    def _command(self, cell: Cell) -> str:
        """Return the command that measures `cell` alone, as this sweep does."""
        options = ["--device", self._opened.device.name, "--seed", str(self._spec.seed)]
        for name, value in msgspec.structs.asdict(self._spec.sampling).items():
            options += [f"--{name.replace('_', '-')}", f"{value:g}"]
        if self._spec.fault is not None:
            options += ["--fault", self._spec.fault]
        if self._spec.policy is not None and cell.backend == AUTO:
            options += ["--policy", str(self._writer.path)]
        return f"{cell.command()} {shlex.join(options)}"

    def _record(self, record: Record) -> None:
        self._writer.append(record)
        self._progress.note(record)
        self._observer.recorded(record)

    def _observe(self, at: str) -> None:
        found = observe(self._opened.device.name, self._opened.pci_bus_id, own_pids=self._slot.pids)
        self._writer.observe({"at": at, **found})
