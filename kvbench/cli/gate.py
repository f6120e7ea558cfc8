"""`kvbench gate`: check rules about one run, compare two builds, and measure how far a build differs from itself."""

import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
import typer.core

from kvbench.cli.options import NO_OPTIONS, Command, FromStruct, Group, with_struct_options
from kvbench.cli.sweep import Axis, Filters, default_folder, terminated
from kvbench.errors import ExitCode, KvbenchError, UsageError, brief
from kvbench.gate.judgement import Margins
from kvbench.text import convert, counted, printable

if TYPE_CHECKING:
    from kvbench.gate.side_by_side import SideBySide
    from kvbench.gate.sides import Side
    from kvbench.results import Run
    from kvbench.sweep.spec import SweepSpec

DEFAULT_SUITE: Final = "gate-suite"
DEFAULT_CONTROLS: Final = 2
DEFAULT_MINUTES: Final = 1.8
_AFTER_DASHES: Final = "kvbench.gate.after_dashes"

gate = typer.Typer(
    cls=Group,
    name="gate",
    help="Compare two builds or backends, or check rules about one run.",
    no_args_is_help=True,
)


class OnInconclusive(StrEnum):
    """How UNDECIDED and CONTAMINATED affect the exit code."""

    PASS = "pass"  # noqa: S105  # no password
    FAIL = "fail"


class _TwoLists(Command):
    """A command whose arguments are two lists separated by `--`, which the parser itself drops."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_AFTER_DASHES] = len(args) - args.index("--") - 1 if "--" in args else None
        return super().parse_args(ctx, args)


class Measuring(msgspec.Struct, frozen=True, kw_only=True):
    """How two sides are measured. Each field is an option of the commands that measure."""

    suite: Annotated[str, msgspec.Meta(description=f"name of a config, or a TOML file (default: {DEFAULT_SUITE})")] = (
        DEFAULT_SUITE
    )
    device: Annotated[
        str | None, msgspec.Meta(description="device: auto, cpu, cuda or cuda:N (default: the suite's)")
    ] = None
    minutes: Annotated[
        float,
        msgspec.Meta(
            ge=0.01, le=1440, description=f"time limit in minutes, start-up included (default: {DEFAULT_MINUTES})"
        ),
    ] = DEFAULT_MINUTES
    seed: Annotated[
        int | None, msgspec.Meta(description="seed of contents, placement and visit order (default: the suite's)")
    ] = None
    base_fault: Annotated[
        str | None, msgspec.Meta(description="fault to inject into the base (cpu device only; see CONTRIBUTING)")
    ] = None
    cand_fault: Annotated[
        str | None, msgspec.Meta(description="fault to inject into the candidate (cpu device only)")
    ] = None


_Side = Annotated[str | None, typer.Option(metavar="SIDE", help="Side to measure: env:PATH, backend:NAME, or here.")]
_Measuring = Annotated[Mapping[str, Any], FromStruct(Measuring)]
_GitHub = Annotated[bool, typer.Option("--github", help="Write a step summary and annotations for GitHub Actions.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; progress goes to stderr.")]
_Runs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[RUN_A... -- RUN_B...]",
        help="Existing runs to compare: runs of the base, --, runs of the candidate.",
        show_default=False,
    ),
]


@gate.command(cls=Command)
def rules(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory to check.", show_default=False)],
    rules_file: Annotated[
        Path | None, typer.Option("--rules", metavar="FILE", help="TOML file of rules (default: kvbench's own).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Directory for gate.json, gate.xml and gate.md.")
    ] = None,
    github: _GitHub = False,
    as_json: _AsJson = False,
) -> None:
    """Check rules about one run. Needs no GPU and no torch."""
    from kvbench.gate.output.deliver import Destinations
    from kvbench.gate.output.formats import rules_data
    from kvbench.gate.output.sheet import sheet_of_rules
    from kvbench.gate.rules import check_rules, load_rules, shipped_rules
    from kvbench.results import load_run

    to = Destinations(as_json, out, github)
    wanted = load_rules(rules_file or shipped_rules())
    report = check_rules(load_run(run), wanted)
    to.deliver(sheet_of_rules(report), rules_data(report))
    raise typer.Exit(report.verdict.exit_code)


@gate.command(cls=_TwoLists)
@with_struct_options
def compare(
    ctx: typer.Context,
    runs: _Runs = None,
    base: _Side = None,
    cand: _Side = None,
    axis: Axis = None,
    filters: Filters = None,
    measuring: _Measuring = NO_OPTIONS,
    floor: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A/A floors of the cells, written by kvbench gate calibrate.")
    ] = None,
    margins: Annotated[Mapping[str, Any], FromStruct(Margins)] = NO_OPTIONS,
    inconclusive: Annotated[
        OnInconclusive, typer.Option(help="Let UNDECIDED and CONTAMINATED pass or fail.")
    ] = OnInconclusive.FAIL,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Directory for gate.json, gate.xml, gate.md and all runs."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Compare runs of different machines, with a warning.")] = False,
    github: _GitHub = False,
    as_json: _AsJson = False,
) -> None:
    """Compare two builds. Exit codes: 0 not slower, 1 slower, 3 inconclusive, 4 mismatch, 5 failed cells."""
    from kvbench.engine.faults import parse_faults
    from kvbench.gate.floors import read_floors
    from kvbench.gate.judge import Judge
    from kvbench.gate.output.deliver import Destinations
    from kvbench.gate.output.formats import judgement_data
    from kvbench.gate.output.sheet import sheet_of_judgement
    from kvbench.gate.sides import parse_side

    to = Destinations(as_json, out, github)
    floors = read_floors(floor) if floor is not None else None
    judge = Judge(convert(margins, Margins), floors, force)
    if base is None and cand is None:
        given = {**measuring, **({"axis": axis} if axis else {}), **({"filter": filters} if filters else {})}
        for name in given:
            raise UsageError(f"--{name.replace('_', '-')}: requires --base and --cand")
        judgement = judge.judge(*_made_before(runs or [], ctx.meta[_AFTER_DASHES]))
    else:
        if base is None or cand is None or runs:
            raise UsageError("--base and --cand: give both, without existing runs")
        how: Measuring = convert(measuring, Measuring)
        deadline_s = time.monotonic() + 60 * how.minutes
        for option, fault in (("--base-fault", how.base_fault), ("--cand-fault", how.cand_fault)):
            parse_faults(fault, option)
        sides = parse_side("--base", base, how.base_fault), parse_side("--cand", cand, how.cand_fault)
        folder = out or default_folder("gate")
        to = Destinations(as_json, folder, github)
        with _measured(sides, _suite(how, axis, filters, sides[0]), folder, as_json=as_json, forced=force) as both:
            judgement = both.compare(judge, deadline_s)
    code = judgement.exit_code(inconclusive_passes=inconclusive is OnInconclusive.PASS)
    to.deliver(sheet_of_judgement(judgement, shlex.join(["kvbench", *sys.argv[1:]])), judgement_data(judgement, code))
    raise typer.Exit(code)


@gate.command(cls=Command)
@with_struct_options
def calibrate(
    side: Annotated[str, typer.Option(help="Side to measure against itself: here, or env:PATH.")] = "here",
    axis: Axis = None,
    filters: Filters = None,
    measuring: Annotated[Mapping[str, Any], FromStruct(Measuring, ("base_fault", "cand_fault"))] = NO_OPTIONS,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Directory to create for all runs (default: runs/gate-TIME).")
    ] = None,
    floor: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write (default: floor.json in --out).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write the floors even if the machine was disturbed.")] = False,
    as_json: _AsJson = False,
) -> None:
    """Measure the noise floor of each cell: compare one build with itself, for compare --floor."""
    from kvbench.gate.floors import FLOOR_FILE, check_target, floors_of, write_floors
    from kvbench.gate.judge import Judge
    from kvbench.gate.judgement import GateVerdict
    from kvbench.gate.looks import ONCE, PLAN
    from kvbench.gate.sides import parse_side

    how: Measuring = convert(measuring, Measuring)
    deadline_s = time.monotonic() + 60 * how.minutes
    if floor is not None:
        check_target(floor)
    chosen = parse_side("--side", side)
    folder = out or default_folder("gate")
    asked = _suite(how, axis, filters, chosen)
    with _measured((chosen, chosen), asked, folder, as_json=as_json, forced=force) as both:
        both.measure(PLAN[-1].pairs, deadline_s)
        ours, theirs = both.runs()
        judgement = Judge(forced=force, looks=ONCE).judge([ours], [theirs])
    if judgement.verdict is GateVerdict.FAILED:
        raise _FailedCellsError(f"no floors are written, because cells failed: {folder}")
    if judgement.verdict is GateVerdict.CONTAMINATED and not force:
        raise _DisturbedError(
            "no floors are written, because the control copies moved: something else uses this machine, and its floors "
            "would hide regressions; to write them anyway, add --force"
        )
    file = floors_of(judgement, ours)
    path = floor or folder / FLOOR_FILE
    for target in dict.fromkeys((folder / FLOOR_FILE, path)):
        write_floors(target, file)
    cells, middle, largest = len(file.floors), median(file.floors.values()), max(file.floors.values())
    every = sum(row.kind == "cell" for row in judgement.rows)
    if as_json:
        summary = {"floor": str(path), "cells": cells, "of": every, "median": middle, "largest": largest}
        typer.echo(json.dumps(summary))
        return
    typer.echo(f"floors of {cells} of {counted(every, 'cell')}: median {middle:.1%}, maximum {largest:.1%}: {path}")
    if cells < every:
        typer.echo("the others have too few rounds for a floor: use more --minutes")


class _FailedCellsError(KvbenchError):
    exit_code = ExitCode.FAILED_CELLS


class _DisturbedError(KvbenchError):
    exit_code = ExitCode.INCONCLUSIVE


def _made_before(paths: list[Path], after_dashes: int | None) -> tuple["Sequence[Run]", "Sequence[Run]"]:
    """Return both sides' rounds. Raises UsageError and RunDirectoryError."""
    from kvbench.gate.partners import check_two
    from kvbench.results import load_run

    if after_dashes is None or not 0 < after_dashes < len(paths):
        raise UsageError(
            "nothing to compare: write RUN_A... -- RUN_B... (the runs of the base, --, the runs of the candidate), or "
            "--base and --cand"
        )
    late = next((path for path in paths[-after_dashes:] if str(path).startswith("-")), None)
    if late is not None:
        raise UsageError(f"{brief(str(late))}: only runs can follow --; put options before the runs")
    runs = [load_run(path) for path in paths]
    base, cand = runs[:-after_dashes], runs[-after_dashes:]
    check_two(base, cand)
    return base, cand


def _suite(how: Measuring, axis: list[str] | None, filters: list[str] | None, side: "Side") -> "SweepSpec":
    """Return the sweep of each side; raises UsageError, also if both `side` and the axes name a backend."""
    from kvbench.sweep.config import find_config, load_config
    from kvbench.sweep.spec import parse_assignments

    settings = parse_assignments(axis or [])
    if side.backend is not None and "backend" in settings:
        raise UsageError("-a backend=...: the sides set the backends; leave it out")
    spec = load_config(find_config(how.suite)).with_axes(settings).with_filters(filters or [])
    spec = spec.with_options(device=how.device, seed=how.seed)
    return spec.with_sampling({"rounds": 1, "controls": spec.sampling.controls or DEFAULT_CONTROLS})


@contextmanager
def _measured(
    sides: "tuple[Side, Side]", spec: "SweepSpec", folder: Path, *, as_json: bool, forced: bool
) -> Iterator["SideBySide"]:
    """Open both sides, and record how their runs ended; Ctrl-C and SIGTERM give exit code 130 and keep all data."""
    from kvbench.gate.side_by_side import opened
    from kvbench.run.execution import ended_by

    def say(line: str) -> None:
        print(printable(line), file=sys.stderr if as_json else sys.stdout, flush=True)

    signal.signal(signal.SIGTERM, terminated)
    kept = ""
    try:
        with opened(*sides, spec, folder, say, forced=forced) as both:
            made = shlex.quote(f"{folder}/base"), shlex.quote(f"{folder}/cand")
            kept = f"; everything measured is kept; to judge it: kvbench gate compare {' -- '.join(made)}"
            yield both
    except KeyboardInterrupt as stop:
        _, reason = ended_by(stop)
        typer.echo(f"{reason}{kept}", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
