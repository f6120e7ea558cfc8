"""`kvbench tune`: measure what decides which backend to use, or which settings of an engine to change."""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvbench.cli.options import NO_OPTIONS, FromStruct, with_struct_options
from kvbench.cli.show import (
    Allowed,
    Asked,
    Force,
    Geometry,
    Json,
    Limits,
    Models,
    Output,
    PolicyFile,
    Prefill,
    load_all,
    prefill_of,
    show_answer,
)
from kvbench.cli.sweep import Axis, WhereOptions, default_folder, end_on_signals
from kvbench.ground.errors import ExitCode, UsageError, brief
from kvbench.ground.text import convert
from kvbench.models.presets import ModelChoice

if TYPE_CHECKING:
    from kvbench.results import Run
    from kvbench.sweep.spec import SweepSpec

EPILOG: Final = "See also: kvbench show RUN, which prints the answer of finished runs, and kvbench tune engine NAME."

_Where = Annotated[Mapping[str, Any], FromStruct(WhereOptions, panel="Device")]
_Out = Annotated[Path | None, typer.Option("--out", "-o", help="Run directory to create (default: runs/tune-TIME).")]
_Runs = Annotated[list[Path] | None, typer.Argument(metavar="RUN", help="Finished runs to use instead of measuring.")]


@with_struct_options
def tune(
    model: Models = None,
    geometry: Geometry = NO_OPTIONS,
    allowed: Limits = NO_OPTIONS,
    prefill_tokens_per_second: Prefill = None,
    policy: PolicyFile = None,
    force: Force = False,
    as_json: Json = False,
    out: _Out = None,
    axis: Axis = None,
    where: _Where = NO_OPTIONS,
) -> None:
    """Search for the backends to use on this machine, and print them as kvbench show RUN does."""
    from kvbench.machine.sources import driver_version
    from kvbench.tune.search import search_among, trying_overlap, tuning_sweep

    may: Allowed = convert(allowed, Allowed)
    models: ModelChoice = convert({"models": model or [], **geometry}, ModelChoice)
    prefill = prefill_of(prefill_tokens_per_second, models)
    spec = tuning_sweep(models, axis or [], may.names, by_tokens=bool(prefill)).with_options(**where)
    spec = trying_overlap(spec, driver_version())
    searching = search_among(partial(may.serves if policy else may.keeps, driver_version()), spec)
    runs, code = _measured(spec, out, searching, quiet=as_json)
    output = Output(policy, force=force, as_json=as_json)
    show_answer(runs, Asked().question(models.swaps(), prefill), may, output)
    if code:
        raise typer.Exit(code)


@with_struct_options
def tune_engine(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The engine.", show_default=False)],
    runs: _Runs = None,
    out: _Out = None,
    axis: Axis = None,
    where: _Where = NO_OPTIONS,
) -> None:
    """Print which settings of an engine should change, as a diff of its files, from cells of its own code."""
    from kvbench.cells.installed import engines
    from kvbench.tune.exports import export
    from kvbench.tune.search import engine_sweep

    names = [engine.name for engine in engines().values() if engine.settings]
    if name not in names:
        raise UsageError(f"engine {brief(name)}: not an engine with settings; write {' or '.join(names)}")
    code = ExitCode.DONE
    if runs:
        if out or axis or where:
            raise UsageError("RUN: nothing is measured; leave out --out, --axis and the options of a measurement")
        loaded = load_all(runs)
    else:
        spec = engine_sweep(name, axis or []).with_options(**where)
        _check_engine(name, spec.device)
        loaded, code = _measured(spec, out, quiet=True)
    typer.echo(export(name, loaded).text(), nl=False)
    if code:
        raise typer.Exit(code)


def _measured(
    spec: "SweepSpec", out: Path | None, searching: Callable[..., Any] | None = None, *, quiet: bool
) -> "tuple[list[Run], ExitCode]":
    """Measure, with progress on standard error if `quiet`. An interruption ends the command."""
    from kvbench.cli.progress import make_reporter
    from kvbench.results import load_run
    from kvbench.run.runner import start_sweep

    end_on_signals()
    reporter = make_reporter(as_json=False, file=sys.stderr if quiet else None)
    outcome = start_sweep(spec, out or default_folder("tune"), ["kvbench", *sys.argv[1:]], reporter, searching)
    reporter.finished(outcome)
    if outcome.status == "interrupted":
        raise typer.Exit(outcome.exit_code)
    return [load_run(outcome.path)], outcome.exit_code


def _check_engine(name: str, device: str) -> None:
    """Raise UsageError if the code of an engine cannot run here: without a GPU, or without its package."""
    from kvbench.backends.base import facts_of
    from kvbench.cells.facts import DeviceFacts, device_named
    from kvbench.cells.installed import engines
    from kvbench.machine.sources import driver_version
    from kvbench.run.runner import inspect

    engine = engines()[name]
    gpu = DeviceFacts("cuda:0", "cuda", "a GPU", None, 0, 0, None)
    reasons = [why for backend in engine.backends if (why := facts_of(backend, gpu).unavailable)]
    if len(reasons) == len(engine.backends):
        raise UsageError(f"engine {name}: {reasons[0]}; install it beside kvbench, and see kvbench doctor --engines")
    # A worker, which names the devices, takes seconds to start.
    if not driver_version() or device_named(device, inspect().devices) == "cpu":
        raise UsageError(f"engine {name}: its code needs a GPU, and this machine shows none; see kvbench doctor")
