"""The `kvbench` command: its sub-commands, and the one place where an error becomes a line and an exit code."""

import sys

import click
import typer

from kvbench import __version__
from kvbench.errors import ExitCode, KvbenchError

app = typer.Typer(
    name="kvbench",
    help="Benchmark KV-cache block swaps between host memory and the GPU, on the machine at hand.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"kvbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    del version


def main() -> None:
    """Run the command line; every foreseen error is one line on stderr and its own exit code."""
    try:
        app(standalone_mode=False)
    except KvbenchError as error:
        print(f"kvbench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(ExitCode.USAGE)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(ExitCode.INTERRUPTED)
