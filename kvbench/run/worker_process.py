"""A process that is asked, and a worker: started, asked with a deadline, killed if it hangs, and replaced."""

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NoReturn, TypeVar

import msgspec

from kvbench.cells.axes import HARDWARE_QUEUES
from kvbench.cells.cell import Cell
from kvbench.cells.facts import BackendFacts
from kvbench.cells.installed import Installed
from kvbench.ground.errors import ExitCode, KvbenchError, UsageError
from kvbench.results.schema import Failure, FailureKind, Visit
from kvbench.run import protocol
from kvbench.sweep.plan import memories_of
from kvbench.sweep.spec import SweepSpec

_CHUNK_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = 2000
# Silence is counted in steps, so that at most one step counts while this process is stopped (Ctrl-Z, suspend).
_STEP_S: Final = 0.1
# A process that is blocked in a driver call cannot be killed; kvbench leaves it running.
_END_S: Final = 10.0
_LONGEST_BYTES: Final = 64 << 20
# A symbolic link in the place of the log is not followed.
_LOG_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class LostError(KvbenchError):
    """The process ended, or was killed; the message says how, and ends with the last line of its stderr.

    `how` is the message without that line. `crashed` is false if the process itself ended with an exit code.
    """

    exit_code = ExitCode.FAILED_CELLS
    kind: FailureKind = "crash"

    def __init__(self, how: str, last_line: str = "", *, crashed: bool = True) -> None:
        super().__init__(f"{how}: {last_line}" if last_line else how)
        self.how, self.crashed = how, crashed


class HungError(LostError):
    """The process did not answer within the deadline and was killed."""

    kind = "timeout"


class Stop(threading.Event):
    """Ends the waits of all who share it, as an interrupt does; `reason` says which, as `ended_by` shows it."""

    reason = ""

    def interrupt(self) -> NoReturn:
        raise KeyboardInterrupt(self.reason)


class Supervised:
    """A process that is asked, and answers, in lines; `what` names it in messages.

    Raises LostError if it cannot be started, KeyboardInterrupt where it waits once `stop` is set. Use it with
    `contextlib.closing`.
    """

    def __init__(
        self, what: str, command: Sequence[str], environment: Mapping[str, str] | None = None, stop: Stop | None = None
    ) -> None:
        self._what = what
        self._stop = stop or Stop()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close
        try:
            pipe = subprocess.PIPE
            # In a session of its own, for the parent handles Ctrl-C.
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=self._stderr, env=environment, start_new_session=True
            )
        except OSError as error:
            self._stderr.close()
            raise LostError(f"{command[0]} cannot be started: {error.strerror}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self._requests = self._process.stdin
        os.set_blocking(self._requests.fileno(), False)
        self._answers = self._process.stdout
        self._received = bytearray()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def write(self, line: bytes, deadline_s: float) -> None:
        """Send a line; raises LostError, and HungError after `deadline_s` seconds in which it is not taken."""
        with closing(self._ready(self._requests, selectors.EVENT_WRITE, deadline_s)) as ready:
            while line:
                next(ready)
                try:
                    line = line[os.write(self._requests.fileno(), line) :]
                except BrokenPipeError:
                    raise self.lost() from None

    def read_line(self, deadline_s: float) -> bytes:
        """Return the next line; raises LostError, also at the end, and HungError after `deadline_s` of silence."""
        searched = 0
        with closing(self._ready(self._answers, selectors.EVENT_READ, deadline_s)) as ready:
            while (end := self._received.find(b"\n", searched)) < 0:
                searched = len(self._received)
                next(ready)
                chunk = os.read(self._answers.fileno(), _CHUNK_BYTES)
                if not chunk:
                    raise self.lost()
                self._received += chunk
                if len(self._received) > _LONGEST_BYTES:
                    self.kill()
                    raise LostError(f"{self._what}'s answer is longer than {_LONGEST_BYTES >> 20} MiB")
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def lost(self) -> LostError:
        """Return the error that says how the process ended."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return LostError(f"{self._what} closed its pipes but still runs", self._last_line())
        names = {number.value: number.name for number in signal.Signals}
        how = f"died by {names.get(-code, f'signal {-code}')}" if code < 0 else f"ended with exit code {code}"
        return LostError(f"{self._what} {how}", self._last_line(), crashed=code < 0)

    def kill(self) -> None:
        """Kill the process, without waiting for one that is blocked in the driver."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)

    def close(self) -> bytes:
        """Kill the process, close its pipes, and return its stderr output."""
        self.kill()
        stderr_text = self._printed()
        with suppress(BrokenPipeError):
            self._requests.close()
        self._answers.close()
        self._stderr.close()
        return stderr_text

    def _printed(self) -> bytes:
        return os.pread(self._stderr.fileno(), os.fstat(self._stderr.fileno()).st_size, 0)

    def _last_line(self) -> str:
        return "".join(self._printed()[-_TAIL_BYTES:].decode(errors="replace").strip().splitlines()[-1:])

    def _ready(self, pipe: IO[bytes], event: int, deadline_s: float) -> Generator[None, None, None]:
        """Yield whenever the pipe is ready; kill the process and raise HungError after `deadline_s` of silence.

        Close it: Python drops an interrupt that comes while it closes a generator by itself.
        """
        left_s = deadline_s
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, event)
            while left_s > 0:
                step_s, begin_s = min(left_s, _STEP_S), time.monotonic()
                if selector.select(step_s):
                    yield
                else:
                    left_s -= min(step_s, time.monotonic() - begin_s)
                if self._stop.is_set():
                    self._stop.interrupt()
        self.kill()
        raise HungError(f"no answer within {round(deadline_s, 1):g} s; {self._what} was killed")


OPEN_DEADLINE_S: Final = 120.0
DESCRIBE_DEADLINE_S: Final = 180.0
RESERVE_DEADLINE_S: Final = 300.0
# The driver's default is 8, and some training frameworks set 1.
_ENVIRONMENT: Final = {"CUDA_DEVICE_MAX_CONNECTIONS": str(HARDWARE_QUEUES)}

Kind = TypeVar("Kind", bound=protocol.Answer)


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

    def __init__(self, interpreter: Interpreter, stop: Stop) -> None:
        environment = os.environ if interpreter.environment is None else interpreter.environment
        command = interpreter.command("-m", "kvbench.measure.worker")
        super().__init__("the worker", command, {**environment, **_ENVIRONMENT}, stop)

    def ask(self, request: protocol.Request, deadline_s: float) -> protocol.Answer:
        """Send `request` and return the answer.

        Raises LostError after a crash, or HungError after `deadline_s` seconds without taking the request or without an
        answer.
        """
        self.write(protocol.encode(request), deadline_s)
        line = self.read_line(deadline_s)
        try:
            return protocol.ANSWERS.decode(line)
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
        stop: Stop | None = None,
    ) -> None:
        self._spec = spec
        self._interpreter = interpreter or Interpreter()
        self._backends = list(backends)
        self._plug_ins = {backend.name: backend.package for backend in self._backends if backend.plug_in}
        self._loaded: set[str] = set()  # the plug-in packages that the current worker has loaded
        self._lost: dict[str, str] = {}  # backends that crashed a worker, and how
        self._open = protocol.Open(device=spec.device, fault=spec.fault)
        self._reserve: protocol.Reserve | None = None
        self.log: Path | None = None
        self._worker: WorkerProcess | None = None
        self.started = 0  # workers of the run, with those before it was resumed
        self._stop = stop or Stop()

    @property
    def pids(self) -> frozenset[int]:
        """The process id of the current worker, if any."""
        return frozenset({self._worker.pid} if self._worker else ())

    def start(self) -> protocol.Opened:
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
                facts.append(self.ask(protocol.Describe(backend=name), protocol.Described, DESCRIBE_DEADLINE_S).backend)
            except LostError as lost:
                self._lost[name] = str(lost)
                return self.start()
        return msgspec.structs.replace(opened, backends=facts)

    def _launch(self) -> protocol.Opened:
        worker = WorkerProcess(self._interpreter, self._stop)  # it imports while the one before it ends
        self.close()
        self._worker, self._loaded = worker, set()
        self.started += 1
        opened = self.ask(self._open, protocol.Opened, OPEN_DEADLINE_S)
        # A replacement opens the device that the first worker found.
        self._open = msgspec.structs.replace(self._open, device=opened.device.name)
        return opened

    def reserve(self, pool_bytes: int, host_pools: int = 1, cells: Collection[Cell] = ()) -> list[str]:
        """Allocate the memory pools of `cells`, now and in every replacement, and load what their backends take long to
        load; raises UsageError if memory is short.

        Returns the notes of the worker.
        """
        self._reserve = protocol.Reserve(
            pool_bytes=pool_bytes,
            host_pools=host_pools,
            memories=memories_of(cells),
            backends=sorted({cell.backend for cell in cells}),
            busy_delay_us=self._spec.sampling.busy_delay_us,
            policy=self._spec.policy,
            step_model=self._spec.step_model,
            trace=self._spec.trace,
        )
        if self._loaded and len(self._loaded | {self._plug_ins.get(cell.backend) for cell in cells}) > 1:
            self._launch()  # the worker loaded packages to describe their backends
        return self.ask(self._reserve, protocol.Reserved, RESERVE_DEADLINE_S).notes

    def serve(self, backend: str) -> None:
        """Replace the worker if it has loaded a plug-in package that does not provide `backend`; raises as `start`."""
        package = self._plug_ins.get(backend)
        if self._loaded - {package}:
            self.replace()
        if package is not None:
            self._loaded.add(package)

    def ask(self, request: protocol.Request, kind: type[Kind], deadline_s: float) -> Kind:
        """Ask the worker, as `WorkerProcess.ask`; raises UsageError or EngineRefusedError for Refused."""
        assert self._worker is not None
        answer = self._worker.ask(request, deadline_s)
        if isinstance(answer, protocol.Refused):
            raise UsageError(answer.message) if answer.usage else EngineRefusedError(answer.message)
        return self._expect(answer, kind)

    def visit(self, request: protocol.MeasureCells, deadline_s: float) -> list[Visit] | Failure:
        """Measure cells in turn; return a record for each, or the failure of one, which ended the visit.

        Raises LostError, also if the answer is of another visit.
        """
        assert self._worker is not None
        records = self._expect(self._worker.ask(request, deadline_s), protocol.MeasuredCells).records
        match records:
            case [Failure() as failure] if failure.cell_text in request.cells:
                return failure
        visits = [record for record in records if isinstance(record, Visit)]
        made = [(visit.cell_text, visit.round, visit.attempt) for visit in visits]
        if made != [(cell, request.round, request.attempt) for cell in request.cells]:
            self._worker.kill()
            raise LostError("the worker's answer is of another visit")
        return [msgspec.structs.replace(visit, process=self.started) for visit in visits]

    def _expect(self, answer: protocol.Answer, kind: type[Kind]) -> Kind:
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
        self._launch()
        assert self._reserve is not None
        self.ask(self._reserve, protocol.Reserved, RESERVE_DEADLINE_S)

    def close(self) -> None:
        if self._worker is None:
            return
        stderr_text = self._worker.close()
        self._worker = None
        if self.log is not None and stderr_text:
            with suppress(OSError), os.fdopen(os.open(self.log, _LOG_FLAGS, 0o644), "ab") as log:
                log.write(stderr_text)
