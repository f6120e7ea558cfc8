"""`kvbench report`: tables and charts from run directories."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kvbench.errors import UsageError

_Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.", show_default=False)]
_Out = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="DIR", help="Where the report goes; for a single run, by default RUN/report."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print the files and the warnings as JSON.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("report")(report)


def report(runs: _Runs, output: _Out = None, as_json: _Json = False) -> None:
    """Write report.md, its charts (PNG, SVG) and the CSV behind every chart; needs neither GPU nor torch."""
    # pandas and matplotlib take a second to import, which --help should not wait for
    from kvbench.report.build import write_report
    from kvbench.report.view import warnings_of
    from kvbench.results import load_run

    out = output or _default_output(runs)
    loaded = [load_run(path) for path in runs]
    warnings = [f"{run.path}: {text}" for run in loaded for text in warnings_of(run)]
    files = write_report(loaded, out)
    if as_json:
        typer.echo(json.dumps({"files": [str(file) for file in files], "warnings": warnings}, indent=2))
        return
    for text in warnings:
        typer.echo(f"warning: {text}", err=True)
    typer.echo(f"report: {files[0]} and {len(files) - 1} files beside it")


def _default_output(runs: list[Path]) -> Path:
    if len(runs) > 1:
        raise UsageError("with several runs, say where the report goes: -o DIR")
    out = runs[0] / "report"
    if out.is_symlink():
        raise UsageError(f"{out} is a symbolic link, which is not followed: say where the report goes with -o DIR")
    return out
