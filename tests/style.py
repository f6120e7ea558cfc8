"""Phrases that the project does not use, each with the plain form; `python -m tests.style` fails at every use.

`make lint` runs it over everything that people read: documents, configs, workflows, messages, docstrings and comments.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
READ: Final = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "configs", "csrc", "kvbench", ".github")
SUFFIXES: Final = {".cpp", ".cu", ".hpp", ".md", ".py", ".toml", ".txt", ".yaml", ".yml"}

# Regular expression, in any case -> the plain form.
PLAIN: Final = {
    r"heeds?": "supports",
    r"(?<!there )(is|are) no (whole|multiple|size|file|record|config|backend|pattern|number|range|list|table)s?": (
        "is not a …"
    ),
    r"no such": "not found; unknown",
    r"comes? with no": "ships no …; has no …",
    r"whichever": "the one that …",
    r"thereof": "of it",
    r"(at most )?so many": "maximum …; the number of …",
    r"makes? (it|one) of (it|them)|runs make it": "build one from …",
    r"may not": "must not; cannot",
    r"asks? for": "requests; requires",
    r"goes by": "uses; follows",
    r"goes with": "requires",
    r"goes on with": "continues with",
    r"at hand": "this …; available",
    r"on either side": "on each side; on both sides",
    r"made again": "repeated",
    r"in front of": "before",
    r"foresaw|foreseen": "unexpected",
    r"need not": "does not need to; not necessarily",
    r"anew": "again",
    r"to be had": "available",
    r"the lesser": "the smaller",
    r"per cent": "percent",
    r"a stranger|stranger's": "an untrusted source",
    r"stands? in (its|their|the) place": "replaces",
    r"without a word": "silently",
    r"(unless )?told otherwise": "by default",
    r"from (which|what) [a-z ]+ on": "above what …",
    r"out of (its|their) installed packages?": "the installed …",
}
_PHRASES: Final = {re.compile(rf"\b({phrase})\b", re.IGNORECASE): plain for phrase, plain in PLAIN.items()}
_ANY: Final = re.compile(rf"\b({'|'.join(PLAIN)})\b", re.IGNORECASE)


def complaints(text: str) -> Iterator[tuple[int, str]]:
    if not _ANY.search(text):
        return
    for number, line in enumerate(text.splitlines(), start=1):
        for phrase, plain in _PHRASES.items():
            for match in phrase.finditer(line):
                yield number, f'"{match[0]}": write {plain}'


def files(root: Path) -> Iterator[Path]:
    for name in READ:
        path = root / name
        yield from [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)


def main() -> int:
    lines = [
        f"{file.relative_to(ROOT)}:{number}: {complaint}"
        for file in files(ROOT)
        for number, complaint in complaints(file.read_text(encoding="utf-8"))
    ]
    print("\n".join(lines), file=sys.stderr, end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
