"""Turns: whose it is, and how a side takes one, a sweep of one round in a fresh process of its environment."""

import json
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from kvbench.cells.cell import Cell
from kvbench.errors import ExitCode, KvbenchError, UsageError
from kvbench.gate.sides import Side
from kvbench.results import Failure
from kvbench.text import printable

SideName = Literal["a", "b"]
A: Final[SideName] = "a"
B: Final[SideName] = "b"
# Spec seeds are at most 63 bits; a round adds less than this.
_MAX_SEED: Final = 2**63 - 1
_STOP_S: Final = 30.0
_MEASURED: Final = frozenset({ExitCode.DONE, ExitCode.FAILED_CELLS})


class TurnError(KvbenchError):
    """A side's process could not measure its round; the message is what it said."""

    exit_code = ExitCode.FAILED_CELLS


@dataclass(frozen=True, slots=True)
class Turn:
    """One side's measurement of one round, in a process of its own; both turns of a round have one `seed`."""

    round: int
    side: SideName
    seed: int

    @property
    def folder(self) -> str:
        """The name of its run directory: "03-a"."""
        return f"{self.round:02d}-{self.side}"


def turns(number: int, seed: int) -> list[Turn]:
    """Return both turns of a round; over the rounds their order is a b, b a, a b and so on.

    So whatever drifts steadily, and whatever comes first or second costs, falls on both sides alike once the number of
    rounds is even. The seed changes with the round: cells are shuffled anew, and alike on both sides.
    """
    sides = (A, B) if number % 2 == 0 else (B, A)
    return [Turn(number, side, (seed + number) % _MAX_SEED) for side in sides]


@dataclass(frozen=True, slots=True)
class Suite:
    """What is measured: the options of `kvbench sweep` that both sides share; a round's seed follows from `seed`."""

    config: Path
    assignments: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    device: str | None = None
    controls: int = 0
    seed: int = 0

    def options(self, side: Side, cells: Sequence[str] | None = None) -> list[str]:
        """Return the options for `side`; `cells` (ids) are all that is measured, None for the whole suite."""
        options = [str(self.config), "--json", "--rounds=1", f"--controls={self.controls}"]
        options += [f"-a{item}" for item in self.assignments]
        options += [f"-abackend={side.backend}"] if side.backend is not None else []
        options += [f"--filter={text}" for text in self.filters]
        options += [f"--filter=cell_id={'|'.join(cells)}"] if cells is not None else []
        options += [f"--device={self.device}"] if self.device is not None else []
        options += [f"--fault={side.fault}"] if side.fault is not None else []
        return options


@dataclass(frozen=True, slots=True)
class TurnPreview:
    """What a side would measure in a round: cells, and a rough guess of the time in seconds."""

    cells: tuple[Cell, ...]
    estimate_s: float


def preview(name: str, side: Side, options: Sequence[str]) -> TurnPreview:
    """Have `side` plan a round. Raises UsageError with what it says when it cannot."""
    command = side.command("sweep", *options, "--dry-run")
    done = subprocess.run(command, env=side.environment(), capture_output=True, check=False)
    if done.returncode != 0:
        raise UsageError(f"{name} {side.text}: {_complaint(done.stderr)}")
    event = json.loads(done.stdout.splitlines()[-1])
    cells = tuple(Cell.from_strings(strings) for strings in event["cells"])
    if not cells:
        reasons = dict.fromkeys(printable(skip["reason"]) for skip in event["skipped"])
        said = "; ".join(reasons) or "no cell meets the filters"
        raise UsageError(f"{name} {side.text}: nothing to measure: {said}")
    return TurnPreview(cells, float(event["estimate_s"]))


def measure(
    turn: Turn, side: Side, options: Sequence[str], out: Path, on_visit: Callable[[Failure | None], None]
) -> None:
    """Measure a turn into the run directory `out`; failed cells are in it, and are no error here.

    `on_visit` is called after every visit, with how it failed or None. Ctrl-C is passed on to the sweep, which keeps
    what it has, and raised again. Raises TurnError when the round was not measured to its end.
    """
    command = side.command("sweep", *options, f"--seed={turn.seed}", f"--out={out}")
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            env=side.environment(),
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,  # Ctrl-C is ours to pass on, once
        )
        assert process.stdout is not None
        complete = False
        try:
            for line in process.stdout:
                event = json.loads(line)
                complete = event.get("status") == "complete"
                record = event.get("record", {})
                if record.get("type") in ("visit", "failure"):
                    on_visit(_failure(record) if record["type"] == "failure" else None)
            code = process.wait()
        except BaseException:
            _stop(process)
            raise
        finally:
            process.stdout.close()
        if code == ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        if code not in _MEASURED or not complete:
            said.seek(0)
            why = _complaint(said.read())
            raise TurnError(f"round {turn.round}, {side.text}: {why}; again: {shlex.join(command)}")


def _failure(record: dict[str, Any]) -> Failure:
    failure = msgspec.convert(record, Failure)
    return msgspec.structs.replace(failure, message=printable(failure.message), command=printable(failure.command))


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    try:
        process.communicate(timeout=_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _complaint(stderr: bytes) -> str:
    last = (stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
    return printable(last.removeprefix("kvbench: "))
