"""`kvbench report`: write tables and charts from run directories."""

import json
import sys
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from kvbench.ground.errors import RunDirectoryError, UsageError
from kvbench.ground.files import make_report_folder, write_report
from kvbench.ground.text import counted

if TYPE_CHECKING:
    from kvbench.results import Run

PLAIN_EVERY_S: Final = 10.0
_Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN", help="Run directories to read, or folders of them.", show_default=False)
]
_Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="DIR", help="Directory for the report (default for a single run: RUN/report)."),
]
_Snippet = Annotated[
    str | None,
    typer.Option(
        metavar="[NAME]",
        help="Print a table as Markdown for a pull request: a config, a section, SECTION:WORDS or words of its title; "
        "without a name the table of the config of the run; list: all names; chat: five lines.",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print the files and the warnings as JSON.")]


def report(runs: _Runs, out: _Out = None, as_json: _Json = False, snippet: _Snippet = None) -> None:
    """Write report.md, details.md, report.html, and charts as PNG and SVG. Needs no GPU and no torch."""
    from kvbench.cli.options import print_lines
    from kvbench.report.build import report_files, report_of
    from kvbench.report.document import snippet as snippet_of
    from kvbench.report.health import health_of
    from kvbench.report.whole_runs import warnings_of

    if snippet is not None and (out is not None or as_json):
        raise UsageError("--snippet: prints one table; leave out --out and --json")
    progress = _Progress()
    folder = out or (_default_out(runs) if snippet is None else None)
    loaded, unread = _load(runs, progress)
    if folder is None:
        typer.echo(snippet_of(report_of(loaded, unread), snippet or ""), nl=False)
        _check_read(unread)
        return
    make_report_folder(folder)  # a report takes minutes to draw
    files = write_report(report_files(loaded, unread, progress), folder)
    warnings = [f"{run.path}: {text}" for run in loaded for text in warnings_of(run)]
    if as_json:
        typer.echo(json.dumps({"files": [str(file) for file in files], "warnings": [*warnings, *unread]}, indent=2))
    else:
        for text in warnings:
            typer.echo(f"warning: {text}", err=True)
        others = counted(len(files) - 2, "more file")
        typer.echo(f"report: {files[0]}, {files[1].name} and {others} in the same directory")
        if len(loaded) == 1 and loaded[0].info.status == "complete" and loaded[0].info.device.get("kind") == "cuda":
            print_lines([health_of(loaded[0]).sentence])
    _check_read(unread)


def print_asked(runs: list[Path], *, as_markdown: bool) -> None:
    """Print the tables of the config of runs: in a terminal, unless `as_markdown`, with rich."""
    from kvbench.cli.options import print_lines, print_table
    from kvbench.report.build import report_of
    from kvbench.report.document import asked_for, table_text
    from kvbench.report.model import plain

    loaded, _ = _load(runs, _Progress())
    report = report_of(loaded)
    tables = asked_for(report, str(loaded[0].info.spec.get("name")))
    if not as_markdown:
        # The caption of a table says itself that a ceiling was low.
        unsteady = "" if tables else report.unsteady
        print_lines(plain(text) for text in (unsteady, report.host_note, *report.headline) if text)
    for table in tables:
        if as_markdown or not sys.stdout.isatty():
            typer.echo(f"{table_text(table)}\n")
        else:
            print_table(table)
    if not as_markdown:
        print_lines(map(plain, report.first_warnings))


def _check_read(unread: list[str]) -> None:
    if unread:
        raise RunDirectoryError(f"not in the report: {'; '.join(unread)}")


class COMMAND(TyperCommand):
    """The command, whose --snippet may stand without a name, which typer knows no options for."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given: list[str] = []
        for word, following in zip(args, [*args[1:], "-"], strict=False):
            given += [word, ""] if word == "--snippet" and following.startswith("-") else [word]
        return super().parse_args(ctx, given)


class _Progress:
    """Writes a line to stderr every ten seconds; a short report writes none."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    def __call__(self, what: str, number: int, total: int) -> None:
        if time.monotonic() - self._last_s >= PLAIN_EVERY_S:
            self._last_s = time.monotonic()
            typer.echo(f"{what} {number} of {total}", err=True)


def _load(paths: list[Path], progress: _Progress) -> "tuple[list[Run], list[str]]":
    """The readable runs and why each other run is unreadable; raises RunDirectoryError if none is readable."""
    from kvbench.results import load_run
    from kvbench.results.rundir import runs_below

    loaded: list[Run] = []
    errors: list[RunDirectoryError] = []
    folders = [*chain.from_iterable(map(runs_below, paths))]
    for number, path in enumerate(folders, start=1):
        progress("run", number, len(folders))
        try:
            loaded.append(run := load_run(path))
            _ = run.table  # now, while its journal is held
        except RunDirectoryError as error:
            errors.append(error)
    if not loaded:
        raise errors[0]
    return loaded, [str(error) for error in errors]


def _default_out(runs: list[Path]) -> Path:
    if len(runs) > 1:
        raise UsageError("--out: required with several runs; write -o DIR")
    out = runs[0] / "report"
    if out.is_symlink():
        raise UsageError(f"{out} is a symbolic link, which kvbench does not follow; name another directory with -o DIR")
    return out
