"""Carries out a sweep: requests visit after visit from the worker, journals every record, and ends cleanly."""

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from typing import Final, Literal

import msgspec

from kvbench.cells.axes import Direction
from kvbench.cells.blocks import region_bytes
from kvbench.cells.cell import Cell, command_of
from kvbench.cells.facts import AUTO, CEILING_BYTES, CEILING_SAMPLES, SM
from kvbench.ground.errors import ExitCode, KvbenchError, StorageError, UsageError
from kvbench.ground.text import counted
from kvbench.machine.probes import XidErrors, observe
from kvbench.results import Ceiling, Control, Failure, Note, Record, RunWriter, Skip, Visit, load_run
from kvbench.results.schema import FailureKind, Roof, RunStatus
from kvbench.run.protocol import CopyRequest, InTurn, MeasureCeiling, MeasureCells, MeasureControl, MeasureRoof, Opened
from kvbench.run.schedule import ATTEMPTS, Progress, Rounds, Schedule
from kvbench.run.worker_process import LostError, NotAskedError, WorkerSlot
from kvbench.sweep.plan import Plan, PlannedVisit, visits, with_arms
from kvbench.sweep.spec import OF_TRACE, SweepSpec, submissions, visit_deadline_s

ROOF_SAMPLES: Final = 1
# From this pool size on, scattered throughput is nearly constant.
ROOF_POOL_BYTES: Final = 4 << 30
LOG_FILE: Final = "worker.log"


class ReportedFailures:
    """The reported failures; two are of the same kind if they have the same source, such as a backend, and message."""

    def __init__(self) -> None:
        self._failed: Counter[tuple[str, str, str]] = Counter()

    def first(self, source: str, failure: Failure) -> bool:
        """Count a failure of `source`; return whether it is the first of its kind."""
        kind = source, failure.kind, failure.message
        self._failed[kind] += 1
        return self._failed[kind] == 1

    def others(self) -> Iterator[str]:
        """Yield a line for every kind that was counted more than once."""
        for (source, kind, message), count in self._failed.items():
            if count > 1:
                yield f"FAILED ({kind}) {counted(count - 1, 'more cell')} of {source}: {message}"


class Observer:
    """Receives the events of a sweep, to show its progress; does nothing with those that a subclass does not handle."""

    def planned(self, plan: Plan, opened: Opened, done: int, total: int) -> None:
        """Handle the start of the sweep, or its continuation with `done` of `total` visits made."""

    def visiting(self, visit: PlannedVisit) -> None:
        """Handle the start of a visit."""

    def recorded(self, record: Record) -> None:
        """Handle a record that is in the journal."""


@dataclass(frozen=True)
class SweepEnd:
    """The end of a sweep: its status, the reason if it is not complete, the number of cells measured, failed and
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
    """A planned sweep, its worker and its journal; a `schedule` can choose the next visits from the results."""

    spec: SweepSpec
    plan: Plan
    opened: Opened
    writer: RunWriter
    slot: WorkerSlot
    observer: Observer
    progress: Progress
    schedule: Schedule | None = None

    def run(self) -> SweepEnd:
        """Measure what is missing. Ctrl-C, a full disk or a worker that cannot be replaced ends it; all data is kept.

        Raises UsageError if the required memory is not available.
        """
        try:
            self.begin()
            self._follow(self.schedule or Rounds(self.plan, self.spec, self.progress))
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
        for note in self.slot.reserve(pool_bytes, self.plan.host_pools, cells):
            self._record(Note(text=note))
        return pool_bytes

    def finish(self, status: RunStatus, reason: str | None) -> SweepEnd:
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
        return SweepEnd(self.writer.path, status, reason, *counts, searched_by=self.writer.info.searched_by)

    def _follow(self, schedule: Schedule) -> None:
        """Measure what `schedule` has left, stage by stage."""
        # The copies of the device cpu slow down under any load.
        again = self.schedule is None and self.opened.device.kind == "cuda"
        self.observer.planned(self.plan, self.opened, schedule.made, schedule.expected_visits)
        pool_bytes, before = 0, None
        for index, stage in enumerate(schedule.stages()):
            pool_bytes = pool_bytes or self.reserve(self.plan.cells)
            has_roofs = not (index and schedule.measures_roofs_once)
            start = self.spec.sampling.start_of(stage[0][0]) if self.schedule is None else None
            if index and start != before:
                self.slot.replace()
            before = start
            planned = with_arms(stage[0][0], [cell for _, cell in stage], self.plan)
            self._measure_stage(planned, pool_bytes if has_roofs else 0, index)
        if again and self.progress.ceilings.low(ATTEMPTS):
            pool_bytes = pool_bytes or self.reserve(self.plan.cells)
            self._measure_low_rounds_again()

    def _measure_low_rounds_again(self) -> None:
        """Measure rounds again whose ceiling was low, while there is time, once large copies are as fast as usual.

        What began before a run was resumed is finished. Visits of several devices are not repeated: the others would
        not come to them.
        """
        every = visits(self.plan, self.spec.sampling, self.spec.seed)
        rounds = {number: [*of_round] for number, of_round in groupby(every, key=lambda visit: visit.round)}
        ceilings = self.progress.ceilings
        for attempt in (ATTEMPTS, 2 * ATTEMPTS):
            for direction, number in ceilings.low(attempt):
                begun = (Ceiling, direction, number, attempt) in self.progress.copies
                if begun or self.progress.has_time_for(direction, number):
                    self._copy_ceiling(Direction(direction), number, attempt)
                    if (direction, number) not in ceilings.low(attempt + 1):
                        planned = [visit for visit in rounds.get(number, ()) if visit.cell.direction == direction]
                        self._make_visits([visit for visit in planned if visit.cell.devices == 1], attempt)

    def _measure_stage(self, planned: list[PlannedVisit], pool_bytes: int, index: int) -> None:
        """Measure visits of a round: first large copies, and the roofs where `pool_bytes` is large enough."""
        number = planned[0].round
        self.measure_ceilings(number)
        if index == 0:
            # Right after the large copies: an idle GPU lowers the speed of its link.
            self.observe("start")
        self._measure_roofs(number, pool_bytes)
        self._make_visits(planned)

    def _make_visits(self, planned: Sequence[PlannedVisit], first: int = 0) -> None:
        for visit in self.progress.left(planned, self.plan, first):
            self.observer.visiting(visit)
            self.visit(visit)

    def measure_ceilings(self, number: int) -> None:
        for direction in sorted({cell.direction for cell in self.plan.cells}, key=[*Direction].index):
            self._copy_ceiling(direction, number)

    def _copy_ceiling(self, direction: Direction, number: int, attempt: int = 0) -> None:
        self._copies(MeasureCeiling(direction=direction.value, round=number, samples=CEILING_SAMPLES), Ceiling, attempt)

    def measure_control(self, direction: Direction, number: int, samples: int) -> None:
        self._copies(MeasureControl(direction=direction.value, round=number, samples=samples), Control)

    def _copies(self, request: CopyRequest, kind: type[Ceiling | Roof | Control], attempt: int = 0) -> None:
        """Measure large copies and record them, unless the run has them; a failure costs only these copies."""
        if (kind, request.direction, request.round, attempt) in self.progress.copies:
            return
        self._revive()
        try:
            made = self.slot.ask(request, kind, self.spec.sampling.deadline_s + self.spec.sampling.cell_seconds)
            self._record(msgspec.structs.replace(made, attempt=attempt) if isinstance(made, Ceiling) else made)
        except StorageError:
            raise
        except KvbenchError as error:
            self.progress.copies_failed += 1
            name = f"{kind.__name__.lower()} {request.direction} of round {request.round}"
            self._record(Note(text=f"{name} failed: {error}"))
            if isinstance(error, LostError):
                self.slot.replace()

    def _revive(self) -> None:
        if self.slot.ended:
            self.replace_worker("the worker process had ended between two requests and was replaced")

    def _measure_roofs(self, number: int, pool_bytes: int) -> None:
        has_kernels = any(backend.name == SM and not backend.unavailable for backend in self.opened.backends)
        for direction in dict.fromkeys(cell.direction for cell in self.plan.cells):
            if has_kernels and pool_bytes >= ROOF_POOL_BYTES:
                self._copies(MeasureRoof(direction=direction.value, round=number, samples=ROOF_SAMPLES), Roof)

    def visit(self, visit: PlannedVisit, in_turn: InTurn | None = None) -> list[Visit | Failure]:
        """Make a visit and record it, an answer for each arm.

        An arm that fails ends the visit, which the others make again without it; after a lost worker, each by itself.
        Raises KvbenchError if a failed worker cannot be replaced.
        """
        request = MeasureCells(
            cells=[cell.as_strings() for cell in visit.cells],
            group=visit.group,
            round=visit.round,
            attempt=visit.attempt,
            seed=self.spec.seed,
            sampling=self.spec.sampling,
            in_turn=in_turn,
        )
        deadline_s = sum(visit_deadline_s(cell, self.spec.sampling) for cell in visit.cells)
        self._revive()
        self.slot.serve(visit.cell.backend)
        try:
            made = self.slot.visit(request, deadline_s)
        except NotAskedError as why:
            return [self.fail(arm, str(why)) for arm in visit.singly()]
        except LostError as lost:
            if len(visit.cells) > 1:
                self.replace_worker(f"the worker process was replaced: {lost}")
                return list(chain.from_iterable(map(self.visit, visit.singly())))
            answer = self.fail(visit, str(lost), lost.kind)
        else:
            if not isinstance(made, Failure):
                for record in made:
                    self._record(record)
                return [*made]
            answer = self.fail(replace(visit, cells=(made.cell,)), made.message, made.kind)
        # Also after a mismatch: what wrote other bytes may still be at work.
        self.replace_worker(f"the worker process was replaced after {answer.cell.label} failed")
        others = tuple(cell for cell in visit.cells if cell != answer.cell)
        return [answer, *(self.visit(replace(visit, cells=others)) if others else ())]

    def replace_worker(self, note: str) -> None:
        """Replace the worker and record why; raises KvbenchError."""
        self.slot.replace()
        self._record(Note(text=note))

    def fail(self, visit: PlannedVisit, message: str, kind: FailureKind = "error") -> Failure:
        """Record that the visit of a cell failed, cannot be made, or does not count."""
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
