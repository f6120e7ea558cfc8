"""`kvbench gate`: check rules about one run, and compare two builds or backends."""

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import typer

from kvbench.analysis.margins import GATE
from kvbench.cli.options import NO_OPTIONS, Fault, FromStruct, fraction_of, with_struct_options
from kvbench.cli.sweep import Axis, Filters, default_folder, end_on_signals
from kvbench.ground.errors import ExitCode, UsageError
from kvbench.ground.text import convert, folded

if TYPE_CHECKING:
    from kvbench.gate.judgement import Judgement
    from kvbench.gate.side_by_side import Side
    from kvbench.sweep.spec import SweepSpec

DEFAULT_SUITE: Final = "gate-suite"
DEFAULT_MINUTES: Final = 1.0

gate = typer.Typer(
    name="gate", help="Compare two builds or backends, or check rules about one run.", no_args_is_help=True
)


class Measuring(msgspec.Struct, frozen=True, kw_only=True):
    """How two sides are measured. Each field is an option of `kvbench gate compare`."""

    # fmt: off
    suite: Annotated[str, msgspec.Meta(
        description=f"name of a config, or a TOML file (default: {DEFAULT_SUITE})")] = DEFAULT_SUITE
    device: Annotated[str | None, msgspec.Meta(
        description="device: auto, cpu, cuda or cuda:N (default: the suite's)")] = None
    minutes: Annotated[float, msgspec.Meta(ge=0.01, le=1440,
        description=f"time limit of everything in minutes (default: {DEFAULT_MINUTES:g})")] = DEFAULT_MINUTES
    margin: Annotated[str, msgspec.Meta(
        description=f"ignore changes below this, 3% or 0.03 (default: {GATE.fraction:.0%})")] = f"{GATE.fraction:.0%}"
    seed: Annotated[int | None, msgspec.Meta(
        description="seed of contents, placement and visit order (default: the suite's)")] = None
    # fmt: on
    base_fault: Fault = None
    cand_fault: Fault = None


_Side = Annotated[str | None, typer.Option(metavar="SIDE", help="Side to measure: env:PATH, backend:NAME, or here.")]
_GitHub = Annotated[bool, typer.Option("--github", help="Write a step summary for GitHub Actions.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; progress goes to stderr.")]


@gate.command()
def rules(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory to check.", show_default=False)],
    rules_file: Annotated[
        Path | None, typer.Option("--rules", metavar="FILE", help="TOML file of rules (default: kvbench's own).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Directory for gate.json and gate.md.")
    ] = None,
    github: _GitHub = False,
    as_json: _AsJson = False,
) -> None:
    """Check rules about one run. Needs no GPU and no torch."""
    from kvbench.gate.outputs import Destinations, data_of, sheet_of_rules
    from kvbench.gate.rules import check_rules, load_rules, shipped_rules
    from kvbench.results import load_run

    to = Destinations(as_json, out, github)
    wanted = load_rules(rules_file or shipped_rules())
    report = check_rules(load_run(run), wanted)
    to.deliver(sheet_of_rules(report), data_of(report))
    raise typer.Exit(report.exit_code)


@gate.command(context_settings={"allow_extra_args": True})
@with_struct_options
def compare(
    ctx: typer.Context,
    base: _Side = None,
    cand: _Side = None,
    axis: Axis = None,
    filters: Filters = None,
    measuring: Annotated[Mapping[str, Any], FromStruct(Measuring)] = NO_OPTIONS,
    inconclusive: Annotated[
        Literal["pass", "fail"], typer.Option(help="Let UNDECIDED and CONTAMINATED pass with a warning, or fail.")
    ] = "pass",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Directory for gate.json, gate.md and both runs.")
    ] = None,
    github: _GitHub = False,
    as_json: _AsJson = False,
) -> None:
    """Measure two builds in turn. Exit codes: 0 not slower, 1 slower, 3 unconfirmed, 4 unlike machines, 5 failed."""
    from kvbench.cells.faults import parse_faults
    from kvbench.gate.outputs import Destinations, data_of, sheet_of_judgement
    from kvbench.gate.side_by_side import parse_side

    if ctx.args:
        runs = shlex.join(ctx.args)
        raise UsageError(f"gate compare measures both sides itself; to compare runs: kvbench report {runs}")
    if base is None or cand is None:
        raise UsageError("--base and --cand: give both: env:PATH, backend:NAME or here")
    how: Measuring = convert(measuring, Measuring)
    began_s = time.monotonic()
    margin = fraction_of("--margin", how.margin)
    for option, fault in (("--base-fault", how.base_fault), ("--cand-fault", how.cand_fault)):
        parse_faults(fault, option)
    folder = out or default_folder("gate")
    to = Destinations(as_json, folder, github)
    sides = parse_side("--base", base, how.base_fault), parse_side("--cand", cand, how.cand_fault)
    spec, deadline_s = _suite(how, axis, filters, sides[0]), began_s + 60 * how.minutes
    judgement = _measured(sides, spec, folder, margin, deadline_s, as_json=as_json)
    passes = inconclusive == "pass" and judgement.may_pass
    data = msgspec.structs.replace(data_of(judgement), **({"exit_code": ExitCode.DONE.value} if passes else {}))
    command = shlex.join(["kvbench", *sys.argv[1:]])
    to.deliver(sheet_of_judgement(judgement, time.monotonic() - began_s, command), data)
    raise typer.Exit(data.exit_code)


def _suite(how: Measuring, axis: list[str] | None, filters: list[str] | None, side: "Side") -> "SweepSpec":
    """The sweep of each side; raises UsageError, also if both `side` and the axes name a backend."""
    from kvbench.sweep.spec import find_config, load_config, parse_assignments

    settings = parse_assignments(axis or [])
    if side.backend is not None and "backend" in settings:
        raise UsageError("-a backend=...: the sides set the backends; leave it out")
    spec = load_config(find_config(how.suite)).with_axes(settings).with_filters(filters or [])
    spec = spec.with_options(device=how.device, seed=how.seed)
    return spec.with_sampling({"rounds": 1})


def _measured(
    sides: "tuple[Side, Side]", spec: "SweepSpec", folder: Path, margin: float, deadline_s: float, *, as_json: bool
) -> "Judgement":
    """Compare both sides, and record how their runs ended; an interrupt gives exit code 130, and all data is kept."""
    from kvbench.gate.side_by_side import opened
    from kvbench.run.execution import ended_by

    def say(line: str) -> None:
        stream = sys.stderr if as_json else sys.stdout
        print(folded(line, terminal=stream.isatty()), file=stream, flush=True)

    end_on_signals()
    kept = ""
    try:
        with opened(*sides, spec, folder, say) as both:
            made = shlex.join([f"{folder}/base", f"{folder}/cand"])
            kept = f"; everything measured is kept; to compare it: kvbench report {made}"
            return both.compare(margin, deadline_s)
    except KeyboardInterrupt as stop:
        _, reason = ended_by(stop)
        typer.echo(f"{reason}{kept}", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
