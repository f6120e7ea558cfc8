"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def code(text: object) -> str:
    """Return text as code; what is empty stays so."""
    return f"`{text}`" if str(text) else ""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """Return a table; the last `numbers` columns are aligned to the right."""
    rule = ["---"] * (len(headings) - numbers) + ["---:"] * numbers
    lines = (headings, rule, *rows)
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
