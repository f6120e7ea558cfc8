"""The gate's page in Markdown, kept under a size: for a step summary, and for a comment on a pull request."""

from collections.abc import Iterable, Sequence
from typing import Final

from kvbench.gate.output.sheet import Sheet, SheetRow
from kvbench.report.markdown import code, escape, table

# https://docs.github.com/actions: a step's summary takes 1 MiB. A comment takes 65 536 characters.
SUMMARY_BYTES: Final = 1 << 20
COMMENT_BYTES: Final = 65_536
# Headings of two tables, the line about hidden rows, and what stands between the parts.
_FRAME_BYTES: Final = 1024
_MOST_NOTES: Final = 20


def page(sheet: Sheet, limit_bytes: int) -> str:
    """Return the page in at most `limit_bytes` of UTF-8; rows that do not fit are counted, the worst stay."""
    parts = [
        f"## {escape(sheet.title)}: {escape(sheet.status)}",
        _bullets(map(escape, sheet.summary)),
        _bullets(f"**FAILED** {escape(fault)}" for fault in sheet.faults[:_MOST_NOTES]),
        _bullets(f"warning: {escape(text)}" for text in sheet.warnings[:_MOST_NOTES]),
    ]
    header = ("verdict", "what", *sheet.headings, "why", "look into it")
    left = limit_bytes - sum(map(_size, parts)) - _FRAME_BYTES
    loud = _fitting(sheet.loud, len(sheet.headings), left)
    # No quiet row where a loud one did not fit.
    left = left - sum(map(_size, loud)) if len(loud) == len(sheet.loud) else 0
    quiet = _fitting(sheet.quiet, len(sheet.headings), left)
    if loud:
        parts.append(_table(header, loud))
    if quiet:
        parts.append(f"<details><summary>{len(quiet)} others</summary>\n\n{_table(header, quiet)}\n\n</details>")
    hidden = len(sheet.rows) - len(loud) - len(quiet)
    if hidden:
        parts.append(f"{hidden} more rows do not fit here; gate.json has them all.")
    return "\n\n".join(filter(None, parts)) + "\n"


def _fitting(rows: Sequence[SheetRow], figures: int, left_bytes: int) -> list[str]:
    fitting: list[str] = []
    for row in rows:
        shown = [escape(figure) for figure in row.figures] or [""] * figures
        command = code(row.command) if row.command else ""
        cells = [escape(row.verdict), escape(row.name), *shown, escape(row.reason), command]
        text = f"| {' | '.join(cells)} |"
        left_bytes -= _size(text)
        if left_bytes < 0:
            break
        fitting.append(text)
    return fitting


def _table(header: Sequence[str], rows: Sequence[str]) -> str:
    return "\n".join([table(header, [], left=len(header)), *rows])


def _bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _size(text: str) -> int:
    return len(text.encode()) + 2
