"""Relations between times that have to hold on any card."""

from dataclasses import replace
from itertools import compress
from statistics import mean, median

import pytest

from kvbench.cells.axes import Direction, Reuse, StreamState
from kvbench.cells.backend_facts import EMPTY
from kvbench.cells.cell import Cell
from kvbench.cells.units import gigabytes_per_second
from kvbench.engine.device import Device, TimedRegion
from kvbench.measure.bench import Bench
from kvbench.measure.roof import measure_ceiling, measure_roof, open_control, time_copies
from kvbench.measure.samples import DELAY_SPARE_US
from kvbench.measure.visit import FASTER_THAN_THE_LINK
from kvbench.measure.workload import VerificationError
from kvbench.results.schema import LEAST_HELD, EffectivePath, Visit
from kvbench.sweep.spec import Sampling
from tests.visits import bench_of, load_backends, measure

pytestmark = pytest.mark.gpu

BUSY_DELAY_US = 300
SAMPLING = Sampling(warmups=2, min_samples=7, max_samples=7, busy_delay_us=BUSY_DELAY_US)


@pytest.fixture(scope="module")
def bench(gpu: Device) -> Bench:
    return bench_of(1 << 30, BUSY_DELAY_US, gpu)


def taken(bench: Bench, cell: Cell) -> Visit:
    return measure(bench, load_backends()[cell.backend], cell, SAMPLING, seed=5, fault=None)


def best_gbps(bench: Bench, direction: Direction) -> float:
    """Return what large copies reach now at best: other users of the link only slow them."""
    copy_bytes, times_us = measure_ceiling(bench, direction, 5)
    return gigabytes_per_second(copy_bytes, min(times_us))


def middle(made: Visit, name: str) -> float:
    times_us: list[float] = getattr(made.samples, name)
    return median(times_us)


@pytest.mark.parametrize("backend", ["per_block", "batched", "triton"])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("state", StreamState)
def test_the_times_of_a_sample_contain_each_other(
    bench: Bench, backend: str, direction: Direction, state: StreamState
) -> None:
    made = taken(bench, Cell(backend, direction, 500, 65_536, state, sms=4))
    samples = made.samples
    # Of a chain, each time is a slope of its own: they differ by noise where the caller is what limits it.
    slack = 1.02 if state is StreamState.SUSTAINED else 1
    for caller_us, wall_us, cpu_us in zip(samples.caller_us, samples.wall_us, samples.cpu_us, strict=True):
        assert 0 < caller_us <= slack * wall_us
        assert cpu_us <= 1.1 * caller_us + 5
    assert set(samples.pending_before) == {state.pending}
    # 32 MB do not fit through any host link in 20 us.
    assert min(samples.wall_us) > 20
    assert not made.warnings
    if state.pending:
        assert middle(made, "event_us") < middle(made, "wall_us")
    assert (samples.event_us is None) == (state.ungated is StreamState.IDLE)


@pytest.mark.parametrize("pause_us", [0, 2_000])
def test_a_call_from_python_moves_its_blocks_and_its_floor_moves_none(bench: Bench, pause_us: int) -> None:
    cell = Cell("copier", Direction.H2D, 64, 4096, pause_us=pause_us)
    made, floor = taken(bench, cell), taken(bench, replace(cell, backend=EMPTY))
    assert made.verified_bytes >= 2 * cell.swap_bytes
    assert (floor.path, floor.verified_bytes) == (EffectivePath.NOTHING, 0)
    for visit in (made, floor):
        assert all(call <= wall for call, wall in zip(visit.samples.caller_us, visit.samples.wall_us, strict=True))


@pytest.mark.parametrize("backend", ["batched", "sm"])
@pytest.mark.parametrize("direction", Direction)
def test_a_closed_gate_counts_as_pending_work_and_an_open_one_as_none(
    bench: Bench, backend: str, direction: Direction
) -> None:
    """Visited in turn: the states with the same path differ by no more than noise, far less than a delay."""
    times_us: dict[StreamState, list[float]] = {}
    paths: dict[StreamState, set[EffectivePath]] = {}
    for _ in range(5):
        for state in (StreamState.IDLE, StreamState.OPENED, StreamState.BUSY, StreamState.GATED):
            made = taken(bench, Cell(backend, direction, 1024, 16 * 1024, state, reuse=Reuse.FRESH, pool_bytes=1 << 30))
            assert not made.warnings
            assert (mean(made.samples.pending_after) >= LEAST_HELD) == state.pending
            times_us.setdefault(state, []).append(middle(made, state.swap_clock))
            paths.setdefault(state, set()).add(made.path)
    assert median(times_us[StreamState.GATED]) == pytest.approx(median(times_us[StreamState.BUSY]), rel=0.03)
    if paths[StreamState.IDLE] != {EffectivePath.CPU_INLINE}:  # which varies with what else the host does
        # With the submission in them: of each, the visit that other work on the host held up least.
        assert min(times_us[StreamState.OPENED]) == pytest.approx(min(times_us[StreamState.IDLE]), rel=0.2)
    assert paths[StreamState.GATED] == paths[StreamState.BUSY]
    assert paths[StreamState.OPENED] == paths[StreamState.IDLE]


@pytest.mark.parametrize("direction", Direction)
def test_no_backend_beats_the_ceiling(bench: Bench, direction: Direction) -> None:
    reached, ceilings = {}, [best_gbps(bench, direction)]
    for backend in load_backends().keys() - {EMPTY}:
        made = taken(bench, Cell(backend, direction, 4000, 65_536, sms=16))
        reached[backend] = gigabytes_per_second(4000 * 65_536, middle(made, "wall_us"))
        ceilings.append(best_gbps(bench, direction))
    assert max(reached.values()) < 1.03 * max(ceilings), reached


@pytest.mark.parametrize("direction", Direction)
def test_control_copies_reach_the_ceiling(bench: Bench, direction: Direction) -> None:
    control = open_control(bench.device.name)
    rounds = [(min(time_copies(control, direction, 5)), best_gbps(bench, direction)) for _ in range(5)]
    control_us, ceilings = zip(*rounds, strict=True)
    assert gigabytes_per_second(control.copy_bytes, min(control_us)) == pytest.approx(max(ceilings), rel=0.1)


def test_large_copies_that_were_slow_fail_no_swap(bench: Bench) -> None:
    bench.best_gbps[Direction.H2D] = 1.0
    assert taken(bench, Cell("batched", Direction.H2D, 1000, 65_536)).samples
    assert bench.best_gbps[Direction.H2D] > 1.0


def test_a_swap_that_is_faster_than_large_copies_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    measure_ceiling(bench, Direction.H2D, 5)
    monkeypatch.setitem(FASTER_THAN_THE_LINK, "cuda", 0.2)
    with pytest.raises(VerificationError, match="faster than the link"):
        taken(bench, Cell("batched", Direction.H2D, 1000, 65_536))


def test_the_delay_keeps_the_stream_busy_as_long_as_it_says(bench: Bench) -> None:
    made = taken(bench, Cell("batched", Direction.H2D, 1, 4096, StreamState.BUSY))
    assert all(made.samples.pending_after)
    # the delay in front of a busy sample has this much to spare over the submission, which is short here
    asked_us = BUSY_DELAY_US + DELAY_SPARE_US
    assert asked_us * 0.7 < middle(made, "wall_us") < asked_us * 2


@pytest.mark.parametrize("streams", [1, 8])
@pytest.mark.parametrize("backend", ["per_block", "batched"])
def test_a_queue_stands_until_the_submission(bench: Bench, backend: str, streams: int) -> None:
    cell = Cell(backend, Direction.H2D, 1, 1 << 20, StreamState.BUSY, queued=200, streams=streams)
    made = taken(bench, cell)
    assert sum(made.samples.depth_held or ()) > len(made.samples) / 2
    assert all(made.samples.pending_before)


def test_more_sms_are_not_slower_where_one_is_far_from_the_ceiling(bench: Bench) -> None:
    one = taken(bench, Cell("triton", Direction.H2D, 4000, 4096, sms=1))
    eight = taken(bench, Cell("triton", Direction.H2D, 4000, 4096, sms=8))
    assert middle(eight, "wall_us") < 0.5 * middle(one, "wall_us")


def test_the_path_of_a_kernel_and_of_single_copies_is_never_the_cpu(bench: Bench) -> None:
    assert taken(bench, Cell("triton", Direction.H2D, 1000, 4096, sms=4)).path == EffectivePath.SM_KERNEL
    assert taken(bench, Cell("per_block", Direction.H2D, 1000, 4096)).path == EffectivePath.COPY_ENGINE


@pytest.mark.parametrize("backend", ["batched", "sm"])
@pytest.mark.parametrize("direction", Direction)
def test_execution_does_not_depend_on_the_delay(gpu: Device, bench: Bench, backend: str, direction: Direction) -> None:
    """Whatever the length of a delay that outlasts the submission: within 3%, of several visits in turn."""
    cell = Cell(backend, direction, 2000, 16_384, StreamState.BUSY, sms=4 if backend == "sm" else None)
    times_us: dict[int, list[float]] = {50: [], 5000: []}
    held: list[float] = []
    for _ in range(5):
        for delay_us, executions_us in times_us.items():
            delayed = replace(bench, region=TimedRegion(gpu.driver, bench.stream.handle, delay_us * 1000))
            # a busy host can hold a submission up for longer than the delay: then the sample has no execution
            samples = taken(delayed, cell).samples
            outlasted = list(compress(samples.event_us or [], samples.pending_after))
            held.append(len(outlasted) / len(samples))
            executions_us += outlasted
    assert mean(held) > 0.5
    short_us, long_us = (median(executions_us) for executions_us in times_us.values())
    assert short_us == pytest.approx(long_us, rel=0.03)


@pytest.mark.parametrize("direction", Direction)
def test_a_kernel_is_sustained_as_fast_as_it_executes(bench: Bench, direction: Direction) -> None:
    """Its submission takes no longer than its copies: one behind the other they keep the stream at work."""
    cell = Cell("sm", direction, 2000, 16_384, StreamState.BUSY, sms=4)
    sustained = replace(cell, stream_state=StreamState.SUSTAINED)
    turns = [(middle(taken(bench, cell), "event_us"), middle(taken(bench, sustained), "wall_us")) for _ in range(5)]
    execution_us, sustained_us = (median(times_us) for times_us in zip(*turns, strict=True))
    assert sustained_us == pytest.approx(execution_us, rel=0.1)


@pytest.mark.parametrize("direction", Direction)
def test_small_blocks_side_by_side_are_no_slower_than_scattered_ones(bench: Bench, direction: Direction) -> None:
    rounds = [(measure_roof(bench, direction, 3, number), best_gbps(bench, direction)) for number in range(5)]
    roofs, ceilings = zip(*rounds, strict=True)
    dense_us, scattered_us, copy_us = (
        min(min(getattr(roof, name)) for roof in roofs) for name in ("dense_us", "scattered_us", "copy_us")
    )
    assert dense_us < 1.1 * scattered_us
    assert gigabytes_per_second(roofs[0].copy_bytes, copy_us) < 1.03 * max(ceilings)
