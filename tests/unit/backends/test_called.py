"""The copier as an engine calls it, and the floor: what is verified, what has a rate, and what may be chosen."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.backends.called import CopierFromPython, EmptyLaunch
from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.cells.faults import Fault
from kvbench.cells.policy import Choice
from kvbench.ground.errors import UsageError
from kvbench.measure.bench import Bench
from kvbench.measure.workload import VerificationError
from kvbench.results import load_run
from kvbench.results.schema import EffectivePath
from kvbench.sweep.spec import Sampling
from tests.command import BRIEF, output, swept, tiny
from tests.swaps import mixed_swap, run_and_compare
from tests.visits import bench_of, measure

CELL = Cell("copier", Direction.H2D, 64, 4096)
SAMPLING = Sampling(rounds=1, warmups=1, min_samples=5, max_samples=5, cell_seconds=0.01)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    yield (bench := bench_of(4 << 20))
    bench.stream.synchronize()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cells = tiny(backend="batched,per_block,copier,empty", pause="0,1ms")
    return swept(tmp_path_factory.mktemp("called"), *cells, *BRIEF)


@pytest.mark.parametrize("direction", Direction)
def test_the_copier_called_from_python_moves_the_right_bytes(bench: Bench, direction: Direction) -> None:
    swap = mixed_swap([1, 7, 64, 4096, 5000] * 20, seed=4)
    assert run_and_compare(bench.device, CopierFromPython(), direction, swap) == (0, 0, None)


def test_the_copier_called_from_python_is_verified(bench: Bench) -> None:
    assert measure(bench, CopierFromPython(), CELL, SAMPLING, 1, None).verified_bytes >= CELL.swap_bytes
    with pytest.raises(VerificationError):
        measure(bench, CopierFromPython(), CELL, SAMPLING, 1, Fault("corrupt@descriptor", 3))


def test_an_empty_launch_says_that_nothing_was_copied_and_compared(bench: Bench) -> None:
    visit = measure(bench, EmptyLaunch(), replace(CELL, backend="empty"), SAMPLING, 1, None)
    assert (visit.path, visit.verified_bytes) == (EffectivePath.NOTHING, 0)
    assert len(visit.samples) == SAMPLING.min_samples


def test_an_empty_launch_has_times_and_no_rate(run: Path) -> None:
    frame = load_run(run).table.set_index("backend")
    assert (frame.loc["empty", "swap_us_median"] > 0).all()
    assert frame.loc["empty", ["gbps", "latency_gbps", "roof_share", "ceiling_share"]].isna().all(axis=None)
    copied = frame.loc["copier"]
    assert (copied["gbps"] > 0).tolist() == (copied["pause_us"] == 0).tolist()


@pytest.mark.parametrize("name", ["copier", "empty", "empty_torch"])
def test_a_recommendation_names_neither(name: str, run: Path) -> None:
    assert name not in output("show", run, "--table").split()
    with pytest.raises(UsageError, match=name):
        Choice.parse(name)
