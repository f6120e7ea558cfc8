"""One turn: a sweep of one round by one side, in a fresh process of its environment."""

import json
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from kvbench.cells.cell import Cell
from kvbench.errors import ExitCode, KvbenchError, UsageError
from kvbench.gate.schedule import Turn
from kvbench.gate.sides import Side
from kvbench.text import printable

_STOP_S: Final = 30.0
_MEASURED: Final = frozenset({ExitCode.DONE, ExitCode.FAILED_CELLS})


class TurnError(KvbenchError):
    """A side's process could not measure its round; the message is what it said."""

    exit_code = ExitCode.FAILED_CELLS


@dataclass(frozen=True, slots=True)
class Suite:
    """What is measured: options of `kvbench sweep` that both sides share, and each side's fault (cpu device only)."""

    config: Path
    assignments: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    device: str | None = None
    controls: int = 0

    def options(self, side: Side, fault: str | None, cells: Sequence[str] | None) -> list[str]:
        """Return the options for `side`; `cells` (ids) are all that is measured, None for the whole suite."""
        options = [str(self.config), "--json", "--rounds=1", f"--controls={self.controls}"]
        options += [f"-a{item}" for item in self.assignments]
        options += [f"-abackend={side.backend}"] if side.backend is not None else []
        options += [f"--filter={text}" for text in self.filters]
        options += [f"--filter=cell_id={'|'.join(cells)}"] if cells is not None else []
        options += [f"--device={self.device}"] if self.device is not None else []
        options += [f"--fault={fault}"] if fault is not None else []
        return options


@dataclass(frozen=True, slots=True)
class Preview:
    """What a side would measure in a round: cells, and a rough guess of the time in seconds."""

    cells: tuple[Cell, ...]
    estimate_s: float


def preview(name: str, side: Side, options: Sequence[str]) -> Preview:
    """Have `side` plan a round. Raises UsageError with what it says when it cannot."""
    command = side.command("sweep", *options, "--dry-run")
    done = subprocess.run(command, env=side.environment(), capture_output=True, check=False, text=True)
    if done.returncode != 0:
        raise UsageError(f"{name} {side.text}: {_complaint(done.stderr)}")
    event = json.loads(done.stdout.splitlines()[-1])
    cells = tuple(Cell.from_strings(strings) for strings in event["cells"])
    if not cells:
        reasons = "; ".join(dict.fromkeys(skip["reason"] for skip in event["skipped"])) or "no cell meets the filters"
        raise UsageError(f"{name} {side.text}: nothing to measure: {reasons}")
    return Preview(cells, float(event["estimate_s"]))


def measure(turn: Turn, side: Side, options: Sequence[str], out: Path, on_event: Callable[[Any], None]) -> None:
    """Measure a turn into the run directory `out`; failed cells are in it, and are no error here.

    `on_event` gets every event of the sweep. Ctrl-C is passed on to the sweep, which keeps what it has, and raised
    again. Raises TurnError when the round was not measured to its end.
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
                on_event(event)
            code = process.wait()
        except BaseException:
            _stop(process)
            raise
        finally:
            process.stdout.close()
        if code == ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        if code not in _MEASURED or not complete:
            raise TurnError(f"round {turn.round}, {side.text}: {_complaint(_text(said))}; again: {shlex.join(command)}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    try:
        process.communicate(timeout=_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _complaint(stderr: str) -> str:
    last = (stderr.strip().splitlines() or ["it said nothing"])[-1]
    return printable(last.removeprefix("kvbench: "))
