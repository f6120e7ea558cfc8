"""What the signals of a terminal and of a scheduler mean to a command that measures."""

import signal
from collections.abc import Iterator

import pytest

from kvbench.cli.sweep import end_on_signals


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_hangup_after_the_first_signal_does_not_end_what_is_written(number: signal.Signals) -> None:
    end_on_signals()
    with pytest.raises(KeyboardInterrupt, match=number.name):
        signal.raise_signal(number)
    signal.raise_signal(signal.SIGHUP)


def test_a_command_under_nohup_outlives_its_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    end_on_signals()
    signal.raise_signal(signal.SIGHUP)
