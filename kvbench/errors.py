"""The errors of kvbench, each with the exit code of the command line."""

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """The exit codes of every kvbench command."""

    DONE = 0
    REGRESSION = 1
    USAGE = 2
    INCONCLUSIVE = 3
    MISMATCH = 4
    FAILED_CELLS = 5
    UNFORESEEN = 70
    INTERRUPTED = 130
    CLOSED = 141


EXIT_CODES: Final = {
    ExitCode.DONE: "done",
    ExitCode.REGRESSION: "`kvbench gate` found a regression or a broken rule",
    ExitCode.USAGE: "bad input: one line names the option, the value and what would be right",
    ExitCode.INCONCLUSIVE: "`kvbench gate` cannot tell: the comparison is undecided, or something else disturbed it",
    ExitCode.MISMATCH: "two things that must match do not: a run to resume, or rules of another sweep or machine",
    ExitCode.FAILED_CELLS: "cells failed or are missing, the sweep stopped early, `kvbench doctor` failed a "
    "check, or a probe of `kvbench probe` gave no answer",
    ExitCode.UNFORESEEN: "an internal error: one line describes it and says how to report it",
    ExitCode.INTERRUPTED: "interrupted; everything measured is kept",
    ExitCode.CLOSED: "the reader of the output closed it, as `head` does; everything measured is kept",
}


def brief(text: str) -> str:
    """Return `text` for a message: on one line and shortened."""
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
