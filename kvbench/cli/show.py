"""`kvbench show`: print the answer of runs in the terminal."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.report.view import View

_Runs = Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories to read.", show_default=False)]
_WARNING_ROWS: Final = 4
_Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


def show(runs: _Runs, as_json: _Json = False) -> None:
    """Show the answer of runs: the backends to use, their loss and gain, and warnings. Needs no GPU and no torch.

    Runs of several machines stand side by side.

    Without a choice between backends, it shows the findings of the report.
    """
    # pandas takes a second to import; --help must not wait for it
    from kvbench.cli.tables import print_lines
    from kvbench.report.model import plain
    from kvbench.report.preamble import first_warnings, host_note
    from kvbench.report.view import grouped, views_of
    from kvbench.results import load_run
    from kvbench.results.rundir import runs_in
    from kvbench.text import WIDEST, fitting, short, terminal_rows
    from kvbench.tune.text import ROWS

    views = views_of([load_run(folder) for path in runs for folder in runs_in(path)])
    machines = list(grouped(views, lambda view: view.machine).values())
    if machines[1:]:
        _show_machines(machines, as_json=as_json)
        return
    if as_json:
        typer.echo(json.dumps(_as_plain(views), indent=2))
        return
    notes, warnings = [*filter(None, [plain(host_note(views))])], [*map(plain, first_warnings(views, 0))]
    rows = ROWS - terminal_rows(notes)
    least = min(_WARNING_ROWS, len(warnings))
    lines = _answer(views, rows - least)
    left = max(rows - terminal_rows(lines), least)
    if terminal_rows(warnings) > left:
        warnings = fitting([short(warning, WIDEST) for warning in warnings], left)
    print_lines([*notes, *lines, *warnings])


def _show_machines(machines: Sequence[Sequence["View"]], *, as_json: bool) -> None:
    """Print a column for each of several machines, and what only one of them has."""
    from kvbench.cli.tables import print_lines, print_rows
    from kvbench.report.model import plain
    from kvbench.report.sections.machines import machines_table  # the sections take as long to import as pandas

    table = machines_table([view for runs in machines for view in runs])
    assert table is not None
    header, *rows = ([*map(plain, row)] for row in (table.header, *table.rows))
    notes = [plain(note) for note in (*table.notes, table.caption) if note]
    if as_json:
        texts = {name: dict(zip(header[1:], row, strict=True)) for name, *row in rows}
        answers = {runs[0].card: _as_plain(runs) for runs in machines}
        typer.echo(json.dumps({"side_by_side": texts, "notes": notes, "machines": answers}, indent=2))
        return
    print_rows(rows, header, wrap=True)
    print_lines(notes)


def _as_plain(views: Sequence["View"]) -> dict[str, Any]:
    """Return the answer of runs as `kvbench tune --json` does, or what their sections found, and what is around it."""
    from kvbench.report.model import plain
    from kvbench.report.preamble import first_warnings, host_note
    from kvbench.tune.text import rule_for_all, to_plain

    runs = [view.run for view in views]
    around = {"host_note": plain(host_note(views)), "warnings": [*map(plain, first_warnings(views, 0))]}
    try:
        return {**around, **to_plain(rule_for_all(runs), runs)}
    except UsageError:
        return {**around, "findings": _answer(views)}


def _answer(views: Sequence["View"], rows: int = 60) -> list[str]:
    """Return the answer of runs, or what their sections found where there is nothing to choose from."""
    from kvbench.report.model import plain
    from kvbench.report.preamble import answer
    from kvbench.text import fitting

    try:
        return [*map(plain, answer(views, rows))]
    except UsageError:
        from kvbench.report.build import report_of  # the sections take as long to import as pandas

        report = report_of([view.run for view in views])
        return fitting([*map(plain, [*report.headline, *report.summary])], rows)
