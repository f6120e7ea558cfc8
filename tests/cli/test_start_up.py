"""Commands that present need no GPU, no torch and no compiled module, and help needs nothing heavy at all."""

import subprocess
import sys

import pytest

COMPILED = ("torch", "triton", "cuda", "pynvml", "kvbench._engine")
HEAVY = (*COMPILED, "matplotlib", "pandas", "scipy")
START = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        for refused in {refused!r}:
            if name == refused or name.startswith(refused + "."):
                raise AssertionError("imported " + name)

sys.meta_path.insert(0, Refuse())
sys.argv = {argv!r}
{then}
"""
MAIN = "from kvbench.cli.main import main; main()"


def start(argv: list[str], refused: tuple[str, ...], then: str = MAIN) -> subprocess.CompletedProcess[str]:
    program = START.format(argv=["kvbench", *argv], refused=refused, then=then)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["--version"],
        ["report", "--help"],
        ["doctor", "--help"],
        ["sweep", "--help"],
        ["gate", "--help"],
        ["gate", "compare", "--help"],
    ],
)
def test_help_imports_nothing_heavy(argv: list[str]) -> None:
    result = start(argv, HEAVY)
    assert result.returncode == 0, result.stderr
    assert "kvbench" in result.stdout


@pytest.mark.parametrize("name", COMPILED)
def test_an_import_would_be_noticed(name: str) -> None:
    result = start([], HEAVY, then=f"import {name}")
    assert result.returncode != 0
    assert f"imported {name.partition('.')[0]}" in result.stderr or f"imported {name}" in result.stderr


def test_runs_are_judged_without_the_engine() -> None:
    modules = "kvbench.gate.judge, kvbench.gate.rule_check, kvbench.gate.rules, kvbench.gate.output.sheet"
    result = start([], (*COMPILED, "scipy"), then=f"import {modules}")
    assert result.returncode == 0, result.stderr


def test_reports_are_made_without_the_engine() -> None:
    result = start([], COMPILED, then="import kvbench.report.build, kvbench.results, kvbench.sweep.plan")
    assert result.returncode == 0, result.stderr
