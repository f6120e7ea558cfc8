"""The size of the house: `python -m tests.size` prints it, and fails where it outgrew the figures of `MOST`.

A user reads none of these figures; whoever adds a feature does. Counted is what a newcomer has to understand: code, not
the comments and docstrings that explain it, nor the blank lines between. To raise a figure takes a commit of its own,
which says what went for it.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tests.sources import ROOT, syntax

# What the house aims at: 20 500 lines of code, 155 files, 6 400 lines of csrc, 24 000 of tests. It stands
# above that since it answers for swaps beside decode and prefill: their steps and records, the pace, the staged copies,
# swaps of both directions and the doctor's measurement came in one go.
MOST: Final = {
    "lines of code in the package": 22_671,
    "files of the package": 155,
    "arrows between its rooms": 93,
    "lines of csrc without tests": 6_396,
    "lines of Python in tests": 26_198,
}
LONGEST_FUNCTION: Final = 60
_WITH_DOCSTRING: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def tracked(*patterns: str) -> list[Path]:
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns)
    listed = subprocess.check_output(command, cwd=ROOT, text=True)
    return [ROOT / name for name in listed.splitlines() if (ROOT / name).is_file()]


def lines_of(files: Iterable[Path]) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in files)


def code_lines(file: Path) -> int:
    """The number of lines that hold code: not blank, no comment alone, no docstring."""
    lines = {
        number
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    docstrings = set()
    for node in syntax(file):
        # What looks blank or like a comment within a text of several lines is part of it.
        if isinstance(node, ast.Constant | ast.JoinedStr):
            lines.update(_lines(node))
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            docstrings.update(_lines(node.body[0]))
    return len(lines - docstrings)


def _lines(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def too_long(files: Iterable[Path]) -> Iterator[str]:
    """Yield what is wrong with a function that is longer than a screen, without docstring and decorators."""
    for file in files:
        for node in syntax(file):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                if body and (lines := (node.end_lineno or 0) - body[0].lineno + 1) > LONGEST_FUNCTION:
                    yield f"{file.relative_to(ROOT)}:{node.name} has {lines} lines; {LONGEST_FUNCTION} are allowed"


def arrows(package: Path) -> set[tuple[str, str]]:
    """Return (importing, imported) for rooms of a package: its folders and the modules beside them."""
    found = set()
    for file in package.rglob("*.py"):
        inside = file.relative_to(package).with_suffix("").parts
        for node in syntax(file):
            names = [name.name for name in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name}" for name in names]
            found |= {(inside[0], name.split(".")[1]) for name in names if name.startswith(f"{package.name}.")}
    rooms = {file.relative_to(package).with_suffix("").parts[0] for file in package.rglob("*.py")}
    return {(room, other) for room, other in found if room != other and other in rooms}


def figures() -> dict[str, int]:
    package = tracked("kvbench/*.py")
    sources = [file for file in tracked("csrc/*") if file.suffix in (".cpp", ".hpp", ".cu")]
    return {
        "lines of code in the package": sum(code_lines(file) for file in package),
        "files of the package": len(package),
        "arrows between its rooms": len(arrows(ROOT / "kvbench")),
        "lines of csrc without tests": lines_of(file for file in sources if "tests" not in file.parts),
        "lines of Python in tests": lines_of(tracked("tests/*.py")),
    }


def main() -> int:
    sizes = figures()
    for name, value in sizes.items():
        print(f"{value:6d} {name}")
    faults = [*too_long(tracked("kvbench/*.py"))]
    faults += [
        f"{sizes[name]} {name}; tests/size.py allows {most}: what can go for what you add?"
        for name, most in MOST.items()
        if sizes[name] > most
    ]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
