"""A sweep on several devices of one host: one run per device, every cell on each device alone and on all at once."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from kvbench.cells.cell import Cell
from kvbench.errors import UsageError
from kvbench.results import Failure, Record, RunWriter, Visit
from kvbench.run.execution import Execution, Observer, Outcome, Progress
from kvbench.run.protocol import MeasureCell, Opened, Request, Start
from kvbench.run.runner import fitting, planned, run_info
from kvbench.run.worker_process import Kind, WorkerSlot
from kvbench.sweep.installed import Installed, asked_for, installed
from kvbench.sweep.plan import Plan, PlannedVisit, visits
from kvbench.sweep.spec import EVERY_GPU, SweepSpec

START_FILE: Final = ".start"

# Round, attempt, and position in the round.
Key = tuple[int, int, int]


class Turns:
    """Orders the visits of all devices: a visit begins when every remaining device has reached or passed it. Visits of
    single devices follow each other; visits of all devices begin at once.
    """

    def __init__(self) -> None:
        self.copies = threading.Lock()  # serializes large copies: one device at a time
        self._changed = threading.Condition()
        self._left: set[int] = set()
        self._come: dict[int, Key] = {}
        self._stopped = False

    def join(self, place: int) -> None:
        self._left.add(place)

    def leave(self, place: int) -> None:
        with self._changed:
            self._left.discard(place)
            self._come.pop(place, None)
            self._changed.notify_all()

    def stop(self) -> None:
        """Interrupt every device before its next visit."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @contextmanager
    def taken(self, place: int, key: Key, *, together: bool) -> Iterator[int]:
        """Wait for the visit `key` and yield how many devices make it; raises KeyboardInterrupt if stopped."""
        with self._changed:
            self._come[place] = key
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopped or self._is_on(place, key, together=together))
            if self._stopped:
                raise KeyboardInterrupt
            present = list(self._come.values()).count(key)
        try:
            yield present
        finally:
            with self._changed:
                self._come.pop(place, None)
                self._changed.notify_all()

    def _is_on(self, place: int, key: Key, *, together: bool) -> bool:
        if set(self._come) != self._left or key != min(self._come.values()):
            return False
        return together or place == min(other for other, own in self._come.items() if own == key)


class TurnSlot(WorkerSlot):
    """The slot of one of several devices; its visits wait for their turns."""

    def __init__(self, spec: SweepSpec, backends: Iterable[Installed], turns: Turns, start: Start) -> None:
        super().__init__(spec, backends)
        self._turns, self._place, self._start = turns, start.place, start
        self.order: Mapping[tuple[int, str], int] = {}

    def ask(self, request: Request, kind: type[Kind], deadline_s: float) -> Kind:
        with self._turns.copies:
            return super().ask(request, kind, deadline_s)

    def visit(self, request: MeasureCell, deadline_s: float) -> Visit | Failure:
        cell = Cell.from_strings(request.cell)
        index = self.order[request.round, cell.id]
        together = cell.devices > 1
        with self._turns.taken(self._place, (request.round, request.attempt, index), together=together) as present:
            if present < cell.devices:
                message = f"only {present} of {cell.devices} devices are left for a swap at once"
                return Failure(cell_text=request.cell, round=request.round, kind="error", message=message, command="")
            if together:
                number = request.round * len(self.order) + index + 1
                request = msgspec.structs.replace(request, start=msgspec.structs.replace(self._start, number=number))
            return super().visit(request, deadline_s)


class Silent:
    """Ignores all events: only one device's progress is shown, because the others keep pace with it."""

    def planned(self, plan: Plan, opened: Opened, done: int, total: int) -> None:
        pass

    def visiting(self, visit: PlannedVisit) -> None:
        pass

    def recorded(self, record: Record) -> None:
        pass


def start_together(spec: SweepSpec, path: Path, command: Sequence[str], observer: Observer) -> list[Outcome]:
    """Run `spec` on its devices, each into a run directory in `path`. Raises KvbenchError only before it starts."""
    with ExitStack() as stack:
        start_path, turns = path.absolute() / START_FILE, Turns()
        slots, opened = _opened(spec, start_path, turns, stack)
        names = [found.device.name for found in opened]
        axis = {"devices": (1, len(names))}
        spec = replace(spec, device=",".join(names), groups=tuple({**axis, **group} for group in spec.groups))
        plans = [planned(spec, found) for found in opened]
        common = set(plans[0].cells).intersection(*(plan.cells for plan in plans))
        if not common:
            raise UsageError(f"nothing to measure: no cell can run on all of {', '.join(names)}")
        with _as_new(path):
            start_path.write_bytes(bytes(8 * len(names)))
        stack.callback(start_path.unlink)
        executions: list[Execution] = []
        for place, (slot, found, plan) in enumerate(zip(slots, opened, plans, strict=True)):
            plan = replace(plan, cells=tuple(cell for cell in plan.cells if cell in common))
            slot.order = {
                (visit.round, visit.cell.id): index
                for index, visit in enumerate(visits(plan, spec.sampling, spec.seed))
            }
            name = f"cpu-{place}" if found.device.kind == "cpu" else names[place].replace(":", "-")
            writer = stack.enter_context(RunWriter.create(path / name, run_info(spec, found, command)))
            shown = Silent() if executions else observer
            executions.append(Execution(spec, plan, found, writer, slot, shown, Progress()))
        return _run(executions, turns)


def _opened(spec: SweepSpec, start_path: Path, turns: Turns, stack: ExitStack) -> tuple[list[TurnSlot], list[Opened]]:
    """Open every device that `spec` names, or all GPUs."""
    slots: list[TurnSlot] = []
    opened: list[Opened] = []
    known, clashes = installed()
    backends = asked_for(spec, known)
    for name in spec.devices:
        start = Start(path=str(start_path), place=len(slots), number=0)
        slot = stack.enter_context(closing(TurnSlot(replace(spec, device=name), backends, turns, start)))
        try:
            opened.append(fitting(spec, slot.start(), clashes))
        except UsageError:
            if spec.device == EVERY_GPU and opened:
                break
            raise
        turns.join(len(slots))
        slots.append(slot)
    return slots, opened


def _run(executions: Sequence[Execution], turns: Turns) -> list[Outcome]:
    def run(place: int) -> Outcome:
        try:
            return executions[place].run()
        finally:
            turns.leave(place)

    with ThreadPoolExecutor(len(executions)) as pool:
        running = [pool.submit(run, place) for place in range(len(executions))]
        try:
            wait(running)
        except KeyboardInterrupt:
            turns.stop()
        return [one.result() for one in running]


@contextmanager
def _as_new(path: Path) -> Iterator[None]:
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise UsageError(f"{path} is not empty; choose another folder")
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {str(error.strerror).lower()}") from None
