"""`kvbench policy`: what is fastest where, from runs into a file that the backend `auto` goes by."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvbench.errors import UsageError
from kvbench.files import write_whole

if TYPE_CHECKING:
    from kvbench.tune.table import Policy

_Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.", show_default=False)]
_Out = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="The policy file to write (TOML).")]
_Json = Annotated[bool, typer.Option("--json", help="Print the policy as JSON.")]


def policy(runs: _Runs, output: _Out = None, as_json: _Json = False) -> None:
    """Say which backend was fastest where, and write it down for the backend auto; needs neither GPU nor torch."""
    # pandas takes a second to import, which --help should not wait for
    from kvbench.results import load_run
    from kvbench.tune.fit import fit_policy

    made = fit_policy([load_run(path) for path in runs])
    if output is not None:
        try:
            write_whole(output, made.to_toml().encode())
        except OSError as error:
            raise UsageError(f"-o {output}: cannot be written: {str(error.strerror).lower()}") from None
    if as_json:
        typer.echo(json.dumps(made.to_plain(), indent=2))
        return
    _show(made)
    typer.echo(f"\npolicy: {output}" if output else "\nnothing written: say where with -o FILE")


def _show(made: "Policy") -> None:
    """Print the policy: a table for each direction and stream state, blocks to the right, sizes down."""
    from kvbench.cli.tables import print_rows
    from kvbench.units import format_size

    typer.echo(f"{made.device}, {made.made[:10]}")
    for table in made.tables:
        typer.echo(f"\n{table.direction}, {table.stream_state} stream")
        head = ["", *(str(count) for count in table.blocks)]
        sizes = map(format_size, table.block_bytes)
        rows = [[size, *(text or "-" for text in row)] for size, row in zip(sizes, table.choices, strict=True)]
        print_rows([head, *rows])
