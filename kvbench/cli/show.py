"""`kvbench show`: print the first page of a report in the terminal."""

import json
import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from kvbench.report.curves import RateCurve
    from kvbench.report.model import Report, Text

_Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories to read.", show_default=False)]
_Json = Annotated[bool, typer.Option("--json", help="Print the first page as JSON.")]
_WIDEST: Final = 100
_BAR: Final = 40


def show(runs: _Runs, as_json: _Json = False) -> None:
    """Show the first page of a report: what to use, the cliff, limits and findings. Needs no GPU and no torch."""
    # pandas takes a second to import; --help must not wait for it
    from kvbench.report.contents import report_of
    from kvbench.report.model import plain
    from kvbench.results import load_run
    from kvbench.results.rundir import runs_in

    report = report_of([load_run(own) for path in runs for own in runs_in(path)])
    if as_json:
        parts = {"answer": report.box, "warnings": report.first_warnings, "findings": report.summary}
        page = {name: [plain(line) for line in lines] for name, lines in parts.items()}
        typer.echo(json.dumps({"host_note": plain(report.host_note), **page}, indent=2))
        return
    if report.host_note:
        _print(report.host_note)
    for line in (*report.box, *report.first_warnings):
        _print(line)
    if cliff := _cliff(report):
        typer.echo("")
        _draw(cliff)
    if summary := report.summary:
        typer.echo("\nWhat was found")
    for text in summary:
        _print(text, "- ")


def _print(text: "Text", mark: str = "") -> None:
    from kvbench.report.model import plain

    width = min(_WIDEST, shutil.get_terminal_size().columns)
    typer.echo(textwrap.fill(f"{mark}{plain(text)}", width, subsequent_indent="  "))


def _cliff(report: "Report") -> "RateCurve | None":
    """Return the curve with the largest cliff in the section on cliffs."""
    from kvbench.report.curves import RateCurves, cliff_curves

    shown = [chapter.view for chapter in report.chapters if chapter.section.name == "cliff"]
    curves = cliff_curves(shown[0].pinned) if shown else ""
    if not isinstance(curves, RateCurves):
        return None
    found = [(cliff.excess, curve) for curve in curves.curves if (cliff := curve.cliff)]
    return max(found, key=lambda one: one[0])[1] if found else None


def _draw(curve: "RateCurve") -> None:
    from kvbench.report.model import plain
    from kvbench.report.numbers import bytes_size, count, figure

    head = f"{curve.backend} {curve.direction}, {curve.state} stream, N = {count(curve.panel)}: GB/s by block size"
    typer.echo(plain(head))
    rates = curve.column("gbps")
    for size, rate in zip(curve.x, rates, strict=True):
        bar = "#" * round(_BAR * rate / max(rates))
        typer.echo(f"{plain(bytes_size(size)):>8}  {bar:<{_BAR}} {figure(rate)}")
