"""`kvbench sweep` as several ranks: each writes a run of its own, and they begin together."""

import os
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvbench.ground.errors import UsageError
from kvbench.results import load_run
from kvbench.run.rendezvous import Rank, rank_of
from tests.command import BRIEF, interruptible, refused, succeeds, tiny

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
SRUN = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4"}
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")  # whose import takes seconds


@pytest.fixture
def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.mark.parametrize("environment", [TORCHRUN, SRUN])
def test_a_rank_is_read_from_the_variables_of_its_launcher(environment: dict[str, str]) -> None:
    assert rank_of(environment) == Rank(3, 1, 4)


@pytest.mark.parametrize(
    "environment", [{}, TORCHRUN | {"WORLD_SIZE": "1"}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}]
)
def test_a_single_process_is_not_a_rank(environment: dict[str, str]) -> None:
    assert rank_of(environment) is None


@pytest.mark.parametrize(
    ("asked", "visible", "device"),
    [("auto", None, "cuda:1"), ("cuda", "4,5", "cuda:1"), ("auto", "7", "cuda:0"), ("cpu", None, "cpu")],
)
def test_each_rank_uses_its_gpu(asked: str, visible: str | None, device: str) -> None:
    assert Rank(3, 1, 4).device(asked, visible) == device


def test_a_rank_refuses_another_gpu() -> None:
    with pytest.raises(UsageError, match="--device cuda:all: each of 4 ranks takes its own GPU"):
        Rank(3, 1, 4).device("cuda:all", None)


def test_ranks_require_a_folder_and_an_address_to_meet(tmp_path: Path) -> None:
    sweep = ("sweep", *tiny(), *BRIEF)
    assert refused(*sweep, cwd=tmp_path, env=TORCHRUN) == "--out: required with 4 ranks; write --out DIR"
    assert "MASTER_ADDR and MASTER_PORT not set" in refused(*sweep, "--out=run", cwd=tmp_path, env=TORCHRUN)


ALONE = """
import os, sys
from torch import distributed
from kvbench.run.rendezvous import Rank, RankSlot
from kvbench.run.worker_process import WorkerSlot
from kvbench.sweep.spec import SweepSpec

WorkerSlot.reserve = lambda *_: None
meet = distributed.init_process_group

def said(*arguments, **named):
    os.write(1, b"waits\\n")  # in a thread: a print could hold its lock when the process ends
    meet(*arguments, **named)

distributed.init_process_group = said
try:
    RankSlot(SweepSpec("test", device="cpu"), (), Rank(0, 0, 2)).reserve(1)
except KeyboardInterrupt:
    sys.exit(7)
"""


@needs_torch
def test_an_interrupt_ends_the_wait_for_other_ranks(free_port: str) -> None:
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port}
    command = [sys.executable, "-c", ALONE]
    with interruptible():
        started = subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True)
    with started as rank:
        try:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "waits\n"
            rank.send_signal(signal.SIGINT)
            assert rank.wait() == 7
        finally:
            rank.kill()


BOTH = """
import os, sys
from torch import distributed  # once, as it takes seconds
from kvbench.cli.main import run

for rank in "01":
    if not os.fork():
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
        os._exit(run(sys.argv[1:]))
sys.exit(any([os.wait()[1] for _ in "01"]))
"""


@needs_torch
def test_two_ranks_write_one_run_each_and_share_a_report(tmp_path: Path, free_port: str) -> None:
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port}
    command = [sys.executable, "-c", BOTH, "sweep", *tiny(), *BRIEF, "--out=run"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | variables, stdout=subprocess.DEVNULL, check=True)
    assert all((load_run(tmp_path / "run" / f"rank-{number}").frame()["status"] == "ok").all() for number in range(2))
    succeeds("report", "run", cwd=tmp_path)
