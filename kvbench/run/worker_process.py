"""A worker process from the parent's side: started, asked with a deadline, killed if it hangs, and replaced."""

import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from kvbench.cells.backend_facts import BackendFacts
from kvbench.cells.device_facts import HARDWARE_QUEUES
from kvbench.errors import ExitCode, KvbenchError, UsageError
from kvbench.files import open_log
from kvbench.results.schema import Failure, Visit
from kvbench.run.protocol import (
    ANSWERS,
    Answer,
    Describe,
    Described,
    MeasureCell,
    Open,
    Opened,
    Refused,
    Request,
    Reserve,
    Reserved,
    encode,
)
from kvbench.run.supervised import LostError, Supervised
from kvbench.sweep.installed import Installed
from kvbench.sweep.spec import SweepSpec

OPEN_DEADLINE_S: Final = 120.0
DESCRIBE_DEADLINE_S: Final = 60.0
RESERVE_DEADLINE_S: Final = 300.0
# The driver's default is 8, and some training frameworks set 1.
_ENVIRONMENT: Final = {"CUDA_DEVICE_MAX_CONNECTIONS": str(HARDWARE_QUEUES)}

Kind = TypeVar("Kind", bound=Answer)


class EngineRefusedError(KvbenchError):
    """The worker could not carry out a request, although the input is valid."""

    exit_code = ExitCode.FAILED_CELLS


class NotAskedError(KvbenchError):
    """A visit was not requested of the worker; the message says why."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python interpreter of workers, and its environment variables (None: those of this process)."""

    python: str = sys.executable
    environment: Mapping[str, str] | None = None

    def command(self, *arguments: str) -> Sequence[str]:
        # -P: a checkout in the working directory must not shadow the installed package.
        return (self.python, "-P", *arguments)


class WorkerProcess(Supervised):
    """One worker; see `Supervised` for what it raises."""

    def __init__(self, interpreter: Interpreter, stop: threading.Event) -> None:
        environment = os.environ if interpreter.environment is None else interpreter.environment
        command = interpreter.command("-m", "kvbench.measure.worker")
        super().__init__("the worker", command, {**environment, **_ENVIRONMENT}, stop)

    def ask(self, request: Request, deadline_s: float) -> Answer:
        """Send `request` and return the answer.

        Raises LostError after a crash, or HungError after `deadline_s` seconds without taking the request or without an
        answer.
        """
        self.write(encode(request), deadline_s)
        line = self.read_line(deadline_s)
        try:
            return ANSWERS.decode(line)
        except msgspec.DecodeError as error:
            self.kill()
            raise LostError(f"the worker's answer is invalid ({error})") from None


class WorkerSlot:
    """Holds the current worker of a sweep. Every worker opens the same device and gets the same memory.

    A worker serves one plug-in package at a time: what such a package leaves behind in a process, a thread for
    instance, cannot reach the visits of others. The output of workers goes to `log` when they end. Use it with
    `contextlib.closing`.
    """

    def __init__(
        self,
        spec: SweepSpec,
        backends: Iterable[Installed] = (),
        interpreter: Interpreter | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self._spec = spec
        self._interpreter = interpreter or Interpreter()
        self._backends = list(backends)
        self._plug_ins = {backend.name: backend.package for backend in self._backends if backend.plug_in}
        self._loaded: set[str] = set()  # the plug-in packages that the current worker has loaded
        self._lost: dict[str, str] = {}  # backends that crashed a worker, and how
        self._open = Open(device=spec.device, fault=spec.fault)
        self._reserve: Reserve | None = None
        self.log: Path | None = None
        self._worker: WorkerProcess | None = None
        self._started = 0
        self._stop = stop or threading.Event()

    @property
    def pids(self) -> frozenset[int]:
        """The process id of the current worker, if any."""
        return frozenset({self._worker.pid} if self._worker else ())

    def start(self) -> Opened:
        """Start a worker, open its device, load its backends; raises UsageError, EngineRefusedError, LostError.

        A backend that crashes the worker, or that does not return, is described as unavailable.
        """
        opened = self._launch()
        facts: list[BackendFacts] = []
        for backend in self._backends:
            name, package = backend.name, backend.package
            if name in self._lost:
                reason = f"{package} does not load: {self._lost[name]}"
                facts.append(BackendFacts(name, "does not load", frozenset(), reason, package=package, on_request=True))
                continue
            self._loaded.update(filter(None, [self._plug_ins.get(name)]))
            try:
                facts.append(self.ask(Describe(backend=name), Described, DESCRIBE_DEADLINE_S).backend)
            except LostError as lost:
                self._lost[name] = str(lost)
                self.close()
                return self.start()
        return msgspec.structs.replace(opened, backends=facts)

    def _launch(self) -> Opened:
        self._worker, self._loaded = WorkerProcess(self._interpreter, self._stop), set()
        self._started += 1
        opened = self.ask(self._open, Opened, OPEN_DEADLINE_S)
        # A replacement opens the device that the first worker found.
        self._open = msgspec.structs.replace(self._open, device=opened.device.name)
        return opened

    def reserve(self, pool_bytes: int, host_pools: int = 1, backends: Iterable[str] = ()) -> list[str]:
        """Allocate the memory pools, now and in every replacement, and load what `backends` take long to load; raises
        UsageError if memory is short.

        Returns the notes of the worker.
        """
        self._reserve = Reserve(
            pool_bytes=pool_bytes,
            host_pools=host_pools,
            backends=sorted(backends),
            busy_delay_us=self._spec.sampling.busy_delay_us,
            policy=self._spec.policy,
            trace=self._spec.trace,
        )
        if self._loaded:  # to describe them
            self.close()
            self._launch()
        return self.ask(self._reserve, Reserved, RESERVE_DEADLINE_S).notes

    def serve(self, backend: str) -> None:
        """Replace the worker if it has loaded a plug-in package that does not provide `backend`; raises as `start`."""
        package = self._plug_ins.get(backend)
        if self._loaded - {package}:
            self.replace()
        if package is not None:
            self._loaded.add(package)

    def ask(self, request: Request, kind: type[Kind], deadline_s: float) -> Kind:
        """Ask the worker, as `WorkerProcess.ask`; raises UsageError or EngineRefusedError for Refused."""
        assert self._worker is not None
        answer = self._worker.ask(request, deadline_s)
        if isinstance(answer, Refused):
            raise UsageError(answer.message) if answer.usage else EngineRefusedError(answer.message)
        return self._expect(answer, kind)

    def visit(self, request: MeasureCell, deadline_s: float) -> Visit | Failure:
        """Measure a cell; raises LostError, also if the answer is of another visit."""
        assert self._worker is not None
        answer = self._worker.ask(request, deadline_s)
        if isinstance(answer, Failure):
            return answer
        visit = self._expect(answer, Visit)
        if (visit.cell_text, visit.round, visit.attempt) != (request.cell, request.round, request.attempt):
            self._worker.kill()
            raise LostError("the worker's answer is of another visit")
        return msgspec.structs.replace(visit, process=self._started)

    def _expect(self, answer: Answer, kind: type[Kind]) -> Kind:
        """Return `answer`; if it has the wrong type, kill the worker and raise LostError."""
        assert self._worker is not None
        if isinstance(answer, kind):
            return answer
        self._worker.kill()
        raise LostError(f"the worker's answer does not match the request ({type(answer).__name__})")

    @property
    def ended(self) -> bool:
        return self._worker is not None and self._worker.ended

    def replace(self) -> None:
        """Start another worker, with the same memory; raises as `start`."""
        self.close()
        self._launch()
        assert self._reserve is not None
        self.ask(self._reserve, Reserved, RESERVE_DEADLINE_S)

    def close(self) -> None:
        if self._worker is None:
            return
        stderr_text = self._worker.close()
        self._worker = None
        if self.log is not None and stderr_text:
            with suppress(OSError), open_log(self.log) as log:
                log.write(stderr_text)
