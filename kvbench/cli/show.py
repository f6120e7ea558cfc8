"""`kvbench show`: print the answer of runs in the terminal."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from kvbench.cells.axes import ListPlace, Situation
from kvbench.cells.cell import AXES
from kvbench.cells.policy import SERVING, Choice
from kvbench.cells.units import size_text
from kvbench.cli.options import NO_OPTIONS, FromStruct, fraction_of, with_struct_options
from kvbench.errors import UsageError, brief
from kvbench.models.presets import ModelChoice
from kvbench.text import convert

if TYPE_CHECKING:
    from kvbench.models.geometry import ModelSwap
    from kvbench.results import Run
    from kvbench.tune.planner import TokenLine
    from kvbench.tune.situations import Advice, Question


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
        from kvbench.cells.installed import of_engine

        return self.keeps(driver, choice) and (choice.backend in self.names or not of_engine(choice.backend))

    def serves(self, driver: int, choice: Choice) -> bool:
        """Return whether a choice is allowed in a policy: auto and `kvbench.copy` can run it."""
        return self.keeps(driver, choice) and choice.backend in SERVING


class Asked(msgspec.Struct, frozen=True):
    """What is asked of the answer beside steps."""

    # fmt: off
    block_size: Annotated[str | None, msgspec.Meta(
        description="blocks of the answer (default: 16KiB, or those of the model)")] = None
    beside: Annotated[str | None, msgspec.Meta(
        description="answer for swaps beside this alone: nothing, decode or prefill")] = None
    need: Annotated[str | None, msgspec.Meta(
        description="use methods that move this much beside a step: 20GB/s (default: a tenth of the ceiling)")] = None
    max_slowdown: Annotated[str | None, msgspec.Meta(
        description="with --beside: use methods beside which a step takes at most this much longer: 5% or 0.05")] = None
    # fmt: on

    def question(self, swaps: "Sequence[ModelSwap]", *, own_thread: bool) -> "Question":
        """Return the question to the runs; raises UsageError."""
        from kvbench.tune.situations import Question

        situations = tuple(Situation) if self.beside is None else (_situation_of(self.beside),)
        limits: dict[Situation, float] = {}
        if self.max_slowdown is not None:
            if len(situations) > 1 or situations[0] is Situation.ALONE:
                raise UsageError(
                    f"--max-slowdown {brief(self.max_slowdown)}: a limit is for one situation; "
                    "add --beside decode or --beside prefill"
                )
            limits = {situations[0]: fraction_of("--max-slowdown", self.max_slowdown)}
        size = _size_of(self.block_size) if self.block_size else None
        usual = swaps[0].block_bytes if swaps else Question().block_bytes
        return Question(
            block_bytes=size or usual,
            need_gbps=None if self.need is None else _gbps_of(self.need),
            thread_counts=not own_thread,
            limits=limits,
            situations=situations,
        )


def _situation_of(text: str) -> Situation:
    named = {situation.beside: situation for situation in Situation}
    if text not in named:
        raise UsageError(f"--beside {brief(text)}: write one of {', '.join(named)}")
    return named[text]


def _size_of(text: str) -> int:
    try:
        return int(str(AXES["block_size"].parse_one(text)))
    except UsageError as error:
        raise UsageError(f"--block-size {brief(text)}: {str(error).partition(': ')[2]}") from None


def _gbps_of(text: str) -> float:
    match = re.fullmatch(r"(\d{1,4}(?:\.\d{1,3})?) ?GB/s", text, re.ASCII | re.IGNORECASE)
    if match is None:
        raise UsageError(f"--need {brief(text)}: write a rate: 20GB/s")
    return float(match[1])


ALL_ALLOWED: Final = Allowed()

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
_Asked = Annotated[Mapping[str, Any], FromStruct(Asked, panel="The question")]
_OwnThread = Annotated[
    bool,
    typer.Option(
        "--own-thread",
        help="Swaps have a thread of their own: what they take of it does not count.",
        rich_help_panel="The question",
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
    asked: _Asked = NO_OPTIONS,
    own_thread: _OwnThread = False,
    prefill_tokens_per_second: Prefill = None,
    policy: PolicyFile = None,
    table: _Table = False,
    open_: _Open = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Show the answer of runs: what to use for swaps alone, beside decode steps and beside a prefill. Needs no GPU.

    Runs of several machines stand side by side. A folder of runs stands for all of them.

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
    swaps = models.swaps()
    wanted: Asked = convert(asked, Asked)
    question = wanted.question(swaps, own_thread=own_thread)
    loaded = load_all(runs)
    _check_backends(loaded, may)
    output = Output(question, may, swaps, prefill, policy, table, open_, force, as_json)
    if output == Output(question):
        show_runs(loaded, question)
    elif output == Output(question, as_json=True):
        show_runs(loaded, question, as_json=True)
    elif as_json or not _print_gathers(loaded, swaps):
        print_answer(loaded, output)


@dataclass(frozen=True, slots=True)
class Output:
    """What is asked of runs, and how it is printed."""

    question: "Question"
    may: Allowed = ALL_ALLOWED
    swaps: "Sequence[ModelSwap]" = ()
    prefill: float | None = None
    policy: Path | None = None
    table: bool = False
    open: bool = False
    force: bool = False
    as_json: bool = False

    def keeps(self, driver: int, choice: Choice) -> bool:
        """Whether a choice may be in the answer."""
        return self.may.serves(driver, choice) if self.policy else self.may.suits_all(driver, choice)


def show_runs(runs: "Sequence[Run]", question: "Question", *, as_json: bool = False) -> None:
    """Print the answer of runs, side by side those of several machines; without any, the findings of the report."""
    if len({(run.info.device.get("title"), run.info.identity.get("driver_version")) for run in runs}) > 1:
        _show_machines(runs, question, as_json=as_json)
        return
    if as_json:
        typer.echo(json.dumps(_plain_answer(runs, question), indent=2))
        return
    try:
        print_answer(runs, Output(question))
    except UsageError as none:
        _print_findings(runs, str(none))


def load_all(paths: Sequence[Path]) -> "list[Run]":
    """Read runs; a folder of runs stands for these."""
    from kvbench.results import load_run
    from kvbench.results.rundir import runs_below

    return [load_run(folder) for path in paths for folder in runs_below(path)]


def print_answer(runs: "Sequence[Run]", output: Output) -> None:
    """Print what was asked for: the six rows, or the table of shapes and what is open; and the swaps of models.

    Writes a policy if a file is named. Raises UsageError where there is nothing to choose from.
    """
    from kvbench.tune.candidates import driver_of
    from kvbench.tune.planner import token_lines
    from kvbench.tune.situations import advise

    driver = driver_of(runs)
    advice = advise(runs, output.question, partial(output.keeps, driver))
    lines = [*token_lines(runs, partial(output.may.suits_all, driver), output.swaps, output.prefill or 0)]
    if output.as_json:
        _print_json(advice, output, lines)
    else:
        _print_text(advice, output, lines)
    if output.policy is not None:
        _write_policy(output.policy, advice, force=output.force)


def _print_json(advice: "Advice", output: Output, lines: "Sequence[TokenLine]") -> None:
    from kvbench.tune.text import to_plain

    plain = to_plain(advice, output.swaps, costs=output.open)
    typer.echo(json.dumps({**_around(advice.runs), **plain, "token_lines": msgspec.to_builtins(lines)}, indent=2))


def _print_text(advice: "Advice", output: Output, lines: "Sequence[TokenLine]") -> None:
    from kvbench.cli.options import print_lines
    from kvbench.tune.text import origin

    note, faults = _around(advice.runs).values()
    print_lines([*filter(None, [note]), *origin(advice.runs)])
    if output.table or output.open:
        _print_shapes(advice, output)
    else:
        _print_rows(advice)
    if output.swaps and advice.rule:
        _print_models(advice, output, lines)
    print_lines(f"Warning: {fault}" for fault in faults)


def _print_rows(advice: "Advice") -> None:
    """Print the rows of the answer, as a table where it has room, and what they leave out."""
    from kvbench.cli.options import print_lines, print_rows, room
    from kvbench.tune import table
    from kvbench.tune.text import answer_lines

    rows = table.rows_of(advice)
    columns = zip(table.HEADER, *rows, strict=True)
    width = sum(max(map(len, column)) + len("  ") for column in columns)
    if (room() or width) < width:
        print_lines(table.in_lines(advice))
    else:
        print_rows(rows, table.HEADER)
    alone = advice.rule if Situation.ALONE in advice.question.situations else None
    about_alone = answer_lines(alone, advice.runs, "--open", costs=False) if alone else []
    print_lines(filter(None, [table.head_of(advice)]))
    if others := table.others_of(advice):
        print_rows(others, table.OTHERS)
    print_lines([*table.lines_of(advice), *about_alone])


def _print_shapes(advice: "Advice", output: Output) -> None:
    """Print the choice for every shape alone, or those that another run could make differently, and what that costs."""
    from kvbench.cli.options import print_lines, print_rows
    from kvbench.tune import text
    from kvbench.tune.answer import answers_of

    answers = answers_of(advice.rule.shapes) if advice.rule else []
    if output.table:
        print_lines([text.ALIKE])
        print_rows([*map(text.row, answers)], text.HEADER)
    if output.open and advice.rule:
        print_lines(text.answer_lines(advice.rule, advice.runs))
        print_lines([text.OPEN, *(f"  {line}" for line in text.open_points(answers) or ["nothing"])])


def _around(runs: "Sequence[Run]") -> dict[str, Any]:
    """The notes around an answer: that no GPU was involved, and the faults of whole runs."""
    from kvbench.report.faults import HOST_COPIES, unsteady, worst_faults

    on_host = any(run.info.device.get("kind") == "cpu" for run in runs)
    labelled = {run.path.absolute().name: run for run in runs}
    faults = [*filter(None, [unsteady(labelled)]), *worst_faults(labelled)]
    return {"host_note": HOST_COPIES if on_host else "", "warnings": faults}


def _print_gathers(runs: "Sequence[Run]", swaps: "Sequence[ModelSwap]") -> bool:
    """Print for how long decode steps of models wait for rows by ids; return whether the runs have nothing else."""
    from kvbench.cli.options import print_lines
    from kvbench.tune.planner import gather_lines

    lines = [*gather_lines(runs, swaps)]
    print_lines(lines)
    return bool(lines) and all(cell.list_place is ListPlace.GPU for run in runs for cell in run.outcomes)


def _print_models(advice: "Advice", output: Output, lines: "Sequence[TokenLine]") -> None:
    from kvbench.cli.options import print_lines, print_rows
    from kvbench.models.geometry import models_of
    from kvbench.tune import text
    from kvbench.tune.planner import loads_of, setting_lines, totals_of

    rule, swaps = advice.rule, output.swaps
    assert rule is not None
    print_lines(line for model in models_of(swaps) for line in ("", f"{model.name}: {model.text}"))
    for swap in swaps:
        shape = f"{swap.blocks} blocks of {size_text(swap.block_bytes)}"
        print_lines(["", f"{swap.title}, {swap.tokens} tokens: {shape}"])
        print_rows([*map(text.row_model, loads_of(rule, swap))], text.HEADER_MODEL)
    print_lines(line for total in totals_of(rule, swaps) for line in ("", total))
    print_lines(["", *text.planner_lines(lines)] if lines else [])
    print_lines(["", *setting_lines(advice, swaps, lines)])
    if output.prefill:
        print_lines(["", *text.prefill_lines(lines, output.prefill)])


def _write_policy(file: Path, advice: "Advice", *, force: bool) -> None:
    from kvbench.cells.policy import load_policy
    from kvbench.files import write_output
    from kvbench.tune.policies import policy_of

    made = policy_of(advice)
    write_output("--policy", file, made.to_toml().encode(), load_policy, force=force)
    typer.echo(f"{file}: a policy for {made.device}, {', '.join(table.title for table in made.tables)}", err=True)


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


def _show_machines(runs: "Sequence[Run]", question: "Question", *, as_json: bool) -> None:
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
        answers = {card: _plain_answer([view.run for view in of_card], question) for card, of_card in by_card.items()}
        texts = {name: dict(zip(header[1:], row, strict=True)) for name, *row in rows}
        typer.echo(json.dumps({"side_by_side": texts, "notes": notes, "machines": answers}, indent=2))
        return
    print_rows(rows, header)
    print_lines(notes)


def _plain_answer(runs: "Sequence[Run]", question: "Question") -> dict[str, Any]:
    """Return the answer of runs, or what the sections of a report found where there is nothing to choose from."""
    from kvbench.tune.candidates import driver_of
    from kvbench.tune.situations import advise
    from kvbench.tune.text import to_plain

    try:
        advice = advise(runs, question, partial(Allowed().suits_all, driver_of(runs)))
        return {**_around(runs), **to_plain(advice), "token_lines": []}
    except UsageError:
        return {**_around(runs), "findings": _findings(runs)}


def _findings(runs: "Sequence[Run]") -> list[str]:
    from kvbench.report.build import report_of  # the sections take as long to import as pandas
    from kvbench.report.model import plain

    report = report_of(runs)
    return [*map(plain, [*report.headline, *report.findings])]


def _print_findings(runs: "Sequence[Run]", why: str) -> None:
    from kvbench.cli.options import print_lines

    note, faults = _around(runs).values()
    print_lines(
        [*filter(None, [note]), f"No choice: {why}", *_findings(runs), *(f"Warning: {fault}" for fault in faults)]
    )
