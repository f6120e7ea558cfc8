"""A sweep on several devices of one host: one run per device, every cell on each device alone and on all at once."""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from kvbench.cells.cell import Cell
from kvbench.cells.installed import Installed
from kvbench.ground.errors import UsageError
from kvbench.ground.files import or_usage_error
from kvbench.results import Failure, RunWriter, Visit
from kvbench.run.execution import Execution, Observer, SweepEnd
from kvbench.run.protocol import START_ROWS, MeasureCells, Opened, Request, Start
from kvbench.run.runner import fitting, planned, run_info
from kvbench.run.schedule import Progress
from kvbench.run.worker_process import Kind, NotAskedError, Stop, WorkerSlot
from kvbench.sweep.plan import Plan, asked_for, visits
from kvbench.sweep.spec import EVERY_GPU, SweepSpec

START_FILE: Final = ".start"

# Round, attempt, and position in the round.
Key = tuple[int, int, int]


class DeviceTurns:
    """Orders the visits of all devices: a visit begins when every remaining device has reached or passed it. Visits of
    single devices follow each other; visits of all devices begin at once. `order` is the position of each visit, by
    round and cell id.
    """

    def __init__(self) -> None:
        self.order: Mapping[tuple[int, str], int] = {}
        self.copies = threading.Lock()  # serializes large copies: one device at a time
        self._changed = threading.Condition()
        self._remaining: set[int] = set()
        self._reached: dict[int, Key] = {}
        self.stopped = Stop()

    def join(self, device: int) -> None:
        self._remaining.add(device)

    def leave(self, device: int) -> None:
        with self._changed:
            self._remaining.discard(device)
            self._reached.pop(device, None)
            self._changed.notify_all()

    def stop(self, reason: str) -> None:
        self.stopped.reason = reason
        self.stopped.set()
        with self._changed:
            self._changed.notify_all()

    @contextmanager
    def taken(self, device: int, key: Key, *, together: bool) -> Iterator[int]:
        """Wait for the visit `key` and yield how many devices make it; raises KeyboardInterrupt if stopped."""
        with self._changed:
            self._reached[device] = key
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.stopped.is_set() or self._may_begin(device, key, together=together))
            if self.stopped.is_set():
                self.stopped.interrupt()
            present = list(self._reached.values()).count(key)
        try:
            yield present
        finally:
            with self._changed:
                self._reached.pop(device, None)
                self._changed.notify_all()

    def _may_begin(self, device: int, key: Key, *, together: bool) -> bool:
        if set(self._reached) != self._remaining or key != min(self._reached.values()):
            return False
        return together or device == min(other for other, reached in self._reached.items() if reached == key)


class TurnSlot(WorkerSlot):
    """The slot of one of several devices; its visits wait for their turns."""

    def __init__(self, spec: SweepSpec, backends: Iterable[Installed], turns: DeviceTurns, start: Start) -> None:
        super().__init__(spec, backends, stop=turns.stopped)
        self._turns, self._start = turns, start

    def ask(self, request: Request, kind: type[Kind], deadline_s: float) -> Kind:
        with self._turns.copies:
            return super().ask(request, kind, deadline_s)

    def visit(self, request: MeasureCells, deadline_s: float) -> list[Visit] | Failure:
        cell = Cell.from_strings(request.cells[0])
        index = self._turns.order[request.round, cell.id]
        together = cell.devices > 1
        key = request.round, request.attempt, index
        with self._turns.taken(self._start.place, key, together=together) as present:
            if present < cell.devices:
                raise NotAskedError(f"only {present} of {cell.devices} devices are left for a swap at once")
            if together:
                number = (request.round << 48) + (request.attempt << 32) + index + 1
                request = msgspec.structs.replace(request, start=msgspec.structs.replace(self._start, number=number))
            return super().visit(request, deadline_s)


def preview_together(spec: SweepSpec) -> tuple[Plan, Opened]:
    """Plan `spec` on its devices without measuring; return the plan they have in common, and the first device.

    Raises KvbenchError.
    """
    with ExitStack() as stack:
        _, opened = _opened(spec, Path(), DeviceTurns(), stack)
        _, plans = _planned(spec, opened)
        return plans[0], opened[0]


def start_together(spec: SweepSpec, path: Path, command: Sequence[str], observer: Observer) -> list[SweepEnd]:
    """Run `spec` on its devices, each into a run directory in `path`. Raises KvbenchError only before it starts."""
    with ExitStack() as stack:
        turns = DeviceTurns()
        slots, opened = _opened(spec, path, turns, stack)
        spec, plans = _planned(spec, opened)
        stack.enter_context(_start_file(path, len(slots)))
        executions: list[Execution] = []
        for index, (slot, each, plan) in enumerate(zip(slots, opened, plans, strict=True)):
            name = f"cpu-{index}" if each.device.name == "cpu" else each.device.name.replace(":", "-")
            writer = stack.enter_context(RunWriter.create(path / name, run_info(spec, each, command)))
            shown = Observer() if executions else observer  # the others keep pace with the first
            executions.append(Execution(spec, plan, each, writer, slot, shown, Progress()))
        return _run(executions, path, turns)


def _planned(spec: SweepSpec, opened: Sequence[Opened]) -> tuple[SweepSpec, list[Plan]]:
    """Return `spec` on the opened devices, each cell on one and on all of them, and the plan of each.

    The plans have the cells that all devices can run; raises UsageError where there is none.
    """
    names, axis = [each.device.name for each in opened], {"devices": ("1", str(len(opened)))}
    groups = tuple({**axis, **group} for group in spec.groups)
    spec = msgspec.structs.replace(spec, device=",".join(names), groups=groups)
    plans = [planned(spec, each) for each in opened]
    common = set(plans[0].cells).intersection(*(plan.cells for plan in plans))
    if not common:
        raise UsageError(f"nothing to measure: no cell can run on all of {', '.join(spec.devices)}")
    return spec, [replace(plan, cells=tuple(cell for cell in plan.cells if cell in common)) for plan in plans]


def _opened(spec: SweepSpec, path: Path, turns: DeviceTurns, stack: ExitStack) -> tuple[list[TurnSlot], list[Opened]]:
    """Open every device that `spec` names, or all GPUs; raises UsageError for a GPU that is named twice."""
    for name, count in Counter(spec.devices).items():
        if count > 1 and name != "cpu":
            raise UsageError(f"--device {spec.device}: {name} is named {count} times; name each GPU once")
    slots: list[TurnSlot] = []
    opened: list[Opened] = []
    backends = asked_for(spec)
    for name in spec.devices:
        start = Start(path=str(path.absolute() / START_FILE), place=len(slots), number=0)
        slot = stack.enter_context(closing(TurnSlot(spec.with_options(device=name), backends, turns, start)))
        try:
            opened.append(fitting(spec, slot.start()))
        except UsageError:
            if spec.device == EVERY_GPU and opened:
                break
            raise
        turns.join(len(slots))
        slots.append(slot)
    return slots, opened


def _run(executions: Sequence[Execution], path: Path, turns: DeviceTurns) -> list[SweepEnd]:
    """Measure on all devices at once, in the order of the plan that they have in common."""
    first = executions[0]
    order: dict[tuple[int, str], int] = {}
    for index, visit in enumerate(visits(first.plan, first.spec.sampling, first.spec.seed)):
        order |= {(visit.round, cell.id): index for cell in visit.cells}
    turns.order = order

    def run(index: int) -> SweepEnd:
        try:
            return replace(executions[index].run(), folder=path)
        finally:
            turns.leave(index)

    with ThreadPoolExecutor(len(executions)) as pool:
        running = [pool.submit(run, index) for index in range(len(executions))]
        try:
            wait(running)
        except KeyboardInterrupt as why:
            turns.stop(str(why))
        return [future.result() for future in running]


@contextmanager
def _start_file(path: Path, devices: int) -> Iterator[None]:
    """Have the file there meanwhile at which the workers meet; the folder must be missing or empty."""
    file = path / START_FILE
    with or_usage_error(f"{path} cannot be written"):
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise UsageError(f"{path} is not empty; choose another folder")
        file.write_bytes(bytes(8 * START_ROWS * devices))
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
