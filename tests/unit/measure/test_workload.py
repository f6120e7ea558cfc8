"""The pools' bytes are known from their place, and comparing afterwards finds any byte that is wrong."""

import ctypes
import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvbench.backends.auto import DEFAULTS, copier_for
from kvbench.cells.axes import Direction, Memory, Reuse, slots_of
from kvbench.cells.blocks import misfit, region_bytes
from kvbench.cells.cell import Cell
from kvbench.cells.faults import FaultPlan
from kvbench.cells.pattern import AS_PATTERN, Pattern
from kvbench.engine.device import DIRECTIONS, Device, MemoryKind, Stream, SwapMemory, open_device, per_block
from kvbench.measure import workload as module
from kvbench.measure.layout import lay_out
from kvbench.measure.pools import Pool, Pools, Spots
from kvbench.measure.workload import EDGE_BYTES, VerificationError, Workload

POOL_BYTES = 1 << 20
# Of the GPU, and of the host where it has another one.
PATTERNS = ["shuffled", "contiguous", "reversed", "runs-2", "tensors-2", *(f"tensors-4 {host}" for host in (
    "page-first-4", "page-first-2+2", "page-first-4x2", "page-first-4/runs-2", "fragments-2x3x4"))]  # fmt: skip
seeds = st.integers(0, 2**63)


@dataclass
class Bench:
    """Pools on the cpu device, whose addresses are plain memory."""

    device: Device
    stream: Stream
    pools: Pools

    def workload(self, cell: Cell, submissions: int = 4, seed: int = 1) -> Workload:
        rng = np.random.default_rng(seed)
        return Workload(self.pools, cell, lay_out(cell, submissions, rng), rng)

    def swap(self, workload: Workload, direction: Direction) -> None:
        """Copy every block of the current set."""
        memory = workload.memories[0]
        lists = (memory.sources, memory.destinations, memory.sizes)
        per_block(self.device.driver, *lists, DIRECTIONS[direction]).submit(self.stream.handle)
        self.stream.synchronize()

    def wrong_bytes(self, cell: Cell) -> int:
        """Count the bytes of the destination that are not those at rest."""
        whole = np.array([0], np.uint64), np.array([POOL_BYTES], np.uint64)
        return self.pools.audit_at_rest(cell, 1, *whole).wrong_bytes


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    device = open_device("cpu", FaultPlan())
    stream = Stream(device.driver)
    yield Bench(device, stream, Pools(device, stream, POOL_BYTES))
    stream.synchronize()


def flip(address: int, bits: int) -> None:
    ctypes.c_uint8.from_address(address).value ^= bits


def whole(bench: Bench) -> bool:
    """Whether both pools hold what they hold at rest."""
    return all(bench.wrong_bytes(Cell("any", direction, 1, 64)) == 0 for direction in Direction)


def cell_of(
    direction: Direction, blocks: int, block_bytes: int, patterns: str, reuse: Reuse, memory: str, pool_bytes: int,
    sizes: str,
) -> Cell:  # fmt: skip
    if slots_of(memory):
        block_bytes = 1 << (block_bytes.bit_length() - 1)
    pattern, *host = map(Pattern.parse, patterns.split())
    whole = blocks * (8 if host else 2 if pattern.terms or pattern.run > 1 else 1)
    cell = Cell("any", direction, whole, block_bytes, pattern=pattern, memory=memory, sizes=sizes)
    return replace(cell, reuse=reuse, pool_bytes=pool_bytes, host_pattern=[*host, AS_PATTERN][0])


cells = st.builds(
    cell_of, st.sampled_from(Direction), st.integers(1, 20), st.integers(1, 300) | st.integers(5000, 6000),
    st.sampled_from(PATTERNS), st.sampled_from(Reuse),
    st.sampled_from([Memory.ALLOCATED, Memory.SHARED, "slots-8KiBx3"]), st.sampled_from([0, POOL_BYTES]),
    st.sampled_from(["equal", "alternate-8", "last-2"]),
).filter(lambda cell: misfit(cell) is None and region_bytes(cell, 4) <= POOL_BYTES)  # fmt: skip


def checked(rows: NDArray[np.uint64], cell: Cell) -> tuple[list[int], list[int]]:
    """Return the offsets of all bytes of the blocks in `rows`, and of those that lie right beside them."""
    size, edge = cell.block_bytes, min(cell.block_bytes, EDGE_BYTES)
    small, small_bytes = cell.small_blocks
    lengths = [small_bytes if index in small else size for index in range(len(rows))]
    inside = [row * size + byte for row, length in zip(rows.tolist(), lengths, strict=True) for byte in range(length)]
    beside = {
        at
        for row, length in zip(rows.tolist(), lengths, strict=True)
        for start, end in ((row * size - edge, row * size), (row * size + length, (row + 1) * size + edge))
        for at in range(start, end)
    }
    return inside, sorted(beside - set(inside))


@settings(max_examples=80, deadline=None)
@given(cell=cells, seed=seeds, swaps=st.integers(1, 5), data=st.data())
def test_one_wrong_byte_in_a_block_or_beside_it_is_found_and_put_right(
    bench: Bench, cell: Cell, seed: int, swaps: int, data: st.DataObject
) -> None:
    bench.pools.refill()  # an example that was given up halfway leaves its bytes behind
    workload = bench.workload(cell, seed=seed)
    used = []
    for _ in range(swaps):
        workload.advance()
        bench.swap(workload, cell.direction)
        used.append(workload.current() // np.uint64(cell.block_bytes))
    least = min(cell.block_bytes, cell.small_blocks[1] if cell.small_blocks[0] else cell.block_bytes)
    assert workload.verify() >= len(np.unique(np.concatenate(used))) * least
    assert bench.wrong_bytes(cell) == 0

    workload.advance()
    bench.swap(workload, cell.direction)
    rows = workload.current() // np.uint64(cell.block_bytes)
    inside, beside = checked(rows, cell)
    offset = data.draw(st.sampled_from(inside) | st.sampled_from(beside))
    destination = bench.pools.sides(cell.direction, cell.memory)[1]
    place = int(destination.places(np.uint64([offset]))[0])
    flip(destination.buffer.address + place, data.draw(st.integers(1, 255)))
    with pytest.raises(VerificationError) as caught:
        workload.verify()
    owners = np.flatnonzero(rows == offset // cell.block_bytes) if offset in inside else []
    where = f"in the block of descriptor {owners[0]}" if len(owners) else "outside of every copied block"
    assert str(caught.value).startswith("1 of ") or not len(owners)  # what lies between two blocks is compared twice
    assert str(caught.value).endswith(f"bytes are wrong, the first at offset {place}, {where}")
    assert bench.wrong_bytes(cell) == 0


@pytest.mark.parametrize("swaps", range(9))
def test_a_loop_leaves_its_lists_as_its_swaps_one_by_one(bench: Bench, swaps: int) -> None:
    cell = Cell("any", Direction.H2D, 2, 100, reuse=Reuse.FRESH, pool_bytes=POOL_BYTES)
    one_by_one, looped = (bench.workload(cell, submissions=3) for _ in range(2))
    contents = looped.contents()
    for number in range(swaps):
        one_by_one.advance()
        for array, sets in zip(looped.arrays(), contents, strict=True):
            array[:] = sets[number % 3]
    looped.passed(swaps)
    for _ in range(4):
        assert (looped.overwrote, looped._used) == (one_by_one.overwrote, one_by_one._used)
        for workload in (one_by_one, looped):
            workload.advance()
        assert list(map(list, looped.arrays())) == list(map(list, one_by_one.arrays()))


@pytest.mark.parametrize("memory", [None, *Memory, "slots-8KiBx3"])
def test_a_pool_is_made_of_its_memory_and_its_slots_are_registered_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch, memory: str | None
) -> None:
    slots, call, at = 3 if memory == "slots-8KiBx3" else 0, mock.call, 1 << 20
    calls, device = mock.Mock(), mock.Mock(driver="driver")
    calls.Buffer.return_value = mock.Mock(address=at, size_bytes=9 << 13)
    gc.collect()  # pools that other tests left in a cycle give up their slots now, not among these calls
    for name in ("Buffer", "register_pages", "unregister_pages"):
        monkeypatch.setattr(f"kvbench.measure.pools.{name}", getattr(calls, name))
    pool = Pool(device, 20 << 10, 1, memory)
    kind = "mapped" if slots else (memory or "device").replace("-", "_").lower()
    places = [at + slot * (24 << 10) for slot in range(slots)]
    made = [call.Buffer("driver", MemoryKind[kind], slots * (24 << 10) or 20 << 10)]
    made += [call.register_pages("driver", place, 8 << 10) for place in places]
    assert calls.mock_calls == made
    del pool
    assert calls.mock_calls == made + [call.unregister_pages("driver", place) for place in places]


def test_the_oldest_pool_of_the_host_makes_room_for_one_that_is_pinned_otherwise(bench: Bench) -> None:
    pools = Pools(bench.device, bench.stream, POOL_BYTES, host_pools=2)
    oldest, usual = weakref.ref(pools.host_pool(Memory.SHARED)), pools.host_pool(None)
    for memory in (Memory.SHARED, Memory.REGISTERED):
        assert (pools.host_pool(Memory.ALLOCATED), pools.host_pool(memory)) == (usual, pools.host_pool(memory))
        assert replace(bench, pools=pools).wrong_bytes(Cell("any", Direction.D2H, 1, 64, memory=memory)) == 0
    assert oldest() is None
    assert [pools.holds(memory) for memory in (None, Memory.REGISTERED, Memory.SHARED)] == [True, True, False]


def test_what_a_guarded_list_takes_is_known(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, clock = bench.workload(Cell("any", Direction.H2D, 16, 100)), mock.Mock()
    clock.perf_counter.side_effect = [1.0, 3.5]
    monkeypatch.setattr(module, "time", clock)
    workload.guarded = True
    workload.advance()
    bench.swap(workload, Direction.H2D)
    workload.verify()
    assert workload.guarded_s == 2.5
    ((slept_s,), _) = clock.sleep.call_args
    assert 0.5 <= slept_s / module.WATCHED_S <= 1.5


@pytest.mark.parametrize("direction", Direction)
def test_a_swap_the_wrong_way_is_found(bench: Bench, direction: Direction) -> None:
    """It leaves both sides equal: what was put in the source counts, not what stands there now."""
    workload = bench.workload(Cell("any", direction, 16, 100))
    workload.advance()
    there = workload.memories[0]
    swap = per_block(bench.device.driver, there.destinations, there.sources, there.sizes, DIRECTIONS[direction])
    swap.submit(bench.stream.handle)
    bench.stream.synchronize()
    with pytest.raises(VerificationError, match="bytes are wrong"):
        workload.verify()
    assert whole(bench)


def test_blocks_that_nobody_compared_are_put_back_before_the_next_visit(bench: Bench) -> None:
    (workload := bench.workload(Cell("any", Direction.H2D, 16, 100))).advance()
    bench.swap(workload, Direction.H2D)
    workload.leave()
    assert not whole(bench)
    bench.pools.rest()
    assert whole(bench)


@pytest.mark.parametrize("direction", Direction)
def test_a_swap_of_yesterday_does_not_pass_for_one_of_today(bench: Bench, direction: Direction) -> None:
    """What a comparison has seen is put back: the destination says nothing of it any more."""
    cell = Cell("any", direction, 16, 100)
    workload = bench.workload(cell)
    workload.advance()
    bench.swap(workload, direction)
    workload.verify()
    assert whole(bench)
    for again in (workload, bench.workload(cell)):
        again.advance()
        with pytest.raises(VerificationError, match="in the block of descriptor"):
            again.verify()
        bench.swap(again, direction)
        again.advance()
        again.verify()


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("pattern", ["shuffled", "runs-4", "tensors-4/runs-2", "fragments-4x2"])
def test_a_copier_takes_blocks_in_registered_slots_alone(bench: Bench, direction: Direction, pattern: str) -> None:
    cell = Cell("auto", direction, 64, 1024, pattern=Pattern.parse(pattern), memory="slots-16KiBx3", reuse=Reuse.FRESH)
    workload = bench.workload(replace(cell, pool_bytes=POOL_BYTES))
    host = bench.pools.host_pool(cell.memory).buffer
    assert Pool(bench.device, 17 << 10, 1, cell.memory).buffer.size_bytes == 2 * 3 * (16 << 10)  # whole slots
    copier = copier_for(bench.device, [DEFAULTS]).engine
    for _ in range(3):
        workload.advance()
        memory, stride = workload.memories[0], 3 * (16 << 10)
        lists = memory.sources, memory.destinations
        inside = (lists[direction is Direction.D2H] - np.uint64(host.address)) % np.uint64(stride)
        assert inside.max() <= (16 << 10) - cell.block_bytes
        copier.copy(*(array.view(np.int64) for array in (*lists, memory.sizes)), bench.stream.handle)
        bench.stream.synchronize()
    workload.verify()
    for apart in (16 << 10, (16 << 10) - 64):  # in the slot of another rank, and over the end of one
        block = [np.array([host.address + apart]), lists[1][:1].view(np.int64)]
        with pytest.raises(ValueError, match="entry 0"):
            copier.copy(*block[:: 1 if direction is Direction.H2D else -1], np.array([1024]), bench.stream.handle)


def arrays(memory: SwapMemory) -> list[NDArray[np.uint64]]:
    return [memory.sources, memory.destinations, memory.kernel_sources, memory.kernel_destinations]


@pytest.mark.parametrize("pattern", ["shuffled", "runs-4", "tensors-4", "tensors-2x12+2x4"])
@pytest.mark.parametrize("pool_bytes", [0, POOL_BYTES], ids=["dense", "scattered"])
def test_fresh_blocks_are_named_in_place_and_come_again_in_turn(bench: Bench, pattern: str, pool_bytes: int) -> None:
    cell = Cell("any", Direction.H2D, 32, 100, pattern=Pattern.parse(pattern), reuse=Reuse.FRESH, pool_bytes=pool_bytes)
    workload = bench.workload(cell, submissions=3)
    before, sizes = arrays(workload.memories[0]), workload.memories[0].sizes.copy()
    named = []
    for _ in range(4):
        workload.advance()
        assert all(now is then for now, then in zip(arrays(workload.memories[0]), before, strict=True))
        assert np.array_equal(workload.memories[0].sizes, sizes)
        named.append([array.copy() for array in before])
    for side in (0, 1):
        assert len({row for swap in named[:3] for row in swap[side].tolist()}) == 3 * cell.blocks
    assert all(np.array_equal(first, again) for first, again in zip(named[0], named[3], strict=True))
    assert [one.tolist() for one in workload.contents()[1]] == [named[at][1].tolist() for at in (1, 2, 0)]


def test_a_list_names_each_side_as_copies_and_as_kernels_reach_it() -> None:
    cell, sides = Cell("any", Direction.H2D, 4, 100), []
    for at in (1, 2):
        buffer = mock.Mock(address=at << 40, device_address=at << 50)
        sides.append(mock.Mock(buffer=buffer, places=lambda offsets, at=at: offsets + np.uint64(at)))
    (layout,) = lay_out(cell, 1, np.random.default_rng(1))
    made = Workload(mock.Mock(sides=lambda *_: sides), cell, [layout], np.random.default_rng(1)).memories[0]
    rows = (layout.source_rows, layout.destination_rows) * 2
    for at, by, one, named in zip((1, 2, 1, 2), (40, 40, 50, 50), rows, arrays(made), strict=True):
        assert named.tolist() == [(at << by) + 100 * row + at for row in one.tolist()]
    assert (made.starts, made.sizes.tolist()) == ((1 << 50, 2 << 50), [100] * 4)


def test_a_byte_far_from_every_block_is_found(bench: Bench) -> None:
    """By the spots that are compared in the rest of the pool, up to the last block."""
    cell = Cell("any", Direction.H2D, 2, 32768, reuse=Reuse.FRESH, pool_bytes=POOL_BYTES)
    workload = bench.workload(cell)
    workload.advance()
    bench.swap(workload, Direction.H2D)
    taken = workload.current() // np.uint64(cell.block_bytes)
    near = {int(row) + by for row in taken for by in (-1, 0, 1)}
    far = next(row for row in range(int(taken.max())) if row not in near)
    _, destination = bench.pools.sides(Direction.H2D, None)
    flip(destination.buffer.address + far * cell.block_bytes + 17, 1)
    with pytest.raises(VerificationError, match="outside of every copied block"):
        workload.verify()
    assert whole(bench)
    assert np.ptp([int(workload._inside(0, 1).sources[0]) % cell.block_bytes for _ in range(64)]) > cell.block_bytes / 2


@pytest.mark.parametrize("early", [0, -1])
def test_the_first_and_the_last_block_can_be_too_early(bench: Bench, early: int) -> None:
    workload = bench.workload(Cell("any", Direction.H2D, 600, 100, reuse=Reuse.FRESH))
    workload.advance()
    assert not workload.arrived_early()
    _, destination = bench.pools.sides(Direction.H2D, None)
    flip(destination.buffer.address + int(workload.current()[early]), 1)
    assert workload.arrived_early()
    bench.pools.refill()


@pytest.mark.parametrize("slots", [1, 2])
def test_a_swap_that_is_timed_meets_no_page_that_its_preparation_touched(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    """The spots of a watched swap lie in its blocks; those of others in the blocks of the swaps before."""
    cell = Cell("any", Direction.H2D, 8, 100, reuse=Reuse.FRESH, pool_bytes=POOL_BYTES)
    rng = np.random.default_rng(1)
    workload = Workload(bench.pools, cell, lay_out(cell, 8, rng), rng, slots)
    touched: list[set[int]] = []
    change = bench.pools.change

    def noted(cell: Cell, spots: Spots, seed: int | None) -> None:
        touched.append(set((spots.sources // np.uint64(cell.block_bytes)).tolist()))
        change(cell, spots, seed)

    monkeypatch.setattr(bench.pools, "change", noted)
    workload.guarded = True
    for watching in (False, True, False):
        workload.watching = watching
        workload.advance(slots)
        named = set(np.concatenate([one.source_rows for one in workload._written]).tolist())
        assert touched[-1] <= named if watching else not touched[-1] & named
        assert touched[-1]
    workload.leave()
    bench.pools.refill()
