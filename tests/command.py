"""Runs the real `kvbench` command, as its user does, and reads what it leaves behind."""

import io
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

from msgspec.structs import replace
from typer.testing import CliRunner

from kvbench.cells.installed import installed
from kvbench.cli import main, progress
from kvbench.cli.main import app
from kvbench.results import Failure, Record, Skip, Visit, load_run
from kvbench.results.attempts import visits_that_count
from kvbench.run.protocol import MeasureCells
from kvbench.run.worker_process import WorkerSlot
from tests.forks import forked

KVBENCH = Path(sys.executable).with_name("kvbench")
TIMEOUT_S = 600.0  # ends what hangs, also on a machine that other work holds up

BRIEF = ("--rounds=1", "--warmups=0", "--min-samples=2", "--max-samples=2", "--cell-seconds=0.01")
# Starts the command that follows with limits on its files' and on its memory's size, in bytes (0: none).
_LIMITED = """
import os, resource, sys
for kind, limit in ((resource.RLIMIT_FSIZE, int(sys.argv[1])), (resource.RLIMIT_AS, int(sys.argv[2]))):
    if limit:
        resource.setrlimit(kind, (limit, limit))
os.execv(sys.argv[3], sys.argv[3:])
"""
# Runs the command that follows, which stops itself before it asks for the third visit.
_HELD = """
import os, signal
from kvbench.cli import main
from kvbench.run.worker_process import WorkerSlot
def visit(slot, *asked, made=[], visit=WorkerSlot.visit):
    len(made) == 2 and os.kill(os.getpid(), signal.SIGSTOP)
    return made.append(asked) or visit(slot, *asked)
WorkerSlot.visit = visit
main.main()
"""

Done = subprocess.CompletedProcess[str]
Visiting = Callable[[WorkerSlot, MeasureCells, float], list[Visit] | Failure]


# The same few blocks again, side by side: where each of them lies can be told.
HOT = {"pool": "dense", "reuse": "same"}


def tiny(**axes: str) -> list[str]:
    """Return options for the smallest sweep that compares something, with other values on some axes."""
    values = {
        "backend": "per_block,batched",
        "direction": "h2d",
        "blocks": "4",
        "block_size": "1KiB",
        "stream_state": "idle",
        "pool": "2MiB",
    }
    return ["--device=cpu", *(f"-a{axis}={value}" for axis, value in (values | axes).items())]


def kvbench(
    *arguments: str | Path, cwd: Path, env: dict[str, str] | None = None, file_bytes: int = 0, memory_bytes: int = 0
) -> Done:
    """Run `kvbench ARGUMENTS…` in `cwd` to its end."""
    return subprocess.run(
        _command(arguments, file_bytes, memory_bytes),
        cwd=cwd,
        env=os.environ | (env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def kvbench_here(*arguments: str | Path, cwd: Path, env: dict[str, str] | None = None) -> Done:
    """Run `kvbench ARGUMENTS…` in `cwd` and in this process: a start of the command can take longer than what it does.

    A worker is a process of its own here too, by a fork. Both find the packages of PYTHONPATH in `env`.
    """
    command = [str(argument) for argument in arguments]
    out, err = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with (
            chdir(cwd),
            redirect_stdout(out),
            redirect_stderr(err),
            forked(),
            mock.patch.object(progress, "PLAIN_EVERY_S", TIMEOUT_S),  # no line more where the machine is busy
            mock.patch.object(sys, "argv", ["kvbench", *command]),
            mock.patch.dict(os.environ, env or {}),
            _found_here((env or {}).get("PYTHONPATH", "")),
        ):
            code = main.run(command)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Done(command, code, out.getvalue(), err.getvalue())


@contextmanager
def _found_here(paths: str) -> Iterator[None]:
    """Within the context, this process too finds the packages that a PYTHONPATH has."""
    with mock.patch.object(sys, "path", [*filter(None, paths.split(":")), *sys.path]):
        installed.cache_clear()
        yield
    installed.cache_clear()


def succeeds(*arguments: str | Path, cwd: Path, env: dict[str, str] | None = None) -> Done:
    """Run `kvbench ARGUMENTS…` in this process; it has to end with exit code 0."""
    done = kvbench_here(*arguments, cwd=cwd, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def refused(*arguments: str | Path, cwd: Path, env: dict[str, str] | None = None, code: int = 2) -> str:
    """Run `kvbench ARGUMENTS…` in this process and return the one line with which it refuses its input."""
    done = kvbench_here(*arguments, cwd=cwd, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return error_line(done)


def swept(folder: Path, *arguments: str | Path, env: dict[str, str] | None = None, name: str = "run") -> Path:
    """Run a sweep that has to succeed in `folder`, and return its run directory."""
    succeeds("sweep", *arguments, "--out", name, cwd=folder, env=env)
    return folder / name


def output(*arguments: str | Path) -> str:
    """Return what `kvbench ARGUMENTS…` prints about runs; it has to end with exit code 0."""
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT interrupt the commands that are started inside: where it is ignored here, they would ignore it too."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def kvbench_started(*arguments: str | Path, cwd: Path, held: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Start `kvbench ARGUMENTS…` in `cwd` and a process group of its own, as a shell does; kill what is left of it.

    `held`: it stops behind its second visit, until it is sent SIGCONT.
    """
    with interruptible():
        started = subprocess.Popen(
            [sys.executable, "-c", _HELD, *map(str, arguments)] if held else _command(arguments),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    with started as process:
        try:
            yield process
        finally:
            process.kill()


def _command(arguments: Sequence[str | Path], file_bytes: int = 0, memory_bytes: int = 0) -> list[str]:
    command = [str(KVBENCH), *(str(argument) for argument in arguments)]
    if not (file_bytes or memory_bytes):
        return command
    return [sys.executable, "-c", _LIMITED, str(file_bytes), str(memory_bytes), *command]


def events(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def await_records(process: subprocess.Popen[str], kind: str, count: int = 1) -> None:
    """Read the events of a sweep that runs with --json until it has recorded `count` visits, ceilings, ..."""
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        count -= event["event"] == "record" and event["record"]["type"] == kind
        if count == 0:
            return
    raise AssertionError(f"the sweep ended and {count} {kind} records were missing")


def await_cpu_time(pid: int, more_s: float) -> None:
    """Wait until process `pid` has used so much more CPU time."""

    def used_s() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    goal_s, deadline_s = used_s() + more_s, time.monotonic() + TIMEOUT_S
    while used_s() < goal_s:
        assert time.monotonic() < deadline_s, f"process {pid} does not work"
        time.sleep(0.01)


def workers_of(pid: int, module: bytes = b"kvbench.measure.worker") -> list[int]:
    workers = []
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError, IndexError):
            continue  # no process, or one that has ended meanwhile
        if parent == pid and module in arguments:
            workers.append(int(entry.name))
    return workers


@contextmanager
def watched(pid: int) -> Iterator[int]:
    """Open process `pid` to learn of its end (see `ended`), also where it is no child of this one."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def ended(descriptor: int, timeout_s: float = TIMEOUT_S) -> bool:
    """Wait until the process behind `descriptor` has ended; False when it has not in time."""
    return bool(select.select([descriptor], [], [], timeout_s)[0])


def error_line(done: Done) -> str:
    return only_line(done.stderr)


def only_line(stderr: str) -> str:
    """Return the message of a command's stderr, on which nothing else may stand."""
    line = stderr.removesuffix("\n")
    assert line != stderr
    assert line.isprintable(), stderr  # so that it is one line
    assert line.startswith("kvbench: "), stderr
    return line.removeprefix("kvbench: ")


def records(run: Path) -> list[Record]:
    return list(load_run(run).records)


def visit_counts(run: Path) -> Counter[tuple[str, int]]:
    """Return how often the journal of `run` holds each visit that counts: (cell id, round) -> count."""
    return Counter((visit.cell.id, visit.round) for visit in visits_that_count(records(run)))


def failures(run: Path) -> list[Failure]:
    return [record for record in records(run) if isinstance(record, Failure)]


def skips(run: Path) -> list[Skip]:
    return [record for record in records(run) if isinstance(record, Skip)]


def with_times(us_of: Callable[[WorkerSlot, Visit], float]) -> Visiting:
    """Return a `WorkerSlot.visit` whose visits take given times: no other work on the machine changes them."""
    measured = WorkerSlot.visit

    def visit(slot: WorkerSlot, request: MeasureCells, deadline_s: float) -> list[Visit] | Failure:
        made = measured(slot, request, deadline_s)
        return made if isinstance(made, Failure) else [_taking(one, us_of(slot, one)) for one in made]

    return visit


def _taking(made: Visit, us: float) -> Visit:
    given = [us] * len(made.samples)
    samples = replace(made.samples, wall_us=given, event_us=given, chain_us=made.samples.chain_us and given)
    return replace(made, samples=samples, disturbed=[])
