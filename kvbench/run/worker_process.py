"""A worker process from the parent's side: started, asked with a deadline, killed if it hangs, and replaced."""

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, TypeVar

import msgspec

from kvbench.cells.backend_facts import BackendFacts
from kvbench.cells.device_facts import HARDWARE_QUEUES
from kvbench.errors import ExitCode, KvbenchError, UsageError
from kvbench.files import open_log
from kvbench.results.schema import Failure, FailureKind, Visit
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
from kvbench.sweep.installed import Installed
from kvbench.sweep.spec import SweepSpec

OPEN_DEADLINE_S: Final = 120.0
DESCRIBE_DEADLINE_S: Final = 60.0
RESERVE_DEADLINE_S: Final = 300.0
_CHUNK_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = 2000
# Silence is counted in steps, so that at most one step counts while this process is stopped (Ctrl-Z, suspend).
_STEP_S: Final = 0.1
# A process that is blocked in a driver call cannot be killed; kvbench leaves it running.
_END_S: Final = 10.0
# The driver's default is 8, and some training frameworks set 1.
_ENVIRONMENT: Final = {"CUDA_DEVICE_MAX_CONNECTIONS": str(HARDWARE_QUEUES)}
_LONGEST_BYTES: Final = 64 << 20

Kind = TypeVar("Kind", bound=Answer)


class WorkerLostError(KvbenchError):
    """The worker ended; the message says how."""

    exit_code = ExitCode.FAILED_CELLS
    kind: FailureKind = "crash"


class WorkerHungError(WorkerLostError):
    """The worker did not answer within the deadline and was killed."""

    kind = "timeout"


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


class WorkerProcess:
    """One worker. Raises WorkerLostError if its interpreter cannot be started, KeyboardInterrupt where it waits once
    `stop` is set.
    """

    def __init__(self, interpreter: Interpreter, stop: threading.Event) -> None:
        self._stop = stop
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close
        environment = os.environ if interpreter.environment is None else interpreter.environment
        try:
            self._process = subprocess.Popen(
                interpreter.command("-m", "kvbench.measure.worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env={**environment, **_ENVIRONMENT},
                start_new_session=True,  # the parent handles Ctrl-C
            )
        except OSError as error:
            self._stderr.close()
            raise WorkerLostError(f"{interpreter.python} cannot be started: {error.strerror}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self._requests = self._process.stdin
        os.set_blocking(self._requests.fileno(), False)
        self._answers = self._process.stdout
        self._received = bytearray()

    def ask(self, request: Request, deadline_s: float) -> Answer:
        """Send `request` and return the answer.

        Raises WorkerLostError after a crash, or WorkerHungError after `deadline_s` seconds without taking the request
        or without an answer.
        """
        self._write(encode(request), deadline_s)
        line = self._read_line(deadline_s)
        try:
            return ANSWERS.decode(line)
        except msgspec.DecodeError as error:
            self.kill()
            raise WorkerLostError(f"the worker's answer is invalid ({error})") from None

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def last_stderr(self) -> bytes:
        return os.pread(self._stderr.fileno(), os.fstat(self._stderr.fileno()).st_size, 0)

    def kill(self) -> None:
        """Kill the worker, without waiting for one that is blocked in the driver."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)

    def close(self) -> bytes:
        """Kill the worker, close its pipes, and return its stderr output."""
        self.kill()
        stderr_text = self.last_stderr
        with suppress(BrokenPipeError):
            self._requests.close()
        self._answers.close()
        self._stderr.close()
        return stderr_text

    def _read_line(self, deadline_s: float) -> bytes:
        searched, ready = 0, self._ready(self._answers, selectors.EVENT_READ, deadline_s)
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            next(ready)
            chunk = os.read(self._answers.fileno(), _CHUNK_BYTES)
            if not chunk:
                raise WorkerLostError(self._obituary())
            self._received += chunk
            if len(self._received) > _LONGEST_BYTES:
                self.kill()
                raise WorkerLostError(f"the worker's answer is longer than {_LONGEST_BYTES >> 20} MiB")
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def _write(self, line: bytes, deadline_s: float) -> None:
        for _ in self._ready(self._requests, selectors.EVENT_WRITE, deadline_s):
            try:
                line = line[os.write(self._requests.fileno(), line) :]
            except BrokenPipeError:
                raise WorkerLostError(self._obituary()) from None
            if not line:
                return

    def _ready(self, pipe: IO[bytes], event: int, deadline_s: float) -> Iterator[None]:
        """Yield whenever the pipe is ready; kill the worker and raise WorkerHungError after `deadline_s` of silence."""
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
                    raise KeyboardInterrupt
        self.kill()
        raise WorkerHungError(f"no answer within {round(deadline_s, 1):g} s; the worker was killed")

    def _obituary(self) -> str:
        try:
            code = self._process.wait(_END_S)
            names = {number.value: number.name for number in signal.Signals}
            how = f"died by {names.get(-code, f'signal {-code}')}" if code < 0 else f"ended with exit code {code}"
        except subprocess.TimeoutExpired:
            how = "closed its pipes but still runs"
        printed = self.last_stderr[-_TAIL_BYTES:].decode(errors="replace").strip()
        return f"the worker {how}" + (f": {printed.splitlines()[-1]}" if printed else "")


class WorkerSlot:
    """Holds the current worker of a sweep. Every worker opens the same device and gets the same memory.

    The output of workers goes to `log` when they end. Use it with `contextlib.closing`.
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
        """Start a worker, open its device, load its backends; raises UsageError, EngineRefusedError, WorkerLostError.

        A backend that crashes the worker, or that does not return, is described as unavailable.
        """
        self._worker = WorkerProcess(self._interpreter, self._stop)
        self._started += 1
        opened = self.ask(self._open, Opened, OPEN_DEADLINE_S)
        # A replacement opens the device that the first worker found.
        self._open = msgspec.structs.replace(self._open, device=opened.device.name)
        facts: list[BackendFacts] = []
        for backend in self._backends:
            name, package = backend.name, backend.package
            if name in self._lost:
                reason = f"{package} does not load: {self._lost[name]}"
                facts.append(BackendFacts(name, "does not load", frozenset(), reason, package=package, on_request=True))
                continue
            try:
                facts.append(self.ask(Describe(backend=name), Described, DESCRIBE_DEADLINE_S).backend)
            except WorkerLostError as lost:
                self._lost[name] = str(lost)
                self.close()
                return self.start()
        return msgspec.structs.replace(opened, backends=facts)

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
        return self.ask(self._reserve, Reserved, RESERVE_DEADLINE_S).notes

    def ask(self, request: Request, kind: type[Kind], deadline_s: float) -> Kind:
        """Ask the worker, as `WorkerProcess.ask`; raises UsageError or EngineRefusedError for Refused."""
        assert self._worker is not None
        answer = self._worker.ask(request, deadline_s)
        if isinstance(answer, Refused):
            raise UsageError(answer.message) if answer.usage else EngineRefusedError(answer.message)
        return self._expect(answer, kind)

    def visit(self, request: MeasureCell, deadline_s: float) -> Visit | Failure:
        """Measure a cell; raises WorkerLostError, also if the answer is of another visit."""
        assert self._worker is not None
        answer = self._worker.ask(request, deadline_s)
        if isinstance(answer, Failure):
            return answer
        visit = self._expect(answer, Visit)
        if (visit.cell_text, visit.round, visit.attempt) != (request.cell, request.round, request.attempt):
            self._worker.kill()
            raise WorkerLostError("the worker's answer is of another visit")
        return msgspec.structs.replace(visit, process=self._started)

    def _expect(self, answer: Answer, kind: type[Kind]) -> Kind:
        """Return `answer`; if it has the wrong type, kill the worker and raise WorkerLostError."""
        assert self._worker is not None
        if isinstance(answer, kind):
            return answer
        self._worker.kill()
        raise WorkerLostError(f"the worker's answer does not match the request ({type(answer).__name__})")

    @property
    def ended(self) -> bool:
        return self._worker is not None and self._worker.ended

    def replace(self) -> None:
        self.close()
        self.start()
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
