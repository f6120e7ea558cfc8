"""Markdown that pastes into a pull request as it is; whatever came from a run goes through `escape` or `code`."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

from kvbench.units import format_size

TIMES: Final = "\N{MULTIPLICATION SIGN}"
ABSENT: Final = "\N{EN DASH}"

_SPECIAL: Final = re.compile(r"([!-/:-@\[-`{-~])")
_HARMLESS: Final = re.compile(r"""\\([,.;:%'"/=+?(){}-])""")
_LONGEST: Final = 400
_SUPERSCRIPTS: Final = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def clean(text: object, longest: int = _LONGEST) -> str:
    """Return one line of printable text: control, format and separator characters become spaces, the rest is cut."""
    line = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in str(text))
    line = " ".join(line.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def escape(text: object) -> str:
    """Return `text` for prose and table cells: it shows as it is and starts no markup, link, image, HTML or mention."""
    escaped = _SPECIAL.sub(r"\\\1", clean(text))
    plain = re.sub("[@#]", "\\g<0>\N{WORD JOINER}", _HARMLESS.sub(r"\1", escaped))
    return re.sub(r"://|(?i:www)\.|^(?=[-+=])|^(\d+)[.)](?= |$)", _break, plain)


def code(text: object) -> str:
    """Return `text` as a code span, also inside a table, whatever backticks and pipes it holds."""
    line = clean(text, 2000).replace("|", "\\|")
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    pad = " " if line.startswith("`") or line.endswith("`") or not line else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a table of Markdown cells: the first `left` columns to the left, the others, numbers, to the right."""
    rule = ["---" if number < left else "---:" for number in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def image(alternative: str, name: str) -> str:
    """Return an image by relative path; both strings are our own."""
    return f"![{alternative}]({name})"


def link(words: str, heading: str) -> str:
    """Return a link to a heading of the same document, which is our own."""
    return f"[{words}](#{anchor(heading)})"


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives the first heading of these words."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def superscript(number: int) -> str:
    return str(number).translate(_SUPERSCRIPTS)


def count(number: float) -> str:
    """Return 10000 as "10 000", with spaces that do not break."""
    return f"{number:,.0f}".replace(",", "\N{NO-BREAK SPACE}")


def figure(value: float) -> str:
    """Return a number with three significant digits, never in exponents: 0.0123, 6.84, 54.5, 1234."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    digits = 2 - int(f"{value:e}".split("e")[1])
    return f"{value:.{min(digits, 6)}f}"


def size(size_text: str) -> str:
    """Return "4KiB" as people read it: "4 KiB"."""
    return re.sub(r"(\d)([A-Za-z])", "\\1\N{NO-BREAK SPACE}\\2", size_text)


def bytes_size(size_bytes: int) -> str:
    """Return 4096 as "4 KiB"."""
    return size(format_size(size_bytes))


def _break(match: re.Match[str]) -> str:
    found = match[0]
    if found == "://":
        return "\\://"
    if found[:1].isdigit():
        return f"{match[1]}\\{found[-1]}"
    return "\\" if not found else f"{found[:-1]}\\."
