"""What a worker keeps between requests: pools, and cells that are visited in turn."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec import structs

from kvbench.cells.axes import Direction, Memory, Priority
from kvbench.cells.cell import Cell
from kvbench.engine.device import EngineError
from kvbench.ground.errors import KvbenchError
from kvbench.measure import visit
from kvbench.measure import worker as module
from kvbench.measure.neighbour import NeighbourError
from kvbench.measure.worker import Worker
from kvbench.measure.workload import VerificationError
from kvbench.results.schema import Ceiling, Control, Failure, Visit
from kvbench.run import protocol
from kvbench.sweep.spec import Sampling
from tests import synthetic

CELLS = [Cell("per_block", Direction.H2D, blocks, 1024, reuse="same") for blocks in (4, 8, 16)]
ASKED = protocol.MeasureCells(cells=[], round=0, seed=1, sampling=Sampling(min_samples=3, max_samples=3))


def worker_of(fault: str | None = None, **pools: Any) -> tuple[Worker, protocol.Answer]:
    """Return a worker on the device cpu, and what it said of its pools."""
    worker = Worker()
    with mock.patch.object(module, "hash_of_what_runs", return_value=""):  # takes longer than all else
        assert isinstance(worker.answer(protocol.Open(device="cpu", fault=fault)), protocol.Opened)
    asked = {"pool_bytes": 1 << 20, "host_pools": 1, "backends": [], "busy_delay_us": 10, "policy": None} | pools
    return worker, worker.answer(protocol.Reserve(**asked))


@pytest.mark.parametrize(("most", "kept"), [(1 << 20, CELLS), (10, CELLS[2:])])
def test_a_worker_keeps_no_more_cells_than_it_has_room_for(
    monkeypatch: pytest.MonkeyPatch, most: int, kept: list[Cell]
) -> None:
    monkeypatch.setattr(module, "MOST_KEPT", most)
    worker, reserved = worker_of(memories=[Memory.ALLOCATED])
    assert reserved == protocol.Reserved(notes=[])
    for cell in (*CELLS, elsewhere := replace(CELLS[0], memory=Memory.REGISTERED)):
        if cell is elsewhere:
            assert list(worker._kept) == kept
        request = structs.replace(ASKED, cells=[cell.as_strings()], in_turn=protocol.InTurn(verify=True))
        assert isinstance(worker.answer(request), protocol.MeasuredCells)
    assert list(worker._kept) == [elsewhere]  # the pool of the others is gone


def test_the_pages_of_every_pool_are_sampled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, _ = worker_of(host_pools=2)
    monkeypatch.setattr(module, "far_pages", lambda *_: ["far"])
    warnings = []
    for memory in (Memory.ALLOCATED, Memory.REGISTERED, Memory.REGISTERED, Memory.ALLOCATED):
        cell = replace(CELLS[0], memory=memory)
        answer = worker.answer(structs.replace(ASKED, cells=[cell.as_strings()]))
        assert isinstance(answer, protocol.MeasuredCells)
        (made,) = answer.records
        assert isinstance(made, Visit)
        warnings.append(made.warnings)
    assert warnings == [[], ["far"], [], []]


def test_where_a_run_compares_kinds_of_memory_it_says_how_long_each_took_to_make(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "far_pages", lambda *_: ["far"])
    _, answer = worker_of(host_pools=2, memories=[Memory.ALLOCATED, Memory.REGISTERED, Memory.HUGE_1GIB])
    assert isinstance(answer, protocol.Reserved)
    far, note, *also_far = answer.notes
    assert [far, *also_far] == ["far"] * 3  # of the two kinds that could be made
    assert re.match(
        r"host pools of 1(\.0)? MiB: allocated [\d.e-]+ s, registered [\d.e-]+ s to populate, huge-1GiB ", note
    )


def test_every_visit_of_a_cell_or_of_its_group_has_blocks_of_its_own() -> None:
    more = {"attempt": 1}, {"attempt": 2}, {"round": 1}, {"seed": 2}, {"group": "g"}
    changed = [ASKED, *(structs.replace(ASKED, **one) for one in more)]
    assert len({module._seed(request, CELLS[0]) for request in changed}) == len(changed)
    for request in changed:  # the same arms as before are visited in turn
        assert (module._seed(request, CELLS[0]) == module._seed(request, CELLS[1])) is (request.group == "g")


def test_times_of_an_answer_are_whole_nanoseconds() -> None:
    made = synthetic.visit(CELLS[0], 1.23456789)
    (rounded,) = module._rounded(protocol.MeasuredCells(records=[made])).records
    assert rounded.samples.event_us == [round(us, 3) for us in made.samples.event_us or ()] != made.samples.event_us


ARMS = [replace(CELLS[1], backend=backend, reuse="fresh") for backend in ("per_block", "batched", "merged")]


@pytest.mark.parametrize(
    ("cells", "start"),
    [(ARMS[1:2], protocol.Start(path="", place=1, number=6)), (ARMS, None), (ARMS[::2], None)],
    ids=["alone", "in turn", "own"],
)
def test_an_answer_has_a_record_of_each_arm_and_when_they_were_made(
    monkeypatch: pytest.MonkeyPatch, cells: list[Cell], start: protocol.Start | None
) -> None:
    worker, _ = worker_of(fault="corrupt@descriptor=2 when backend=batched")
    monkeypatch.setattr(module, "visit", visits := mock.Mock(side_effect=lambda *_: [*map(made, cells)]))
    monkeypatch.setattr(module, "Meeting", meetings := mock.Mock())
    monkeypatch.setattr(module, "is_own", lambda name: name != "batched")
    monkeypatch.setattr(worker._bench.threads, "ours", ours := mock.MagicMock())

    def made(cell: Cell) -> Visit:
        return structs.replace(synthetic.visit(cell, 9.0), warnings=["odd"])

    blocks = []
    for attempt in (0, 0, 1):
        clock = mock.Mock(time=lambda: 1700.9, monotonic_ns=mock.Mock(side_effect=[5_000_000, 9_250_000]))
        monkeypatch.setattr(module, "time", clock)
        asked = structs.replace(ASKED, cells=[*map(Cell.as_strings, cells)], group="g", attempt=attempt, start=start)
        times = {"began": 1700, "took_ms": 4.25, "span_ns": (5_000_000, 9_250_000)}
        paths = [made(cell).path + " (claimed)" * (cell.backend == "batched") for cell in cells]
        records = [structs.replace(made(cell), path=path, **times) for cell, path in zip(cells, paths, strict=True)]
        assert worker.answer(asked) == protocol.MeasuredCells(records=records)
        bench, arms, given, begin = visits.call_args.args
        assert (bench, given, begin is None) == (worker._bench, asked, start is None)
        assert [one.cell for one in arms.samplers] == cells
        assert [fault is not None for fault in arms._faults] == [cell.backend == "batched" for cell in cells]
        workloads = [one.workload for one in arms.samplers]
        for one in workloads:
            assert one.siblings == [other for other in workloads if other is not one]
        blocks.append([layout.source_rows.tolist() for one in workloads for layout in one._layouts])
        assert len({row for rows in blocks[-1] for row in rows}) == sum(map(len, blocks[-1]))
        assert begin is None or (meetings.call_args.args, begin) == ((start,), meetings.return_value.begin)
    assert blocks[0] == blocks[1] != blocks[2]
    assert (ours.called, worker._kept) == (cells == ARMS[::2], {})


@pytest.mark.parametrize("error", [VerificationError("odd"), NeighbourError("odd"), ValueError("odd")])
@pytest.mark.parametrize("raises", ["visit", "set_up"])
def test_a_failure_is_of_the_arm_whose_turn_it_was(
    monkeypatch: pytest.MonkeyPatch, raises: str, error: Exception
) -> None:
    worker, _ = worker_of()

    def fails(*asked: Any) -> Any:
        asked[1].current = 1
        raise error

    ready = mock.Mock()
    monkeypatch.setattr(module, "visit", fails)
    monkeypatch.setattr(module, "set_up", mock.Mock(side_effect=[ready, error if raises == "set_up" else ready, ready]))
    answer = worker.answer(structs.replace(ASKED, cells=[*map(Cell.as_strings, ARMS)], round=3))
    message = f"ValueError: {error}" if isinstance(error, ValueError) else str(error)
    kind: Any = "mismatch" if isinstance(error, VerificationError) else "error"
    failure = Failure(cell_text=ARMS[1].as_strings(), round=3, kind=kind, message=message, command="")
    assert answer == protocol.MeasuredCells(records=[failure])


def test_swaps_of_a_priority_have_a_stream_of_it() -> None:
    worker, _ = worker_of()
    handles = {}
    for _ in range(2):
        for priority in Priority:
            bench = worker._bench_of(replace(CELLS[0], priority=priority))
            assert handles.setdefault(priority, bench.stream.handle) == bench.stream.handle
            assert (bench.pools, bench.best_gbps) == (worker._bench.pools, worker._bench.best_gbps)
    assert len(set(handles.values())) == 3
    cell = replace(CELLS[0], priority=Priority.HIGH)
    answer = worker.answer(structs.replace(ASKED, cells=[cell.as_strings()]))
    assert [record.cell.priority for record in getattr(answer, "records", [])] == [Priority.HIGH]


@pytest.mark.parametrize("measured", [False, True])
def test_a_pace_that_is_a_share_is_one_of_the_ceiling_of_the_round(
    monkeypatch: pytest.MonkeyPatch, *, measured: bool
) -> None:
    worker, _ = worker_of()
    ceiling = mock.Mock(return_value=(1 << 20, [20.0, 25.0, 20.0]))  # 52.4 GB/s in the median
    monkeypatch.setattr(module, "measure_ceiling", ceiling)
    if measured:  # by this worker, and not by one that has crashed since
        worker.answer(protocol.MeasureCeiling(direction="h2d", round=0, samples=3))
    for pace, wanted in (("85%", 44.56), ("46GB/s", 46.0), ("none", None)):
        worker.answer(structs.replace(ASKED, cells=[(cell := replace(CELLS[0], pace=pace)).as_strings()]))
        assert worker._bench.request(cell, mock.Mock()).pace_gbps == wanted
    assert ceiling.call_count == 1


def test_copies_and_roofs_are_measured_as_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, _ = worker_of()
    named = {name: mock.Mock(return_value=[1.0, 2.0]) for name in ("measure_roof", "open_control", "time_copies")}
    named["measure_ceiling"] = ceiling = mock.Mock(return_value=(77, [3.0]))
    named["open_control"].return_value = control = mock.Mock(copy_bytes=99)
    for name, function in named.items():
        monkeypatch.setattr(module, name, function)
    asked: Any = {"direction": "d2h", "round": 4}
    assert worker.answer(protocol.MeasureCeiling(**asked, samples=2)) == Ceiling(**asked, swap_bytes=77, event_us=[3.0])
    assert worker.answer(protocol.MeasureRoof(**asked, samples=5)) == [1.0, 2.0]
    for _ in range(2):
        made = worker.answer(protocol.MeasureControl(**asked, samples=3))
        assert made == Control(**asked, copy_bytes=99, event_us=[1.0, 2.0])
    ceiling.assert_called_once_with(worker._bench, Direction.D2H, 2)
    named["measure_roof"].assert_called_once_with(worker._bench, Direction.D2H, 5, 4)
    named["open_control"].assert_called_once_with("cpu")
    named["time_copies"].assert_called_with(control, Direction.D2H, 3)
    for error in (KvbenchError("odd"), EngineError("odd")):
        ceiling.side_effect = error
        refused = protocol.Refused(message="odd", usage=isinstance(error, KvbenchError))
        assert worker.answer(protocol.MeasureCeiling(**asked, samples=2)) == refused


# The hash of what runs


def test_what_shapes_a_measurement_is_read_for_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sweep/ and run/ the lengths of chains, the defaults of sampling, repeats, and the environment of workers."""
    package, read, hashes = Path(module.__file__).parents[1], set[str](), set[str]()
    usual = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda file: (read.add(str(file.relative_to(package))), usual(file))[1])
    monkeypatch.setattr(module, "kernel_texts", list)
    for changed in (None, "backends/sm.py", "cells/facts.py", "sweep/spec.py"):
        text = usual(package / changed) if changed else ""
        monkeypatch.setattr(module, "_statements", lambda one, text=text: one + "CHANGED = 1\n" * (one == text))
        hashes.add(module.hash_of_what_runs())
    assert len(hashes) == 4
    wings = {str(file.relative_to(package)) for wing in ("backends", "cells", "engine", "engines", "measure")
             for file in (package / wing).rglob("*.py")}  # fmt: skip
    assert read == wings | {"sweep/spec.py", "run/worker_process.py", "run/execution.py", "run/schedule.py"}


COPIES = "CHECK_COPIES: Final = 4"


@pytest.mark.parametrize(
    ("old", "new", "shapes"),
    [
        ('"""Measure one visit', '"""Changed: measure one visit', False),
        (COPIES, f"{COPIES}  # changed", False),
        (COPIES, "CHECK_COPIES: Final = (\n    4\n)", False),
        (COPIES, "CHECK_COPIES: Final = 5", True),
        ("is faster than the link: large", "was faster than the link: large", True),
    ],
)
def test_comments_docstrings_and_layout_shape_no_measurement(old: str, new: str, shapes: bool) -> None:
    text = Path(visit.__file__).read_text()
    assert old in text
    assert (module._statements(text.replace(old, new)) != module._statements(text)) is shapes
