"""The `kvbench` command: its sub-commands, and the one place where an error becomes a line and an exit code."""

import os
import sys
from typing import Final

import typer

from kvbench._version import __version__
from kvbench.cli import doctor, gate, listing, report, sweep, tune
from kvbench.errors import ExitCode, KvbenchError, brief
from kvbench.text import printable

# The parser's error for any bad option: typer exports only a subclass of it, and from 0.26 on it is no longer click's.
_BAD_USAGE: Final[type[typer.BadParameter]] = typer.BadParameter.__bases__[0]

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


app.command(epilog=sweep.EPILOG)(sweep.sweep)
app.command()(report.report)
app.command()(tune.tune)
app.add_typer(gate.gate)
app.command("list")(listing.listing)
app.command()(doctor.doctor)


def main() -> None:
    """Run the command line; every foreseen error is one line on stderr and its own exit code."""
    try:
        sys.exit(app(standalone_mode=False))
    except KvbenchError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except _BAD_USAGE as error:
        message = " ".join(error.format_message().split())
        if message:  # bare `kvbench` is an error without one, its help stands already
            _complain(message + _value_left_out(error, message))
        sys.exit(ExitCode.USAGE)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.INTERRUPTED)


def _complain(message: str) -> None:
    print(f"kvbench: {printable(' '.join(message.splitlines()))}", file=sys.stderr)


def _value_left_out(error: Exception, message: str) -> str:
    # typer 0.26 and newer check values with pydantic, whose messages do not hold the value.
    details = getattr(error.__cause__, "errors", None)
    value = brief(repr(details()[0]["input"])) if details else ""
    return f" (given: {value})" if value not in message else ""
