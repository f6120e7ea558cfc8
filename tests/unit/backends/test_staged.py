"""Swaps through a buffer on the device, on the device cpu: bytes, faults, and what the results say of the buffer."""

from dataclasses import replace

import pytest

from kvbench.backends.staged import Staged
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.cells.units import KIB, MIB
from kvbench.engine.device import STREAM_STATES, Device, open_device
from kvbench.engine.faults import Fault, FaultPlan
from kvbench.measure.bench import Bench
from kvbench.measure.workload import VerificationError
from kvbench.results import Visit
from kvbench.results.schema import EffectivePath
from kvbench.sweep.spec import Sampling
from tests.swaps import mixed_swap, run_and_compare
from tests.visits import bench_of, measure

SAMPLING = Sampling(warmups=1, min_samples=3, max_samples=3, busy_delay_us=3000)
MIXED_SIZES = [*range(1, 130), 255, 576, 1000, 4097, 65_537, 1 << 20, (1 << 20) - 3]
PAGES = Cell(
    "staged",
    Direction.H2D,
    2000,
    4 * KIB,
    memory=None,
    pattern=Pattern.parse("tensors-100"),
    host_pattern=Pattern.parse("page-first-100"),
    pool_bytes=32 * MIB,
)


@pytest.fixture(scope="module")
def cpu() -> Device:
    return open_device("cpu", FaultPlan())


@pytest.fixture(scope="module")
def bench(cpu: Device) -> Bench:
    return bench_of(32 * MIB, SAMPLING.busy_delay_us, cpu)


def visit(bench: Bench, cell: Cell, fault: Fault | None = None) -> Visit:
    return measure(bench, Staged(), cell, SAMPLING, seed=5, fault=fault)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("state", STREAM_STATES)
def test_mixed_sizes_at_any_alignment_arrive(cpu: Device, direction: Direction, state: StreamState) -> None:
    swap = mixed_swap(MIXED_SIZES * 2, seed=11)
    assert run_and_compare(cpu, Staged(), direction, swap, times=3, state=state) == (0, 0, None)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("state", StreamState)
def test_pages_of_the_host_are_swapped_with_every_byte_in_place(
    bench: Bench, direction: Direction, state: StreamState
) -> None:
    seen = visit(bench, replace(PAGES, direction=direction, stream_state=state))
    assert seen.verified_bytes > 2 * PAGES.swap_bytes
    assert seen.path == EffectivePath.HOST_THREAD
    assert seen.staging_bytes is not None
    assert 2 * MIB <= seen.staging_bytes < PAGES.swap_bytes


# Of the first chunk: a piece of host memory, or a block.
PIECE, BLOCK = {Direction.H2D: 3, Direction.D2H: 785}, 100


@pytest.mark.parametrize(
    ("direction", "fault"),
    [
        *((direction, Fault("corrupt@descriptor", BLOCK)) for direction in Direction),
        *((direction, Fault("corrupt@descriptor", PIECE[direction])) for direction in Direction),
        (Direction.H2D, Fault("stray@descriptor", BLOCK)),
        (Direction.D2H, Fault("stray@descriptor", PIECE[Direction.D2H])),
    ],
)
def test_a_wrong_byte_is_found_on_either_side_of_the_buffer(bench: Bench, direction: Direction, fault: Fault) -> None:
    with pytest.raises(VerificationError, match="bytes are wrong"):
        visit(bench, replace(PAGES, direction=direction), fault)


def test_staged_takes_the_axes_of_the_kernel_on_a_gpu(cpu: Device) -> None:
    facts = cpu.facts()
    assert Staged().axes(facts) == frozenset()
    assert Staged().axes(replace(facts, kind="cuda")) == {"memory", "sms", "kernel"}
    assert Staged().unavailable(facts) is None
