"""`kvbench tune`: recommend backends, from a new measurement or from finished runs."""

import json
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from kvbench.cells.axes import Neighbour, StreamState
from kvbench.cells.policy import SERVING, Choice
from kvbench.cells.units import size_text
from kvbench.cli.options import NO_OPTIONS, FromStruct, complete_run, with_struct_options
from kvbench.cli.sweep import Axis, WhereOptions, default_folder, terminated
from kvbench.errors import ExitCode, UsageError, brief
from kvbench.models.presets import ModelChoice
from kvbench.text import convert

if TYPE_CHECKING:
    from kvbench.models.geometry import ModelSwap
    from kvbench.results import Run
    from kvbench.sweep.spec import SweepSpec
    from kvbench.tune.figures import TokenLine
    from kvbench.tune.rule import SmallestRule

EPILOG: Final = "See also: kvbench tune engine NAME, kvbench tune trace FILE, kvbench tune beside NEIGHBOUR."
_NEIGHBOURS: Final = tuple(name.value for name in Neighbour if name is not Neighbour.NONE)
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

    def keeps(self, driver: int, choice: Choice) -> bool:
        """Return whether a choice is allowed with this driver (13010: CUDA 13.1). With a limit of SMs, no copy is that
        the driver may make with SMs, since how many it takes is not known.
        """
        from kvbench.tune.fit import may_take_sms, sms_of

        if self.max_sms is not None and (sms_of(choice) > self.max_sms or may_take_sms(choice, driver)):
            return False
        return not self.names or choice.backend in self.names

    def suits_all(self, driver: int, choice: Choice) -> bool:
        """Return whether a choice is allowed, and not the code of one engine, which serves only that engine."""
        from kvbench.sweep.installed import of_engine

        return self.keeps(driver, choice) and (choice.backend in self.names or not of_engine(choice.backend))

    def serves(self, driver: int, choice: Choice) -> bool:
        """Return whether a choice is allowed in a policy: auto and `kvbench.copy` can run it."""
        return self.keeps(driver, choice) and choice.backend in SERVING


_Runs = Annotated[
    list[Path] | None,
    typer.Argument(metavar="RUN", help="Finished runs to use instead of measuring.", autocompletion=complete_run),
]
_Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model", metavar="MODEL", help="Tune for the swaps of a model: a name or a config.json. Repeatable."
    ),
]
_Geometry = Annotated[Mapping[str, Any], FromStruct(ModelChoice, leave_out=("models",), panel="Model")]
_Allowed = Annotated[Mapping[str, Any], FromStruct(Allowed, panel="Limits of the answer")]
_Where = Annotated[Mapping[str, Any], FromStruct(WhereOptions, panel="Device")]
_Policy = Annotated[
    Path | None,
    typer.Option("--write-policy", "-p", metavar="FILE", help="Write a policy for the backend auto (TOML)."),
]
_ExactPolicy = Annotated[
    Path | None,
    typer.Option(
        "--write-exact-policy",
        metavar="FILE",
        help="Write a policy with the best choice of every shape, not those of the rule.",
    ),
]
_Stream = Annotated[
    StreamState | None,
    typer.Option(
        metavar="STATE",
        help=f"Answer for this stream state only: {', '.join(StreamState)}.  [default: all measured states]",
    ),
]
_Out = Annotated[Path | None, typer.Option("--out", "-o", help="Run directory to create (default: runs/tune-TIME).")]
_Prefill = Annotated[
    float | None,
    typer.Option(
        metavar="X", help="With --model: say from how many tokens on loading is faster than prefill at X tokens/s."
    ),
]
_Table = Annotated[bool, typer.Option("--table", help="Print the table of all shapes.")]
_Open = Annotated[bool, typer.Option("--open", help="Print choices that could differ in another run.")]
_Force = Annotated[bool, typer.Option("--force", help="Replace a file with other content.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


@with_struct_options
def tune(
    runs: _Runs = None,
    model: _Models = None,
    geometry: _Geometry = NO_OPTIONS,
    allowed: _Allowed = NO_OPTIONS,
    prefill_tokens_per_second: _Prefill = None,
    stream: _Stream = None,
    policy: _Policy = None,
    exact_policy: _ExactPolicy = None,
    table: _Table = False,
    open_: _Open = False,
    force: _Force = False,
    as_json: _Json = False,
    out: _Out = None,
    axis: Axis = None,
    where: _Where = NO_OPTIONS,
) -> None:
    """Recommend backends for this machine and show what they gain. With RUN, needs no GPU and no torch."""
    # pandas takes a second to import; --help must not wait for it
    from kvbench.engine.nvrtc import driver_version
    from kvbench.tune.figures import token_lines
    from kvbench.tune.fit import driver_of
    from kvbench.tune.search import search_among, trying_overlap, tuning_sweep

    may: Allowed = convert(allowed, Allowed)
    models: ModelChoice = convert({"models": model or [], **geometry}, ModelChoice)
    swaps = models.swaps()
    writes = bool(policy or exact_policy)
    prefill = _prefill(prefill_tokens_per_second, models)
    if runs:
        loaded, code = _finished(runs, may, out, axis, where), ExitCode.DONE
    else:
        states = [f"stream_state={stream}"] if stream else []
        spec = tuning_sweep(models, [*(axis or []), *states], may.names, by_tokens=bool(prefill)).with_options(**where)
        spec = trying_overlap(spec, driver_version())
        searching = search_among(partial(may.serves if writes else may.keeps, driver_version()), spec)
        loaded, code = _measured(spec, out, searching, quiet=as_json)
    driver = driver_of(loaded)
    rule = _rule(loaded, partial(may.serves if writes else may.suits_all, driver), stream)
    lines = [*token_lines(loaded, partial(may.suits_all, driver), stream, swaps, prefill or 0)]
    _print_rule(rule, loaded, swaps, lines, prefill, table=table, open_=open_, as_json=as_json)
    for option, file, exact in (("-p", policy, False), ("--write-exact-policy", exact_policy, True)):
        if file is not None:
            _write_policy(option, file, loaded, rule, exact=exact, force=force)
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
    from kvbench.sweep.installed import engines
    from kvbench.tune.answer import answers_of
    from kvbench.tune.exports import export
    from kvbench.tune.search import engine_sweep

    known = [engine.name for engine in engines().values() if engine.settings]
    if name not in known:
        raise UsageError(f"engine {brief(name)}: not an engine with settings; write {' or '.join(known)}")
    if runs:
        loaded, code = _finished(runs, Allowed(), out, axis, where), ExitCode.DONE
    else:
        spec = engine_sweep(name, axis or []).with_options(**where)
        _check_engine(name, spec.device)
        loaded, code = _measured(spec, out, quiet=True)
    typer.echo(export(name, loaded, answers_of(loaded, lambda _: True)).text(), nl=False)
    if code:
        raise typer.Exit(code)


@with_struct_options
def tune_trace(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace (kvbench trace make).", show_default=False)],
    allowed: _Allowed = NO_OPTIONS,
    policy: _Policy = None,
    force: _Force = False,
    as_json: _Json = False,
    out: _Out = None,
    axis: Axis = None,
    where: _Where = NO_OPTIONS,
) -> None:
    """Measure the swaps of a trace with their ids, and recommend backends for them."""
    from kvbench.engine.nvrtc import driver_version
    from kvbench.tune.fit import driver_of
    from kvbench.tune.search import trace_sweep, trying_overlap

    may: Allowed = convert(allowed, Allowed)
    spec = trace_sweep(file, axis or [], may.names, int(where.get("seed") or 0)).with_options(**where)
    loaded, code = _measured(trying_overlap(spec, driver_version()), out, quiet=as_json)
    rule = _rule(loaded, partial(may.serves if policy else may.suits_all, driver_of(loaded)))
    _print_rule(rule, loaded, as_json=as_json)
    if policy is not None:
        _write_policy("-p", policy, loaded, rule, exact=False, force=force)
    if code:
        raise typer.Exit(code)


@with_struct_options
def tune_beside(
    neighbour: Annotated[str, typer.Argument(metavar="NEIGHBOUR", help=", ".join(_NEIGHBOURS), show_default=False)],
    runs: _Runs = None,
    max_slowdown: Annotated[
        str, typer.Option(metavar="PERCENT", help="Maximum slowdown of its mean iteration: 5% or 0.05.")
    ] = "5%",
    allowed: _Allowed = NO_OPTIONS,
    as_json: _Json = False,
    out: _Out = None,
    axis: Axis = None,
    where: _Where = NO_OPTIONS,
) -> None:
    """Pick the fastest choice that slows the work beside the swaps by no more than a limit."""
    from kvbench.cli.tables import print_lines, print_rows
    from kvbench.engine.nvrtc import driver_version
    from kvbench.tune import text
    from kvbench.tune.answer import answers_beside
    from kvbench.tune.fit import driver_of
    from kvbench.tune.search import beside_sweep, trying_overlap

    may: Allowed = convert(allowed, Allowed)
    limit = _limit_of(max_slowdown)
    if neighbour not in _NEIGHBOURS:
        raise UsageError(f"neighbour {brief(neighbour)}: not one of {', '.join(_NEIGHBOURS)}")
    if runs:
        loaded, code = _finished(runs, may, out, axis, where), ExitCode.DONE
    else:
        spec = beside_sweep(neighbour, axis or [], may.names).with_options(**where)
        loaded, code = _measured(trying_overlap(spec, driver_version()), out, quiet=as_json)
    answers = answers_beside(loaded, neighbour, limit, partial(may.keeps, driver_of(loaded)))
    if as_json:
        plain = {**text.machine_plain(loaded[0]), "answers": [text.beside_plain(answer) for answer in answers]}
        typer.echo(json.dumps(plain, indent=2))
    else:
        chosen = [answer.chosen.choice for answer in answers if answer.chosen]
        sentences = [*(text.sentence_beside(answer) for answer in answers), *text.sms_notes(chosen, loaded)]
        print_lines([text.machine_text(loaded[0]), "", *sentences, ""])
        print_rows([text.row_beside(answer, way) for answer in answers for way in answer.ways], text.HEADER_BESIDE)
        if unsure := [line for answer in answers for line in text.open_beside(answer)]:
            print_lines(["", "Open: another run could choose otherwise", *(f"  {line}" for line in unsure)])
    if code:
        raise typer.Exit(code)


def _finished(
    paths: Sequence[Path], may: Allowed, out: Path | None, axis: Sequence[str] | None, where: Mapping[str, Any]
) -> "list[Run]":
    """Return finished runs; raises UsageError for an option of a measurement, and for a backend that none measured."""
    from kvbench.results import CellRecord, load_run
    from kvbench.results.rundir import runs_in

    if out or axis or where:
        raise UsageError("RUN: nothing is measured; leave out --out, --axis and the options of a measurement")
    loaded = [load_run(one) for path in paths for one in runs_in(path)]
    measured = {record.cell.backend for run in loaded for record in run.records if isinstance(record, CellRecord)}
    if not measured.issuperset(may.names):
        known = ", ".join(sorted(measured))
        raise UsageError(f"--backends {brief(','.join(may.names))}: these runs measured only {known}")
    return loaded


def _measured(
    spec: "SweepSpec", out: Path | None, searching: Callable[..., Any] | None = None, *, quiet: bool
) -> "tuple[list[Run], ExitCode]":
    """Measure, with progress on standard error if `quiet`. An interruption ends the command."""
    from kvbench.cli.progress import make_reporter
    from kvbench.results import load_run
    from kvbench.run.runner import start_sweep

    signal.signal(signal.SIGTERM, terminated)
    reporter = make_reporter(as_json=False, file=sys.stderr if quiet else None)
    outcome = start_sweep(spec, out or default_folder("tune"), ["kvbench", *sys.argv[1:]], reporter, searching)
    reporter.finished(outcome)
    if outcome.status == "interrupted":
        raise typer.Exit(outcome.exit_code)
    return [load_run(outcome.path)], outcome.exit_code


def _rule(runs: "Sequence[Run]", keep: Callable[[Choice], bool], stream: StreamState | None = None) -> "SmallestRule":
    from kvbench.tune.answer import answers_of
    from kvbench.tune.rule import rule_of

    return rule_of(answers_of(runs, keep, stream))


def _prefill(tokens_per_s: float | None, models: ModelChoice) -> float | None:
    """Return --prefill-tokens-per-second; raises UsageError for one that cannot be, and without a model."""
    if tokens_per_s is None:
        return None
    if not 1 <= tokens_per_s <= 1e9:
        raise UsageError(f"--prefill-tokens-per-second {tokens_per_s:g}: must be from 1 to 1e9")
    if not models.models:
        raise UsageError("--prefill-tokens-per-second: tokens are those of a model; add --model")
    return tokens_per_s


def _print_rule(
    rule: "SmallestRule",
    runs: "Sequence[Run]",
    swaps: "Sequence[ModelSwap]" = (),
    lines: "Sequence[TokenLine]" = (),
    prefill: float | None = None,
    *,
    table: bool = False,
    open_: bool = False,
    as_json: bool,
) -> None:
    """Print what was asked for: the table, what is open or, without these, the rule; and the swaps of models."""
    from kvbench.cli.tables import print_lines, print_rows
    from kvbench.models.geometry import models_of
    from kvbench.tune import text
    from kvbench.tune.figures import loads_of, totals_of

    if as_json:
        plain = text.to_plain(rule, runs, swaps) | {"token_lines": msgspec.to_builtins(lines)}
        typer.echo(json.dumps(plain, indent=2))
        return
    print_lines(text.origin(runs) if table or open_ else text.headline(rule, runs))
    print_lines(line for model in models_of(swaps) for line in ("", f"{model.name}: {model.text}"))
    for swap in swaps:
        shape = f"{swap.blocks} blocks of {size_text(swap.block_bytes)}"
        print_lines(["", f"{swap.title}, {swap.tokens} tokens: {shape}"])
        print_rows([*map(text.row_model, loads_of(rule, swap))], text.HEADER_MODEL)
    print_lines(line for total in totals_of(rule, swaps) for line in ("", total))
    print_lines(["", *text.planner_lines(lines)] if lines else [])
    if prefill:
        print_lines(["", *text.prefill_lines(lines, prefill)])
    if table:
        print_lines(["", text.TIED_WITH])
        print_rows([*map(text.row, rule.answers)], text.HEADER)
    if open_:
        print_lines(["", text.OPEN, *(f"  {line}" for line in text.open_points(rule.answers) or ["nothing"])])


def _write_policy(
    option: str, file: Path, runs: "Sequence[Run]", rule: "SmallestRule", *, exact: bool, force: bool
) -> None:
    """Write a policy and say so."""
    from kvbench.cells.policy import load_policy
    from kvbench.files import write_output
    from kvbench.tune.fit import policy_of

    made = policy_of(runs, rule.choices_by_point(exact=exact))
    write_output(option, file, made.to_toml().encode(), load_policy, force=force)
    kinds = ", ".join(f"{table.direction} {table.stream_state}" for table in made.tables)
    typer.echo(f"{file}: a policy for {made.device}, {kinds}", err=True)


def _check_engine(name: str, device: str) -> None:
    """Raise UsageError if the code of an engine cannot run here: without a GPU, or without its package."""
    from kvbench.backends.base import facts_of
    from kvbench.cells.device_facts import DeviceFacts, device_named
    from kvbench.engine.nvrtc import driver_version
    from kvbench.run.runner import inspect
    from kvbench.sweep.installed import engines

    engine = engines()[name]
    gpu = DeviceFacts("cuda:0", "cuda", "a GPU", None, 0, 0, None)
    reasons = [why for backend in engine.backends if (why := facts_of(backend, gpu).unavailable)]
    if len(reasons) == len(engine.backends):
        raise UsageError(f"engine {name}: {reasons[0]}; install it beside kvbench, and see kvbench doctor --engines")
    # A worker, which names the devices, takes seconds to start.
    if not driver_version() or device_named(device, inspect().devices) == "cpu":
        raise UsageError(f"engine {name}: its code needs a GPU, and this machine shows none; see kvbench doctor")


def _limit_of(text: str) -> float:
    """Return --max-slowdown as a fraction: 0.05 for "5%" and "0.05"; raises UsageError."""
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise UsageError(f"--max-slowdown {brief(text)}: write a percentage (5%) or a fraction below 1 (0.05)")
    return float(match["percent"]) / 100 if match["percent"] else float(match["fraction"])
