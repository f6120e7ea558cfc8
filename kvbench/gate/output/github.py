"""Annotations for GitHub Actions: workflow commands, at most as many as a step may show."""

from typing import Final

from kvbench.gate.output.sheet import Level, Sheet
from kvbench.text import printable

# https://docs.github.com/actions: 10 warnings and 10 errors a step are shown, the rest is dropped without a word.
MOST_ANNOTATIONS: Final = 10
_LONGEST: Final = 1000
_COMMANDS: Final = {Level.ERROR: "error", Level.BAD: "error", Level.OPEN: "warning"}


def annotations(sheet: Sheet) -> list[str]:
    """Return one workflow command a line: the worst rows, and in the last one how many more there are."""
    found = [_command("error", "FAILED: run", fault) for fault in sheet.faults]
    for row in sheet.rows:
        if row.level in _COMMANDS:
            again = f" | look into it: {row.command}" if row.command else ""
            found.append(_command(_COMMANDS[row.level], f"{row.verdict}: {row.name}", f"{row.message}{again}"))
    if sheet.level in _COMMANDS and not found:  # contaminated: no row is to blame
        found = [_command(_COMMANDS[sheet.level], f"{sheet.title}: {sheet.status}", "; ".join(sheet.summary))]
    if len(found) <= MOST_ANNOTATIONS:
        return found
    more = len(found) - MOST_ANNOTATIONS + 1
    rest = f"and {more} more rows like these: see the step's summary and gate.json"
    return [*found[: MOST_ANNOTATIONS - 1], _command("warning", sheet.title, rest)]


def _command(kind: str, title: str, message: str) -> str:
    return f"::{kind} title={_data(title).replace(':', '%3A').replace(',', '%2C')}::{_data(message)}"


def _data(text: str) -> str:
    """Escape as the runner reads it (actions/toolkit, command.ts): nothing in a text ends or starts a command."""
    line = printable(text)
    return (line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…").replace("%", "%25")
