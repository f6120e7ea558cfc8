"""What a worker keeps between requests: pools, and cells that are visited in turn."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.cells.axes import Direction, Memory
from kvbench.cells.cell import Cell
from kvbench.engine.device import Stream, open_device
from kvbench.engine.faults import FaultPlan
from kvbench.measure import worker
from kvbench.measure import worker as module
from kvbench.measure.worker import Worker
from kvbench.measure.workload import Pools
from kvbench.results.schema import Visit
from kvbench.run import protocol
from kvbench.sweep.spec import Sampling

CELLS = [Cell("per_block", Direction.H2D, blocks, 1024, reuse="same") for blocks in (4, 8, 16)]


@pytest.mark.parametrize(("most", "kept"), [(1 << 20, CELLS), (10, CELLS[2:])])
def test_a_worker_keeps_no_more_cells_than_it_has_room_for(
    monkeypatch: pytest.MonkeyPatch, most: int, kept: list[Cell]
) -> None:
    monkeypatch.setattr(module, "MOST_KEPT", most)
    worker = Worker()
    worker.answer(protocol.Open(device="cpu", fault=None))
    asked = protocol.Reserve(pool_bytes=1 << 20, host_pools=1, backends=[], busy_delay_us=10, policy=None)
    assert worker.answer(asked) == protocol.Reserved(notes=[])
    for cell in CELLS:
        request = protocol.MeasureCells(
            cells=[cell.as_strings()], round=0, seed=1, sampling=Sampling(min_samples=3, max_samples=3),
            in_turn=protocol.InTurn(verify=True),
        )  # fmt: skip
        assert isinstance(worker.answer(request), protocol.MeasuredCells)
    assert list(worker._kept) == kept


def test_the_pages_of_every_pool_are_sampled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    worker.answer(protocol.Open(device="cpu", fault=None))
    worker.answer(protocol.Reserve(pool_bytes=1 << 20, host_pools=2, backends=[], busy_delay_us=10, policy=None))
    monkeypatch.setattr(module, "far_pages", lambda *_: ["far"])
    warnings = []
    for memory in (Memory.ALLOCATED, Memory.REGISTERED, Memory.REGISTERED, Memory.ALLOCATED):
        cell = replace(CELLS[0], memory=memory)
        sampling = Sampling(min_samples=3, max_samples=3)
        answer = worker.answer(protocol.MeasureCells(cells=[cell.as_strings()], round=0, seed=1, sampling=sampling))
        assert isinstance(answer, protocol.MeasuredCells)
        (made,) = answer.records
        assert isinstance(made, Visit)
        warnings.append(made.warnings)
    assert warnings == [[], ["far"], [], []]


def test_where_a_run_compares_kinds_of_memory_it_says_how_long_each_took_to_make() -> None:
    worker = Worker()
    worker.answer(protocol.Open(device="cpu", fault=None))
    memories = [Memory.ALLOCATED, Memory.REGISTERED, Memory.HUGE_1GIB]
    answer = worker.answer(
        protocol.Reserve(
            pool_bytes=1 << 20, host_pools=2, memories=memories, backends=[], busy_delay_us=10, policy=None
        )
    )
    assert isinstance(answer, protocol.Reserved)
    (note,) = answer.notes
    assert re.match(
        r"host pools of 1(\.0)? MiB: allocated [\d.e-]+ s, registered [\d.e-]+ s to populate, huge-1GiB ", note
    )


@pytest.mark.parametrize("host_pools", [1, 2])
def test_as_many_kinds_of_pools_exist_as_fit(host_pools: int) -> None:
    device = open_device("cpu", FaultPlan())
    pools = Pools(device, Stream(device.driver), 1 << 20, host_pools)
    for kind in (Memory.ALLOCATED, Memory.REGISTERED):
        pools.host_pool(kind)
    assert pools.holds(Memory.REGISTERED)
    assert pools.holds(Memory.ALLOCATED) is (host_pools == 2)


# The hash of what runs


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = tmp_path / "kvbench"
    shutil.copytree(Path(worker.__file__).parents[1], copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    monkeypatch.setattr(worker, "__file__", str(copy / "measure" / "worker.py"))
    return copy


@pytest.mark.parametrize(
    ("file", "shapes"),
    [
        ("backends/sm.py", True),
        ("cells/facts.py", True),  # connections
        ("measure/visit.py", True),
        ("sweep/spec.py", True),  # defaults of sampling, lengths of chains
        ("run/execution.py", True),  # repeats of disturbed visits
        ("run/worker_process.py", True),  # the environment of workers
        ("cells/policy.py", True),  # policies
        ("report/numbers.py", False),
        ("cli/show.py", False),
    ],
)
def test_a_change_of_what_shapes_a_measurement_is_another_build(package: Path, file: str, shapes: bool) -> None:
    before = worker.hash_of_what_runs()
    with (package / file).open("a") as changed:
        changed.write("CHANGED = 1\n")
    assert (worker.hash_of_what_runs() != before) is shapes


@pytest.mark.parametrize(
    ("old", "new", "shapes"),
    [
        ('"""Measure one visit', '"""Changed: measure one visit', False),
        ("CHECK_COPIES: Final = 4", "CHECK_COPIES: Final = 4  # changed", False),
        ("CHECK_COPIES: Final = 4", "CHECK_COPIES: Final = (\n    4\n)", False),
        ("CHECK_COPIES: Final = 4", "CHECK_COPIES: Final = 5", True),
        ("is faster than the link: large", "was faster than the link: large", True),
    ],
)
def test_comments_docstrings_and_layout_are_no_other_build(package: Path, old: str, new: str, shapes: bool) -> None:
    before, file = worker.hash_of_what_runs(), package / "measure" / "visit.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    assert (worker.hash_of_what_runs() != before) is shapes
