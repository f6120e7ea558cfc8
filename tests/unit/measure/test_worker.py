"""What a worker keeps between requests: pools, and cells that are visited in turn."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from kvbench.cells.axes import Direction, Memory
from kvbench.cells.cell import Cell
from kvbench.measure import visit
from kvbench.measure import worker as module
from kvbench.measure.worker import Worker
from kvbench.results.schema import Visit
from kvbench.run import protocol
from kvbench.sweep.spec import Sampling
from tests import synthetic

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
    for cell in (*CELLS, elsewhere := replace(CELLS[0], memory=Memory.REGISTERED)):
        if cell is elsewhere:
            assert list(worker._kept) == kept
        request = protocol.MeasureCells(
            cells=[cell.as_strings()], round=0, seed=1, sampling=Sampling(min_samples=3, max_samples=3),
            in_turn=protocol.InTurn(verify=True),
        )  # fmt: skip
        assert isinstance(worker.answer(request), protocol.MeasuredCells)
    assert list(worker._kept) == [elsewhere]  # the pool of the others is gone


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


def test_every_visit_of_a_cell_or_of_its_group_has_blocks_of_its_own() -> None:
    asked = protocol.MeasureCells(cells=[], round=0, seed=1, sampling=Sampling())
    more = {"attempt": 1}, {"attempt": 2}, {"round": 1}, {"seed": 2}, {"group": "g"}
    changed = [asked, *(structs.replace(asked, **one) for one in more)]
    assert len({module._seed(request, CELLS[0]) for request in changed}) == len(changed)
    for request in changed:  # the same arms as before are visited in turn
        assert (module._seed(request, CELLS[0]) == module._seed(request, CELLS[1])) is (request.group == "g")


def test_times_of_an_answer_are_whole_nanoseconds() -> None:
    made = synthetic.visit(CELLS[0], 1.23456789)
    (rounded,) = module._rounded(protocol.MeasuredCells(records=[made])).records
    assert rounded.samples.event_us == [round(us, 3) for us in made.samples.event_us or ()] != made.samples.event_us


# The hash of what runs

STATEMENTS = module._statements


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A copy of the package, to change and put back, and a hash of its texts whole: a canonical form takes its time."""
    copy = tmp_path_factory.mktemp("copy") / "kvbench"
    shutil.copytree(Path(module.__file__).parents[1], copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "__file__", str(copy / "measure" / "worker.py"))
        patch.setattr(module, "_statements", str)
        yield copy, module.hash_of_what_runs()


@pytest.mark.parametrize(
    ("file", "shapes"),
    [
        ("backends/sm.py", True),
        ("cells/facts.py", True),  # connections
        ("sweep/spec.py", True),  # defaults of sampling, lengths of chains
        ("run/execution.py", True),  # repeats of disturbed visits
        ("run/worker_process.py", True),  # the environment of workers
        ("cells/policy.py", True),  # policies
        ("report/numbers.py", False),
        ("cli/show.py", False),
    ],
)
def test_a_change_of_what_shapes_a_measurement_is_another_build(
    package: tuple[Path, str], file: str, shapes: bool
) -> None:
    folder, before = package
    text = (folder / file).read_text()
    (folder / file).write_text(f"{text}CHANGED = 1\n")
    try:
        assert (module.hash_of_what_runs() != before) is shapes
    finally:
        (folder / file).write_text(text)


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
    assert (STATEMENTS(text.replace(old, new)) != STATEMENTS(text)) is shapes
