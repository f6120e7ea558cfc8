"""Annotations for GitHub Actions: workflow commands, at most as many as a step may show."""

from typing import Final

from kvbench.gate.output.sheet import Level, Line, Sheet
from kvbench.text import printable, short

# https://docs.github.com/actions: 10 warnings and 10 errors a step are shown, the rest is dropped without a word.
MOST_ANNOTATIONS: Final = 10
_LONGEST: Final = 1000
_COMMANDS: Final = {Level.ERROR: "error", Level.BAD: "error", Level.OPEN: "warning"}


def annotations(sheet: Sheet) -> list[str]:
    """Return one workflow command a line: the worst rows, and in the last one how many more there are."""
    faults = [_command("error", "FAILED: run", fault) for fault in sheet.faults]
    rows = [_annotation(line) for line in sheet.lines if line.level in _COMMANDS]
    found = [*faults, *rows]
    if sheet.level in _COMMANDS and not found:  # contaminated: it is no row's fault
        found = [_command(_COMMANDS[sheet.level], f"{sheet.title}: {sheet.status}", "; ".join(sheet.summary))]
    if len(found) <= MOST_ANNOTATIONS:
        return found
    more = len(found) - MOST_ANNOTATIONS + 1
    return [
        *found[: MOST_ANNOTATIONS - 1],
        _command("warning", sheet.title, f"and {more} more rows like these: see the step's summary and gate.json"),
    ]


def _annotation(line: Line) -> str:
    again = f" | look into it: {line.command}" if line.command else ""
    return _command(_COMMANDS[line.level], f"{line.verdict}: {line.name}", f"{line.message}{again}")


def _command(kind: str, title: str, message: str) -> str:
    return f"::{kind} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    """Escape as the runner reads it (actions/toolkit, command.ts): nothing in a text ends or starts a command."""
    return short(printable(text), _LONGEST).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
