"""The checkout's Python files as the project's own checks read them: each parsed and walked once."""

import ast
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


@cache
def syntax(file: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file, in the order of `ast.walk`: its module first."""
    return tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"), filename=str(file))))
