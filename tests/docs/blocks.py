"""The blocks of the documents that are generated: `<!-- NAME: begin -->`, what is made, `<!-- NAME: end -->`."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from tests.docs import figures, reference

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "reports" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
# Blocks that other modules write.
OTHERS: Final = frozenset({"cards", "coverage", "machines", "probes", "simulation"})
MAKERS: Final[Mapping[str, Callable[[], str]]] = {**reference.MAKERS, **figures.MAKERS}
_BLOCK: Final = re.compile(r"(<!-- (?P<name>[\w-]+): begin -->\n)(?P<text>.*?)(<!-- (?P=name): end -->)", re.DOTALL)


def filled(text: str) -> str:
    return _BLOCK.sub(lambda match: match[1] + (_made(match["name"]) or match["text"]) + match[4], text)


def names_of(text: str) -> list[str]:
    return [match["name"] for match in _BLOCK.finditer(text)]


def without_blocks(text: str) -> str:
    """Return what was typed of a document."""
    return _BLOCK.sub("", text)


@cache
def _made(name: str) -> str:
    """Return what is made of a block; "" for one that another module writes."""
    return f"{MAKERS[name]().strip()}\n" if name in MAKERS else ""
