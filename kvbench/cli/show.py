"""`kvbench show`: print the answer of runs in the terminal."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.report.model import Text
    from kvbench.report.view import View

_Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories to read.", show_default=False)]
_Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


def show(runs: _Runs, as_json: _Json = False) -> None:
    """Show the answer of runs: the backends to use, their loss and gain, and warnings. Needs no GPU and no torch.

    Without a choice between backends, it shows the findings of the report.
    """
    # pandas takes a second to import; --help must not wait for it
    from kvbench.cli.tables import print_lines
    from kvbench.report.model import plain
    from kvbench.report.preamble import first_warnings, host_note
    from kvbench.report.view import views_of
    from kvbench.results import load_run
    from kvbench.results.rundir import runs_in

    views = views_of([load_run(own) for path in runs for own in runs_in(path)])
    note, lines, warnings = (
        plain(host_note(views)),
        [*map(plain, _answer(views))],
        [*map(plain, first_warnings(views, 0))],
    )
    if as_json:
        typer.echo(json.dumps({"host_note": note, "answer": lines, "warnings": warnings}, indent=2))
    else:
        print_lines([*filter(None, [note]), *lines, *warnings])


def _answer(views: Sequence["View"]) -> list["Text"]:
    """Return the answer of runs, or what their sections found where there is nothing to choose from."""
    from kvbench.report.preamble import answer

    try:
        return answer(views)
    except UsageError:
        from kvbench.report.assemble import report_of  # the sections take as long to import as pandas

        report = report_of([view.run for view in views])
        return [*report.headline, *report.summary]
