"""Measures two sides in turn, cell by cell: both have a running worker, and only one of them measures at a time.

A side is an environment or a backend, and is checked before anything is measured.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.gate.judgement import PLAN, Judgement, judge
from kvbench.gate.pairs import BASE, CAND, about_backends, first_few, pair, partners
from kvbench.ground.errors import KvbenchError, MismatchError, StorageError, UsageError, brief
from kvbench.ground.files import or_usage_error
from kvbench.ground.text import counted, located, printable
from kvbench.results import SCHEMA, Failure, Record, Run, RunInfo, RunWriter, Visit
from kvbench.results.schema import PLUG_INS, machine_differences
from kvbench.run.execution import Execution, Observer, ReportedFailures, ended_by
from kvbench.run.protocol import VERSION, InTurn, Opened
from kvbench.run.runner import nothing_to_measure, run_info
from kvbench.run.schedule import Progress
from kvbench.run.worker_process import Interpreter, WorkerSlot
from kvbench.sweep.checks import usable_bytes
from kvbench.sweep.plan import Plan, PlannedVisit, asked_for, expand
from kvbench.sweep.spec import Limits, SweepSpec

FORMS: Final = "write env:PATH (a virtual environment or its python), backend:NAME, or here (this environment)"
_PROBE_S: Final = 120.0
_PROBE: Final = """
import json, kvbench
from kvbench.results import SCHEMA
from kvbench.run import protocol
print(json.dumps({"version": kvbench.__version__, "package": kvbench.__file__, "schema": SCHEMA,
                  "protocol": getattr(protocol, "VERSION", 1)}))
"""
# These variables would let one side import the packages of the other.
_LEAKING: Final = ("PYTHONPATH", "PYTHONHOME")
# One in this many rounds, chosen by the seed, is compared byte for byte, besides the first and the last.
AUDITED: Final = 16
# Large copies of each side per direction and round.
_CONTROLS: Final = 8
# The maximum number of times that spoiled pairs are repeated for one look.
_TRIES: Final = 3
Say = Callable[[str], None]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Side:
    """One side: the interpreter that measures it, and its backend, or None for every backend of the suite.

    `text` is the side as given by the user with `option`; `fault` is injected on it (cpu device only).
    """

    text: str
    option: str = "--side"
    interpreter: Interpreter = field(default_factory=Interpreter)
    backend: str | None = None
    fault: str | None = None


class Build(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: str
    package: str
    schema: int
    protocol: int


def parse_side(option: str, text: str, fault: str | None = None) -> Side:
    """Read `--base` or `--cand`, and query the kvbench of another environment.

    Raises UsageError, which names the option, also if that kvbench is incompatible with this one.
    """
    if text == "here":
        return Side(text, option, fault=fault)
    form, _, value = text.partition(":")
    if value and form == "backend":
        return Side(text, option, backend=value, fault=fault)
    if value and form == "env":
        given = f"{option} {brief(text)}"
        variables = {name: value for name, value in os.environ.items() if name not in _LEAKING}
        interpreter = Interpreter(str(_python(given, Path(value))), variables)
        _check(given, interpreter)
        return Side(text, option, interpreter, fault=fault)
    raise UsageError(f"{option} {brief(text)}: {FORMS}")


def half_of_memory(limits: Limits, opened: Opened) -> Limits:
    device = opened.device
    free = ((limits.host_bytes, device.host_free_bytes), (limits.device_bytes, device.device_free_bytes))
    return Limits(*(max(1, usable_bytes(limit, free_bytes) // 2) for limit, free_bytes in free))


def _check(given: str, interpreter: Interpreter) -> None:
    try:
        done = subprocess.run(
            interpreter.command("-c", _PROBE),
            env=interpreter.environment,
            capture_output=True,
            timeout=_PROBE_S,
            check=False,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{given}: its python does not run ({printable(error)})") from None
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        last = done.stderr.strip().splitlines()[-1:]
        raise UsageError(f"{given}: no working kvbench is installed there ({printable(''.join(last))})")
    try:
        build = msgspec.json.decode(lines[-1], type=Build)
    except msgspec.MsgspecError:
        raise UsageError(f"{given}: its kvbench gave an invalid answer ({brief(lines[-1])})") from None
    if (build.schema, build.protocol) != (SCHEMA, VERSION):
        raise UsageError(
            f"{given}: its kvbench {printable(build.version)} has schema {build.schema} and protocol {build.protocol}, "
            f"this one {SCHEMA} and {VERSION}; sweep with each kvbench, and compare the runs with kvbench report"
        )


def _python(given: str, path: Path) -> Path:
    # Never resolved: the python of a virtual environment is a link and finds its environment by the link's location.
    for candidate in (path / "bin" / "python", path):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate.absolute()
    raise UsageError(f"{given}: no python there; {FORMS}")


@dataclass(frozen=True, slots=True)
class StartedSide:
    """A side whose worker runs, and what it can measure."""

    name: str
    side: Side
    spec: SweepSpec
    slot: WorkerSlot
    opened: Opened
    plan: Plan
    info: RunInfo


def _slot(spec: SweepSpec, side: Side, stack: ExitStack) -> tuple[SweepSpec, WorkerSlot]:
    """The sweep of a side, with its backend and fault, and the place of its worker, which `stack` closes."""
    if side.backend is not None:
        spec = spec.with_axes({"backend": side.backend})
    spec = spec.with_options(fault=side.fault)
    with located(f"{side.option} {brief(side.text)}"):
        asked = asked_for(spec)
    return spec, stack.enter_context(closing(WorkerSlot(spec, asked, side.interpreter)))


def _start(name: str, side: Side, spec: SweepSpec, slot: WorkerSlot) -> StartedSide:
    """Start the worker and plan; raises UsageError if there is nothing to measure, and errors of the worker."""
    opened = slot.start()
    spec = msgspec.structs.replace(spec, limits=half_of_memory(spec.limits, opened))
    plan = expand(spec, opened.device, opened.backends)
    if not plan.cells:
        raise UsageError(f"{side.option} {brief(side.text)}: {nothing_to_measure(plan)}")
    return StartedSide(name, side, spec, slot, opened, plan, run_info(spec, opened, ["kvbench", *sys.argv[1:]]))


class MeasuredSide(Observer):
    """A side with a run: it keeps the records and reports failures; `names` are its cells by those of the base."""

    def __init__(
        self, started: StartedSide, names: Mapping[Cell, Cell], writer: RunWriter, failures: ReportedFailures, say: Say
    ) -> None:
        self.name, self.side, self.plan, self.names = started.name, started.side, started.plan, names
        self._info, self._failures, self._say = started.info, failures, say
        self._records: list[Record] = []
        self.execution = Execution(started.spec, started.plan, started.opened, writer, started.slot, self, Progress())

    def recorded(self, record: Record) -> None:
        self._records.append(record)
        if isinstance(record, Failure) and self._failures.first(self.name, record):
            self._say(f"FAILED ({record.kind}) {self.name}: {record.cell.label}: {record.message}")
            self._say(f"  to measure it again: {record.command}")

    def run(self) -> Run:
        return Run(self.execution.writer.path, self._info, [*self._records], [])

    def without_partner(self) -> list[str]:
        """A note if cells have no partner on the other side and are not measured."""
        paired = {*self.names.values()}
        rest = [cell for cell in self.plan.cells if cell not in paired]
        return [f"{counted(len(rest), 'cell')} only on the side {self.name}, such as {rest[0].label}"] if rest else []


class SideBySide:
    """Two running sides, whose opening took `opening_s` seconds; `pool` has a thread for each. See `opened`."""

    def __init__(
        self, base: MeasuredSide, cand: MeasuredSide, say: Say, pool: ThreadPoolExecutor, opening_s: float
    ) -> None:
        self.running = {BASE: base, CAND: cand}
        self._say = say
        self._pool = pool
        self._opening_s = opening_s
        self._cells = list(base.names)
        # What the candidate, a build of the same backends, cannot run has failed there: it needs a row.
        without_partner = base.plan.cells if base.side.backend == cand.side.backend else ()
        self._names = {**{cell: cell for cell in without_partner}, **cand.names}
        self._failed: set[Cell] = set()
        self._rounds = 0
        self._pairs = 0
        self._seed = base.execution.spec.seed
        self._last_ns = 0

    def compare(self, margin: float, deadline_s: float) -> Judgement:
        """Measure and judge until every row is settled, or the plan or the time ends; `deadline_s` is monotonic.

        Only the planned looks are made: stopping as soon as a result appears would find regressions in noise. When a
        row became SLOWER or FASTER in one process of each side, new ones go on. No pair begins after the deadline.
        Raises StorageError, KvbenchError if the control copies fail, and UsageError if there was no time for a pair.
        """
        began_s = time.monotonic()
        self._round(self._cells, deadline_s, verify=True)
        # The last round compares bytes as this one did, and takes as long: no pair may use its time.
        closing_s = time.monotonic() - began_s
        if not self._pairs:
            raise UsageError(f"--minutes: start-up alone took {self._opening_s:.0f} s; give more")
        closing_from_s = deadline_s - closing_s
        judgement = self._judged(margin, None)
        for look in PLAN:
            # What differs in one process of each side can be of these processes: only new ones tell.
            unconfirmed = sum(row.decisive.unconfirmed is not None for row in judgement.rows)
            renewed = unconfirmed > 0 and time.monotonic() + self._opening_s < closing_from_s
            if renewed:
                self._say(f"{counted(unconfirmed, 'difference')} so far; new processes go on")
                self._renew()
            for _ in range(_TRIES):
                missing = judgement.missing(look.pairs)
                for number in range(max(missing.values(), default=0)):
                    cells = [cell for cell, count in missing.items() if count > number]
                    self._round(cells, closing_from_s, verify=renewed)
                    renewed = False  # new processes are checked in their first round, as the others were
                judgement = self._judged(margin, judgement)
            settled = sum(row.settled for row in judgement.rows)
            self._say(f"{look.pairs} pairs: {settled} of {len(judgement.rows)} rows are settled")
            if settled == len(judgement.rows) or time.monotonic() >= closing_from_s:
                break
        is_complete = self._round(self._cells, deadline_s, verify=True)
        judgement = self._judged(margin, judgement)
        cut = [] if is_complete else ["the time limit cut off the last comparison of bytes"]
        return replace(judgement, warnings=[*judgement.warnings, *judgement.unsettled, *cut])

    def finish(self) -> None:
        """Record that both runs are complete; raises StorageError if one could not be written."""
        outcomes = [side.execution.finish("complete", None) for side in self.running.values()]
        _at_once(self._pool, [side.execution.slot.close for side in self.running.values()])
        for outcome in outcomes:
            if outcome.status != "complete":
                raise StorageError(f"{outcome.path}: {outcome.reason}")

    def _judged(self, margin: float, earlier: Judgement | None) -> Judgement:
        base, cand = self.running.values()
        judgement = judge(pair(base.run(), cand.run(), self._names), margin, earlier)
        return replace(judgement, warnings=about_backends(base.plan.cells, cand.plan.cells))

    def _round(self, cells: Sequence[Cell], until_s: float, *, verify: bool) -> bool:
        """Visit the `cells` that did not fail on both sides, in shuffled order; the sides alternate in going first.

        No pair begins after `until_s`. The result says whether all were visited.
        """
        if self._failed.issuperset(cells):
            return True
        if time.monotonic() >= until_s:
            return False
        number = self._rounds
        self._rounds += 1
        # To run second costs something: taken in turns, it falls on both sides alike.
        order = (BASE, CAND) if number % 2 == 0 else (CAND, BASE)
        drawn = int(np.random.default_rng((self._seed, number // AUDITED)).integers(AUDITED))
        verify = verify or number % AUDITED == drawn
        in_order = [self.running[name].execution for name in order]
        for execution in in_order if number == 0 else ():
            execution.measure_ceilings(number)
            execution.observe("start")
        for direction, execution in product(Direction, in_order):
            execution.measure_control(direction, number, _CONTROLS)
        plug_ins, seed = self.running[BASE].plan.plug_ins, self._seed  # a plug-in package has a worker of its own
        for cell in sorted(cells, key=lambda cell: (plug_ins.get(cell.backend, ""), cell.shuffle_key(number, seed))):
            if time.monotonic() >= until_s:
                return False
            if cell not in self._failed:
                self._pairs += 1
                self._pair(number, cell, order, verify=verify)
        return True

    def _pair(self, number: int, cell: Cell, order: Sequence[str], *, verify: bool) -> None:
        """Visit a cell on one side and then on the other, on one CPU; a failed cell is not visited again."""
        cpu = None
        for name in order:
            side = self.running[name]
            planned = PlannedVisit(number, (side.names[cell],))
            answer: Visit | Failure | None = None
            with self._replacing(side, number, visiting=cell):
                (answer,) = side.execution.visit(planned, InTurn(verify=verify, cpu=cpu))
            if not isinstance(answer, Visit):
                self._failed.add(cell)
                return
            # The other side is visited on this CPU too: another one can be at another speed.
            cpu, (began_ns, ended_ns) = answer.cpu, answer.span_ns or (0, 0)
            # Two visits at once on one GPU slow each other.
            if not self._last_ns <= began_ns <= ended_ns <= time.monotonic_ns():
                side.execution.fail(planned, "its visit overlaps a visit of the other side")
                self._failed.add(cell)
                return
            self._last_ns = ended_ns

    def _renew(self) -> None:
        """Replace the workers of both sides; a side whose worker cannot be replaced fails."""
        note = "the worker process was replaced to see whether another one takes as long"
        renewals = [(side, self._pool.submit(side.execution.replace_worker, note)) for side in self.running.values()]
        wait(renewal for _, renewal in renewals)
        for side, renewal in renewals:
            with self._replacing(side, self._rounds):
                renewal.result()

    @contextmanager
    def _replacing(self, side: MeasuredSide, number: int, visiting: Cell | None = None) -> Iterator[None]:
        """Fail the cells of a side whose worker is lost inside and cannot be replaced; raises StorageError."""
        try:
            yield
        except StorageError:
            raise
        except KvbenchError as error:
            for cell in self._cells:
                # What was being visited has its failure: the loss of the worker.
                if cell not in self._failed and cell != visiting:
                    why = f"its worker could not be replaced: {error}"
                    side.execution.fail(PlannedVisit(number, (side.names[cell],)), why)
            self._failed.update(self._cells)


@contextmanager
def opened(base: Side, cand: Side, spec: SweepSpec, folder: Path, say: Say) -> Iterator[SideBySide]:
    """Open both sides with a worker each, plan, and create their run directories in `folder`, which must be empty.

    `say` receives progress lines. Raises UsageError if a side cannot measure, if only one side is a backend, or if no
    cell has a partner, and MismatchError if the sides measure different machines.
    """
    if (base.backend is None) != (cand.backend is None):
        raise UsageError(
            f"--base {brief(base.text)} --cand {brief(cand.text)}: a backend can only be compared with a backend; "
            "name one on each side"
        )
    began_s = time.monotonic()
    with ExitStack() as stack:
        # A worker dies with the thread that started it; these threads end after their workers.
        pool = stack.enter_context(ThreadPoolExecutor(3))
        starts = [partial(_start, name, side, *_slot(spec, side, stack)) for name, side in ((BASE, base), (CAND, cand))]
        started = _at_once(pool, starts)
        paired = _partners(*started)
        _make_folder(folder)
        failures = ReportedFailures()
        sides = []
        for ready, names in zip(started, ({cell: cell for cell in paired}, paired), strict=True):
            writer = stack.enter_context(RunWriter.create(folder / ready.name, ready.info))
            sides.append(MeasuredSide(ready, names, writer, failures, say))
        base_side, cand_side = sides
        try:
            for side in sides:
                side.execution.begin()
            if base.backend == cand.backend:
                _fail_missing(cand_side.execution, [cell for cell in base_side.plan.cells if cell not in paired])
            for note in (*_remarks(*started), *base_side.without_partner(), *cand_side.without_partner()):
                say(f"note: {note}")
            say(f"{len(paired)} cells on two sides in turn; reserving memory")
            # pandas, which writes the summaries at the end, loads in this time.
            meanwhile: list[Callable[[], object]] = [partial(import_module, "kvbench.results.frame")]
            _at_once(pool, meanwhile + [partial(side.execution.reserve, side.names.values()) for side in sides])
            comparison = SideBySide(base_side, cand_side, say, pool, time.monotonic() - began_s)
            yield comparison
        except (KeyboardInterrupt, KvbenchError) as why:
            for side in sides:
                side.execution.finish(*ended_by(why))
            raise
        comparison.finish()
        for line in failures.others():
            say(line)


def _fail_missing(cand: Execution, missing: Iterable[Cell]) -> None:
    """Record a failure for every cell of the base that the candidate, a build of the same backends, cannot run."""
    reasons = {skip.cell: skip.reason for skip in cand.plan.skipped}
    for cell in missing:
        why = reasons.get(cell, "its plan does not have this cell")
        cand.fail(PlannedVisit(0, (cell,)), f"the candidate cannot run what the base can: {why}")


def _at_once(pool: ThreadPoolExecutor, calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of all calls, made at the same time; raises the first error when all have ended."""
    futures = [pool.submit(call) for call in calls]
    wait(futures)
    return [future.result() for future in futures]


def _partners(base: StartedSide, cand: StartedSide) -> dict[Cell, Cell]:
    """The candidate's cells by those of the base; raises UsageError without any, MismatchError between machines."""
    paired = partners(base.plan.cells, cand.plan.cells)
    if not paired:
        raise UsageError("--base and --cand have no cell in common")
    if differing := machine_differences(base.info.identity, cand.info.identity):
        raise MismatchError(f"--base and --cand measure different machines: {first_few(differing)}")
    return paired


def _remarks(base: StartedSide, cand: StartedSide) -> list[str]:
    if base.side.backend != cand.side.backend:
        return []
    if base.side.interpreter == cand.side.interpreter:
        return ["both sides run the same kvbench: this compares it with itself"]
    same_sources = base.opened.engine_hash == cand.opened.engine_hash
    remarks = ["both sides have the same engine sources; only other installed packages differ"] if same_sources else []
    packages = [str(side.info.identity.get(PLUG_INS, "none")) for side in (base, cand)]
    return remarks + ([f"plug-ins: {' (base) and '.join(packages)} (candidate)"] if len({*packages}) > 1 else [])


def _make_folder(folder: Path) -> None:
    with or_usage_error(f"--out {folder} cannot be created"):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"--out {folder} is not empty; choose another folder")
