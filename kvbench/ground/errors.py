"""The errors of kvbench, each with the exit code of the command line."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of every kvbench command, explained in docs/reference/results.md."""

    DONE = 0
    REGRESSION = 1
    USAGE = 2
    INCONCLUSIVE = 3
    MISMATCH = 4
    FAILED_CELLS = 5
    UNFORESEEN = 70
    INTERRUPTED = 130
    CLOSED = 141


def brief(text: str) -> str:
    """`text` for a message: on one line and shortened."""
    line = text if text.isprintable() else ascii(text)
    return line if len(line) <= 80 else line[:77] + "..."


class KvbenchError(Exception):
    """An error that ends a command with one line and with `exit_code`."""

    exit_code = ExitCode.USAGE


class UsageError(KvbenchError):
    """Bad input: the message names the option or key, the value, and what would be right."""


class RunDirectoryError(KvbenchError):
    """A run directory that cannot be read: it is not a run directory, it is damaged, or it has another schema."""


class MismatchError(KvbenchError):
    """Two runs, or a run and this machine, do not match although they must."""

    exit_code = ExitCode.MISMATCH


class StorageError(KvbenchError):
    """The run directory cannot be written (full disk, lost mount); everything written before is kept."""

    exit_code = ExitCode.FAILED_CELLS
