"""Guests hang on the core by tables of names; engines know themselves: no other module names one."""

import ast
from pathlib import Path

from kvbench.cells.installed import engines
from tests.sources import syntax

PACKAGE = Path("kvbench")
# The layouts of engines' pools, the order in which an engine allocates its blocks, a former name of a kernel, and the
# colours of charts, which every backend keeps.
EXCEPTED = {PACKAGE / name for name in ("models/geometry.py", "traces/simulate.py", "report/drawing.py")}


def strings_in(file: Path) -> set[str]:
    """Return the strings of a module that are whole names, so no docstrings."""
    return {node.value for node in syntax(file) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_no_other_module_names_an_engine() -> None:
    names = {name for engine in engines().values() for name in (engine.name, *engine.backends, *engine.settings)}
    assert {"vllm", "vllm_triton", "NUM_SMS", "sglang_jit", "trtllm"} <= names
    files = {file for file in PACKAGE.rglob("*.py") if file.parent.name != "engines"} - EXCEPTED
    assert {str(file): found for file in files if (found := strings_in(file) & names)} == {}
    texts = {file: file.read_text() for file in files}
    quoted = {f"{file}: {name}" for file in files for name in names if "_" in name and name in texts[file]}
    assert quoted == set()


def test_the_core_names_guests_only_in_its_tables() -> None:
    guests = ("kvbench.engines", "kvbench.probe", "kvbench.traces")
    core = [file for file in PACKAGE.rglob("*.py") if file.parts[1] not in ("engines", "probe", "traces")]
    naming = {str(file) for file in core if any(name.startswith(guests) for name in strings_in(file))}
    assert naming == {"kvbench/cli/main.py", "kvbench/cells/installed.py"}
