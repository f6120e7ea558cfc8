"""`kvbench report`: tables and charts from run directories."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvbench.errors import RunDirectoryError, UsageError

if TYPE_CHECKING:
    from kvbench.results import Run

_Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.", show_default=False)]
_Out = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="DIR", help="Where the report goes; for a single run, by default RUN/report."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print the files and the warnings as JSON.")]


def report(runs: _Runs, output: _Out = None, as_json: _Json = False) -> None:
    """Write report.md, report.html, the charts (PNG, SVG) and the CSV behind each; needs neither GPU nor torch."""
    # pandas and matplotlib take a second to import, which --help should not wait for
    from kvbench.report.build import write_report
    from kvbench.report.view import warnings_of

    out = output or _default_output(runs)
    loaded, unread = _load(runs)
    files = write_report(loaded, out, unread)
    warnings = [f"{run.path}: {text}" for run in loaded for text in warnings_of(run)]
    if as_json:
        typer.echo(json.dumps({"files": [str(file) for file in files], "warnings": [*warnings, *unread]}, indent=2))
    else:
        for text in warnings:
            typer.echo(f"warning: {text}", err=True)
        typer.echo(f"report: {files[0]}, {files[1].name} and {len(files) - 2} files beside it")
    if unread:
        raise RunDirectoryError(f"not in the report: {'; '.join(unread)}")


def _load(paths: list[Path]) -> "tuple[list[Run], list[str]]":
    """Return the runs that can be read and why the others cannot; raises RunDirectoryError where none can."""
    from kvbench.results import load_run
    from kvbench.results.rundir import runs_in

    loaded: list[Run] = []
    errors: list[RunDirectoryError] = []
    for path in (run for given in paths for run in runs_in(given)):
        try:
            loaded.append(load_run(path))
        except RunDirectoryError as error:
            errors.append(error)
    if not loaded:
        raise errors[0]
    return loaded, [str(error) for error in errors]


def _default_output(runs: list[Path]) -> Path:
    if len(runs) > 1:
        raise UsageError("with several runs, say where the report goes: -o DIR")
    out = runs[0] / "report"
    if out.is_symlink():
        raise UsageError(f"{out} is a symbolic link, which is not followed: say where the report goes with -o DIR")
    return out
