"""`kvbench probe`: determine how the driver runs a batched copy, and print it as one Markdown block."""

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from kvbench.cells.facts import device_named
from kvbench.cli.options import version_line
from kvbench.ground.errors import ExitCode, UsageError, brief
from kvbench.ground.files import write_report
from kvbench.ground.text import hint
from kvbench.probe import HEALTH, PROBES, ProbeFinding, ProbeReport, Result, Unanswered, run_probe

MARKDOWN_FILE: Final = "probe.md"
JSON_FILE: Final = "probe.json"
_Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Probes to run (default: all).")]
_Device = Annotated[str, typer.Option(help="Device: auto (first GPU, else cpu), cpu or cuda:N.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of Markdown.")]
_Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="DIR", help=f"Also write {MARKDOWN_FILE} and {JSON_FILE} to DIR.")
]
_Fault = Annotated[str | None, typer.Option(help="Fault to inject (cpu device only; see CONTRIBUTING).")]


def probe(
    names: _Names = None, device: _Device = "auto", as_json: _Json = False, out: _Out = None, fault: _Fault = None
) -> None:
    """Determine how the driver runs a batched copy. A finding, even a crash, is not an error."""
    asked = list(dict.fromkeys(names or PROBES))
    for name in asked:
        if name not in PROBES:
            raise UsageError(f"NAME {brief(name)}: not a probe; {hint(name, PROBES)}")
    report = _run(asked, _resolved(device, fault), fault or "")
    text = markdown_of(report)
    data = msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
    typer.echo(data if as_json else text, nl=False)
    if out is not None:
        write_report({MARKDOWN_FILE: text.encode(), JSON_FILE: data.encode()}, out)
    raise typer.Exit(exit_code(report, named=bool(names)))


def exit_code(report: ProbeReport, *, named: bool) -> ExitCode:
    """The exit code: a probe that is off fails the command only if it was named."""
    answers = [result.found for result in (*report.results, report.health)]
    missing = [answer for answer in answers if isinstance(answer, Unanswered)]
    ill = isinstance(report.health.found, ProbeFinding) and not report.health.found.expected
    return ExitCode.FAILED_CELLS if ill or any(named or not answer.off for answer in missing) else ExitCode.DONE


def _resolved(device: str, fault: str | None) -> str:
    """The name of the device; raises UsageError for one that is not there and for an invalid fault."""
    from kvbench.cells.faults import FaultPlan, parse_faults
    from kvbench.engine.device import resolve_device

    device_named(device, ())  # rejects a misspelt name
    resolved, plan = resolve_device(device), parse_faults(fault)
    if plan != FaultPlan() and resolved != "cpu":
        raise UsageError(f"--fault: not supported on {resolved}; use --device cpu")
    return resolved


def _run(names: list[str], device: str, fault: str) -> ProbeReport:
    began_s, results = time.monotonic(), []
    for name in names:
        if sys.stderr.isatty():
            typer.echo(f"{name}: {PROBES[name]}", err=True)
        results.append(run_probe(name, device, fault))
    return ProbeReport(
        kvbench=version_line(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        device=device,
        results=results,
        health=run_probe(HEALTH, device),
        took_s=round(time.monotonic() - began_s, 1),
    )


def markdown_of(report: ProbeReport) -> str:
    from kvbench.report import markdown

    facts = report.health.found.figures if isinstance(report.health.found, ProbeFinding) else {}
    driver = f", driver {facts['driver_version']}" if "driver_version" in facts else ""
    title = markdown.inline(f"{facts.get('title', report.device)}{driver}")
    rows = [list(map(markdown.inline, (result.name, *answer_columns(result)))) for result in report.results]
    parts = [
        f"### kvbench probe: {title}",
        markdown.table(["probe", "answer", "evidence", ""], rows, left=4),
        markdown.bullets(f"{name}: {markdown.inline(text)}" for name, text in _figures(report)),
        markdown.escape(
            f"{report.kvbench}, {report.created}, {report.took_s:g} s. Afterwards: {answer_columns(report.health)[0]}."
        ),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def answer_columns(result: Result) -> tuple[str, str, str]:
    """A result in words: its answer, its evidence, and whether it was expected."""
    outcome = result.found
    if isinstance(outcome, Unanswered):
        return f"{'off' if outcome.off else 'no answer'}: {outcome.reason}", "", ""
    evidence = f"{outcome.of}: {_digits(outcome.number)} {outcome.unit}".strip()
    return outcome.answer, evidence, "expected" if outcome.expected else "surprising"


def _figures(report: ProbeReport) -> Iterator[tuple[str, str]]:
    for result in (*report.results, report.health):
        if isinstance(result.found, ProbeFinding) and result.found.figures:
            figures = result.found.figures.items()
            texts = (f"{name} {_digits(value) if isinstance(value, float) else value}" for name, value in figures)
            yield result.name, ", ".join(texts)


def _digits(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 9999.5 else f"{value:.0f}"
