import io
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvbench.cells.axes import Direction, Reuse
from kvbench.cells.cell import Cell
from kvbench.cells.facts import BackendFacts, DeviceFacts
from kvbench.cli.progress import PlainReporter
from kvbench.ground.errors import ExitCode
from kvbench.results import RunWriter, load_run
from kvbench.results.schema import Ceiling, Disturbance, Failure, Note, Record, Retry, Roof, RunStatus, Visit
from kvbench.run.execution import Execution, Observer, SweepEnd
from kvbench.run.protocol import MeasureCells, MeasureRoof, Opened
from kvbench.run.schedule import MAX_REPEATS, VISITS_A_REPEAT, Progress, Rounds
from kvbench.run.worker_process import LostError, NotAskedError
from kvbench.sweep.plan import Plan
from kvbench.sweep.spec import Sampling, SweepSpec, visit_deadline_s
from tests.synthetic import failure, info, loaded, samples, visit, write_run

CELLS = tuple(Cell("per_block", Direction.H2D, blocks, 4096) for blocks in range(1, 16))


class Slot:
    """A worker whose visits of the first cells, `disturbs` of them, are disturbed so many times in every round."""

    pids: frozenset[int] = frozenset()
    log: Path | None = None
    ended = False
    replaced = 0

    def __init__(self, disturbed: int, disturbs: int = 1) -> None:
        self.disturbed = disturbed
        self.cells = CELLS[:disturbs]
        self.made: list[tuple[int, int, int]] = []
        self.copies_us: dict[tuple[str, int], list[float]] = {}  # by direction and round, each time that they are made

    def reserve(self, _pool_bytes: int, _host_pools: int, cells: Collection[Cell]) -> list[str]:
        return [f"room for {len(cells)}"]

    def serve(self, backend: str) -> None: ...

    def replace(self) -> None:
        self.replaced += 1

    def ask(self, request: Any, *_: object) -> Ceiling | Roof:
        if isinstance(request, MeasureRoof):
            times = {name: [1.0] for name in ("copy_us", "scattered_us", "dense_us")}
            sizes = dict.fromkeys(("pool_bytes", "copy_bytes", "blocks", "block_bytes"), 1)
            return Roof(direction=request.direction, round=request.round, **times, **sizes)  # type: ignore[arg-type]
        of_round = self.copies_us.get((request.direction, request.round), [])
        copy_us = of_round.pop(0) if of_round else 1.0
        return Ceiling(direction=request.direction, round=request.round, swap_bytes=1, event_us=[copy_us])

    def visit(self, request: MeasureCells, deadline_s: float = 0.0) -> list[Visit] | Failure:
        self.deadline_s = deadline_s
        cells = [Cell.from_strings(cell) for cell in request.cells]
        self.made += [(request.round, cell.blocks, request.attempt) for cell in cells]
        return [
            Visit(
                cell_text=cell.as_strings(),
                round=request.round,
                attempt=request.attempt,
                group=request.group,
                samples=samples(cell, 10.0, count=3),
                stopped_by="time",
                path="host thread",
                calls=1,
                verified_bytes=1,
                took_ms=1.0,
                process=1 + self.replaced,
                disturbed=[Disturbance.STEP] if cell in self.cells and request.attempt < self.disturbed else [],
            )
            for cell in cells
        ]


class Crashing(Slot):
    """A worker that every large copy kills, and that is dead before the first visit."""

    def ask(self, *_: object) -> Ceiling:
        raise LostError("the worker died by SIGSEGV")

    def replace(self) -> None:
        super().replace()
        self.ended = self.replaced == 2


class Failing(Slot):
    """A worker that finds wrong bytes in the visits of one cell, alone or in turn, and fails in those of others."""

    def __init__(self, wrong: Cell | None = None, errors: Mapping[Cell, Exception] | None = None) -> None:
        super().__init__(disturbed=0)
        self.wrong, self.errors = wrong, errors or {}

    def visit(self, request: MeasureCells, *_: object) -> list[Visit] | Failure:
        for cell in map(Cell.from_strings, request.cells):
            if cell in self.errors:
                raise self.errors[cell]
        if self.wrong and (texts := self.wrong.as_strings()) in request.cells:
            return Failure(cell_text=texts, round=request.round, kind="mismatch", message="wrong", command="")
        return super().visit(request)


class Stopped:
    """A search that is interrupted before its first visit."""

    command = "kvbench tune"
    made = 0
    measures_roofs_once = True
    expected_visits = 1

    def stages(self) -> Any:
        raise KeyboardInterrupt


def execute(
    path: Path,
    slot: Slot,
    writer: RunWriter | None = None,
    search: Stopped | None = None,
    cells: tuple[Cell, ...] = CELLS,
    rounds: int = 2,
    starts: int = 1,
    kind: str = "cpu",
    backends: Sequence[BackendFacts] = (),
) -> SweepEnd:
    device = DeviceFacts("cpu", kind, "a device", None, 1 << 30, 1 << 30, None)
    opened = Opened(device=device, backends=[*backends], engine_hash="", delay_us={}, pci_bus_id=None, notes=[])
    spec = SweepSpec("test", sampling=Sampling(rounds=rounds, starts=starts))
    with writer or RunWriter.create(path, info(searched_by=search and search.command, status="running")) as writer:
        progress = Progress(load_run(path).records)
        plan = Plan(cells, (), 0, 0, in_turn=("sms",))
        return Execution(spec, plan, opened, writer, slot, Observer(), progress, search).run()  # type: ignore[arg-type]


def recorded(path: Path, kind: Any) -> list[Any]:
    """Return the records of a kind in a run."""
    return [record for record in load_run(path).records if isinstance(record, kind)]


@pytest.mark.parametrize(("disturbed", "attempts"), [(1, [0, 1]), (99, [*range(MAX_REPEATS + 1)])])
def test_a_disturbed_visit_is_repeated_after_the_others_of_its_round_at_most_twice(
    tmp_path: Path, disturbed: int, attempts: list[int]
) -> None:
    assert len(CELLS) // VISITS_A_REPEAT > MAX_REPEATS  # the round has repeats left
    slot = Slot(disturbed)
    execute(tmp_path, slot)
    for number in range(2):
        made = [(blocks, attempt) for round_, blocks, attempt in slot.made if round_ == number]
        first, repeats = made[: len(CELLS)], made[len(CELLS) :]
        assert sorted(first) == [(cell.blocks, 0) for cell in CELLS]
        assert repeats == [(1, attempt) for attempt in attempts[1:]]
    assert len(recorded(tmp_path, Visit)) == 2 * (len(CELLS) + len(attempts) - 1)
    assert sum(bool(visit.disturbed) for visit in load_run(tmp_path).visits) == 2 * (disturbed == 99)


def test_a_round_with_a_low_ceiling_is_measured_again_once_copies_are_as_fast_as_usual(tmp_path: Path) -> None:
    cells = (*CELLS[:2], replace(CELLS[2], direction=Direction.D2H))
    slot = Slot(disturbed=0)
    slot.copies_us = {("h2d", 1): [1.06, 1.2, 1.0], ("d2h", 2): [1.04], ("h2d", 4): [1.3]}
    execute(tmp_path, slot, cells=cells, rounds=6, kind="cuda")
    first, again = slot.made[: 6 * 3], slot.made[6 * 3 :]
    assert {attempt for *_, attempt in first} == {0}
    # the lowest first; the copies of round 1 are slow once more; those in the other direction were never low
    assert [number for number, *_ in again] == [4, 4, 1, 1]
    assert {blocks for _, blocks, _ in again} == {1, 2}
    run = load_run(tmp_path)
    counting = {(visit.round, visit.cell.blocks): visit.attempt for visit in run.visits}
    assert len(counting) == 6 * 3
    assert {key for key, attempt in counting.items() if attempt} == {(4, 1), (4, 2), (1, 1), (1, 2)}
    assert run.low_rounds == {}


def test_a_run_that_is_cut_anywhere_and_resumed_has_every_visit_of_a_whole_one(tmp_path: Path) -> None:
    """Those of rounds that are measured again included, and of their disturbed visits."""
    cells = (*CELLS[:2], replace(CELLS[2], direction=Direction.D2H), replace(CELLS[3], devices=2))

    def resumed(records: Sequence[Record], path: Path) -> list[Record]:
        slot = Slot(disturbed=5)  # two cells of a round, also when it is measured again
        slot.cells = (cells[0], cells[3])
        slot.copies_us = {("h2d", 1): [1.06, 1.2, 1.0], ("d2h", 2): [1.04], ("h2d", 4): [1.3]}
        for one in records:
            if isinstance(one, Ceiling) and (left := slot.copies_us.get((one.direction, one.round))):
                left.pop(0)
        writer = RunWriter.reopen(write_run(path, records, info(status="running")))
        assert execute(path, slot, writer, cells=cells, rounds=6, kind="cuda").status == "complete"
        return list(load_run(path).records)

    def made(records: Sequence[Record]) -> Counter[tuple[str, int, int]]:
        large = [(one.direction, one.round, one.attempt) for one in records if isinstance(one, Ceiling)]
        return Counter([*large, *((one.cell.id, one.round, one.attempt) for one in records if isinstance(one, Visit))])

    whole = resumed([], tmp_path / "whole")
    assert {attempt for *_, attempt in made(whole)} == {0, 1, 3, 4, 6}
    assert {attempt for id_, _, attempt in made(whole) if id_ == cells[3].id} == {0}  # other devices would not come
    for cut in range(0, len(whole) + 1, 3):
        assert made(resumed(whole[:cut], tmp_path / f"cut-{cut}")) == made(whole), cut


def test_rounds_are_measured_again_within_half_of_the_time_of_the_run(tmp_path: Path) -> None:
    slot = Slot(disturbed=0)
    slot.copies_us = {("h2d", number): [1.1 + number / 100] for number in range(1, 6)}
    execute(tmp_path, slot, cells=CELLS[:4], rounds=6, kind="cuda")
    assert [number for number, *_ in slot.made[6 * 4 :]] == [5] * 4 + [4] * 4 + [3] * 4
    low = load_run(tmp_path).low_rounds["h2d"]
    assert low == pytest.approx({1: 1 - 1 / 1.11, 2: 1 - 1 / 1.12})


@pytest.mark.parametrize(
    ("rounds", "starts", "of_rounds"),
    [(6, 1, [1] * 6), (6, 3, [1, 1, 2, 2, 3, 3]), (6, 6, [1, 2, 3, 4, 5, 6]), (4, 3, [1, 1, 2, 3]), (2, 9, [1, 2])],
)
def test_rounds_are_spread_over_starts_of_a_worker(
    tmp_path: Path, rounds: int, starts: int, of_rounds: list[int]
) -> None:
    execute(tmp_path, Slot(disturbed=1), rounds=rounds, starts=starts)
    assert {(one.round, one.process) for one in recorded(tmp_path, Visit)} == set(enumerate(of_rounds))


def test_a_resumed_run_counts_on_with_its_workers_and_its_visits() -> None:
    request = MeasureCells(cells=[CELLS[0].as_strings()], round=0, seed=0, sampling=Sampling())
    before = Progress(msgspec.structs.replace(one, process=4) for one in Slot(0).visit(request))
    schedule = Rounds(Plan(CELLS, (), 0, 0), SweepSpec("test", sampling=Sampling(rounds=2)), before)
    assert (schedule.made, schedule.expected_visits) == (1, 2 * len(CELLS))
    assert (before.processes, Progress().processes) == (4, 0)


def test_the_large_copies_of_a_cpu_say_nothing_of_a_round(tmp_path: Path) -> None:
    slot = Slot(disturbed=0)
    slot.copies_us = {("h2d", 1): [2.0]}
    execute(tmp_path, slot)
    assert len(slot.made) == 2 * len(CELLS)
    assert load_run(tmp_path).low_rounds == {"h2d": {1: 0.5}}


@pytest.mark.parametrize(
    ("pool_bytes", "name", "unavailable", "roofs"),
    [(4 << 30, "sm", None, 2), ((4 << 30) - 4096, "sm", None, 0), (4 << 30, "sm", "no GPU", 0),
     (4 << 30, "triton", None, 0)],
)  # fmt: skip
def test_a_round_measures_the_roof_of_each_direction_where_a_kernel_has_a_large_pool(
    tmp_path: Path, pool_bytes: int, name: str, unavailable: str | None, roofs: int
) -> None:
    cells = tuple(replace(CELLS[0], direction=way, pool_bytes=pool_bytes >> at) for at, way in enumerate(Direction))
    facts = BackendFacts(name, "a kernel", frozenset(), unavailable=unavailable)
    execute(tmp_path, Slot(disturbed=0), cells=cells, backends=[facts])
    made = [(one.round, one.direction) for one in recorded(tmp_path, Roof)]
    assert sorted(made) == [(number, way) for number in range(2) for way in ("d2h", "h2d")[:roofs]]


def test_crashing_large_copies_and_a_dead_worker_cost_only_themselves(tmp_path: Path) -> None:
    slot = Crashing(disturbed=0)
    outcome = execute(tmp_path, slot)
    assert (outcome.status, outcome.measured, outcome.failed, outcome.copies_failed) == ("complete", len(CELLS), 0, 2)
    assert outcome.exit_code is ExitCode.FAILED_CELLS
    assert len(slot.made) == 2 * len(CELLS)
    notes = [record.text for record in recorded(tmp_path, Note)]
    assert f"room for {len(CELLS)}" in notes
    assert "ceiling h2d of round 0 failed: the worker died by SIGSEGV" in notes
    assert "ceiling h2d of round 1 failed: the worker died by SIGSEGV" in notes
    assert sum("had ended between two requests and was replaced" in note for note in notes) == 1


def test_a_visit_that_was_not_requested_fails_without_replacing_a_worker(tmp_path: Path) -> None:
    slot = Failing(errors={CELLS[1]: NotAskedError("only 1 of 2 devices are left")})
    outcome = execute(tmp_path, slot)
    assert (outcome.status, outcome.measured, outcome.failed) == ("complete", len(CELLS) - 1, 1)
    (failed,) = recorded(tmp_path, Failure)
    assert (failed.cell, failed.kind, failed.message) == (CELLS[1], "error", "only 1 of 2 devices are left")
    assert slot.replaced == 0


def test_a_worker_that_found_wrong_bytes_is_replaced(tmp_path: Path) -> None:
    slot = Failing(CELLS[0])
    outcome = execute(tmp_path, slot)
    assert (outcome.measured, outcome.failed, slot.replaced) == (len(CELLS) - 1, 1, 1)


@pytest.mark.parametrize(
    ("kinds", "failed", "statuses"),
    [("f", 1, ["failed"]), ("fr", 0, []), ("frf", 1, ["failed"]), ("fv", 1, ["failed"]), ("frv", 0, ["ok"])],
)
def test_a_cell_that_is_tried_again_is_no_failed_one_until_it_fails_again(
    tmp_path: Path, kinds: str, failed: int, statuses: list[str]
) -> None:
    """By its records: a failure, a retry, a visit."""
    retry = Retry(cell_text=CELLS[0].as_strings())
    by_kind = {"f": failure(CELLS[0]), "r": retry, "v": visit(CELLS[0], 10.0)}
    run = loaded(tmp_path / "run", [by_kind[kind] for kind in kinds])
    assert len(Progress(run.records).failed) == failed
    assert [*run.table["status"]] == statuses


@pytest.mark.parametrize(
    ("search", "advice"),
    [
        (Stopped(), "to use what was measured: kvbench show 'my run'"),
        (None, "to continue: kvbench sweep --resume 'my run'"),
    ],
)
def test_an_interrupted_sweep_names_the_command_that_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search: Stopped | None, advice: str
) -> None:
    """A search is not kept, so a sweep that continued it would measure every cell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Progress, "left_of", lambda *_: list(Stopped().stages()))
    outcome = execute(Path("my run"), Slot(disturbed=0), search=search)
    file = io.StringIO()
    PlainReporter(file).finished(outcome)
    assert file.getvalue().splitlines()[-1] == f"everything measured is kept; {advice}"


IN_TURN = tuple(
    Cell("sm", Direction.H2D, 16, 4096, sms=sms, pool_bytes=1 << 28, reuse=Reuse.FRESH) for sms in (2, 4, 8)
)


def test_arms_that_another_leaves_are_visited_in_turn_without_it(tmp_path: Path) -> None:
    slot = Failing(IN_TURN[1])
    outcome = execute(tmp_path, slot, cells=IN_TURN)
    assert (outcome.measured, outcome.failed, slot.replaced) == (2, 1, 1)
    counting = load_run(tmp_path).visits
    assert {(one.cell.sms, one.round) for one in counting} == {(2, 0), (8, 0), (2, 1), (8, 1)}
    assert len({one.group for one in counting}) == 1


def test_after_a_lost_worker_each_arm_is_visited_by_itself(tmp_path: Path) -> None:
    slot = Failing(IN_TURN[1], {IN_TURN[2]: LostError("the worker died by SIGSEGV")})
    outcome = execute(tmp_path, slot, cells=IN_TURN)
    assert outcome.measured == 1
    assert {one.cell: one.kind for one in recorded(tmp_path, Failure)} == {IN_TURN[1]: "mismatch", IN_TURN[2]: "crash"}


def test_a_visit_in_turn_has_the_time_of_all_its_arms(tmp_path: Path) -> None:
    slot = Slot(disturbed=0)
    execute(tmp_path, slot, cells=IN_TURN, rounds=1)
    assert slot.deadline_s == sum(visit_deadline_s(cell, Sampling(rounds=1)) for cell in IN_TURN)


@pytest.mark.parametrize(
    ("status", "failed", "copies_failed", "code"),
    [
        ("interrupted", 3, 1, ExitCode.INTERRUPTED),
        ("complete", 0, 0, ExitCode.DONE),
        ("complete", 1, 0, ExitCode.FAILED_CELLS),
        ("complete", 0, 1, ExitCode.FAILED_CELLS),
        ("stopped", 0, 0, ExitCode.FAILED_CELLS),
    ],
)
def test_an_interruption_counts_before_failed_cells(
    status: RunStatus, failed: int, copies_failed: int, code: ExitCode
) -> None:
    assert SweepEnd(Path(), status, None, 1, failed, 0, copies_failed).exit_code is code


def test_arms_of_which_a_kill_left_some_are_made_again_together(tmp_path: Path) -> None:
    execute(tmp_path / "whole", Slot(disturbed=0), cells=IN_TURN)
    run = load_run(tmp_path / "whole")
    write_run(tmp_path / "cut", [*run.records][:-2], run.info)  # one of three arms of the last round is left
    slot = Slot(disturbed=0)
    execute(tmp_path / "cut", slot, RunWriter.reopen(tmp_path / "cut"), cells=IN_TURN)
    assert len(slot.made) == 3
    counting = load_run(tmp_path / "cut").visits
    assert [one.round for one in counting] == [0, 0, 0, 1, 1, 1]
    assert counting[3:] == recorded(tmp_path / "cut", Visit)[-3:]


def test_repeats_are_limited_on_a_host_that_is_never_quiet(tmp_path: Path) -> None:
    slot = Slot(disturbed=99, disturbs=len(CELLS))
    execute(tmp_path, slot)
    for number in range(2):
        repeats = [attempt for round_, _, attempt in slot.made if round_ == number and attempt]
        assert len(repeats) == len(CELLS) // VISITS_A_REPEAT
