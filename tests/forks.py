"""Workers and probes as forks of a process that has imported their code: that takes longer than what most tests ask."""

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from unittest import mock

_WORKER, _PROBE = "kvbench.measure.worker", "kvbench.probe"
_MODULES = [(sys.executable, "-P", "-m", module) for module in (_WORKER, _PROBE)]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([_WORKER, f"{_PROBE}.path", f"{_PROBE}.registration"])


def popen(command: Sequence[str], *, stderr: IO[bytes], env: Mapping[str, str] | None, **options: Any) -> Any:
    """Start a worker or a probe of this interpreter as a fork, and any other program as usual."""
    if tuple(command[:4]) in _MODULES:
        return _Fork(command[3:], stderr, os.environ if env is None else env)
    return subprocess.Popen(command, stderr=stderr, env=env, **options)


def forked() -> Any:
    """A context in which this process starts workers and probes as forks."""
    replaced = SimpleNamespace(**vars(subprocess) | {"Popen": popen})
    return mock.patch("kvbench.run.worker_process.subprocess", replaced)


@cache
def _hash_of_what_runs() -> str:
    """Made once: each worker would take longer for it than for all else."""
    from kvbench.measure.worker import hash_of_what_runs

    return hash_of_what_runs()


class _Fork:
    """As much of `subprocess.Popen` as a supervisor uses."""

    def __init__(self, arguments: Sequence[str], stderr: IO[bytes], env: Mapping[str, str]) -> None:
        (asked, requests), (answers, answered) = _FORKS.Pipe(duplex=False), _FORKS.Pipe(duplex=False)
        theirs = (asked, answered, Connection(os.dup(stderr.fileno())))
        work = (_hash_of_what_runs(), arguments, theirs, dict(env), Path.cwd())
        self._arguments, self._process = arguments, _FORKS.Process(target=_work, args=work, daemon=True)
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
            raise subprocess.TimeoutExpired(self._arguments, timeout)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def _work(
    hash_of_what_runs: str,
    arguments: Sequence[str],
    connections: Sequence[Connection],
    environment: Mapping[str, str],
    folder: Path,
) -> None:
    from kvbench.measure import worker

    os.setsid()
    for descriptor, connection in enumerate(connections):
        os.dup2(connection.fileno(), descriptor)
    sys.stdin = os.fdopen(0, closefd=False)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(":"))
    if arguments[0] == _PROBE:
        sys.argv[1:] = arguments[1:]
        runpy.run_module(_PROBE, run_name="__main__")
        return
    worker.hash_of_what_runs = lambda: hash_of_what_runs
    worker.main()
