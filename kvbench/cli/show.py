"""`kvbench show`: print the answer of runs in the terminal."""

import json
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from kvbench.cells.axes import ListPlace
from kvbench.cells.policy import SERVING, Choice
from kvbench.cells.units import size_text
from kvbench.cli.options import NO_OPTIONS, FromStruct, fraction_of, with_struct_options
from kvbench.errors import UsageError, brief
from kvbench.models.presets import ModelChoice
from kvbench.text import convert

if TYPE_CHECKING:
    from kvbench.models.geometry import ModelSwap
    from kvbench.results import Run
    from kvbench.tune.candidates import Measured
    from kvbench.tune.planner import TokenLine


class Allowed(msgspec.Struct, frozen=True):
    # fmt: off
    max_sms: Annotated[Annotated[int, msgspec.Meta(ge=0, le=4096)] | None, msgspec.Meta(
        description="maximum SMs per swap; 0 for copies by the copy engine only")] = None
    backends: Annotated[str | None, msgspec.Meta(
        description="backends to choose from: batched,sm (default: all)")] = None
    # fmt: on

    @property
    def names(self) -> tuple[str, ...]:
        """The backends; () for all."""
        return tuple(name for text in (self.backends or "").split(",") if (name := text.strip()))

    def keeps(self, driver: int, choice: Choice) -> bool:
        """Return whether a choice is allowed with this driver (13010: CUDA 13.1). With a limit of SMs, no copy is that
        the driver may make with SMs, since how many it takes is not known.
        """
        from kvbench.tune.candidates import may_take_sms, sms_of

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


_Runs = Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories to read.", show_default=False)]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="MODEL", help="For the swaps of a model: a name or a config.json. Repeatable."),
]
Geometry = Annotated[Mapping[str, Any], FromStruct(ModelChoice, leave_out=("models",), panel="Model")]
Limits = Annotated[Mapping[str, Any], FromStruct(Allowed, panel="Limits of the answer")]
Prefill = Annotated[
    float | None,
    typer.Option(
        metavar="X", help="With --model: say from how many tokens on loading is faster than prefill at X tokens/s."
    ),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option("--policy", "-p", metavar="FILE", help="Write the answer for the backend auto and the copier (TOML)."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace a file with other content.")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
_Slowdown = Annotated[
    str | None,
    typer.Option(
        metavar="PERCENT",
        help="Use only methods measured beside a decode step or a prefill that slow it at most this much: 5% or 0.05.",
        rich_help_panel="Limits of the answer",
    ),
]
_Table = Annotated[bool, typer.Option("--table", help="Print the choice for every shape.")]
_Open = Annotated[bool, typer.Option("--open", help="Print choices that another run could make differently.")]


@with_struct_options
def show(
    runs: _Runs,
    model: Models = None,
    geometry: Geometry = NO_OPTIONS,
    allowed: Limits = NO_OPTIONS,
    max_slowdown: _Slowdown = None,
    prefill_tokens_per_second: Prefill = None,
    policy: PolicyFile = None,
    table: _Table = False,
    open_: _Open = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Show the answer of runs: the backends to use, their loss and gain, and warnings. Needs no GPU and no torch.

    Runs of several machines stand side by side.

    Without a choice between backends, it shows the findings of the report. For files of `kvbench doctor --measure
    --json`, it prints a line a host.
    """
    if all(path.suffix == ".json" for path in runs):
        from kvbench.cli.doctor import print_hosts

        print_hosts(runs)
        return
    may: Allowed = convert(allowed, Allowed)
    models: ModelChoice = convert({"models": model or [], **geometry}, ModelChoice)
    prefill = prefill_of(prefill_tokens_per_second, models)
    limit = None if max_slowdown is None else fraction_of("--max-slowdown", max_slowdown)
    loaded = load_all(runs)
    _check_backends(loaded, may)
    if may == Allowed() and limit is None and not (models.models or policy or table or open_):
        show_runs(loaded, as_json=as_json)
        return
    swaps = models.swaps()
    if not as_json and _print_gathers(loaded, swaps):
        return
    print_answer(
        loaded, may, swaps, prefill, limit=limit, policy=policy, table=table, open_=open_, force=force,
        as_json=as_json,
    )  # fmt: skip


def show_runs(runs: "Sequence[Run]", *, as_json: bool = False) -> None:
    """Print the answer of runs, side by side those of several machines; without any, the findings of the report."""
    if len({(run.info.device.get("title"), run.info.identity.get("driver_version")) for run in runs}) > 1:
        _show_machines(runs, as_json=as_json)
        return
    if as_json:
        typer.echo(json.dumps(_plain_answer(runs), indent=2))
        return
    try:
        print_answer(runs, Allowed(), (), None)
    except UsageError:
        _print_findings(runs)


def load_all(paths: Sequence[Path]) -> "list[Run]":
    from kvbench.results import load_run
    from kvbench.results.rundir import runs_in

    return [load_run(folder) for path in paths for folder in runs_in(path)]


def print_answer(
    runs: "Sequence[Run]",
    may: Allowed,
    swaps: "Sequence[ModelSwap]",
    prefill: float | None,
    *,
    limit: float | None = None,
    policy: Path | None = None,
    table: bool = False,
    open_: bool = False,
    force: bool = False,
    as_json: bool = False,
) -> None:
    """Print what was asked for: the table, what is open or, without these, the rule; and the swaps of models.

    Writes a policy if a file is named. Raises UsageError where there is nothing to choose from.
    """
    from kvbench.cli.options import print_lines, print_rows
    from kvbench.tune import text
    from kvbench.tune.answer import answers_of, shapes_of
    from kvbench.tune.candidates import driver_of
    from kvbench.tune.planner import token_lines
    from kvbench.tune.rule import rule_of

    driver = driver_of(runs)
    shapes = shapes_of(runs, partial(may.serves if policy else may.suits_all, driver))
    rule = rule_of(shapes if limit is None else _within(shapes, runs, limit))
    lines = [*token_lines(runs, partial(may.suits_all, driver), swaps, prefill or 0)]
    note, faults = _around(runs).values()
    if as_json:
        plain = text.to_plain(rule, answers_of(rule.shapes), runs, swaps)
        typer.echo(json.dumps({**_around(runs), **plain, "token_lines": msgspec.to_builtins(lines)}, indent=2))
    else:
        print_lines([*filter(None, [note]), *text.origin(runs)])
        answers = answers_of(rule.shapes) if table or open_ else []
        if table:
            print_lines([text.ALIKE])
            print_rows([*map(text.row, answers)], text.HEADER)
        if open_:
            print_lines([text.OPEN, *(f"  {line}" for line in text.open_points(answers) or ["nothing"])])
        if not answers:
            shown = text.answer_table(rule, runs)
            print_rows(shown.rows, shown.header)
            listing = shlex.join(["kvbench", "show", *(str(run.path) for run in runs), "--open"])
            print_lines([shown.caption, *text.answer_lines(rule, runs, listing)])
        _print_models(rule, swaps, lines, prefill)
        print_lines(f"Warning: {fault}" for fault in faults)
    if policy is not None:
        _write_policy(policy, runs, rule, force=force)


def _around(runs: "Sequence[Run]") -> dict[str, Any]:
    """The notes around an answer: that no GPU was involved, and the faults of whole runs."""
    from kvbench.report.faults import HOST_COPIES, unsteady, worst_faults

    on_host = any(run.info.device.get("kind") == "cpu" for run in runs)
    labelled = {run.path.absolute().name: run for run in runs}
    faults = [*filter(None, [unsteady(labelled)]), *worst_faults(labelled)]
    return {"host_note": HOST_COPIES if on_host else "", "warnings": faults}


def _within(shapes: "Sequence[Measured]", runs: "Sequence[Run]", limit: float) -> "list[Measured]":
    """Return the shapes with the methods that slow down work beside them by at most `limit`, where that was measured.

    Raises UsageError without any.
    """
    from kvbench.tune.answer import BESIDE, slowdowns_of

    known = slowdowns_of(runs)

    def allowed(one: "Measured", choice: Choice) -> bool:
        times = known.get((one.shape.direction, choice), {})
        of_work = [times[work] for work in BESIDE if work in times]
        return bool(of_work) and max(of_work) <= 1 + limit

    kept = [within for one in shapes if (within := one.only(partial(allowed, one))).arms]
    if not kept:
        methods = "none of their methods was measured beside a decode step or a prefill"
        why = f"every method slows the work beside it by more than {limit:.1%}" if known else methods
        raise UsageError(f"--max-slowdown: {why}; add a run of kvbench sweep beside")
    return kept


def _print_gathers(runs: "Sequence[Run]", swaps: "Sequence[ModelSwap]") -> bool:
    """Print for how long decode steps of models wait for rows by ids; return whether the runs have nothing else."""
    from kvbench.cli.options import print_lines
    from kvbench.tune.planner import gather_lines

    lines = [*gather_lines(runs, swaps)]
    print_lines(lines)
    return bool(lines) and all(cell.list_place is ListPlace.GPU for run in runs for cell in run.outcomes)


def _print_models(rule: Any, swaps: "Sequence[ModelSwap]", lines: "Sequence[TokenLine]", prefill: float | None) -> None:
    from kvbench.cli.options import print_lines, print_rows
    from kvbench.models.geometry import models_of
    from kvbench.tune import text
    from kvbench.tune.planner import loads_of, totals_of

    print_lines(line for model in models_of(swaps) for line in ("", f"{model.name}: {model.text}"))
    for swap in swaps:
        shape = f"{swap.blocks} blocks of {size_text(swap.block_bytes)}"
        print_lines(["", f"{swap.title}, {swap.tokens} tokens: {shape}"])
        print_rows([*map(text.row_model, loads_of(rule, swap))], text.HEADER_MODEL)
    print_lines(line for total in totals_of(rule, swaps) for line in ("", total))
    print_lines(["", *text.planner_lines(lines)] if lines else [])
    if prefill:
        print_lines(["", *text.prefill_lines(lines, prefill)])


def _write_policy(file: Path, runs: "Sequence[Run]", rule: Any, *, force: bool) -> None:
    from kvbench.cells.policy import load_policy
    from kvbench.files import write_output
    from kvbench.tune.answer import policy_of

    made = policy_of(runs, rule)
    write_output("--policy", file, made.to_toml().encode(), load_policy, force=force)
    kinds = ", ".join(f"{table.direction} {table.stream_state}" for table in made.tables)
    typer.echo(f"{file}: a policy for {made.device}, {kinds}", err=True)


def _check_backends(runs: "Sequence[Run]", may: Allowed) -> None:
    measured = {cell.backend for run in runs for cell in run.outcomes}
    if not measured.issuperset(may.names):
        known = ", ".join(sorted(measured))
        raise UsageError(f"--backends {brief(','.join(may.names))}: these runs measured only {known}")


def prefill_of(tokens_per_s: float | None, models: ModelChoice) -> float | None:
    """Return --prefill-tokens-per-second; raises UsageError for one that cannot be, and without a model."""
    if tokens_per_s is None:
        return None
    if not 1 <= tokens_per_s <= 1e9:
        raise UsageError(f"--prefill-tokens-per-second {tokens_per_s:g}: must be from 1 to 1e9")
    if not models.models:
        raise UsageError("--prefill-tokens-per-second: tokens are those of a model; add --model")
    return tokens_per_s


def _show_machines(runs: "Sequence[Run]", *, as_json: bool) -> None:
    """Print a column for each of several machines, and what only one of them has."""
    from kvbench.cli.options import print_lines, print_rows
    from kvbench.report.model import plain
    from kvbench.report.sections.machines import machines_table  # the sections take as long to import as pandas
    from kvbench.report.view import grouped, views_of

    views = views_of(runs)
    table = machines_table(views)
    assert table is not None
    header, *rows = ([*map(plain, row)] for row in (table.header, *table.rows))
    notes = [plain(note) for note in (*table.notes, table.caption) if note]
    if as_json:
        by_card = grouped(views, lambda view: view.card)
        answers = {card: _plain_answer([view.run for view in of_card]) for card, of_card in by_card.items()}
        texts = {name: dict(zip(header[1:], row, strict=True)) for name, *row in rows}
        typer.echo(json.dumps({"side_by_side": texts, "notes": notes, "machines": answers}, indent=2))
        return
    print_rows(rows, header)
    print_lines(notes)


def _plain_answer(runs: "Sequence[Run]") -> dict[str, Any]:
    """Return the answer of runs, or what the sections of a report found where there is nothing to choose from."""
    from kvbench.tune.answer import answers_of, rule_for_all
    from kvbench.tune.text import to_plain

    try:
        rule = rule_for_all(runs)
        return {**_around(runs), **to_plain(rule, answers_of(rule.shapes), runs), "token_lines": []}
    except UsageError:
        return {**_around(runs), "findings": _findings(runs)}


def _findings(runs: "Sequence[Run]") -> list[str]:
    from kvbench.report.build import report_of  # the sections take as long to import as pandas
    from kvbench.report.model import plain

    report = report_of(runs)
    return [*map(plain, [*report.headline, *report.findings])]


def _print_findings(runs: "Sequence[Run]") -> None:
    from kvbench.cli.options import print_lines

    note, faults = _around(runs).values()
    print_lines([*filter(None, [note]), *_findings(runs), *(f"Warning: {fault}" for fault in faults)])
