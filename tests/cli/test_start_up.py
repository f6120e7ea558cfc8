"""Commands that present need no GPU, no torch and no compiled module, and help needs nothing heavy at all."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import synthetic

COMPILED = ("torch", "triton", "cuda", "pynvml", "kvbench._engine")
HEAVY = (*COMPILED, "matplotlib", "pandas")
ARRAYS = (*HEAVY, "numpy")
HELP = ("--help", "--version", "report --help", "doctor --help", "sweep --help", "gate --help", "gate compare --help")
QUICK = ("--help", "--version", "show --help", "tune --help")  # wait for no numpy
START = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        for refused in {refused!r}:
            if name == refused or name.startswith(refused + "."):
                raise AssertionError("imported " + name)

sys.meta_path.insert(0, Refuse())
{then}
"""
RUN_EACH = """
from kvbench.cli.main import run

for command in {commands!r}:
    assert run(command.split()) == 0
    print("end of", command)
"""


INTERRUPTED_BY_AN_IMPORT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.{handler})
sys.meta_path.insert(0, Interrupt())
sys.argv = ["kvbench", "--version"]
from kvbench.__main__ import main
main()
"""


def start(refused: tuple[str, ...], then: str) -> subprocess.CompletedProcess[str]:
    program = START.format(refused=refused, then=then)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("refused", "commands"), [(ARRAYS, QUICK), (HEAVY, HELP)], ids=["quick", "help"])
def test_help_imports_nothing_heavy(refused: tuple[str, ...], commands: tuple[str, ...]) -> None:
    result = start(refused, RUN_EACH.format(commands=commands))
    assert result.returncode == 0, result.stderr
    *shown, rest = re.split("end of .*\n", result.stdout)
    assert not rest
    assert len(shown) == len(commands)
    assert all("kvbench" in text for text in shown)


def test_ctrl_c_while_the_command_is_imported_ends_it_in_a_line() -> None:
    ends = []
    for handler in ("default_int_handler", "SIG_IGN"):
        program = INTERRUPTED_BY_AN_IMPORT.format(handler=handler)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        ends.append((done.returncode, done.stderr, done.stdout.partition(" ")[0]))
    assert ends == [(130, "kvbench: interrupted\n", ""), (0, "", "kvbench")]


def test_a_report_is_drawn_without_torch_the_engine_and_a_display(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    run = synthetic.write_run(tmp_path / "run", synthetic.rounds(synthetic.cliff_cells((256,), synthetic.FEW_KIB)))
    result = start(COMPILED, RUN_EACH.format(commands=(f"report {run}",)))
    assert result.returncode == 0, result.stderr
    assert (run / "report" / "cliff-run.svg").stat().st_size > 10_000
