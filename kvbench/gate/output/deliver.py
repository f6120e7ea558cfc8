"""Delivers the gate's outcome: to the terminal, as JSON, to a folder of files, to GitHub Actions."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvbench.errors import UsageError
from kvbench.files import write_whole
from kvbench.gate.judgement import GateVerdict
from kvbench.gate.output.formats import COMMENT_BYTES, SUMMARY_BYTES, annotations, as_json, junit, page
from kvbench.gate.output.sheet import Sheet, figures, name_of_row
from kvbench.text import printable

SUMMARY_VARIABLE: Final = "GITHUB_STEP_SUMMARY"
# The width without a terminal: wider than any row, so that no row is folded.
_WIDTH: Final = 2000
_COLOURS: Final[Mapping[str, str]] = {
    GateVerdict.FAILED: "bold red",
    GateVerdict.SLOWER: "red",
    GateVerdict.FAIL: "red",
    GateVerdict.UNDECIDED: "yellow",
    GateVerdict.FASTER: "green",
}


@dataclass(frozen=True, slots=True)
class Destinations:
    """The requested outputs: JSON on stdout, a folder for the files, annotations and a step summary for GitHub.

    Raises UsageError if GitHub's summary cannot be written, before anything is measured or judged.
    """

    as_json: bool = False
    folder: Path | None = None
    github: bool = False

    def __post_init__(self) -> None:
        if self.github and not os.environ.get(SUMMARY_VARIABLE):
            raise UsageError(f"--github: {SUMMARY_VARIABLE} is not set; use --github only in GitHub Actions")

    def deliver(self, sheet: Sheet, data: Mapping[str, Any]) -> None:
        """Write the outcome to all requested outputs; raises UsageError for a file that cannot be written."""
        if self.folder is not None:
            _write_files(self.folder, sheet, as_json(data))
        if self.github:
            _write_github(sheet)
        if self.as_json:
            sys.stdout.write(as_json(data))
        else:
            _show(sheet)


def _write_files(folder: Path, sheet: Sheet, json_text: str) -> None:
    files = {"gate.json": json_text, "gate.xml": junit(sheet), "gate.md": page(sheet, COMMENT_BYTES)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_whole(folder / name, text.encode())
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be written: {error.strerror}") from None


def _write_github(sheet: Sheet) -> None:
    summary = Path(os.environ[SUMMARY_VARIABLE])
    try:
        taken = summary.stat().st_size if summary.exists() else 0
        with summary.open("a", encoding="utf-8") as file:
            file.write(page(sheet, SUMMARY_BYTES - taken))
    except OSError as error:
        raise UsageError(f"--github: {SUMMARY_VARIABLE} cannot be written: {error.strerror}") from None
    for line in annotations(sheet):  # the runner reads both streams; stdout can be JSON
        print(line, file=sys.stderr)


def _show(sheet: Sheet) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    console.print(Text(printable(f"{sheet.title}: {sheet.verdict}"), _COLOURS.get(sheet.verdict, "")), soft_wrap=True)
    notes = [
        *sheet.counts,
        *(f"FAILED: {fault}" for fault in sheet.faults),
        *(f"warning: {text}" for text in sheet.warnings),
        *sheet.summary,
    ]
    if sheet.listed:
        table = Table("", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.add_column("what", overflow="fold")
        for heading in sheet.headings:
            table.add_column(heading, justify="right")
        for row in sheet.listed:
            cells = map(Text, map(printable, (name_of_row(row), *figures(row))))
            table.add_row(Text(row.verdict, _COLOURS[row.verdict]), *cells)
        console.print(table)
    for row in sheet.listed:  # below the table: a command in a narrow column cannot be copied
        for text in filter(None, (row.reason and f"{name_of_row(row)}: {row.reason}", row.command)):
            console.print(Text(printable(text)), soft_wrap=True)
    for text in notes:
        console.print(Text(printable(text)), soft_wrap=True)
