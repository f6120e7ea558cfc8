"""Where the gate's outcome goes: the terminal, JSON, a folder of files, GitHub Actions."""

import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.gate.output.sheet import Level, Line, Sheet

SUMMARY_VARIABLE: Final = "GITHUB_STEP_SUMMARY"


@dataclass(frozen=True, slots=True)
class Destinations:
    """What was asked for: JSON on stdout, a folder for the files, annotations and a step summary for GitHub."""

    as_json: bool = False
    folder: Path | None = None
    github: bool = False

    def check(self) -> None:
        """Raise UsageError for a destination that cannot be written, before anything is measured or judged."""
        if self.github and not os.environ.get(SUMMARY_VARIABLE):
            raise UsageError(f"--github: {SUMMARY_VARIABLE} is not set; leave it out outside of GitHub Actions")


def deliver(sheet: "Sheet", data: Mapping[str, Any], to: Destinations) -> None:
    """Write the outcome everywhere it was asked for; raises UsageError for a file that cannot be written."""
    from kvbench.gate.output.data import as_json

    if to.folder is not None:
        _write_files(to.folder, sheet, as_json(data))
    if to.github:
        _tell_github(sheet)
    if to.as_json:
        sys.stdout.write(as_json(data))
    elif sys.stdout.isatty():
        _write_table(sheet)
    else:
        _write_lines(sheet)


def _write_files(folder: Path, sheet: "Sheet", json_text: str) -> None:
    from kvbench.files import write_whole
    from kvbench.gate.output.junit import junit
    from kvbench.gate.output.page import COMMENT_BYTES, page

    files = {"gate.json": json_text, "gate.xml": junit(sheet), "gate.md": page(sheet, COMMENT_BYTES)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_whole(folder / name, text.encode())
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be written: {error.strerror}") from None


def _tell_github(sheet: "Sheet") -> None:
    from kvbench.gate.output.github import annotations
    from kvbench.gate.output.page import SUMMARY_BYTES, page

    summary = Path(os.environ[SUMMARY_VARIABLE])
    try:
        taken = summary.stat().st_size if summary.exists() else 0
        with summary.open("a", encoding="utf-8") as file:
            file.write(page(sheet, SUMMARY_BYTES - taken))
    except OSError as error:
        raise UsageError(f"--github: {SUMMARY_VARIABLE} cannot be written: {error.strerror}") from None
    for line in annotations(sheet):  # the runner reads both streams; stdout may be JSON
        typer.echo(line, err=True)


def _write_lines(sheet: "Sheet") -> None:
    from kvbench.text import printable

    for line in sheet.loud:
        print(printable(f"{line.verdict:<12}  {line.name}  {_figures(sheet, line)}".rstrip()))
        for text in filter(None, (line.reason, line.command)):
            print(printable(f"{'':<12}    {text}"))
    for text in _notes(sheet):
        print(printable(text))


def _write_table(sheet: "Sheet") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from kvbench.text import printable

    console = Console()
    if sheet.loud:
        table = Table(title=sheet.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("", no_wrap=True)
        table.add_column("what", overflow="fold")
        for heading in sheet.headings:
            table.add_column(heading, justify="right")
        for line in sheet.loud:
            figures = [printable(figure) for figure in line.figures] or [""] * len(sheet.headings)
            table.add_row(Text(line.verdict, _colour(line.level)), *map(Text, (printable(line.name), *figures)))
        console.print(table)
        for line in sheet.loud:  # below it, since a command in a narrow column cannot be copied
            for text in filter(None, (line.reason and f"{line.name}: {line.reason}", line.command)):
                console.print(Text(printable(text)), soft_wrap=True)
        console.print()
    for text in _notes(sheet):
        console.print(Text(printable(text)))


def _colour(level: "Level") -> str:
    return {"ERROR": "bold red", "BAD": "red", "OPEN": "yellow", "GOOD": "green"}.get(level.name, "")


def _figures(sheet: "Sheet", line: "Line") -> str:
    return "  ".join(f"{name} {figure}" for name, figure in zip(sheet.headings, line.figures, strict=False) if figure)


def _notes(sheet: "Sheet") -> list[str]:
    counts = Counter(line.verdict for line in sheet.quiet)
    return [
        *(f"{count} {verdict}, not shown here" for verdict, count in counts.items()),
        *(f"FAILED: {fault}" for fault in sheet.faults),
        *(f"warning: {text}" for text in sheet.warnings),
        *sheet.summary,
        f"{sheet.title}: {sheet.status}",
    ]
