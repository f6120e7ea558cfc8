"""`kvbench gate`: rules about one run, two builds compared, and how far a build differs from itself."""

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import typer.core

from kvbench.cli.sweep import Axis, Filters, default_folder
from kvbench.errors import ExitCode, KvbenchError, UsageError, brief
from kvbench.text import printable

if TYPE_CHECKING:
    from kvbench.gate.rounds import Rounds, Say
    from kvbench.gate.sides import Side
    from kvbench.gate.turns import Suite
    from kvbench.results import Run

DEFAULT_SUITE: Final = "gate-suite"
DEFAULT_ROUNDS: Final = 8
DEFAULT_CONTROLS: Final = 6
_AFTER_DASHES: Final = "kvbench.gate.after_dashes"
# They say how to measure, and mean nothing for runs made before.
_MEASURING: Final = ("suite", "axis", "filters", "device", "rounds", "seed", "base_fault", "cand_fault")

gate = typer.Typer(
    name="gate",
    help="Say whether a build is slower, is not, or cannot be told; or whether rules hold.",
    no_args_is_help=True,
)


class OnInconclusive(StrEnum):
    """What INCONCLUSIVE and CONTAMINATED are for the exit code."""

    PASS = "pass"  # noqa: S105  # no password
    FAIL = "fail"


class _TwoLists(typer.core.TyperCommand):
    """A command whose arguments are two lists around `--`, which the parser itself drops without a trace."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_AFTER_DASHES] = len(args) - args.index("--") - 1 if "--" in args else None
        return super().parse_args(ctx, args)


_Suite = Annotated[str, typer.Option(help="What is measured: a config's name or a TOML file.")]
_Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.  [default: the suite's]")]
_RoundCount = Annotated[int, typer.Option("--rounds", min=1, max=100, help="Rounds, each a process a side.")]
_Seed = Annotated[int | None, typer.Option(help="Decides bytes, places and order.  [default: the suite's]")]
_Fault = Annotated[str | None, typer.Option(help="Inject a fault into this side (cpu device only; see CONTRIBUTING).")]
_Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="DIR", help="The folder for gate.json, .xml, .md, and all runs.")
]
_Side = Annotated[str | None, typer.Option(metavar="SIDE", help="A side to measure: env:PATH, backend:NAME, or here.")]
_ControlMargin = Annotated[
    float, typer.Option(min=0.0, max=10.0, help="Where plain large copies move more, nothing is judged.")
]
_Inconclusive = Annotated[OnInconclusive, typer.Option(help="Whether INCONCLUSIVE and CONTAMINATED pass.")]
_Floor = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A/A floors of the cells, from kvbench gate calibrate.")
]
_GitHub = Annotated[bool, typer.Option("--github", help="Write a step summary and annotations for GitHub Actions.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; progress goes to stderr.")]
_Runs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[RUN_A... -- RUN_B...]",
        help="Runs made before, one a round: the base's, then after -- the candidate's.",
        show_default=False,
    ),
]


@gate.command()
def rules(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)],
    rules_file: Annotated[
        Path | None, typer.Option("--rules", metavar="FILE", help="A TOML file of rules.  [default: kvbench's own]")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="Write gate.json, .xml, .md.")] = None,
    github: _GitHub = False,
    as_json: _AsJson = False,
) -> None:
    """Check statements about one run, which hold on any machine of its kind; needs neither GPU nor torch."""
    from kvbench.gate.output.deliver import Destinations
    from kvbench.gate.output.formats import rules_data
    from kvbench.gate.output.sheet import sheet_of_rules
    from kvbench.gate.rule_check import check_rules
    from kvbench.gate.rules import load_rules, shipped_rules
    from kvbench.results import load_run

    to = Destinations(as_json, out, github)
    wanted = load_rules(rules_file or shipped_rules())
    report = check_rules(load_run(run), wanted)
    to.deliver(sheet_of_rules(report), rules_data(report))
    raise typer.Exit(report.exit_code)


@gate.command(cls=_TwoLists)
def compare(
    ctx: typer.Context,
    runs: _Runs = None,
    base: _Side = None,
    cand: _Side = None,
    suite: _Suite = DEFAULT_SUITE,
    axis: Axis = None,
    filters: Filters = None,
    device: _Device = None,
    rounds: _RoundCount = DEFAULT_ROUNDS,
    seed: _Seed = None,
    base_fault: _Fault = None,
    cand_fault: _Fault = None,
    floor: _Floor = None,
    margin: Annotated[float, typer.Option(min=0.0, max=10.0, help="A smaller change is none (a fraction).")] = 0.03,
    absolute_us: Annotated[float, typer.Option(min=0.0, help="A change of fewer microseconds is none.")] = 2.0,
    control_margin: _ControlMargin = 0.02,
    inconclusive: _Inconclusive = OnInconclusive.FAIL,
    out: _Out = None,
    force: Annotated[bool, typer.Option("--force", help="Compare runs of different machines, and say so.")] = False,
    github: _GitHub = False,
    as_json: _AsJson = False,
) -> None:
    """Compare two builds: slower, not slower, or cannot tell. Exit code 0, 1 or 3; 4 mismatch, 5 failed cells."""
    from kvbench.gate.floors import read_floors
    from kvbench.gate.judge import Judge
    from kvbench.gate.judgement import Margins
    from kvbench.gate.output.deliver import Destinations
    from kvbench.gate.output.formats import judgement_data
    from kvbench.gate.output.sheet import sheet_of_judgement
    from kvbench.gate.rounds import Rounds
    from kvbench.gate.sides import parse_side

    to = Destinations(as_json, out, github)
    floors = read_floors(floor) if floor is not None else None
    judge = Judge(Margins(margin, absolute_us, control_margin), floors, force)
    if base is None and cand is None:
        for name in _MEASURING:
            source = ctx.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                raise UsageError(f"--{name.replace('_', '-')} says how to measure: it goes with --base and --cand")
        judgement = judge.judge(*_made_before(runs or [], ctx.meta[_AFTER_DASHES]))
    else:
        if base is None or cand is None or runs:
            raise UsageError("--base and --cand go together, without runs made before")
        sides = parse_side("--base", base, base_fault), parse_side("--cand", cand, cand_fault)
        asked = _suite(suite, axis, filters, device, seed, sides[0])
        folder = out or default_folder("gate")
        to = Destinations(as_json, folder, github)
        with _interruptible(Rounds(*sides, asked, folder, _say(as_json), forced=force)) as measured:
            judgement = measured.compare(rounds, judge)
    code = judgement.exit_code(inconclusive_passes=inconclusive is OnInconclusive.PASS)
    to.deliver(sheet_of_judgement(judgement), judgement_data(judgement, code))
    raise typer.Exit(code)


@gate.command()
def calibrate(
    side: Annotated[str, typer.Option(help="What is measured against itself: here, or env:PATH.")] = "here",
    suite: _Suite = DEFAULT_SUITE,
    axis: Axis = None,
    filters: Filters = None,
    device: _Device = None,
    rounds: _RoundCount = DEFAULT_ROUNDS,
    seed: _Seed = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder to make for all runs.  [default: runs/gate-TIME]")
    ] = None,
    floor: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file to write.  [default: floor.json beside the runs]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write floors of a disturbed machine too.")] = False,
    as_json: _AsJson = False,
) -> None:
    """Measure one build against itself: how far each cell moves when nothing changed, for `compare --floor`."""
    from kvbench.gate.floors import FLOOR_FILE, floors_of, write_floors
    from kvbench.gate.judge import Judge
    from kvbench.gate.judgement import JudgementStatus
    from kvbench.gate.rounds import Rounds
    from kvbench.gate.sides import parse_side

    chosen = parse_side("--side", side)
    asked = _suite(suite, axis, filters, device, seed, chosen)
    folder = out or default_folder("gate")
    with _interruptible(Rounds(chosen, chosen, asked, folder, _say(as_json), forced=force)) as measured:
        measured.measure(rounds)
    judgement = Judge(forced=force).judge(measured.base, measured.cand, measured.notes)
    if judgement.status is JudgementStatus.FAILED:
        raise _FailedCellsError(f"cells failed; no floors are written: {folder}")
    if judgement.status is JudgementStatus.CONTAMINATED and not force:
        raise _DisturbedError(
            "the control copies moved, so something else uses this machine and its floors would hide regressions; "
            "nothing is written (--force writes them)"
        )
    file = floors_of(judgement, measured.base[0])
    path = floor or folder / FLOOR_FILE
    write_floors(path, file)
    cells, middle, largest = len(file.floors), median(file.floors.values()), max(file.floors.values())
    if as_json:
        typer.echo(json.dumps({"floor": str(path), "cells": cells, "median": middle, "largest": largest}))
    else:
        typer.echo(f"floors of {cells} cells: half of them up to {middle:.1%}, the largest {largest:.1%}: {path}")


class _FailedCellsError(KvbenchError):
    exit_code = ExitCode.FAILED_CELLS


class _DisturbedError(KvbenchError):
    exit_code = ExitCode.INCONCLUSIVE


def _made_before(paths: list[Path], after_dashes: int | None) -> tuple["Sequence[Run]", "Sequence[Run]"]:
    """Return both sides' rounds. Raises UsageError and RunDirectoryError."""
    from kvbench.gate.pairs import rounds_of
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
    return base, cand


def _suite(
    name: str, axis: list[str] | None, filters: list[str] | None, device: str | None, seed: int | None, side: "Side"
) -> "Suite":
    """Return what either side measures; raises UsageError, also where `side` names a backend and the axes do too."""
    from kvbench.gate.turns import Suite
    from kvbench.sweep.config import find_config, load_config
    from kvbench.sweep.spec import parse_assignments

    config = find_config(name).absolute()
    settings = parse_assignments(axis or [])
    if side.backend is not None and "backend" in settings:
        raise UsageError("-a backend=...: the sides name the backends; leave it out")
    spec = load_config(config).with_axes(settings).with_filters(filters or []).with_options(device=device, seed=seed)
    controls = spec.sampling.controls or DEFAULT_CONTROLS
    return Suite(config, tuple(axis or ()), tuple(filters or ()), spec.device, controls, spec.seed)


def _say(as_json: bool) -> "Say":
    return lambda line: print(printable(line), file=sys.stderr if as_json else sys.stdout, flush=True)


@contextmanager
def _interruptible(rounds: "Rounds") -> Iterator["Rounds"]:
    """Turn Ctrl-C and SIGTERM into exit code 130 and a line that says how to judge what is there."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield rounds
    except KeyboardInterrupt:
        done, runs = len(rounds.base), rounds.runs_folder
        how = f"kvbench gate compare {runs}/*-a -- {runs}/*-b judges them" if done else "no round is whole yet"
        typer.echo(f"interrupted after {done} rounds; everything measured is kept; {how}", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
