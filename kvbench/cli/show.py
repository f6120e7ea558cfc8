"""`kvbench show`: print the answer of runs in the terminal."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer

from kvbench.cells.axes import ListPlace, Situation
from kvbench.cells.cell import AXES
from kvbench.cells.policy import SERVING, Choice, load_policy
from kvbench.cli.options import NO_OPTIONS, FromStruct, fraction_of, print_page, with_struct_options
from kvbench.ground.errors import UsageError, brief
from kvbench.ground.text import convert
from kvbench.models.presets import ModelChoice

if TYPE_CHECKING:
    from kvbench.models.geometry import ModelSwap
    from kvbench.results import Run
    from kvbench.tune.advice import Reply
    from kvbench.tune.situations import Question


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
        return tuple(filter(None, map(str.strip, (self.backends or "").split(","))))

    def keeps(self, driver: int, choice: Choice) -> bool:
        """Whether a choice is allowed with this driver (13010: CUDA 13.1). With a limit of SMs, no copy is that
        the driver may make with SMs, since how many it takes is not known.
        """
        from kvbench.tune.candidates import may_take_sms

        if self.max_sms is not None and (choice.sms > self.max_sms or may_take_sms(choice, driver)):
            return False
        return not self.names or choice.backend in self.names

    def suits_all(self, driver: int, choice: Choice) -> bool:
        """Whether a choice is allowed, and serves every engine or is named."""
        from kvbench.cells.installed import serves_all

        return self.keeps(driver, choice) and (choice.backend in self.names or serves_all(choice))

    def serves(self, driver: int, choice: Choice) -> bool:
        """Whether a choice is allowed in a policy: auto and `kvbench.copy` can run it."""
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

    def question(
        self, swaps: "Sequence[ModelSwap]" = (), prefill: float | None = None, *, own_thread: bool = False
    ) -> "Question":
        """The question to the runs; raises UsageError."""
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
        usual = swaps[0].block_bytes if swaps else Question().block_bytes
        return Question(
            block_bytes=_size_of(self.block_size) if self.block_size else usual,
            need_gbps=None if self.need is None else _gbps_of(self.need),
            thread_counts=not own_thread,
            limits=limits,
            situations=situations,
            swaps=swaps,
            prefill_tokens_per_s=prefill or 0,
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
    swaps, prefill = models.swaps(), prefill_of(prefill_tokens_per_second, models)
    wanted: Asked = convert(asked, Asked)
    question = wanted.question(swaps, prefill, own_thread=own_thread)
    loaded = load_all(runs)
    _check_backends(loaded, may)
    output = Output(policy, table, open_, force, as_json)
    is_plain = (may, swaps, output) == (Allowed(), (), Output(as_json=as_json))
    machines = {(run.info.device.get("title"), run.info.identity.get("driver_version")) for run in loaded}
    if is_plain and len(machines) > 1:
        _show_machines(loaded, question, output)
    elif as_json or not _print_gathers(loaded, swaps):
        reply = _reply_or_findings(loaded, question, output) if is_plain else _reply(loaded, question, may, output)
        _print_reply(reply, output)


class Output(NamedTuple):
    """How an answer is printed, and the file of its policy."""

    policy: Path | None = None
    table: bool = False
    open: bool = False
    force: bool = False
    as_json: bool = False


def load_all(paths: Sequence[Path]) -> "list[Run]":
    """Read runs; a folder of runs stands for these."""
    from kvbench.results import load_run
    from kvbench.results.rundir import runs_below

    return [load_run(folder) for path in paths for folder in runs_below(path)]


def show_answer(runs: "Sequence[Run]", question: "Question", may: Allowed, output: Output) -> None:
    """Print the answer of runs as JSON or text, and write its policy if a file is named.

    Raises UsageError where there is nothing to choose from or to write.
    """
    reply = _reply(runs, question, may, output)
    _print_reply(reply, output)


def _reply(runs: "Sequence[Run]", question: "Question", may: Allowed, output: Output) -> "Reply":
    """Answer by what may be used, and in a policy by what `auto` can run."""
    from kvbench.report.whole_runs import remarks_on
    from kvbench.tune.advice import Reply, advise

    keep = partial(may.serves if output.policy else may.suits_all, runs[0].info.cuda)
    return Reply(advise(runs, question, keep), *remarks_on(runs))


def _reply_or_findings(runs: "Sequence[Run]", question: "Question", output: Output) -> "Reply":
    """Answer with the findings of the report in place of a choice that is missing, and behind an answer without a
    method.
    """
    from kvbench.report.whole_runs import remarks_on
    from kvbench.tune.advice import Reply

    try:
        reply = _reply(runs, question, Allowed(), output)
    except UsageError as error:
        reply = Reply(None, *remarks_on(runs), none=str(error))
    if reply.advice is None or not (output.as_json or any(answer.use for answer in reply.advice.answers)):
        from kvbench.report.build import plain_findings  # the sections take as long to import as pandas

        return reply._replace(findings=plain_findings(runs, headline=reply.advice is None))
    return reply


def _print_reply(reply: "Reply", output: Output) -> None:
    from kvbench.ground.files import write_output
    from kvbench.tune.page import page_of

    if output.as_json:
        typer.echo(json.dumps(reply.to_plain(costs=output.open), indent=2))
    else:
        print_page(page_of(reply, table=output.table, open_=output.open))
    if reply.advice is not None and output.policy is not None:
        policy = reply.advice.policy()
        write_output("--policy", output.policy, policy.to_toml().encode(), load_policy, force=output.force)
        tables = ", ".join(table.title for table in policy.tables)
        typer.echo(f"{output.policy}: a policy for {policy.device}, {tables}", err=True)


def _print_gathers(runs: "Sequence[Run]", swaps: "Sequence[ModelSwap]") -> bool:
    """Print for how long decode steps of models wait for rows by ids; return whether the runs have nothing else."""
    from kvbench.tune.evidence import gathers_of
    from kvbench.tune.page import gather_text
    from kvbench.tune.planner import gather_waits

    lines = [*map(gather_text, gather_waits(gathers_of(runs), swaps))]
    print_page(lines)
    return bool(lines) and all(cell.list_place is ListPlace.GPU for run in runs for cell in run.outcomes)


def _check_backends(runs: "Sequence[Run]", may: Allowed) -> None:
    measured = sorted({cell.backend for run in runs for cell in run.outcomes})
    if not {*may.names} <= {*measured}:
        raise UsageError(f"--backends {brief(','.join(may.names))}: these runs measured only {', '.join(measured)}")


def prefill_of(tokens_per_s: float | None, models: ModelChoice) -> float | None:
    """Return --prefill-tokens-per-second; raises UsageError for one that cannot be, and without a model."""
    if tokens_per_s is None:
        return None
    if not 1 <= tokens_per_s <= 1e9:
        raise UsageError(f"--prefill-tokens-per-second {tokens_per_s:g}: must be from 1 to 1e9")
    if not models.models:
        raise UsageError("--prefill-tokens-per-second: tokens are those of a model; add --model")
    return tokens_per_s


def _show_machines(runs: "Sequence[Run]", question: "Question", output: Output) -> None:
    """Print a column for each of several machines, and what only one of them has."""
    from kvbench.report.model import plain
    from kvbench.report.sections.answer import machines_table  # the sections take as long to import as pandas
    from kvbench.report.view import views_of
    from kvbench.results.outcomes import grouped
    from kvbench.tune.page import Grid

    views = views_of(runs)
    table = machines_table(views)
    assert table is not None
    header, *rows = ([*map(plain, row)] for row in (table.header, *table.rows))
    notes = [plain(note) for note in (*table.notes, table.caption) if note]
    if not output.as_json:
        print_page([Grid(header, rows), *notes])
        return
    machines = {}
    for card, of_card in grouped(views, lambda view: view.card).items():
        card_runs = [view.run for view in of_card]
        machines[card] = _reply_or_findings(card_runs, question, output).to_plain()
    texts = {name: dict(zip(header[1:], row, strict=True)) for name, *row in rows}
    typer.echo(json.dumps({"side_by_side": texts, "notes": notes, "machines": machines}, indent=2))
