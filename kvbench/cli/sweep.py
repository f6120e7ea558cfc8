"""`kvbench sweep`: turn options into a spec, run the sweep and show its progress."""

import os
import shlex
import signal
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from kvbench.cells.facts import AUTO
from kvbench.cells.policy import Policy, load_policy
from kvbench.cli.options import NO_OPTIONS, Fault, FromStruct, print_lines, with_struct_options
from kvbench.cli.report import print_asked
from kvbench.ground.errors import UsageError
from kvbench.ground.text import convert
from kvbench.models.geometry import models_of
from kvbench.models.presets import ModelChoice, notes_of, presets
from kvbench.sweep.spec import (
    MOST_SWAPS,
    Sampling,
    SweepSpec,
    find_config,
    load_config,
    parse_assignments,
    shipped_configs,
)

if TYPE_CHECKING:
    from kvbench.cli.progress import JsonReporter, PlainReporter
    from kvbench.run.execution import Observer, SweepEnd

DEFAULT_CONFIG: Final = "quick"
TRACE_SWAPS: Final = 120
MODELS_CONFIG: Final = "models"
POLICY_VARIABLE: Final = "KVBENCH_POLICY"
EPILOG: Final = (
    "Axes take lists and ranges:  -a blocks=16,64,256   -a block_size=1KiB:256KiB:x2   -a sms=1:32:x2   "
    "-a blocks=1000:5000:+1000.   List all axes with: kvbench list axes"
)

Axis = Annotated[
    list[str] | None,
    typer.Option(
        "--axis", "-a", metavar="NAME=VALUES", help="Set the values of an axis: -a block_size=4KiB,16KiB. Repeatable."
    ),
]
Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        "-f",
        metavar="CONDITIONS",
        help="Keep only cells that meet all conditions: 'block_size<=24KiB,sms!=1'. Repeatable.",
    ),
]


def sampling_of(config: str) -> tuple[Mapping[str, object], str]:
    """Return the sampling options of a shipped config, and its name in words."""
    return msgspec.structs.asdict(load_config(find_config(config)).sampling), f"from the config {config}"


class WhereOptions(msgspec.Struct):
    device: Annotated[
        str | None,
        msgspec.Meta(description="device: auto, cpu, cuda or cuda:N; of a sweep also cuda:all or a list, all at once"),
    ] = None
    host_memory: Annotated[str | None, msgspec.Meta(description="limit of pinned host memory: 8GiB")] = None
    device_memory: Annotated[str | None, msgspec.Meta(description="limit of GPU memory: 40GiB")] = None
    seed: Annotated[int | None, msgspec.Meta(description="seed of contents, placement and visit order")] = None
    fault: Fault = None


_Config = Annotated[
    str | None,
    typer.Argument(
        help=f"Name of a config, or a TOML file (default: {DEFAULT_CONFIG}; with --model: {MODELS_CONFIG}).",
        autocompletion=shipped_configs,
    ),
]
_Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",  # typer 0.27 names an option by a metavar of the same letters
        metavar="MODEL",
        help="Measure the swaps of a model: a name (kvbench list models) or a config.json. Repeatable.",
        autocompletion=presets,
    ),
]
_Trace = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Replay the swaps of a trace (kvbench trace make), with their ids.")
]
_TraceSwaps = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, max=MOST_SWAPS, help=f"With --trace: swaps of each direction (default: {TRACE_SWAPS})."
    ),
]
_Out = Annotated[Path | None, typer.Option("--out", "-o", help="Run directory to create (default: runs/CONFIG-TIME).")]
_Resume = Annotated[Path | None, typer.Option(help="Measure the missing cells of this run directory.")]
_Retry = Annotated[bool, typer.Option("--retry-failed", help="With --resume: measure the failed cells again.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the cells, skips, memory and time; measure nothing.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON lines instead of text.")]
_Markdown = Annotated[bool, typer.Option("--markdown", help="Print the table at the end as Markdown.")]
_POLICY_HELP: Final = f"Policy of the backend auto: a policy file or a run directory (default: ${POLICY_VARIABLE})."
_Policy = Annotated[Path | None, typer.Option(help=_POLICY_HELP)]


@with_struct_options
def sweep(
    config: _Config = None,
    axis: Axis = None,
    filters: Filters = None,
    model: _Models = None,
    geometry: Annotated[Mapping[str, Any], FromStruct(ModelChoice, leave_out=("models",), panel="Model")] = NO_OPTIONS,
    trace: _Trace = None,
    trace_swaps: _TraceSwaps = None,
    where: Annotated[Mapping[str, Any], FromStruct(WhereOptions, panel="Device")] = NO_OPTIONS,
    out: _Out = None,
    resume: _Resume = None,
    retry_failed: _Retry = False,
    dry_run: _DryRun = False,
    as_json: _Json = False,
    markdown: _Markdown = False,
    sampling: Annotated[
        Mapping[str, Any], FromStruct(Sampling, panel="Sampling", defaults=partial(sampling_of, DEFAULT_CONFIG))
    ] = NO_OPTIONS,
    policy: _Policy = None,
) -> None:
    """Measure swaps of KV-cache blocks and write a run directory."""
    from kvbench.cli.progress import make_reporter
    from kvbench.run.runner import resume_sweep

    end_on_signals()
    reporter = make_reporter(as_json=as_json)
    choice: ModelChoice = convert({"models": model or [], **geometry}, ModelChoice)

    def asked() -> SweepSpec:
        if trace is None:
            spec = load_config(find_config(config or (MODELS_CONFIG if model else DEFAULT_CONFIG)), choice)
        elif config or choice != ModelChoice():
            raise UsageError(f"--trace {trace}: a trace has its own geometry; leave out the config and --model")
        else:
            spec = SweepSpec("trace", "Which backend makes the swaps of this trace fastest?")
        spec = spec.with_asked_axes(parse_assignments(axis or [])).with_options(**where)
        if trace is not None:
            from kvbench.sweep.swap_file import choose  # imports numpy

            spec = spec.with_trace(choose(trace, trace_swaps or TRACE_SWAPS, spec.seed))
        if not as_json:
            print_lines([*(f"{known.name}: {known.text}" for known in models_of(spec.models)), *notes_of(spec.models)])
        return _with_policy(spec.with_filters(filters or []).with_sampling(sampling), policy)

    if trace_swaps is not None and trace is None:
        raise UsageError(f"--trace-swaps {trace_swaps}: requires --trace FILE")
    if resume is not None:
        if any((config, axis, filters, trace, policy, sampling, where, dry_run, out)) or choice != ModelChoice():
            raise UsageError(f"--resume {resume}: a run goes on as it began: leave out all other options")
        outcomes = [resume_sweep(resume, reporter, retry_failed=retry_failed)]
    elif retry_failed:
        raise UsageError("--retry-failed: requires --resume RUN")
    elif dry_run:
        _preview(asked(), out, reporter)
        return
    else:
        outcomes = _start(asked(), out, reporter)
    _finish(outcomes, reporter, shown=not as_json, as_markdown=markdown)


def end_on_signals() -> None:
    """Have SIGTERM, and the SIGHUP of a terminal that closes, end the command as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, _interrupt)


def _interrupt(number: int, _frame: object) -> None:
    # A terminal that closes sends one, then its shell another: that must not end the writing of what was measured.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise KeyboardInterrupt(signal.Signals(number).name)


def _preview(spec: SweepSpec, out: Path | None, reporter: "PlainReporter | JsonReporter") -> None:
    """Show the plan of a sweep; raises UsageError for one that could not run, or not be written to `out`."""
    from kvbench.results.rundir import check_new_run
    from kvbench.run.runner import nothing_to_measure, preview, preview_together

    check_new_run(out or default_folder(spec.name))
    plan, opened = preview_together(spec) if len(spec.devices) > 1 else preview(spec)
    reporter.preview(plan, opened, spec.models)
    if not plan.cells:
        raise nothing_to_measure(plan)


def _start(spec: SweepSpec, out: Path | None, observer: "Observer") -> "list[SweepEnd]":
    """Run a new sweep on one device, on several devices at once, or as one of several ranks."""
    from kvbench.run.rendezvous import rank_of
    from kvbench.run.runner import start_sweep, start_together

    rank = rank_of(os.environ)
    folder, command = out or default_folder(spec.name), ["kvbench", *sys.argv[1:]]
    if rank is not None:
        if out is None:
            raise UsageError(f"--out: required with {rank.count} ranks; write --out DIR")
        return [start_sweep(spec, out / f"rank-{rank.number}", command, observer, rank=rank)]
    if len(spec.devices) > 1:
        return start_together(spec, folder, command, observer)
    return [start_sweep(spec, folder, command, observer)]


def _finish(
    outcomes: "list[SweepEnd]", reporter: "PlainReporter | JsonReporter", *, shown: bool, as_markdown: bool
) -> None:
    for outcome in outcomes:
        reporter.finished(outcome)
    measured = [outcome.path for outcome in outcomes if outcome.measured]
    if measured and shown:
        typer.echo("")
        print_asked(measured, as_markdown=as_markdown)
    if code := max(outcome.exit_code for outcome in outcomes):  # an interruption counts before failed cells
        raise typer.Exit(code)


def _with_policy(spec: SweepSpec, option: Path | None) -> SweepSpec:
    """Return `spec` with the policy of `--policy` or of the environment if it includes the backend auto."""
    if not any(AUTO in group.get("backend", (AUTO,)) for group in spec.groups):
        if option is not None:
            raise UsageError(f"--policy {option}: no cell uses the backend auto; add -a backend=auto,batched")
        return spec
    path = option or os.environ.get(POLICY_VARIABLE)
    return msgspec.structs.replace(spec, policy=_policy_at(Path(path))) if path else spec


def _policy_at(path: Path) -> Policy:
    """Return the policy in a file, or the policy that a run used."""
    if not path.is_dir():
        return load_policy(path)
    from kvbench.results import load_run

    policy = SweepSpec.from_plain(load_run(path).info.spec).policy
    if policy is None:
        raise UsageError(
            f"--policy {path}: this run used no policy; build one with kvbench show {shlex.quote(str(path))} -p FILE"
        )
    return policy


def default_folder(name: str) -> Path:
    """Return the run directory that a command creates if none is named: one that is not there."""
    stem = f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    paths = (Path("runs") / (f"{stem}-{number}" if number > 1 else stem) for number in count(1))
    return next(path for path in paths if not path.exists())
