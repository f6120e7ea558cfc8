"""What a comparison under way shows: a line when rounds begin, one a turn with the time left, one for each failure."""

import time
from collections.abc import Mapping
from typing import Any, Final, TextIO

import msgspec

from kvbench.cli.progress import failure_line
from kvbench.gate.schedule import SideName, Turn
from kvbench.gate.sides import Side
from kvbench.results import Failure
from kvbench.text import printable
from kvbench.units import format_duration

NAMES: Final[Mapping[SideName, str]] = {"a": "base", "b": "candidate"}


class TurnLines:
    """Plain lines to `out`. The time left starts as the plan's guess and then follows the visits made."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._turns, self._turn = 0, 0
        self._visits, self._made = 0, 0
        self._started_s = 0.0
        self._estimate_s = 0.0

    def begins(self, rounds: int, again: int, visits: int, estimate_s: float) -> None:
        self._turns, self._turn = 2 * rounds, 0
        self._visits, self._made = visits, 0
        self._estimate_s = estimate_s
        self._started_s = time.monotonic()
        what = f"{again} cells cannot be told yet: {rounds} more rounds" if again else f"{rounds} rounds of two sides"
        self.say(f"{what}, {visits} visits; about {format_duration(estimate_s)}")

    def turn(self, turn: Turn, side: Side) -> None:
        self._turn += 1
        what = f"round {turn.round}, {NAMES[turn.side]} {side.text}"
        self.say(f"{self._turn} of {self._turns}: {what}; {self._left()} left")

    def event(self, event: Mapping[str, Any]) -> None:
        record = event.get("record", {})
        self._made += record.get("type") in ("visit", "failure")
        if record.get("type") == "failure":
            self.say(failure_line(msgspec.convert(record, Failure)))

    def say(self, line: str) -> None:
        """Print one line."""
        print("\n".join(printable(part) for part in line.splitlines()), file=self._out, flush=True)

    def _left(self) -> str:
        if not self._made:
            return format_duration(self._estimate_s)
        seconds = (time.monotonic() - self._started_s) / self._made * (self._visits - self._made)
        return format_duration(max(seconds, 0.0))
