"""The command `kvbench`, also as `python -m kvbench`: it imports nothing before Ctrl-C can end it."""

import os
import signal
from typing import NoReturn

INTERRUPTED = 130  # errors.ExitCode has it too, at the price of an import


def main() -> None:
    # The imports take some tenths of a second, in which Ctrl-C would print the traceback of one of them. A shell has
    # its background commands ignore Ctrl-C: that stays.
    hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if hears:
        signal.signal(signal.SIGINT, _end)
    from kvbench.cli.main import main as command

    if hears:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


def _end(_number: int, _frame: object) -> NoReturn:
    os.write(2, b"kvbench: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
