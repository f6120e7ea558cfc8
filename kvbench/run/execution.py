"""A running sweep: requests cell after cell from the worker, journals every record, and ends cleanly."""

import shlex
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from kvbench.cells.axes import Direction
from kvbench.cells.backend_facts import AUTO, SM
from kvbench.cells.cell import Cell, command_of
from kvbench.cells.device_facts import CEILING_BYTES
from kvbench.cells.locality import region_bytes
from kvbench.errors import ExitCode, KvbenchError, StorageError, UsageError
from kvbench.machine.observation import XidErrors, observe
from kvbench.results import RunWriter, load_run
from kvbench.results.schema import Ceiling, Control, Failure, FailureKind, Note, Record, Roof, RunStatus, Skip, Visit
from kvbench.run.done import Progress
from kvbench.run.protocol import InTurn, MeasureCeiling, MeasureCell, MeasureControl, MeasureRoof, Opened
from kvbench.run.worker_process import NotAskedError, WorkerLostError, WorkerSlot
from kvbench.sweep.estimate import submissions, visit_deadline_s
from kvbench.sweep.plan import Plan, PlannedVisit, visits
from kvbench.sweep.spec import OF_TRACE, SweepSpec

CEILING_SAMPLES: Final = 4
ROOF_SAMPLES: Final = 1
# From this pool size on, scattered throughput is nearly constant.
ROOF_POOL_BYTES: Final = 4 << 30
# The maximum repeats of a disturbed visit, and the limit per round (one visit in this many) on a host that is never
# quiet.
MAX_REPEATS: Final = 2
VISITS_A_REPEAT: Final = 5
LOG_FILE: Final = "worker.log"


class Observer:
    """Receives the events of a sweep, to show its progress; does nothing with those that a subclass does not handle."""

    def planned(self, plan: Plan, opened: Opened, done: int, total: int) -> None:
        """Handle the start of the sweep, or its continuation with `done` of `total` visits made."""

    def visiting(self, visit: PlannedVisit) -> None:
        """Handle the start of a visit."""

    def recorded(self, record: Record) -> None:
        """Handle a record that is in the journal."""


class Schedule(Protocol):
    """Decides from the results so far which cells of a plan are visited next."""

    command: str
    """The command that makes the schedule, and that can use its run."""
    visit_time: float
    """The mean time of a visit, as a share of that of the plan."""

    @property
    def expected_visits(self) -> int:
        """The estimated number of visits."""

    def stages(self) -> Iterator[list[tuple[int, Cell]]]:
        """Yield the visits (round, cell) stage by stage; each stage depends on the results of all before it."""

    def note(self, visit: Visit) -> None:
        """Record a visit."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a sweep: its status, the reason if it is not complete, the number of cells measured, failed and
    skipped, and how often the large copies of a round (ceilings, controls) failed. `folder` holds the runs of several
    devices. A run that a command searched (`searched_by`) cannot be resumed.
    """

    path: Path
    status: RunStatus
    reason: str | None
    measured: int
    failed: int
    skipped: int
    copies_failed: int = 0
    folder: Path | None = None
    searched_by: str | None = None

    @property
    def exit_code(self) -> ExitCode:
        if self.status == "interrupted":
            return ExitCode.INTERRUPTED
        whole = self.status == "complete" and not (self.failed or self.copies_failed)
        return ExitCode.DONE if whole else ExitCode.FAILED_CELLS


def ended_by(why: KeyboardInterrupt | KvbenchError) -> tuple[RunStatus, str]:
    """Return the status of a run that an interrupt or an error ended, and the reason."""
    if isinstance(why, KvbenchError):
        return "stopped", str(why)
    return "interrupted", str(why) or "Ctrl-C"


@dataclass(frozen=True)
class Execution:
    """A planned sweep, its worker and its journal; an optional `schedule` chooses the next visits from the results."""

    spec: SweepSpec
    plan: Plan
    opened: Opened
    writer: RunWriter
    slot: WorkerSlot
    observer: Observer
    progress: Progress
    schedule: Schedule | None = None

    def run(self) -> Outcome:
        """Measure what is missing. Ctrl-C, a full disk or a worker that cannot be replaced ends it; all data is kept.

        Raises UsageError if the required memory is not available.
        """
        try:
            self.begin()
            self._measure_missing()
        except UsageError as error:
            with suppress(StorageError):
                self.writer.set_status("stopped", str(error))
            raise
        except (KeyboardInterrupt, KvbenchError) as why:
            return self.finish(*ended_by(why))
        return self.finish("complete", None)

    def begin(self) -> None:
        """Record the start of the run and its plan; raises StorageError."""
        self.writer.set_status("running")
        self.slot.log = self.writer.path / LOG_FILE
        for skip in self.plan.skipped:
            if skip.cell.id not in self.progress.skipped:
                self._record(Skip(cell_text=skip.cell.as_strings(), reason=skip.reason))
        for note in self.opened.notes:
            self._record(Note(text=note))

    def reserve(self, cells: Collection[Cell]) -> int:
        """Allocate the memory pools for `cells`, at least one, and return their bytes; raises KvbenchError."""
        sampling = self.spec.sampling
        largest = max(region_bytes(cell, submissions(sampling, cell.stream_state)) for cell in cells)
        pool_bytes = max(largest, CEILING_BYTES[self.opened.device.kind])
        for note in self.slot.reserve(pool_bytes, self.plan.host_pools, {cell.backend for cell in cells}):
            self._record(Note(text=note))
        return pool_bytes

    def finish(self, status: RunStatus, reason: str | None) -> Outcome:
        """Record how the run ended, and write its summary."""
        try:
            self.observe("end")
            self.writer.set_status(status, reason)
            load_run(self.writer.path).write_summary()
        except KvbenchError as error:
            # These can fail on a full disk too; all results are in the journal, from which readers start.
            if status == "complete":
                status, reason = "stopped", str(error)
        done = self.progress
        counts = done.measured, len(done.failed), len(done.skipped), done.copies_failed
        return Outcome(self.writer.path, status, reason, *counts, searched_by=self.writer.info.searched_by)

    def _measure_missing(self) -> None:
        if self.schedule is not None:
            self._follow(self.schedule)
            return
        every = list(visits(self.plan, self.spec.sampling, self.spec.seed))
        missing = [*filter(self.progress.wants, every)]
        self.observer.planned(self.plan, self.opened, len(every) - len(missing), len(every))
        if not missing:
            return
        pool_bytes = self.reserve([visit.cell for visit in missing])
        for number, planned in groupby(missing, key=lambda visit: visit.round):
            self._measure_round(number, planned, pool_bytes, first=number == missing[0].round)

    def _follow(self, schedule: Schedule) -> None:
        share = schedule.expected_visits / (len(self.plan.cells) * self.spec.sampling.rounds)
        plan = replace(self.plan, estimate_s=schedule.visit_time * share * self.plan.estimate_s)
        self.observer.planned(plan, self.opened, 0, schedule.expected_visits)
        pool_bytes = self.reserve(self.plan.cells)
        for index, stage in enumerate(schedule.stages()):
            number = stage[0][0]
            planned = (PlannedVisit(number, cell) for _, cell in stage)
            # A search has many short rounds: its roofs are measured once.
            self._measure_round(number, planned, 0 if index else pool_bytes, first=index == 0)

    def _measure_round(self, number: int, planned: Iterable[PlannedVisit], pool_bytes: int, *, first: bool) -> None:
        """Measure a round, which begins with large copies, and with the roofs where `pool_bytes` is large enough."""
        self.measure_ceilings(number)
        self.measure_controls(number)
        if first:
            # Right after the large copies: an idle GPU lowers the speed of its link.
            self.observe("start")
        self._measure_roofs(number, pool_bytes)
        waiting = deque(planned)
        repeats = max(1, len(waiting) // VISITS_A_REPEAT)
        while waiting:
            visit = waiting.popleft()
            if self.progress.wants(visit):
                self.observer.visiting(visit)
                made = self.visit(visit)
                again = isinstance(made, Visit) and made.disturbed and visit.attempt < MAX_REPEATS and repeats > 0
                if again and visit.cell.devices == 1:
                    # After all other visits of the round, when the disturbance may be over.
                    waiting.append(replace(visit, attempt=visit.attempt + 1))
                    repeats -= 1

    def measure_ceilings(self, number: int) -> None:
        swapped = {cell.direction for cell in self.plan.cells}
        for direction in Direction:
            if direction in swapped:
                self._copies(MeasureCeiling(direction=direction.value, round=number, samples=CEILING_SAMPLES), Ceiling)

    def measure_controls(self, number: int) -> None:
        samples = self.spec.sampling.controls
        for direction in Direction if samples else ():
            self._copies(MeasureControl(direction=direction.value, round=number, samples=samples), Control)

    def _copies(
        self, request: MeasureCeiling | MeasureRoof | MeasureControl, kind: type[Ceiling | Roof | Control]
    ) -> None:
        """Measure large copies and record them, unless the run has them; a failure costs only these copies."""
        if (kind, request.direction, request.round) in self.progress.copies:
            return
        self._revive()
        try:
            self._record(self.slot.ask(request, kind, self.spec.sampling.deadline_s + self.spec.sampling.cell_seconds))
        except StorageError:
            raise
        except KvbenchError as error:
            self.progress.copies_failed += 1
            name = f"{kind.__name__.lower()} {request.direction} of round {request.round}"
            self._record(Note(text=f"{name} failed: {error}"))
            if isinstance(error, WorkerLostError):
                self.slot.replace()

    def _revive(self) -> None:
        if self.slot.ended:
            self.replace_worker("the worker process had ended between two requests and was replaced")

    def _measure_roofs(self, number: int, pool_bytes: int) -> None:
        has_kernels = any(backend.name == SM and not backend.unavailable for backend in self.opened.backends)
        for direction in dict.fromkeys(cell.direction for cell in self.plan.cells):
            if has_kernels and pool_bytes >= ROOF_POOL_BYTES:
                self._copies(MeasureRoof(direction=direction.value, round=number, samples=ROOF_SAMPLES), Roof)

    def visit(self, visit: PlannedVisit, in_turn: InTurn | None = None) -> Visit | Failure:
        """Make a visit and record it; raises KvbenchError if a failed worker cannot be replaced."""
        request = MeasureCell(
            cell=visit.cell.as_strings(),
            round=visit.round,
            attempt=visit.attempt,
            seed=self.spec.seed,
            sampling=self.spec.sampling,
            in_turn=in_turn,
        )
        deadline_s = visit_deadline_s(visit.cell, self.spec.sampling, self.opened.device.kind)
        pauses_s = self.spec.trace.most_pauses_s if self.spec.trace else 0.0
        self._revive()
        try:
            answer = self.slot.visit(request, deadline_s + pauses_s)
        except NotAskedError as why:
            return self.fail(visit, str(why))
        except WorkerLostError as lost:
            answer = self.fail(visit, str(lost), lost.kind)
        else:
            if isinstance(answer, Visit):
                self._record(answer)
                return answer
            answer = self.fail(visit, answer.message, answer.kind)
        if answer.kind != "mismatch":
            self.replace_worker(f"the worker process was replaced after {visit.cell.label} failed")
        return answer

    def replace_worker(self, note: str) -> None:
        """Replace the worker and record why; raises KvbenchError."""
        self.slot.replace()
        self._record(Note(text=note))

    def fail(self, visit: PlannedVisit, message: str, kind: FailureKind = "error") -> Failure:
        """Record that a visit failed, cannot be made, or does not count."""
        texts, command = visit.cell.as_strings(), self._command(visit.cell)
        failure = Failure(cell_text=texts, round=visit.round, kind=kind, message=message, command=command)
        self._record(failure)
        return failure

    def _command(self, cell: Cell) -> str:
        device = self.spec.device if cell.devices > 1 else self.opened.device.name
        options = ["--device", device, "--seed", str(self.spec.seed)]
        for name, value in msgspec.structs.asdict(self.spec.sampling).items():
            options += [f"--{name.replace('_', '-')}", f"{value:g}"]
        if self.spec.fault is not None:
            options += ["--fault", self.spec.fault]
        if self.spec.policy is not None and cell.backend == AUTO:
            options += ["--policy", str(self.writer.path)]
        if self.spec.trace is None:
            return f"{cell.command()} {shlex.join(options)}"
        texts = {name: text for name, text in cell.as_strings().items() if name not in OF_TRACE}
        return f"{command_of(texts)} {shlex.join([*self.spec.trace.options, *options])}"

    def _record(self, record: Record) -> None:
        self.writer.append(record)
        self.progress.note(record)
        if self.schedule is not None and isinstance(record, Visit):
            self.schedule.note(record)
        self.observer.recorded(record)

    def observe(self, at: Literal["start", "end"]) -> None:
        gpu = self.opened.device.name, self.opened.pci_bus_id
        observation = observe(*gpu, own_pids=self.slot.pids, xids=lambda _: self._xids.so_far())
        self.writer.observe({"at": at, **observation, "delay_us": self.opened.delay_us})

    @cached_property
    def _xids(self) -> XidErrors:
        return XidErrors(self.opened.device.name, self.opened.pci_bus_id)
