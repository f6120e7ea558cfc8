"""A supervised subprocess: it is asked in lines with a deadline, killed if it hangs, and says how it ended."""

import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Final

from kvbench.errors import ExitCode, KvbenchError
from kvbench.results.schema import FailureKind

_CHUNK_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = 2000
# Silence is counted in steps, so that at most one step counts while this process is stopped (Ctrl-Z, suspend).
_STEP_S: Final = 0.1
# A process that is blocked in a driver call cannot be killed; kvbench leaves it running.
_END_S: Final = 10.0
_LONGEST_BYTES: Final = 64 << 20


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


class Supervised:
    """A process that is asked, and answers, in lines; `what` names it in messages.

    Raises LostError if it cannot be started, KeyboardInterrupt where it waits once `stop` is set. Use it with
    `contextlib.closing`.
    """

    def __init__(
        self,
        what: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self._what = what
        self._stop = stop or threading.Event()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=environment,
                start_new_session=True,  # the parent handles Ctrl-C
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
        for _ in self._ready(self._requests, selectors.EVENT_WRITE, deadline_s):
            try:
                line = line[os.write(self._requests.fileno(), line) :]
            except BrokenPipeError:
                raise self.lost() from None
            if not line:
                return

    def read_line(self, deadline_s: float) -> bytes:
        """Return the next line; raises LostError, also at the end, and HungError after `deadline_s` of silence."""
        searched, ready = 0, self._ready(self._answers, selectors.EVENT_READ, deadline_s)
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

    def _ready(self, pipe: IO[bytes], event: int, deadline_s: float) -> Iterator[None]:
        """Yield whenever the pipe is ready; kill the process and raise HungError after `deadline_s` of silence."""
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
        raise HungError(f"no answer within {round(deadline_s, 1):g} s; {self._what} was killed")
