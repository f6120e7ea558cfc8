"""`kvbench gate`: rules about one run, and two builds compared."""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import typer.core

from kvbench.cli import gate_measure
from kvbench.cli.gate_measure import DEFAULT_ROUNDS, DEFAULT_SUITE, AsJson, Plan
from kvbench.cli.gate_output import Destinations, deliver
from kvbench.errors import UsageError, brief

if TYPE_CHECKING:
    from kvbench.gate.judgement import Judgement
    from kvbench.results import Run

gate = typer.Typer(
    name="gate",
    help="Say whether a build is slower, is not, or cannot be told; or whether rules hold.",
    no_args_is_help=True,
)

_AFTER_DASHES: Final = "kvbench.gate.after_dashes"
# They say how to measure, and mean nothing for runs made before.
_MEASURING: Final = ("suite", "axis", "filters", "device", "rounds", "seed", "base_fault", "cand_fault")

_Force = Annotated[bool, typer.Option("--force", help="Compare runs of different machines, and say so.")]
_GitHub = Annotated[bool, typer.Option("--github", help="Write a step summary and annotations for GitHub Actions.")]


class OnInconclusive(StrEnum):
    """What INCONCLUSIVE and CONTAMINATED are for the exit code."""

    PASS = "pass"  # noqa: S105  # no password
    FAIL = "fail"


class _TwoLists(typer.core.TyperCommand):
    """A command whose arguments are two lists around `--`, which the parser itself drops without a trace."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_AFTER_DASHES] = len(args) - args.index("--") - 1 if "--" in args else None
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the sub-app to `app`."""
    gate_measure.register(gate)
    app.add_typer(gate)


@gate.command()
def rules(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)],
    rules_file: Annotated[
        Path | None, typer.Option("--rules", metavar="FILE", help="A TOML file of rules.  [default: kvbench's own]")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="Write gate.json, .xml, .md.")] = None,
    github: _GitHub = False,
    as_json: AsJson = False,
) -> None:
    """Check statements about one run, which hold on any machine of its kind; needs neither GPU nor torch."""
    from kvbench.gate.output.data import rules_data
    from kvbench.gate.output.sheet import sheet_of_rules
    from kvbench.gate.rule_check import check_rules
    from kvbench.gate.rules_file import load_rules, shipped_rules
    from kvbench.results import load_run

    to = Destinations(as_json, out, github)
    to.check()
    wanted = load_rules(rules_file or shipped_rules())
    report = check_rules(load_run(run), wanted)
    deliver(sheet_of_rules(report), rules_data(report), to)
    raise typer.Exit(report.exit_code)


@gate.command(cls=_TwoLists)
def compare(
    ctx: typer.Context,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN_A... -- RUN_B...]",
            help="Runs made before, one a round: the base's, then after -- the candidate's.",
            show_default=False,
        ),
    ] = None,
    base: Annotated[
        str | None, typer.Option(metavar="SIDE", help="Measure this: env:PATH, backend:NAME, or here.")
    ] = None,
    cand: Annotated[str | None, typer.Option(metavar="SIDE", help="... against this.")] = None,
    suite: gate_measure.Suite = DEFAULT_SUITE,
    axis: gate_measure.Axis = None,
    filters: gate_measure.Filters = None,
    device: gate_measure.Device = None,
    rounds: gate_measure.RoundCount = DEFAULT_ROUNDS,
    seed: gate_measure.Seed = None,
    base_fault: Annotated[
        str | None, typer.Option(help="Inject a fault into the base (cpu device only; see CONTRIBUTING).")
    ] = None,
    cand_fault: Annotated[str | None, typer.Option(help="Inject a fault into the candidate.")] = None,
    floor: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A/A floors of the cells, from kvbench gate calibrate.")
    ] = None,
    margin: Annotated[float, typer.Option(min=0.0, max=10.0, help="A smaller change is none (a fraction).")] = 0.03,
    absolute_us: Annotated[float, typer.Option(min=0.0, help="A change of fewer microseconds is none.")] = 2.0,
    control_margin: Annotated[
        float, typer.Option(min=0.0, max=10.0, help="Where plain large copies move more, nothing is judged.")
    ] = 0.02,
    inconclusive: Annotated[
        OnInconclusive, typer.Option(help="Whether INCONCLUSIVE and CONTAMINATED pass.")
    ] = OnInconclusive.FAIL,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="The folder for gate.json, .xml, .md, and all runs."),
    ] = None,
    force: _Force = False,
    github: _GitHub = False,
    as_json: AsJson = False,
) -> None:
    """Compare two builds: slower, not slower, or cannot tell. Exit code 0, 1 or 3; 4 mismatch, 5 failed cells."""
    from kvbench.gate.output.data import judgement_data
    from kvbench.gate.output.sheet import sheet_of_judgement

    to = Destinations(as_json, out, github)
    to.check()
    judge = _judge(floor, (margin, absolute_us, control_margin), force)
    if base is not None or cand is not None:
        if base is None or cand is None or runs:
            raise UsageError("--base and --cand go together, without runs made before")
        plan = Plan(suite, axis or (), filters or (), device, rounds, seed, base_fault, cand_fault, out, force, as_json)
        judgement, folder = gate_measure.measured(base, cand, plan, judge)
        to = replace(to, folder=folder)
    else:
        told = [name for name in _MEASURING if _was_given(ctx, name)]
        if told:
            raise UsageError(f"--{told[0].replace('_', '-')} says how to measure: it goes with --base and --cand")
        judgement = judge(*_made_before(runs or [], ctx.meta[_AFTER_DASHES]))
    code = judgement.exit_code(inconclusive_passes=inconclusive is OnInconclusive.PASS)
    deliver(sheet_of_judgement(judgement), judgement_data(judgement, code), to)
    raise typer.Exit(code)


def _was_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _judge(floor: Path | None, margins: tuple[float, float, float], force: bool) -> gate_measure.Judge:
    """Return a function that judges two lists of runs with these options; raises UsageError for unreadable floors."""
    from kvbench.gate.floors import check_floors, read_floors
    from kvbench.gate.judge import judge
    from kvbench.gate.judgement import Margins

    file = read_floors(floor) if floor is not None else None

    def judged(base: "Sequence[Run]", cand: "Sequence[Run]", notes: Sequence[str]) -> "Judgement":
        about = check_floors(file, base, forced=force) if file is not None and base else []
        floors = file.floors if file is not None else None
        return judge(base, cand, floors=floors, margins=Margins(*margins), forced=force, notes=[*notes, *about])

    return judged


def _made_before(paths: list[Path], after_dashes: int | None) -> tuple["Sequence[Run]", "Sequence[Run]", list[str]]:
    """Return both sides' rounds, paired, and what there is to know of them. Raises UsageError and RunDirectoryError."""
    from kvbench.gate.pairing import aligned, rounds_of
    from kvbench.results import load_run

    if after_dashes is None or not 0 < after_dashes < len(paths):
        raise UsageError(
            "name what is compared: RUN_A... -- RUN_B... (-- stands between the runs of the base and those of the "
            "candidate), or --base and --cand"
        )
    late = next((path for path in paths[-after_dashes:] if str(path).startswith("-")), None)
    if late is not None:
        raise UsageError(f"{brief(str(late))} stands after --, where only runs stand: put options before the runs")
    runs = [rounds_of(load_run(path)) for path in paths]
    base, cand = ([part for parts in side for part in parts] for side in (runs[:-after_dashes], runs[-after_dashes:]))
    renamed, notes = aligned(base, cand)
    return base, renamed, notes
