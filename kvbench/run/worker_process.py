"""A worker process as its parent holds it: started, asked with a deadline, killed when it hangs, replaced."""

import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from kvbench.errors import ExitCode, KvbenchError, UsageError
from kvbench.results.schema import Failure, FailureKind, Visit
from kvbench.run.protocol import ANSWERS, Answer, MeasureCell, Open, Opened, Refused, Request, Reserve, Reserved, encode
from kvbench.sweep.spec import SweepSpec

# -P: a checkout in the working directory must not stand in for the installed package.
COMMAND: Final = (sys.executable, "-P", "-m", "kvbench.measure.worker")
OPEN_DEADLINE_S: Final = 120.0
RESERVE_DEADLINE_S: Final = 300.0
_CHUNK_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = 2000

Kind = TypeVar("Kind", bound=Answer)


class WorkerLostError(KvbenchError):
    """The worker is gone; the message says how."""

    exit_code = ExitCode.FAILED_CELLS
    kind: FailureKind = "crash"


class WorkerHungError(WorkerLostError):
    """It said nothing until the deadline and was killed."""

    kind = "timeout"


class EngineRefusedError(KvbenchError):
    """The worker could not do what was asked, and it was no fault of the input."""

    exit_code = ExitCode.FAILED_CELLS


class WorkerProcess:
    """One worker. Its stderr goes to `log`, which may be None."""

    def __init__(self, log: Path | None) -> None:
        self._log = log
        with Path(log or os.devnull).open("ab") as stderr:
            self._process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self._requests = self._process.stdin
        self._answers = self._process.stdout
        self._received = bytearray()

    def ask(self, request: Request, deadline_s: float) -> Answer:
        """Send `request`, return its answer. Raises UsageError or EngineRefusedError for Refused.

        Raises WorkerLostError after a crash, or after `deadline_s` seconds of silence.
        """
        try:
            self._requests.write(encode(request))
            self._requests.flush()
        except BrokenPipeError:
            raise WorkerLostError(self._obituary()) from None
        line = self._read_line(deadline_s)
        try:
            answer = ANSWERS.decode(line)
        except msgspec.DecodeError as error:
            self.kill()
            raise WorkerLostError(f"the worker's answer is not understood ({error})") from None
        if isinstance(answer, Refused):
            raise UsageError(answer.message) if answer.usage else EngineRefusedError(answer.message)
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill the worker and close its pipes."""
        self.kill()
        with suppress(BrokenPipeError):
            self._requests.close()
        self._answers.close()

    def _read_line(self, deadline_s: float) -> bytes:
        deadline = time.monotonic() + deadline_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._received:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    self.kill()
                    raise WorkerHungError(f"no answer within {deadline_s:g} s; the worker was killed")
                chunk = os.read(self._answers.fileno(), _CHUNK_BYTES)
                if not chunk:
                    raise WorkerLostError(self._obituary())
                self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return bytes(line)

    def _obituary(self) -> str:
        code = self._process.wait()
        how = f"died by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        printed = self._log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip() if self._log else ""
        return f"the worker {how}" + (f": {printed.splitlines()[-1]}" if printed else "")


class WorkerSlot:
    """The place of a sweep's worker: whoever sits there was opened, and given memory, in the same way.

    What later workers print goes to `log`. Use it in `contextlib.closing`.
    """

    def __init__(self, spec: SweepSpec) -> None:
        self._spec = spec
        self._open = Open(device=spec.device, fault=spec.fault)
        self._reserve: Reserve | None = None
        self.log: Path | None = None
        self._worker: WorkerProcess | None = None

    @property
    def pids(self) -> frozenset[int]:
        """The process that sits there now, if any."""
        return frozenset({self._worker.pid} if self._worker else ())

    def start(self) -> Opened:
        """Start a worker and open its device; raises UsageError, EngineRefusedError, WorkerLostError."""
        self._worker = WorkerProcess(self.log)
        opened = self.ask(self._open, Opened, OPEN_DEADLINE_S)
        # A replacement opens the very device that was found first.
        self._open = msgspec.structs.replace(self._open, device=opened.device.name)
        return opened

    def reserve(self, pool_bytes: int) -> None:
        """Make the memory pools, now and in every replacement; raises UsageError when memory is short."""
        self._reserve = Reserve(
            pool_bytes=pool_bytes, busy_delay_us=self._spec.sampling.busy_delay_us, policy=self._spec.policy
        )
        self.ask(self._reserve, Reserved, RESERVE_DEADLINE_S)

    def ask(self, request: Request, kind: type[Kind], deadline_s: float) -> Kind:
        """Ask the worker, as `WorkerProcess.ask`."""
        assert self._worker is not None
        answer = self._worker.ask(request, deadline_s)
        assert isinstance(answer, kind)
        return answer

    def visit(self, request: MeasureCell, deadline_s: float) -> Visit | Failure:
        """Have a cell measured; raises WorkerLostError."""
        assert self._worker is not None
        answer = self._worker.ask(request, deadline_s)
        assert isinstance(answer, Visit | Failure)
        return answer

    def replace(self) -> None:
        """Put a fresh worker in the place of one that failed."""
        self.close()
        self.start()
        assert self._reserve is not None
        self.ask(self._reserve, Reserved, RESERVE_DEADLINE_S)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
