"""Workers as forks of a process that has imported their code, which takes longer than what most tests ask of one."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

_COMMAND = (sys.executable, "-P", "-m", "kvbench.measure.worker")
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["kvbench.measure.worker"])


def popen(command: Sequence[str], *, stderr: IO[bytes], env: Mapping[str, str], **options: Any) -> Any:
    """Start a worker of this interpreter as a fork, and any other program as usual."""
    return _Fork(stderr, env) if command == _COMMAND else subprocess.Popen(command, stderr=stderr, env=env, **options)


class _Fork:
    """As much of `subprocess.Popen` as a supervisor uses."""

    def __init__(self, stderr: IO[bytes], env: Mapping[str, str]) -> None:
        (asked, requests), (answers, answered) = _FORKS.Pipe(duplex=False), _FORKS.Pipe(duplex=False)
        theirs = (asked, answered, Connection(os.dup(stderr.fileno())))
        self._process = _FORKS.Process(target=_work, args=(theirs, dict(env), Path.cwd()), daemon=True)
        self._process.start()
        for connection in theirs:
            connection.close()
        self.pid = self._process.pid
        self.stdin, self.stdout = os.fdopen(os.dup(requests.fileno()), "wb"), os.fdopen(os.dup(answers.fileno()), "rb")

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(_COMMAND, timeout)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def _work(connections: Sequence[Connection], environment: Mapping[str, str], folder: Path) -> None:
    from kvbench.measure import worker

    os.setsid()
    for descriptor, connection in enumerate(connections):
        os.dup2(connection.fileno(), descriptor)
    sys.stdin = os.fdopen(0, closefd=False)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(":"))
    worker.main()
