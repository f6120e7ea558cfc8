"""A replay makes the swaps of a trace with their own ids, and finds bytes that are wrong."""

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from kvbench.backends.base import Backend, PreparedSwap, SwapRequest
from kvbench.backends.driver_copies import Merged, PerBlock
from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.cells.faults import parse_faults
from kvbench.cells.pattern import Pattern
from kvbench.measure.bench import Bench
from kvbench.measure.replay import ReplaySampler, place, places
from kvbench.measure.workload import VerificationError, Workload
from kvbench.results import Visit
from kvbench.run.protocol import MeasureCells
from kvbench.sweep.spec import Replay, Sampling
from kvbench.sweep.swap_file import Header, Numbered, Swap, choose, selected, write_trace
from tests.unit.measure.test_visit import Recorded, honest
from tests.visits import bench_of, visited

POOL_BYTES = 1 << 20
SWAPS = [
    Swap(0.0, "h2d", 1, [7, 8, 9], [3, 2, 1]),
    Swap(1.0, "h2d", 2, [8, 0], [0, 40]),
    Swap(2.0, "h2d", 3, [10_000, 10_001, 10_002], [5, 6, 7]),
]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    yield (bench := bench_of(POOL_BYTES))
    bench.stream.synchronize()


def trace_of(folder: Path, descriptors: int, direction: Direction = Direction.H2D) -> Replay:
    swaps = [swap._replace(direction=direction.value) for swap in SWAPS]
    write_trace(folder / "trace.gz", Header(block_bytes=4 * 4096, descriptors=descriptors), swaps, {})
    return choose(folder / "trace.gz", 10, 0)


def replayed(
    bench: Bench, backend: Backend, trace: Replay, fault: str | None = None, direction: Direction = Direction.H2D
) -> Visit:
    blocks, pattern = 3 * trace.descriptors, Pattern.parse(f"tensors-{trace.descriptors}")
    cell = Cell(backend.name, direction, blocks, trace.row_bytes, pattern=pattern, sequence="trace")
    request = MeasureCells(cells=[cell.as_strings()], round=0, seed=0, sampling=Sampling())
    plan = parse_faults(fault)
    swaps = place(selected(trace)[direction.value], trace, POOL_BYTES)
    ready = ReplaySampler(bench, backend, cell, trace, swaps, (0, 0))
    return visited(bench, ready, request, plan.for_cell(cell))


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("descriptors", [1, 4])
def test_every_swap_is_made_and_all_its_bytes_are_compared(
    bench: Bench, descriptors: int, direction: Direction, tmp_path: Path
) -> None:
    made = replayed(bench, PerBlock(), trace_of(tmp_path, descriptors, direction), direction=direction)
    assert made.samples.swap_blocks == [3 * descriptors, 2 * descriptors, 3 * descriptors]
    assert made.samples.swap_numbers == [0, 1, 2]
    assert made.verified_bytes >= 2 * sum(len(swap.gpu) for swap in SWAPS) * 4 * 4096
    assert all(us > 0 for us in made.samples.wall_us)
    assert made.warnings == ["1 of 3 swaps of the trace placed closer together to fit the smaller pool"]


def test_each_swap_records_its_merged_pieces(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first swap descends on one side alone, the third ascends on both. The last alone is of the cell's size."""
    monkeypatch.setattr("kvbench.measure.visit._check_speed", held_against_the_link := mock.Mock())
    made = replayed(bench, Merged(), trace_of(tmp_path, 4))
    assert made.samples.pieces == [12, 8, 4]
    assert made.samples.event_us
    assert held_against_the_link.call_args.args[2] == made.samples.event_us[-1:]


@pytest.mark.parametrize("fault", ["corrupt@descriptor=20", "stray@descriptor=20"])
def test_a_wrong_byte_in_a_timed_swap_is_found(bench: Bench, fault: str, tmp_path: Path) -> None:
    trace = trace_of(tmp_path, 4)
    with pytest.raises(VerificationError):
        replayed(bench, PerBlock(), trace, fault)
    assert replayed(bench, PerBlock(), trace).verified_bytes


@pytest.fixture
def large_swaps(tmp_path: Path) -> Replay:
    """Three equal swaps of more blocks than a sample has."""
    swaps = [Swap(0.0, "h2d", number, [*range(900)], [*range(899, -1, -1)]) for number in range(3)]
    write_trace(tmp_path / "large.gz", Header(block_bytes=512, descriptors=1), swaps, {})
    return choose(tmp_path / "large.gz", 10, 0)


@pytest.mark.parametrize(("in_full", "most"), [(0, 256), (1, None)])
def test_large_swaps_behind_the_first_are_compared_by_a_sample_or_in_full(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, large_swaps: Replay, in_full: int, most: int | None
) -> None:
    monkeypatch.setattr("kvbench.measure.replay._COMPARED_IN_FULL", in_full)
    compared, verify = list[int | None](), Workload.verify
    monkeypatch.setattr(Workload, "verify", lambda one, most=None: (compared.append(most), verify(one, most))[1])
    assert replayed(bench, PerBlock(), large_swaps).verified_bytes >= 2 * (900 + 256 + 256) * 512
    assert compared[:8] == [None] * 4 + [most] * 4  # two look at the first swap before


@pytest.mark.parametrize("left_out", [range(0, 900, 50), range(450, 900)])
def test_a_large_swap_that_leaves_blocks_out_is_found(bench: Bench, large_swaps: Replay, left_out: range) -> None:
    class Lazy(PerBlock):
        """Copies one entry twice in place of some others, in the second swap: all of the first and last is compared."""

        made = 0

        def create(self, request: SwapRequest) -> PreparedSwap:
            Lazy.made += 1
            if Lazy.made == 3:  # the first is set up for the visit, and again for its turn
                for array in (request.memory.sources, request.memory.destinations):
                    array[list(left_out)] = array[1]
            return super().create(request)

    with pytest.raises(VerificationError):
        replayed(bench, Lazy(), large_swaps)
    assert replayed(bench, PerBlock(), large_swaps).verified_bytes


def test_a_swap_larger_than_the_pool_is_left_out(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, 4)
    ids = [*range(trace.capacity(POOL_BYTES) + 1)]
    swaps = [Numbered(number, Swap(0.0, "h2d", 1, blocks, blocks)) for number, blocks in enumerate((ids, ids[1:]))]
    assert [one.number for one in place(swaps, trace, POOL_BYTES)] == [1]


def test_a_smaller_pool_keeps_runs_and_keeps_ids_apart() -> None:
    placed_ids = places(np.array([100, 101, 102, 0, 50]), 10)
    assert placed_ids is not None
    assert len(set(placed_ids.tolist()) & {*range(10)}) == 5
    assert np.diff(placed_ids[:3]).tolist() == [1, 1]
    assert places(np.array([0]), 0) is None


def test_a_smaller_pool_joins_no_blocks_that_lie_apart() -> None:
    """Else they would merge into one copy, which the engine's do not."""
    ids = np.array([100, 101, 105, 200, 300, 0])
    placed_ids = places(ids, 12)
    assert placed_ids is not None
    assert ids[0] % 12 != placed_ids[0], "they do not fit as they wrap around"
    order = np.argsort(ids)
    assert (np.diff(placed_ids[order]) == 1).tolist() == (np.diff(ids[order]) == 1).tolist()


@pytest.mark.parametrize("direction", Direction)
def test_the_ids_of_either_side_are_those_of_the_trace(bench: Bench, direction: Direction, tmp_path: Path) -> None:
    seen: list[tuple[list[int], list[int]]] = []

    def noted(request: SwapRequest, number: int, stream: int) -> None:
        seen.append((request.memory.sources.tolist(), request.memory.destinations.tolist()))
        honest(request, number, stream)

    trace = trace_of(tmp_path, 1, direction)
    replayed(bench, Recorded(noted), trace, direction=direction)
    bases = [pool.buffer.address for pool in bench.pools.sides(direction, None)]
    rows = [
        [[(address - base) // (4 * 4096) - 1 for address in side] for base, side in zip(bases, one, strict=True)]
        for one in seen[2:]
    ]  # behind those that look at the first one
    ids = [([7, 8, 9], [3, 2, 1]), ([8, 0], [0, 40]), ([18, 19, 20], [5, 6, 7])]
    room = trace.capacity(POOL_BYTES)
    expected = [[[(one + by) % room for one in side] for side in sides[:: 1 if direction is Direction.H2D else -1]]
                for sides in ids for by in (room // 2, 0)]  # fmt: skip
    assert rows == expected
