"""An axis is a field of the cell, its help and its entry: a copy of the package with one more knows it everywhere."""

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[3] / "kvbench"
# What stands before the lines of the last axis in cell.py.
LINES = {
    "    devices: int": '    flavour: str = "none"\n',
    '    "devices": ': '    "flavour": "what a swap tastes of",\n',
    "    devices=Axis(": '    flavour=Axis("sweet,sour", backend_name, unused="none", noun="flavour"),\n',
}
SCRIPT = """
import contextlib, io, json, sys
# An editable installation finds the checkout's modules before any path.
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path.insert(0, sys.argv.pop(1))
from kvbench.cells.axes import Direction
from kvbench.cells.cell import AXES, Cell
from kvbench.cells.filter import Filter
from kvbench.cells.facts import BackendFacts
from kvbench.cells.facts import DeviceFacts
from kvbench.results import Run, RunInfo, Skip
from kvbench.sweep.plan import expand
from kvbench.sweep.spec import SweepSpec
from kvbench.cli.main import main

asked = SweepSpec(name="x").with_axes({"flavour": "sweet,sour", "direction": "h2d"})
device = DeviceFacts("cpu", "cpu", "host", None, 2**34, 2**34, None)
plan = expand(asked, device, [BackendFacts("a", "", frozenset({"flavour"})), BackendFacts("b", "", frozenset())])
sweet = Cell("a", Direction.H2D, 4, 4096, flavour="sweet")
info = RunInfo(kvbench="", created="", command=[], spec={}, device={}, identity={}, identity_hash="")
run = Run(None, info, [Skip(cell_text=sweet.as_strings(), reason="r")], [])
listed = io.StringIO()
with contextlib.redirect_stdout(listed), contextlib.suppress(SystemExit):
    sys.argv = ["kvbench", "list", "axes", "--json"]
    main()
print(json.dumps({
    "cells": [str(cell.as_strings().get("flavour")) for cell in plan.cells],
    "skipped": [skip.reason for skip in plan.skipped],
    "filter": [Filter.parse("flavour=sweet").holds(cell) for cell in plan.cells],
    "read back": Cell.from_strings(sweet.as_strings()) == sweet,
    "command": sweet.command(),
    "label": sweet.label,
    "summary": run.frame()["flavour"].tolist(),
    "listed": next(row for row in json.loads(listed.getvalue()) if row["axis"] == "flavour"),
}))
"""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a copy of the package with one axis more knows of the new axis."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(PACKAGE, folder / "kvbench", ignore=shutil.ignore_patterns("__pycache__"))
    cell = folder / "kvbench" / "cells" / "cell.py"
    text = cell.read_text()
    for last, line in LINES.items():
        assert text.count(last) == 1
        text = text.replace(last, line + last)
    cell.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_plan_uses_a_new_axis_and_skips_backends_without_it(known: dict[str, Any]) -> None:
    assert known["cells"] == ["sweet", "sour", "None"]
    assert known["skipped"] == ["b has no flavour"]


def test_the_grammar_reads_and_writes_a_new_axis(known: dict[str, Any]) -> None:
    assert known["read back"] is True
    assert known["filter"] == [True, False, False]
    assert " -a flavour=sweet" in known["command"]
    assert known["label"].endswith("flavour=sweet")


def test_the_summary_has_a_column_for_a_new_axis(known: dict[str, Any]) -> None:
    assert known["summary"] == ["sweet"]


def test_the_listed_axes_include_a_new_one(known: dict[str, Any]) -> None:
    assert known["listed"] == {
        "axis": "flavour",
        "help": "what a swap tastes of",
        "example": "-a flavour=sweet,sour",
        "for": "",
    }
