"""The gate's page in Markdown, kept under a size: for a step summary, and for a comment on a pull request."""

from collections.abc import Sequence
from typing import Final

from kvbench.gate.output.sheet import Line, Sheet
from kvbench.report import markdown as md

# https://docs.github.com/actions: a step's summary takes 1 MiB. A comment takes 65 536 characters.
SUMMARY_BYTES: Final = 1 << 20
COMMENT_BYTES: Final = 65_536
# Headings of two tables, the line about hidden rows, and what stands between the parts.
_FRAME_BYTES: Final = 1024
_MOST_NOTES: Final = 20


def page(sheet: Sheet, limit_bytes: int) -> str:
    """Return the page in at most `limit_bytes` of UTF-8; rows that do not fit are counted, the worst stay."""
    head = [f"## {md.escape(sheet.title)}: {md.escape(sheet.status)}", md.bullets(map(md.escape, sheet.summary))]
    if sheet.faults:
        head.append(md.bullets(f"**FAILED** {md.escape(fault)}" for fault in sheet.faults[:_MOST_NOTES]))
    if sheet.warnings:
        head.append(md.bullets(f"warning: {md.escape(text)}" for text in sheet.warnings[:_MOST_NOTES]))
    header = ("verdict", "what", *sheet.headings, "why", "look into it")
    left = limit_bytes - _size("\n\n".join(head)) - _FRAME_BYTES
    loud = _fitting(sheet.loud, len(sheet.headings), left)
    # No quiet row where a loud one did not fit.
    left = left - sum(map(_size, loud)) if len(loud) == len(sheet.loud) else 0
    quiet = _fitting(sheet.quiet, len(sheet.headings), left)
    parts = list(head)
    if loud:
        parts.append(_table(header, loud))
    if quiet:
        parts.append(f"<details><summary>{len(quiet)} others</summary>\n\n{_table(header, quiet)}\n\n</details>")
    hidden = len(sheet.lines) - len(loud) - len(quiet)
    if hidden:
        parts.append(f"{hidden} more rows do not fit here; gate.json has them all.")
    return "\n\n".join(parts) + "\n"


def _fitting(lines: Sequence[Line], figures: int, left_bytes: int) -> list[str]:
    rows: list[str] = []
    for line in lines:
        row = _row(line, figures)
        left_bytes -= _size(row)
        if left_bytes < 0:
            break
        rows.append(row)
    return rows


def _row(line: Line, figures: int) -> str:
    shown = [md.escape(figure) for figure in line.figures] or [""] * figures
    command = md.code(line.command) if line.command else ""
    cells = [md.escape(line.verdict), md.escape(line.name), *shown, md.escape(line.reason), command]
    return f"| {' | '.join(cells)} |"


def _table(header: Sequence[str], rows: Sequence[str]) -> str:
    return "\n".join([md.table(header, [], left=len(header)), *rows])


def _size(text: str) -> int:
    return len(text.encode()) + 1
