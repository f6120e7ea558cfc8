"""Progress of a running sweep: a progress bar on a terminal, plain lines otherwise, or JSON lines."""

import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from textwrap import shorten
from typing import TextIO

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvbench.cells.units import format_duration, rough_size
from kvbench.ground.text import counted, folded, printable
from kvbench.models.geometry import ModelSwap
from kvbench.models.presets import facts_of
from kvbench.results import Failure, Note, Record, Visit
from kvbench.run.execution import Observer, ReportedFailures, SweepEnd
from kvbench.run.protocol import Opened
from kvbench.sweep.plan import Plan, PlannedVisit

PLAIN_EVERY_S = 10.0
SHOWN_CELLS = 20
LEAST_TIMED = 5
# The columns of a progress line beside the bar and the label of the cell: count, time so far and time left.
_FIXED_COLUMNS = 44
_BAR_COLUMNS = 30
_NARROW_BAR_COLUMNS = 10
_WIDE_TERMINAL = 110


class PlainReporter(Observer):
    """Writes a line to `file` at the start, every ten seconds, for each failure and at the end."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._made = 0
        self._done_before = 0
        self._total = 0
        self._first_s = 0.0
        self._last_line_s = 0.0
        self._failures = ReportedFailures()
        self._hinted: set[str] = set()

    def preview(self, plan: Plan, opened: Opened, _: Sequence[ModelSwap]) -> None:
        self._say(device_line(opened))
        self._say(
            f"{counted(len(plan.cells), 'cell')}; up to {rough_size(plan.side_bytes)} of pinned host memory and "
            f"{rough_size(plan.side_bytes)} on the device"
        )
        for cell in plan.cells[:SHOWN_CELLS]:
            self._say(f"  {cell.label}")
        if len(plan.cells) > SHOWN_CELLS:
            self._say(f"  and {len(plan.cells) - SHOWN_CELLS} more (--json lists all)")
        if plan.filtered:
            self._say(f"{counted(plan.filtered, 'combination')} excluded by filters")
        for note in opened.notes:
            self._say(f"note: {note}")
        self._say_skips(plan)

    def planned(self, plan: Plan, opened: Opened, done: int, total: int) -> None:
        self._done_before, self._total = done, total
        self._last_line_s = time.monotonic()
        self._say(device_line(opened))
        before = f", {done} already done" if done else ""
        self._say(f"{counted(len(plan.cells), 'cell')} in {counted(total, 'visit')}{before}")
        self._say_skips(plan)

    def recorded(self, record: Record) -> None:
        if isinstance(record, Failure):
            if self._failures.first(record.cell.backend, record):
                self._say(f"FAILED ({record.kind}) {record.cell.label}: {record.message}")
                self._say(f"  to measure it again: {record.command}")
        elif isinstance(record, Note):
            self._say(f"note: {record.text}")
        if isinstance(record, Failure) or (isinstance(record, Visit) and not record.attempt):
            self._made += 1
            self._first_s = self._first_s or time.monotonic()
            self._advance()

    def finished(self, outcome: SweepEnd) -> None:
        for line in self._failures.others():
            self._say(line)
        cells = f"{counted(outcome.measured, 'cell')} measured, {outcome.failed} failed, {outcome.skipped} skipped"
        path = shlex.quote(str(outcome.path))
        self._say(f"{cells}: {outcome.path}")
        if outcome.status == "complete":
            of_all = path if outcome.folder is None else shlex.quote(str(outcome.folder))
            if of_all not in self._hinted:  # the runs of several devices have one report
                self._say(f"to write tables and charts: kvbench report {of_all}")
            self._hinted.add(of_all)
        else:
            self._say(f"{outcome.status}: {outcome.reason}")
            how = f"to continue: kvbench sweep --resume {path}"
            if outcome.folder is not None:
                how = f"to use what was measured: kvbench report {shlex.quote(str(outcome.folder))}"
            elif outcome.searched_by:
                how = f"to use what was measured: kvbench show {path}"
            self._say(f"everything measured is kept; {how}")

    def _advance(self) -> None:
        now_s = time.monotonic()
        if now_s - self._last_line_s >= PLAIN_EVERY_S:
            self._last_line_s = now_s
            made = f"{self._done_before + self._made} of {self._total} visits"
            self._say(", ".join(filter(None, [made, self._left()])))

    def _left(self) -> str:
        """The time that the missing visits take if they are as long as those made; "" after too few to tell."""
        missing = self._total - self._done_before - self._made
        if missing < 0:
            return "more than expected"
        timed = self._made - 1  # the first visit also opens the device and compiles kernels
        if timed < LEAST_TIMED:
            return ""
        return f"{format_duration((time.monotonic() - self._first_s) / timed * missing)} left"

    def _say_skips(self, plan: Plan) -> None:
        for reason, count in Counter(skip.reason for skip in plan.skipped).most_common():
            backends = dict.fromkeys(skip.cell.backend for skip in plan.skipped if skip.reason == reason)
            self._say(f"skipped {counted(count, 'cell')} of {', '.join(backends)}: {reason}")

    def _say(self, line: str) -> None:
        print(folded(line, terminal=False), flush=True, file=self._file)


class TerminalReporter(PlainReporter):
    """Shows a progress bar with the current cell and the time left."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console(highlight=False)
        self._bar_columns = _BAR_COLUMNS if self._console.width >= _WIDE_TERMINAL else _NARROW_BAR_COLUMNS
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=self._bar_columns),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("ceiling", left="")

    def planned(self, plan: Plan, opened: Opened, done: int, total: int) -> None:
        super().planned(plan, opened, done, total)
        self._bar.update(self._task, total=total, completed=done)
        self._bar.start()

    def visiting(self, visit: PlannedVisit) -> None:
        # On a narrow terminal the details of the cell go first: count and time stay whole.
        most = max(0, min(70, self._console.width - self._bar_columns - _FIXED_COLUMNS))
        others = f"{len(visit.cells)} in turn: " if len(visit.cells) > 1 else ""
        self._bar.update(self._task, description=shorten(printable(others + visit.cell.label), most, placeholder=""))

    def finished(self, outcome: SweepEnd) -> None:
        self._bar.stop()
        super().finished(outcome)

    def _advance(self) -> None:
        self._bar.update(self._task, advance=1, left=self._left())

    def _say(self, line: str) -> None:
        self._console.print(printable(line), markup=False, soft_wrap=True)  # a command stays one line when copied


class JsonReporter(Observer):
    """Prints one JSON object per line: the plan, every record of the journal, the outcome."""

    def preview(self, plan: Plan, opened: Opened, swaps: Sequence[ModelSwap]) -> None:
        self._say(
            "preview",
            device=msgspec.to_builtins(opened.device),
            cells=[cell.as_strings() for cell in plan.cells],
            skipped=[{"cell": skip.cell.as_strings(), "reason": skip.reason} for skip in plan.skipped],
            filtered=plan.filtered,
            host_bytes=plan.side_bytes,
            device_bytes=plan.side_bytes,
            models=msgspec.to_builtins(facts_of(swaps)),
        )

    def planned(self, plan: Plan, opened: Opened, done: int, total: int) -> None:
        self._say(
            "planned",
            device=msgspec.to_builtins(opened.device),
            cells=len(plan.cells),
            skipped=len(plan.skipped),
            visits=total,
            done=done,
        )

    def recorded(self, record: Record) -> None:
        self._say("record", record=msgspec.to_builtins(record))

    def finished(self, outcome: SweepEnd) -> None:
        fields = asdict(outcome)
        del fields["folder"], fields["searched_by"]
        self._say("finished", run=str(fields.pop("path")), **fields)

    def _say(self, event: str, **fields: object) -> None:
        print(json.dumps({"event": event, **fields}), flush=True)


def make_reporter(*, as_json: bool, file: TextIO | None = None) -> JsonReporter | PlainReporter:
    """The requested reporter, else the one that fits stdout, or plain lines if `file` is given."""
    if as_json:
        return JsonReporter()
    return TerminalReporter() if file is None and sys.stdout.isatty() else PlainReporter(file)


def device_line(opened: Opened) -> str:
    """The device in one line; for the cpu device, the line says what its figures mean."""
    device = opened.device
    if device.kind == "cpu":
        return f"device cpu: {device.title}; all figures are copies between two host buffers, without a GPU"
    batch = device.batch_entry or "no cuMemcpyBatchAsync: the backend batched runs single copies"
    return f"device {device.name}: {device.title}, {device.sm_count} SMs; {batch}"
