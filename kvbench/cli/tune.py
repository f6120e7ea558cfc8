"""`kvbench tune`: which way to swap where, from a measurement of its own or from finished runs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from kvbench.cli.options import FromStruct, with_struct_options
from kvbench.errors import UsageError, brief
from kvbench.files import write_whole
from kvbench.models.presets import ModelChoice
from kvbench.text import convert

if TYPE_CHECKING:
    from kvbench.results import Run
    from kvbench.tune.answer import Answer
    from kvbench.tune.table import Choice

NO_OPTIONS: Final[Mapping[str, Any]] = {}
_MOST_OPEN: Final = 20


class Allowed(msgspec.Struct, frozen=True):
    """What may be chosen."""

    budget_sms: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=4096)] | None,
        msgspec.Meta(description="SMs that a swap may take at most; 0 for copies by the copy engine alone"),
    ] = None
    backends: Annotated[
        str | None, msgspec.Meta(description="backends that may be chosen: batched,sm (default: all)")
    ] = None

    @property
    def names(self) -> tuple[str, ...]:
        """The backends; () for all."""
        return tuple(name for name in (self.backends or "").split(",") if name)

    def keeps(self, choice: "Choice") -> bool:
        """Return whether a choice is allowed."""
        from kvbench.tune.fit import sms_of

        fits = self.budget_sms is None or sms_of(choice) <= self.budget_sms
        return fits and (not self.names or choice.backend in self.names)


_Runs = Annotated[
    list[Path] | None, typer.Argument(metavar="[RUN]...", help="Finished runs to answer from, without measuring.")
]
_Policy = Annotated[
    Path | None, typer.Option("--policy", "-p", metavar="FILE", help="Write the choices for the backend auto (TOML).")
]
_Export = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[=FILE]",
        help="Settings for vllm, sglang, flexkv or lmcache, or json, on standard output or in a file. Repeatable.",
    ),
]
_Models = Annotated[
    list[str] | None,
    typer.Option(metavar="MODEL", help="Answer for the swaps of a model: a name or a config.json. Repeatable."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("tune")(with_struct_options(tune))


def tune(
    runs: _Runs = None,
    model: _Models = None,
    geometry: Annotated[Mapping[str, Any], FromStruct(ModelChoice, leave_out=("models",))] = NO_OPTIONS,
    allowed: Annotated[Mapping[str, Any], FromStruct(Allowed)] = NO_OPTIONS,
    policy: _Policy = None,
    export: _Export = None,
    as_json: _Json = False,
) -> None:
    """Say which way to swap where on this machine, and what that gains. With RUN it needs neither GPU nor torch."""
    # pandas takes a second to import, which --help should not wait for
    from kvbench.results import load_run
    from kvbench.tune.answer import answers_of, by_kind
    from kvbench.tune.fit import policy_of

    may: Allowed = convert(allowed, Allowed)
    models: ModelChoice = convert({"models": model or [], **geometry}, ModelChoice)
    targets = dict(_target(text) for text in export or [])
    if not runs:
        raise UsageError("kvbench tune needs a RUN")
    loaded = [load_run(path) for path in runs]
    shapes = [(swap.block_bytes, swap.blocks) for swap in models.swaps()] if models.models else None
    answers = answers_of(loaded, may.keeps, shapes)
    if policy is not None:
        chosen = {kind: {answer.point: answer.choice for answer in own} for kind, own in by_kind(answers).items()}
        _write(policy, policy_of(loaded, chosen).to_toml(), f"-p {policy}")
    for name, file in targets.items():
        _export(name, file, answers)
    if as_json:
        _print_json(answers)
    elif not any(file is None for file in targets.values()):
        _show(loaded, answers)


def _target(text: str) -> tuple[str, Path | None]:
    """Return the name of an export and its file, None for standard output."""
    from kvbench.tune.exports import EXPORTS

    name, equals, file = text.partition("=")
    if name not in (*EXPORTS, "json") or (equals and not file):
        raise UsageError(f"--export {brief(text)}: write {', '.join(EXPORTS)} or json, with =FILE for a file")
    return name, Path(file) if equals else None


def _export(name: str, file: Path | None, answers: Sequence["Answer"]) -> None:
    from kvbench.tune.exports import export, to_plain

    text = json.dumps(to_plain(answers), indent=2) + "\n" if name == "json" else export(name, answers).text()
    if file is None:
        typer.echo(text, nl=False)
    else:
        _write(file, text, f"--export {name}={file}")


def _print_json(answers: Sequence["Answer"]) -> None:
    from kvbench.tune.exports import to_plain

    typer.echo(json.dumps(to_plain(answers), indent=2))


def _write(file: Path, text: str, option: str) -> None:
    try:
        write_whole(file, text.encode())
    except OSError as error:
        raise UsageError(f"{option}: cannot be written: {str(error.strerror).lower()}") from None


def _show(runs: Sequence["Run"], answers: Sequence["Answer"]) -> None:
    """Print what to use where, the table that it rests on, and what is open."""
    from kvbench.cli.tables import print_rows
    from kvbench.tune.answer import open_points, sentences

    info = runs[0].info
    typer.echo(f"{info.device.get('title')}, {info.created[:10]}\n")
    for line in sentences(answers):
        typer.echo(line)
    typer.echo("")
    print_rows([_HEADER, *map(_row, answers)])
    if open_lines := open_points(answers):
        typer.echo("\nOpen: another run could choose otherwise")
        for line in open_lines[:_MOST_OPEN]:
            typer.echo(f"  {line}")
        if len(open_lines) > _MOST_OPEN:
            typer.echo(f"  and {len(open_lines) - _MOST_OPEN} more (--json has all)")


_HEADER: Final = ("Dir", "Quantity", "Blocks", "Size", "Choice", "us", "95%", "GB/s", "x batched", "x vLLM today")


def _row(answer: "Answer") -> list[str]:
    from kvbench.tune.answer import shown_size, two_digits

    interval = answer.interval_us
    known = "-" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}"
    gains = [answer.gain_over(other) for other in (answer.best_of("batched"), answer.of_vllm)]
    return [
        answer.direction.value,
        answer.state.quantity,
        str(answer.blocks),
        shown_size(answer.block_bytes),
        str(answer.choice),
        f"{answer.time_us:.1f}",
        known,
        f"{answer.gbps:.1f}",
        *("-" if found is None else two_digits(found.ratio) for found in gains),
    ]
