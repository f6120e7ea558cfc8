"""A worker as its parent holds it: silence that counts, last lines of stderr, an end that is not waited for."""

import os
import select
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from kvbench.cells.installed import Installed, installed
from kvbench.run import worker_process
from kvbench.run.protocol import Describe, Open, Opened, Refused
from kvbench.run.worker_process import HungError, Interpreter, LostError, Supervised, WorkerProcess, WorkerSlot
from kvbench.sweep.spec import SweepSpec
from tests.command import TIMEOUT_S
from tests.forks import forked
from tests.unit.backends.test_plugin import install

OPEN = Open(device="cpu", fault=None)


@pytest.fixture(autouse=True)
def _forked() -> Iterator[None]:
    with forked():
        yield


def worker_that(monkeypatch: pytest.MonkeyPatch, code: str) -> WorkerProcess:
    """Start a worker process that runs `code` in place of a worker's."""
    run_instead(monkeypatch, code)
    return WorkerProcess(Interpreter(), threading.Event())


def run_instead(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(Interpreter, "command", lambda *_: (sys.executable, "-c", code))


def test_time_while_this_process_was_stopped_does_not_count_as_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that jumps stands for Ctrl-Z and for a closed lid; the worker answers right after."""
    answer = '{"type":"refused","message":"late","usage":false}'
    clock = count(step=3600)
    with closing(
        worker_that(monkeypatch, f"import time; input(); time.sleep(0.7); print('{answer}', flush=True); input()")
    ) as worker:
        monkeypatch.setattr(worker_process, "_STEP_S", 0.2)
        monkeypatch.setattr(worker_process.time, "monotonic", lambda: next(clock))
        assert worker.ask(OPEN, 60.0) == Refused(message="late", usage=False)


def test_a_waiting_answer_is_read_even_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """import os; os.write(1, b'{"type":"refused","message":"there","usage":false}\\n'); input(); input()"""
    with closing(worker_that(monkeypatch, code)) as worker:
        select.select([worker._answers], [], [])
        assert worker.ask(OPEN, 0.001) == Refused(message="there", usage=False)


@pytest.mark.parametrize("device", ["cpu", "x" * (1 << 20)])  # which takes more than a pipe holds
def test_a_silent_worker_is_killed_at_the_deadline(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    with closing(worker_that(monkeypatch, "import time; time.sleep(60)")) as worker:
        with pytest.raises(HungError, match=r"no answer within 0.3 s; the worker was killed"):
            worker.ask(Open(device=device, fault=None), 0.3)
        assert worker.ended


def test_a_long_request_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import json, sys, time; time.sleep(0.3); size = len(json.loads(sys.stdin.readline())['device'])\n"
        "print(json.dumps({'type': 'refused', 'message': str(size), 'usage': False}), flush=True); input()"
    )
    with closing(worker_that(monkeypatch, code)) as worker:
        assert worker.ask(Open(device="x" * (1 << 20), fault=None), 60.0) == Refused(message=str(1 << 20), usage=False)


def test_an_error_quotes_the_last_stderr_line_of_the_first_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(worker_that(monkeypatch, "import sys; input(); sys.exit('libcuda is not amused')")) as worker:
        with pytest.raises(LostError) as lost:
            worker.ask(OPEN, TIMEOUT_S)
        assert str(lost.value) == "the worker ended with exit code 1: libcuda is not amused"


def test_the_output_of_workers_is_logged_but_never_through_a_link(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_instead(monkeypatch, "import sys; sys.exit('output')")
    slot = WorkerSlot(SweepSpec(name="test", device="cpu"))
    slot.log = tmp_path / "worker.log"
    with pytest.raises(LostError):
        slot.start()
    slot.close()
    assert slot.log.read_text() == "output\n"

    (tmp_path / "precious").write_text("kept")
    slot.log = tmp_path / "link.log"
    slot.log.symlink_to("precious")
    with pytest.raises(LostError):
        slot.start()
    slot.close()
    assert (tmp_path / "precious").read_text() == "kept"


def write_plug_in(folder: Path, name: str, code: str) -> Installed:
    """Write a package as if it was installed in `folder`, with a backend of its name."""
    install(folder, code, name)
    return Installed(name, f"kvbench-{name}==1.0", None)


def test_a_worker_serves_one_plug_in_package_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = [write_plug_in(tmp_path, name, "Plugin = None\n") for name in ("one", "two")]
    asked.append(installed()[0]["batched"])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with closing(WorkerSlot(SweepSpec(name="test", device="cpu"), asked)) as slot:
        slot.start()
        described = slot.pids
        slot.reserve(1 << 20)
        pids = [slot.pids]
        for name in ("batched", "one", "one", "batched", "two", "one"):
            slot.serve(name)
            pids.append(slot.pids)
    assert described != pids[0]  # that worker loaded both packages
    assert pids[0] == pids[1] == pids[2] == pids[3]  # kvbench's own code leaves nothing behind
    assert pids[3] != pids[4] == pids[5] != pids[6]


@pytest.mark.parametrize(
    ("how", "deadline_s", "reason"),
    [("os._exit(3)", TIMEOUT_S, "exit code 3"), ("time.sleep(60)", 1.0, "no answer within 1 s")],
)
def test_a_backend_that_crashes_its_worker_costs_only_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str, deadline_s: float, reason: str
) -> None:
    write_plug_in(tmp_path, "plugin", f"import os, time\n{how}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ask, plugin = WorkerSlot.ask, Describe(backend="plugin")
    monkeypatch.setattr(
        WorkerSlot, "ask", lambda slot, *asked: ask(slot, *asked[:2], deadline_s if asked[0] == plugin else TIMEOUT_S)
    )
    asked = [Installed("plugin", "kvbench-plugin==1.0", None), Installed("batched", "kvbench==0.1.0", None)]
    with closing(WorkerSlot(SweepSpec(name="test", device="cpu"), asked)) as slot:
        opened = slot.start()
        assert isinstance(opened, Opened)
        broken, batched = opened.backends
        assert broken.unavailable is not None
        assert broken.unavailable.startswith("kvbench-plugin==1.0 does not load: ")
        assert reason in broken.unavailable
        assert batched.unavailable is None


def test_more_than_eight_streams_have_separate_hardware_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # as training frameworks set it
    code = "import os, sys; input(); sys.exit(os.environ['CUDA_DEVICE_MAX_CONNECTIONS'])"
    with closing(worker_that(monkeypatch, code)) as worker, pytest.raises(LostError, match=r"32$"):
        worker.ask(OPEN, TIMEOUT_S)


def test_a_worker_killed_between_requests_counts_as_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "subprocess", subprocess)  # the end of a fork is heard of later
    with closing(WorkerSlot(SweepSpec(name="test", device="cpu"))) as slot:
        slot.start()
        assert not slot.ended
        (pid,) = slot.pids
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert slot.ended


def test_a_process_blocked_in_the_driver_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(worker_that(monkeypatch, "input()")) as worker:
        monkeypatch.setattr(worker_process, "_END_S", 0.2)
        monkeypatch.setattr(worker._process, "kill", lambda: None)  # as one in uninterruptible sleep takes it
        worker.kill()
        monkeypatch.undo()


def test_an_interrupt_at_the_end_of_a_wait_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(selectors.DefaultSelector):
        def close(self) -> None:
            super().close()
            raise KeyboardInterrupt

    monkeypatch.setattr("selectors.DefaultSelector", Interrupted)
    with closing(Supervised("it", [sys.executable, "-c", "print(input())"])) as process:
        with pytest.raises(KeyboardInterrupt):
            process.write(b"line\n", TIMEOUT_S)
        with pytest.raises(KeyboardInterrupt):
            process.read_line(TIMEOUT_S)
