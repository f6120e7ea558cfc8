"""What samples say of the stream, and what contains what; `make bench` compares times."""

from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import pytest

from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.facts import FLOORS
from kvbench.engine.device import Device
from kvbench.measure.bench import Bench
from kvbench.measure.roof import measure_ceiling
from kvbench.measure.visit import FASTER_THAN_THE_LINK
from kvbench.measure.workload import VerificationError
from kvbench.results.schema import EffectivePath, Visit
from kvbench.sweep.spec import Sampling
from tests.visits import bench_of, load_backends, measure

pytestmark = pytest.mark.gpu

BUSY_DELAY_US = 300
SAMPLING = Sampling(warmups=2, min_samples=7, max_samples=7, busy_delay_us=BUSY_DELAY_US)


@pytest.fixture(scope="module")
def bench(gpu: Device) -> Iterator[Bench]:
    with mock.patch("kvbench.measure.samples.DELAY_SPARE_US", 20_000):  # for a host that is busy
        yield bench_of(1 << 30, BUSY_DELAY_US, gpu)


def taken(bench: Bench, cell: Cell) -> Visit:
    return measure(bench, load_backends()[cell.backend], cell, SAMPLING, seed=5, fault=None)


@pytest.mark.parametrize("backend", ["per_block", "batched", "triton"])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("state", [state for state in StreamState if state is not StreamState.SUSTAINED])
def test_the_times_of_a_sample_contain_each_other(
    bench: Bench, backend: str, direction: Direction, state: StreamState
) -> None:
    samples = taken(bench, Cell(backend, direction, 500, 65_536, state, sms=4)).samples
    for caller_us, wall_us, cpu_us in zip(samples.caller_us, samples.wall_us, samples.cpu_us, strict=True):
        assert 0 <= cpu_us <= caller_us <= wall_us
    # A host that is busy can hold a submission up for longer than a delay, but not every one.
    assert any(samples.pending_before) == any(samples.pending_after) == state.pending
    # 32 MB do not fit through any host link in 20 us.
    assert min(samples.wall_us) > 20


@pytest.mark.parametrize("pause_us", [0, 2_000])
def test_a_call_from_python_moves_its_blocks_and_its_floor_moves_none(bench: Bench, pause_us: int) -> None:
    cell = Cell("copier", Direction.H2D, 64, 4096, pause_us=pause_us)
    made, *floors = (taken(bench, replace(cell, backend=name)) for name in ("copier", *sorted(FLOORS)))
    assert made.verified_bytes >= 2 * cell.swap_bytes
    assert {(floor.path, floor.verified_bytes) for floor in floors} == {(EffectivePath.NOTHING, 0)}
    for visit in (made, *floors):
        assert all(call <= wall for call, wall in zip(visit.samples.caller_us, visit.samples.wall_us, strict=True))


def test_large_copies_that_were_slow_fail_no_swap(bench: Bench) -> None:
    bench.best_gbps[Direction.H2D] = 1.0
    assert taken(bench, Cell("batched", Direction.H2D, 1000, 65_536)).samples
    assert bench.best_gbps[Direction.H2D] > 1.0


def test_a_swap_that_is_faster_than_large_copies_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    measure_ceiling(bench, Direction.H2D, 5)
    monkeypatch.setitem(FASTER_THAN_THE_LINK, "cuda", 1e-3)
    with pytest.raises(VerificationError, match="faster than the link"):
        taken(bench, Cell("batched", Direction.H2D, 1000, 65_536))


@pytest.mark.parametrize("streams", [1, 8])
@pytest.mark.parametrize("backend", ["per_block", "batched"])
def test_a_queue_stands_until_the_submission(bench: Bench, backend: str, streams: int) -> None:
    cell = Cell(backend, Direction.H2D, 1, 1 << 20, StreamState.BUSY, queued=200, streams=streams)
    made = taken(bench, cell)
    assert any(made.samples.depth_held or ())
    assert any(made.samples.pending_before)


def test_the_path_of_a_kernel_and_of_single_copies_is_never_the_cpu(bench: Bench) -> None:
    assert taken(bench, Cell("triton", Direction.H2D, 1000, 4096, sms=4)).path == EffectivePath.SM_KERNEL
    assert taken(bench, Cell("per_block", Direction.H2D, 1000, 4096)).path == EffectivePath.COPY_ENGINE
