"""The language Markdown: text becomes markup here, escaped once, so that it shows as it is in a pull request."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

_SPECIAL: Final = re.compile(r"([!-/:-@\[-`{-~])")
_HARMLESS: Final = re.compile(r"""\\([,.;:%'"/=+?(){}^-])|(?<=[^\W_])\\(_)(?=[^\W_])""")
_LINK: Final = re.compile(r"(?<=:)(?=//)|(?<=[wW]{3})(?=\.)")
_BEGINS_LIST: Final = re.compile(r"^(?=[-+=])|^(\d+)(?=[.)](?: |$))")


def escape(text: object) -> str:
    """`text` as a paragraph or a list item: it shows as it is and starts no markup, link, HTML or mention."""
    return _mark_beginning(inline(str(text)))


def block(markup: str) -> str:
    """Markup at the beginning of a paragraph, where "1." or "-" would start a list and spaces a code block."""
    return _mark_beginning(markup.strip(" "))


def inline(text: str) -> str:
    """`text` in the middle of a paragraph or in a cell of a table."""
    escaped = _HARMLESS.sub(r"\1\2", _SPECIAL.sub(r"\\\1", _one_line(text)))
    return _LINK.sub(r"\\", re.sub("[@#]", "\\g<0>\N{WORD JOINER}", escaped))


def code(text: str) -> str:
    """`text` as a code span, also inside a table, whatever backticks and pipes it holds."""
    line = _one_line(text).replace("|", "\\|")
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    pad = " " if line[:1] in "` " or line[-1:] in "` " else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def strong(markup: str) -> str:
    return f"**{markup}**"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table of cells in Markdown: the first `left` columns to the left, the others, numbers, to the right."""
    rule = ["---" if number < left else "---:" for number in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def anchor(heading: str) -> str:
    """The anchor that GitHub gives the first heading with this text."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _mark_beginning(markup: str) -> str:
    return _BEGINS_LIST.sub(r"\1\\", markup, count=1)


def _one_line(text: str) -> str:
    """`text` with a mark for what does not print: a line break would end the paragraph or the row."""
    return "".join(char if char.isprintable() or char == "\N{NO-BREAK SPACE}" else "\ufffd" for char in text)
