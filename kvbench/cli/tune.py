"""`kvbench tune`: find the best backend for each swap, from a new measurement or from finished runs."""

import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import msgspec
import typer

from kvbench.cells.axes import Neighbour, StreamState
from kvbench.cells.cell import Cell
from kvbench.cli.completion import complete_run
from kvbench.cli.options import NO_OPTIONS, FromStruct, with_struct_options
from kvbench.cli.sweep import Axis, WhereOptions, default_folder, terminated
from kvbench.errors import ExitCode, UsageError, brief
from kvbench.models.presets import ModelChoice
from kvbench.policy import SERVING, Choice
from kvbench.sweep.spec import SweepSpec
from kvbench.text import convert

if TYPE_CHECKING:
    from kvbench.run.execution import Outcome
    from kvbench.tune.search import Search

_NEIGHBOURS: Final = tuple(name.value for name in Neighbour if name is not Neighbour.NONE)
_USUAL: Final = "5%"
_LIMIT: Final = re.compile(r"(?P<percent>\d{1,4}(\.\d{1,6})?)%|(?P<fraction>0(\.\d{1,8})?)", re.ASCII)


class Allowed(msgspec.Struct, frozen=True):
    """The allowed choices."""

    max_sms: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=4096)] | None,
        msgspec.Meta(description="maximum SMs per swap; 0 for copies by the copy engine only"),
    ] = None
    backends: Annotated[str | None, msgspec.Meta(description="backends to choose from: batched,sm (default: all)")] = (
        None
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The backends; () for all."""
        return tuple(name for text in (self.backends or "").split(",") if (name := text.strip()))

    def keeps(self, choice: Choice) -> bool:
        from kvbench.tune.fit import sms_of

        fits = self.max_sms is None or sms_of(choice) <= self.max_sms
        return fits and (not self.names or choice.backend in self.names)

    def suits_all(self, choice: Choice) -> bool:
        """Return whether a choice is allowed, and not the code of one engine, which serves only that engine."""
        from kvbench.tune.exports import ENGINE_BACKENDS

        return self.keeps(choice) and (choice.backend in self.names or choice.backend not in ENGINE_BACKENDS)

    def serves(self, choice: Choice) -> bool:
        """Return whether a choice is allowed in a policy: auto and `kvbench.copy` can run it."""
        return self.keeps(choice) and choice.backend in SERVING


_Runs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[RUN]...", help="Finished runs to use instead of a new measurement.", autocompletion=complete_run
    ),
]
_Policy = Annotated[
    Path | None,
    typer.Option("--policy", "-p", metavar="FILE", help="Write a policy for the backend auto (TOML); - for stdout."),
]
_Export = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[=FILE]",
        help="Write settings for vllm or sglang, or json, to stdout or a file. Repeatable.",
    ),
]
_Engine = Annotated[
    str | None,
    typer.Option("--engine", metavar="NAME", help="Choose among this installed engine's settings: vllm or sglang."),
]
_Models = Annotated[
    list[str] | None,
    typer.Option(metavar="MODEL", help="Tune for the swaps of a model: a name or a config.json. Repeatable."),
]
_Trace = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Tune for the swaps of a trace (kvbench trace make), with their ids."),
]
_Neighbour = Annotated[
    str | None,
    typer.Option(
        "--neighbour",
        metavar="NAME",
        help=f"Pick the fastest choice that slows this neighbour by at most --max-slowdown: {', '.join(_NEIGHBOURS)}.",
    ),
]
_MaxSlowdown = Annotated[
    str | None,
    typer.Option(
        "--max-slowdown",
        metavar="PERCENT",
        help=f"With --neighbour: maximum slowdown of its mean iteration, 5% or 0.05.  [default: {_USUAL}]",
    ),
]
_Stream = Annotated[
    str | None,
    typer.Option(
        "--stream",
        metavar="STATE",
        help=f"Answer for this stream state only: {', '.join(StreamState)}.  [default: all measured states]",
    ),
]
_Out = Annotated[Path | None, typer.Option("--out", "-o", help="Run directory to create (default: runs/tune-TIME).")]
_Exact = Annotated[bool, typer.Option("--exact", help="With -p: write the best of each size and count, not the rule.")]
_Table = Annotated[bool, typer.Option("--table", help="Print the table of all sizes and numbers of blocks.")]
_Open = Annotated[bool, typer.Option("--open", help="Print choices that could differ in another run.")]
_Force = Annotated[bool, typer.Option("--force", help="Replace files with other content.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


@with_struct_options
def tune(
    runs: _Runs = None,
    model: _Models = None,
    geometry: Annotated[Mapping[str, Any], FromStruct(ModelChoice, leave_out=("models",))] = NO_OPTIONS,
    allowed: Annotated[Mapping[str, Any], FromStruct(Allowed)] = NO_OPTIONS,
    policy: _Policy = None,
    export: _Export = None,
    engine: _Engine = None,
    trace: _Trace = None,
    neighbour: _Neighbour = None,
    max_slowdown: _MaxSlowdown = None,
    stream: _Stream = None,
    exact: _Exact = False,
    table: _Table = False,
    open_: _Open = False,
    force: _Force = False,
    as_json: _Json = False,
    out: _Out = None,
    axis: Axis = None,
    where: Annotated[Mapping[str, Any], FromStruct(WhereOptions)] = NO_OPTIONS,
) -> None:
    """Find the smallest rule for fast swaps on this machine, and its gain. With RUN, needs no GPU and no torch."""
    # pandas takes a second to import; --help must not wait for it
    from kvbench.cli import tune_answers
    from kvbench.results import load_run
    from kvbench.results.rundir import runs_in
    from kvbench.tune.answer import answers_of, check_measured
    from kvbench.tune.beside import answers_beside
    from kvbench.tune.rule import rule_of

    may: Allowed = convert(allowed, Allowed)
    models: ModelChoice = convert({"models": model or [], **geometry}, ModelChoice)
    swaps = models.swaps()
    targets = [*map(_target, export or []), *([_target(engine, "--engine")] if engine else [])]
    is_quiet = _prints_a_file(policy, targets, as_json=as_json)
    limit = _limit_of(neighbour, max_slowdown)
    axes = [*(axis or []), *_stream_axis(stream, axis or [])]
    if exact and policy is None:
        raise UsageError("--exact: it says what -p writes; add -p FILE")
    if neighbour is not None and (policy is not None or targets):
        raise UsageError("--neighbour gives neither a policy nor settings: leave out --policy, --export and --engine")
    if neighbour is not None and stream is not None:
        raise UsageError(f"--stream {stream}: beside a neighbour, swaps begin on an idle stream; leave it out")
    if engine and not runs and (models.models or may.names):
        raise UsageError(f"--engine {engine} measures its own shapes and backends: leave out --model and --backends")
    if runs and (out or axis or where):
        raise UsageError("RUN: nothing is measured; leave out --out, --axis and the options of a measurement")
    if trace and (runs or models.models or engine or neighbour or stream):
        raise UsageError(f"--trace {trace}: leave out RUN, --model, --engine, --neighbour and --stream")
    code = ExitCode.DONE
    if not runs:
        from kvbench.tune.sweeps import search_among, sweep_for

        seed = int(where.get("seed") or 0)
        spec = sweep_for(models, axes, may.names, neighbour=neighbour, engine=engine, trace=trace, seed=seed)
        spec = spec.with_options(**where)
        searching = None if neighbour or engine or trace else search_among(may.serves if policy else may.keeps, spec)
        outcome = _swept(spec, out or default_folder("tune"), sys.stderr if is_quiet else None, searching)
        runs, code = [outcome.path], outcome.exit_code
    loaded = [load_run(one) for path in runs for one in runs_in(path)]
    check_measured(loaded, may.names)
    if neighbour is not None:
        points = [(swap.block_bytes, swap.blocks) for swap in swaps] or None
        beside = answers_beside(loaded, neighbour, limit, may.keeps, points)
        if as_json:
            typer.echo(tune_answers.beside_json(loaded[0], beside), nl=False)
        else:
            tune_answers.show_beside(loaded[0], beside)
    else:
        for name, file in targets:
            answers = answers_of(loaded, may.suits_all if name == "json" else may.keeps, stream)
            tune_answers.write_export(name, file, loaded, answers, force=force)
        if policy is None and is_quiet and not as_json:
            raise typer.Exit(code)
        rule = rule_of(answers_of(loaded, may.serves if policy else may.suits_all, stream))
        if policy is not None:
            tune_answers.write_policy(policy, loaded, rule, exact=exact, force=force)
        if as_json:
            typer.echo(tune_answers.to_json(loaded, rule, swaps), nl=False)
        elif not is_quiet:
            tune_answers.show_rule(loaded, rule, swaps, table=table, open_=open_)
    if code:
        raise typer.Exit(code)


def _prints_a_file(policy: Path | None, targets: Sequence[tuple[str, Path | None]], *, as_json: bool) -> bool:
    """Return whether standard output takes a file in place of the answer; raises UsageError for two of them."""
    files = as_json + (str(policy) == "-") + sum(file is None for _, file in targets)
    if files > 1:
        raise UsageError("--json, -p - and --export NAME: only one can go to standard output; give the others a file")
    return files == 1


def _swept(
    spec: SweepSpec, folder: Path, to: TextIO | None, searching: Callable[[Sequence[Cell]], "Search"] | None
) -> "Outcome":
    """Measure, with progress `to` a file (None: standard output). An interruption ends the command."""
    from kvbench.cli.progress import make_reporter
    from kvbench.run.runner import start_sweep

    signal.signal(signal.SIGTERM, terminated)
    reporter = make_reporter(as_json=False, file=to)
    outcome = start_sweep(spec, folder, ["kvbench", *sys.argv[1:]], reporter, searching)
    reporter.finished(outcome)
    if outcome.status == "interrupted":
        raise typer.Exit(outcome.exit_code)
    return outcome


def _limit_of(neighbour: str | None, max_slowdown: str | None) -> float:
    """Return --max-slowdown as a fraction: 0.05 for "5%" and "0.05"; raises UsageError."""
    if neighbour is None and max_slowdown is not None:
        raise UsageError(
            f"--max-slowdown {brief(max_slowdown)}: it limits what a neighbour loses; add --neighbour decode"
        )
    if neighbour not in (None, *_NEIGHBOURS):
        raise UsageError(f"--neighbour {brief(str(neighbour))}: not one of {', '.join(_NEIGHBOURS)}")
    text = max_slowdown or _USUAL
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise UsageError(f"--max-slowdown {brief(text)}: write a percentage (5%) or a fraction below 1 (0.05)")
    return float(match["percent"]) / 100 if match["percent"] else float(match["fraction"])


def _stream_axis(stream: str | None, axes: Sequence[str]) -> list[str]:
    """Return --stream as an axis; raises UsageError for an unknown state, and for one that -a names too."""
    if stream is None:
        return []
    if stream not in tuple(StreamState):
        raise UsageError(f"--stream {brief(stream)}: not one of {', '.join(StreamState)}")
    if any(text.partition("=")[0].strip() == "stream_state" for text in axes):
        raise UsageError("-a stream_state=...: --stream names it; leave it out")
    return [f"stream_state={stream}"]


def _target(text: str, option: str = "--export") -> tuple[str, Path | None]:
    """Return the name of an export and its file, or None for standard output."""
    from kvbench.tune.exports import EXPORTS

    name, equals, file = text.partition("=")
    if option == "--engine" and text not in EXPORTS:
        raise UsageError(f"--engine {brief(text)}: not an engine with settings; write {' or '.join(EXPORTS)}")
    if name not in (*EXPORTS, "json") or (equals and not file):
        raise UsageError(
            f"--export {brief(text)}: not an export; write {', '.join(EXPORTS)} or json, with =FILE for a file"
        )
    return name, Path(file) if equals else None
