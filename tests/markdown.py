"""What tests look for in a document in Markdown."""

import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.token import Token


def section(text: str, heading: str) -> str:
    """Return what stands below a heading ("## Findings"), up to the next of level two."""
    return text.partition(heading)[2].partition("\n## ")[0]


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def tokens(text: str) -> Iterator[Token]:
    """Yield what a parser of Markdown makes of the text, HTML and tables allowed."""
    for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(text):
        yield token
        yield from token.children or []
