"""`kvbench gate compare --base --cand` as far as it measures, and `kvbench gate calibrate`."""

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kvbench.cli.sweep import default_folder, terminate
from kvbench.errors import ExitCode, KvbenchError, UsageError

if TYPE_CHECKING:
    from kvbench.gate.comparison import Rounds
    from kvbench.gate.judgement import Judgement
    from kvbench.gate.sides import Side
    from kvbench.results import Run

DEFAULT_SUITE: Final = "gate-suite"
DEFAULT_ROUNDS: Final = 8
DEFAULT_CONTROLS: Final = 6
MAX_ROUNDS: Final = 100

Judge = Callable[["Sequence[Run]", "Sequence[Run]", Sequence[str]], "Judgement"]

Suite = Annotated[str, typer.Option(help="What is measured: a config's name or a TOML file.")]
Axis = Annotated[
    list[str] | None, typer.Option("--axis", "-a", metavar="NAME=VALUES", help="Set an axis of the suite. Repeatable.")
]
Filters = Annotated[
    list[str] | None,
    typer.Option("--filter", "-f", metavar="CONDITIONS", help="Keep cells of the suite that meet all."),
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.  [default: the suite's]")]
RoundCount = Annotated[int, typer.Option("--rounds", min=1, max=MAX_ROUNDS, help="Rounds, each a process a side.")]
Seed = Annotated[int | None, typer.Option(help="Decides bytes, places and order.  [default: the suite's]")]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="The folder to make for all runs.  [default: runs/gate-TIME]")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; progress goes to stderr.")]


@dataclass(frozen=True)
class Plan:
    """The options of a measured comparison, as they were given."""

    suite: str = DEFAULT_SUITE
    axis: Sequence[str] = ()
    filters: Sequence[str] = ()
    device: str | None = None
    rounds: int = DEFAULT_ROUNDS
    seed: int | None = None
    base_fault: str | None = None
    cand_fault: str | None = None
    out: Path | None = None
    force: bool = False
    as_json: bool = False


def register(gate: typer.Typer) -> None:
    """Add `calibrate` to the sub-app `gate`."""
    gate.command()(calibrate)


def measured(base: str, cand: str, plan: Plan, judge: Judge) -> tuple["Judgement", Path]:
    """Measure `--base` against `--cand` and judge; return the judgement and the folder that everything is in.

    Raises KvbenchError, and typer.Exit after Ctrl-C.
    """
    from kvbench.gate.comparison import compare
    from kvbench.gate.pairing import aligned
    from kvbench.gate.sides import parse_sides

    rounds, notes = _prepare(parse_sides(base, cand), plan)

    def judged(ours: "Sequence[Run]", theirs: "Sequence[Run]") -> "Judgement":
        renamed, about = aligned(ours, theirs)
        return judge(ours, renamed, [*notes, *about])

    with _interruptible(rounds):
        return compare(rounds, plan.rounds, judged), rounds.folder


def calibrate(
    side: Annotated[str, typer.Option(help="What is measured against itself: here, or env:PATH.")] = "here",
    suite: Suite = DEFAULT_SUITE,
    axis: Axis = None,
    filters: Filters = None,
    device: Device = None,
    rounds: RoundCount = DEFAULT_ROUNDS,
    seed: Seed = None,
    out: Out = None,
    floor: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file to write.  [default: floor.json beside the runs]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write floors of a disturbed machine too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure one build against itself: how far each cell moves when nothing changed, for `compare --floor`."""
    from kvbench.gate.floors import FLOOR_FILE, floors_of, write_floors
    from kvbench.gate.judge import judge
    from kvbench.gate.judgement import Status
    from kvbench.gate.sides import parse_side

    plan = Plan(suite, axis or (), filters or (), device, rounds, seed, out=out, force=force, as_json=as_json)
    chosen = parse_side("--side", side)
    measured_rounds, notes = _prepare((chosen, chosen), plan)
    with _interruptible(measured_rounds):
        measured_rounds.measure(rounds)
    judgement = judge(measured_rounds.base, measured_rounds.cand, forced=force, notes=notes)
    if judgement.status is Status.FAILED:
        raise _FailedCellsError(f"cells failed; no floors are written: {measured_rounds.folder}")
    if judgement.status is Status.CONTAMINATED and not force:
        raise _DisturbedError(
            "the control copies moved, so something else uses this machine and its floors would hide regressions; "
            "nothing is written (--force writes them)"
        )
    file = floors_of(judgement, measured_rounds.base[0])
    path = floor or measured_rounds.folder / FLOOR_FILE
    write_floors(path, file)
    values = sorted(file.floors.values())
    summary = {"floor": str(path), "cells": len(values), "median": median(values), "largest": values[-1]}
    line = (
        f"floors of {len(values)} cells: half of them up to {median(values):.1%}, the largest {values[-1]:.1%}: {path}"
    )
    typer.echo(json.dumps(summary) if as_json else line)


class _FailedCellsError(KvbenchError):
    exit_code = ExitCode.FAILED_CELLS


class _DisturbedError(KvbenchError):
    exit_code = ExitCode.INCONCLUSIVE


@contextmanager
def _interruptible(rounds: "Rounds") -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into exit code 130 and a line that says how to judge what is there."""
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt:
        done, runs = len(rounds.base), rounds.runs_folder
        how = f"kvbench gate compare {runs}/*-a -- {runs}/*-b judges them" if done else "no round is whole yet"
        typer.echo(f"interrupted after {done} rounds; everything measured is kept; {how}", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _prepare(sides: "tuple[Side, Side]", plan: Plan) -> tuple["Rounds", list[str]]:
    """Check sides and suite, make the folder; return the rounds to measure and remarks on the sides."""
    from kvbench.cli.gate_progress import TurnLines
    from kvbench.gate.comparison import Contest, Rounds, check
    from kvbench.gate.schedule import A, B
    from kvbench.gate.sides import remarks
    from kvbench.gate.turn import Suite
    from kvbench.sweep.config import find_config, load_config
    from kvbench.sweep.spec import parse_assignments

    base, cand = sides
    config = find_config(plan.suite).absolute()
    settings = parse_assignments(plan.axis)
    spec = load_config(config).with_axes(settings).with_filters(plan.filters)
    if base.backend is not None and "backend" in settings:
        raise UsageError("-a backend=...: the sides name the backends; leave it out")
    spec = spec.with_options(device=plan.device, seed=plan.seed)
    suite = Suite(
        config=config,
        assignments=tuple(plan.axis),
        filters=tuple(plan.filters),
        device=spec.device,
        controls=spec.sampling.controls or DEFAULT_CONTROLS,
    )
    lines = TurnLines(sys.stderr if plan.as_json else sys.stdout)
    faults = {A: plan.base_fault, B: plan.cand_fault}
    ready = check(Contest({A: base, B: cand}, suite, faults, spec.seed, plan.force))
    notes = remarks(sides, (ready.builds[A], ready.builds[B]))
    for note in notes:
        lines.say(f"note: {note}")
    return Rounds(ready, plan.out or default_folder("gate"), lines), notes
