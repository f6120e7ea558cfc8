"""`kvbench policy`: what is fastest where, from runs into a file that the backend `auto` goes by."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.tune.table import Policy, Table

_Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.", show_default=False)]
_Out = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="The policy file to write (TOML).")]
_Json = Annotated[bool, typer.Option("--json", help="Print the policy as JSON.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("policy")(policy)


def policy(runs: _Runs, output: _Out = None, as_json: _Json = False) -> None:
    """Say which backend was fastest where, and write it down for the backend auto; needs neither GPU nor torch."""
    # pandas takes a second to import, which --help should not wait for
    from kvbench.results import load_run
    from kvbench.tune.fit import fit_policy

    made = fit_policy([load_run(path) for path in runs])
    if output is not None:
        _write(output, made.to_toml())
    if as_json:
        typer.echo(json.dumps(made.to_plain(), indent=2))
        return
    for line in _shown(made):
        typer.echo(line)
    typer.echo(f"policy: {output}" if output else "nothing written: say where with -o FILE")


def _write(path: Path, text: str) -> None:
    from kvbench.files import write_whole

    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise UsageError(f"-o {path}: cannot be written: {str(error.strerror).lower()}") from None


def _shown(made: "Policy") -> Iterator[str]:
    """Yield the policy for people: a table for each direction and stream state, blocks to the right, sizes down."""
    yield f"{made.device}, {made.made[:10]}"
    for table in made.tables:
        yield ""
        yield f"{table.direction}, {table.stream_state} stream"
        yield from _grid(table)
    yield ""
    yield f"a look-up takes {_look_up_us(made):.1f} us here"


def _grid(table: "Table") -> Iterator[str]:
    from kvbench.units import format_size

    head = ["", *(str(count) for count in table.blocks)]
    sizes = map(format_size, table.block_bytes)
    body = [[size, *(text or "-" for text in row)] for size, row in zip(sizes, table.choices, strict=True)]
    widths = [max(len(row[place]) for row in (head, *body)) for place in range(len(head))]
    for row in (head, *body):
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _look_up_us(policy: "Policy") -> float:
    """Return what one look-up takes on this machine, in microseconds: the best of a few rounds."""
    from timeit import repeat

    from kvbench.tune.table import Chooser

    chooser, table, rounds = Chooser(policy), policy.tables[-1], 1000
    wanted = (table.direction, table.stream_state, 3 * table.blocks[-1] // 4, 0.75 * table.block_bytes[-1])
    return min(repeat(lambda: chooser.choose(*wanted), number=rounds, repeat=5)) / rounds * 1e6
