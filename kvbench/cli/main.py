"""The `kvbench` command: its subcommands, and the conversion of an error to a line and an exit code."""

import errno
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from traceback import extract_tb
from typing import Any, Final

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from kvbench.cells.cell import AXES
from kvbench.cli.options import version_line
from kvbench.ground.errors import ExitCode, KvbenchError, StorageError, UsageError, brief
from kvbench.ground.text import printable, short, wrapped

# Longer error messages are truncated to this many characters.
MAX_LINE: Final = 2000
TRACEBACK_VARIABLE: Final = "KVBENCH_TRACEBACK"
_CLOSED: Final = "the reader of the output closed it"
# What the system says of a path that a user names: even looking for such a file raises.
_BAD_PATH: Final = frozenset({errno.ENAMETOOLONG, errno.EACCES})

# In the order of the help, where they are and what the list of commands says of them. They are imported when they are
# called: the core imports none of its guests, probe and traces, and the list waits for none of them.
_COMMANDS: Final = {
    "sweep": ("kvbench.cli.sweep:sweep", "Measure swaps of KV-cache blocks and write a run directory."),
    "show": ("kvbench.cli.show:show", "Show the answer of runs: the backends to use, their loss and gain."),
    "report": ("kvbench.cli.report:report", "Write report.md, report.html and charts from runs."),
    "tune": ("kvbench.cli.tune:tune", "Measure which backends to use on this machine."),
    "tune engine": ("kvbench.cli.tune:tune_engine", "Print which settings of an engine should change, as a patch."),
    "list": ("kvbench.cli.listing:listing", "List the available axes, backends, configs, devices or models."),
    "doctor": ("kvbench.cli.doctor:doctor", "Check whether this machine is fit to measure on."),
    "probe": ("kvbench.probe.command:probe", "Determine how the driver runs a batched copy."),
    "gate": ("kvbench.cli.gate:gate", "Compare two builds or backends, or check rules about one run."),
    "trace": ("kvbench.traces.command:trace", "Turn request traces into swaps, and describe the swaps."),
}


class _Commands(TyperGroup):
    """The commands, each built from its module when it is asked for."""

    lists = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        names: Any = dict.fromkeys(_COMMANDS)
        self.commands = names  # for the list and for suggestions

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.lists = True
        super().format_help(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        two = " ".join(args[:2])
        return (two, self.get_command(ctx, two), args[2:]) if two in _COMMANDS else super().resolve_command(ctx, args)

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        place, summary = _COMMANDS[cmd_name]
        if self.lists:
            return TyperCommand(cmd_name, help=summary)
        path, _, name = place.partition(":")
        module = import_module(path)
        command = getattr(module, name)
        if isinstance(command, typer.Typer):
            return typer.main.get_group(command)
        alone = typer.Typer(add_completion=False)
        kind = getattr(module, "COMMAND", TyperCommand)
        alone.command(cmd_name, cls=kind, epilog=getattr(module, "EPILOG", None))(command)
        return typer.main.get_command(alone)


app = typer.Typer(
    name="kvbench",
    cls=_Commands,
    help="Benchmark KV-cache block swaps between host memory and the GPU, on this machine.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _version(show: bool) -> None:
    if show:
        typer.echo(version_line())
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", "-V", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    del version


class _Output(io.TextIOWrapper):
    """Standard output whose write errors are reported as errors of standard output, not of the running command."""

    reader_left = False

    def write(self, text: str, /) -> int:
        with self._errors():
            return super().write(text)

    def flush(self) -> None:
        with self._errors():
            super().flush()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self.reader_left = True
            # It ends a measurement as Ctrl-C does. Typer would make an exit code 1 of the error itself.
            raise KeyboardInterrupt(_CLOSED) from None
        except OSError as error:
            raise StorageError(f"standard output cannot be written: {error.strerror}") from None


def main() -> None:
    _fill_streams()
    # A replaced sys.stdout (as in tests) keeps its own encoding and buffering.
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        shown = sys.stdout.isatty()
        sys.stdout = _Output(sys.stdout.detach(), encoding="utf-8", errors="replace", line_buffering=shown)
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except (KvbenchError, OSError, KeyboardInterrupt):
        # Standard output is full or its reader is gone. Python would report the error again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(sys.stdout, _Output) and sys.stdout.reader_left and code in (ExitCode.DONE, ExitCode.INTERRUPTED):
        code = ExitCode.CLOSED
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """The exit code of a command; every error is one line on stderr, an unexpected one gives UNFORESEEN."""
    try:
        _check_text(arguments)
        code = app(arguments, prog_name="kvbench", standalone_mode=False)
        sys.stdout.flush()
    except KvbenchError as error:
        return _complain(str(error), error.exit_code)
    except TyperException as error:
        message = _in_house_style(" ".join(error.format_message().split()))
        # Bare `kvbench` raises an error without a message: its help is already printed.
        return _complain(_with_hint(error, message, "".join(arguments[:1])), ExitCode.USAGE)
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        if isinstance(error, OSError) and error.filename and error.errno in _BAD_PATH:
            return _complain(f"{short(str(error.filename))}: {str(error.strerror).lower()}", ExitCode.USAGE)
        last = extract_tb(error.__traceback__)[-1]
        what = short(f"{type(error).__name__}: {error}", 300)
        return _complain(
            f"{what} ({Path(last.filename).name}, line {last.lineno}); this is a bug in kvbench: please report it with "
            f"the output of the same command under {TRACEBACK_VARIABLE}=1 and of kvbench doctor --json",
            ExitCode.UNFORESEEN,
        )
    return int(code or 0)


def _check_text(arguments: list[str]) -> None:
    """Raise UsageError for an argument that is empty, as an unset variable leaves it, that is not UTF-8, which run.json
    and messages between processes cannot hold, or that has control characters, which no name of a file or axis needs.
    """
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if not argument or (argument.startswith("--") and argument.endswith("=")):
            raise UsageError(f"{brief(argument or before)}: the value is empty")
        if any(ord(char) < 32 or ord(char) == 127 for char in argument):
            raise UsageError(f"argument {brief(argument)}: not one line of printable text")
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(f"argument {brief(argument)}: not valid UTF-8") from None


def _fill_streams() -> None:
    """Open the null device for each closed standard stream, so that no other file gets its descriptor.

    It cannot be written as standard output: what a command writes there would silently be lost.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)  # takes the lowest free descriptor
            stream = os.fdopen(number, "r" if number == 0 else "w", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _complain(message: str, code: ExitCode) -> ExitCode:
    if message:
        line = f"kvbench: {printable(_cut(' '.join(message.splitlines())))}"
        with suppress(OSError):
            on_terminal = sys.stderr.isatty()
            print(wrapped(line, get_terminal_size().columns) if on_terminal else line, file=sys.stderr, flush=True)
    return code


def _cut(line: str) -> str:
    """Return at most `MAX_LINE` characters: the middle is cut, since the end says what is wrong."""
    half = MAX_LINE // 2
    return line if len(line) <= MAX_LINE else f"{line[: half - 1]}…{line[-half:]}"


def _in_house_style(message: str) -> str:
    """A message of typer as kvbench would say it: `--rounds: not a valid integer`, with double quotes."""
    message = re.sub(r"^Invalid value for '(\S+?)': (Value error, )?", r"\1: ", message)
    return re.sub(r"Input should be a valid (\w+).*", r"not a valid \1", message).replace("'", '"')


# What people try that kvbench has under another name: words of typer's message behind the command, and what to write.
_AS_CSV: Final = "figures as CSV: summary.csv in the folder of a run, or load_run(RUN).to_csv(FILE) in Python"
_MEANT: Final = {
    'command "compare"': "to compare runs: kvbench report RUN RUN; to compare builds: kvbench gate compare",
    'command "run"': "to measure: kvbench sweep",
    'command "help"': "write kvbench --help, or kvbench COMMAND --help",
    'command "export"': _AS_CSV,
    "option: --csv": _AS_CSV,
    "tune: Got unexpected extra argument": "for the answer of runs: kvbench show RUN",
}


def _with_hint(error: Exception, message: str, command: str) -> str:
    """A message of typer, of a command of these words, with how to write what was probably meant."""
    name = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
    if name in AXES:
        return f"{message}; {name} is an axis: write -a {name}=VALUES"
    hints = [hint for words, hint in _MEANT.items() if words in f"{command}: {message}"]
    # In place of what typer guesses from the letters.
    return f"{re.sub(r'[.]( Did you mean .*)?$', '', message)}; {hints[0]}" if hints else message
