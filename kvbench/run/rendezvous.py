"""Workers that wait for each other: ranks that torchrun or srun started, which begin together, and the devices of one
sweep, whose visits follow one order, and what these give each other within a visit.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvbench.cells.cell import Cell
from kvbench.cells.installed import Installed
from kvbench.ground.errors import KvbenchError, UsageError, brief
from kvbench.results import Failure, Visit
from kvbench.run.protocol import START_ROWS, MeasureCells, Request, Start
from kvbench.run.worker_process import Kind, NotAskedError, Stop, WorkerSlot
from kvbench.sweep.spec import SweepSpec

# Environment variables of torchrun and srun: the rank, the rank on this host, the number of ranks.
_VARIABLES = (("RANK", "LOCAL_RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"))

# A signal is heard between two steps of a wait.
_STEP_S: Final = 0.2
# Maximum seconds that a device waits for the others.
MEETING_S: Final = 20


@dataclass(frozen=True, slots=True)
class Rank:
    """One of `count` ranks; `local` is its number on this host."""

    number: int
    local: int
    count: int

    def device(self, asked: str, visible: str | None) -> str:
        """Return the device that this rank takes; `visible` is CUDA_VISIBLE_DEVICES. Raises UsageError."""
        if asked == "cpu":
            return asked
        if asked not in ("auto", "cuda"):
            raise UsageError(f"--device {asked}: each of {self.count} ranks takes its own GPU; leave it out")
        return f"cuda:{self.local % len(visible.split(','))}" if visible else f"cuda:{self.local}"


def rank_of(environment: Mapping[str, str]) -> Rank | None:
    for names in _VARIABLES:
        texts = [environment.get(name, "") for name in names]
        if all(text.isdecimal() for text in texts) and int(texts[2]) > 1:
            return Rank(*map(int, texts))
    return None


class RankSlot(WorkerSlot):
    """The slot of one rank: after allocating its memory, it waits until every rank has done so."""

    def __init__(self, spec: SweepSpec, backends: Iterable[Installed], rank: Rank) -> None:
        device = rank.device(spec.device, os.environ.get("CUDA_VISIBLE_DEVICES"))
        super().__init__(spec.with_options(device=device), backends)
        self._rank = rank

    def reserve(self, pool_bytes: int, host_pools: int = 1, cells: Collection[Cell] = ()) -> list[str]:
        notes = super().reserve(pool_bytes, host_pools, cells)
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise UsageError(f"{' and '.join(missing)} not set: the ranks need it to begin together; torchrun sets it")
        try:
            from torch import distributed
        except ImportError:
            raise UsageError("several ranks require torch; install kvbench[cuda]") from None

        def meet() -> None:
            distributed.init_process_group("gloo", rank=self._rank.number, world_size=self._rank.count)
            distributed.barrier()
            distributed.destroy_process_group()

        _interruptible(meet)
        return notes


def _interruptible(meet: Callable[[], None]) -> None:
    """Call `meet` in a thread, so that Ctrl-C ends the wait for ranks that do not come; raises UsageError."""
    failed: list[Exception] = []

    def run() -> None:
        try:
            meet()
        except Exception as error:  # torch raises several kinds
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_STEP_S)
    if failed:
        why = str(failed[0]).partition("\n")[0]
        raise UsageError(f"MASTER_ADDR, MASTER_PORT: the ranks cannot meet: {brief(why)}")


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


class Meeting:
    """One device of a joint visit, in the file of its `start`: a column for each device.

    Its first row has the visit that a device is ready for. In the other two, which take turns, it gives a number at
    each further meeting, above them how many it has come to: a device that is a meeting ahead overwrites none that
    another has still to read.
    """

    def __init__(self, start: Start) -> None:
        self.place, self.visit = start.place, start.number
        rows = np.memmap(start.path, np.int64, "r+").reshape(START_ROWS, -1)
        self._ready, self._given, self._met = rows[0], rows[1:], 0
        self._given[:, self.place] = 0  # before the visit begins: no device reads a number of an earlier one

    def begin(self) -> None:
        """Wait until every device is ready for the same visit; raises KvbenchError after MEETING_S seconds."""
        self._wait(self._ready, self.visit, self.visit)

    def exchange(self, number: int = 0) -> list[int]:
        """Give a number from 0 to 2^31 and return those of all devices, in their order; raises as `begin`."""
        self._met += 1
        row, least = self._given[self._met % 2], self._met << 32
        self._wait(row, least, least + number)
        return [int(given) % (1 << 32) for given in row]

    def _wait(self, row: NDArray[np.int64], least: int, own: int) -> None:
        row[self.place], until_s = own, time.monotonic() + MEETING_S
        while (row < least).any():  # without a pause, whose end would come late by up to a tick of the scheduler
            if time.monotonic() > until_s:
                raise KvbenchError(f"another device was not ready within {MEETING_S} s")
