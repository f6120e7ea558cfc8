"""Which memory the swaps of a cell take, and the axes that say so: pool, reuse and pause."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cells.axes import Direction, Neighbour, Reuse
from kvbench.cells.blocks import MOST_DESCRIPTORS, default_pool_bytes, misfit, region_bytes, sets_of
from kvbench.cells.cell import AXES, Cell
from kvbench.errors import UsageError
from tests.strategies import GIB

MIB = 1 << 20
HOT = Cell("any", Direction.H2D, 256, 16_384)
FRESH = replace(HOT, reuse=Reuse.FRESH)
small = st.builds(
    Cell,
    backend=st.just("any"),
    direction=st.just(Direction.H2D),
    blocks=st.integers(1, 2000),
    block_bytes=st.integers(1, 1 << 22),
    reuse=st.sampled_from(Reuse),
    pool_bytes=st.just(0) | st.integers(1 << 12, 1 << 34),
).filter(lambda cell: misfit(cell) is None)


def test_the_same_blocks_are_one_set() -> None:
    assert sets_of(HOT, 1000) == sets_of(replace(HOT, pool_bytes=GIB), 1000) == 1


def test_fresh_blocks_repeat_only_after_they_left_all_caches() -> None:
    assert sets_of(FRESH, 20) == 20
    many = sets_of(FRESH, 100_000)
    assert many < 1000
    assert (many - 1) * FRESH.swap_bytes >= 512 * MIB


@pytest.mark.parametrize("by_time", [{"devices": 2}, {"neighbour": Neighbour.IDLE}])
def test_any_number_of_timed_swaps_has_fresh_blocks(by_time: dict[str, Any]) -> None:
    cell = replace(FRESH, **by_time)
    assert (sets_of(cell, 20) - 1) * cell.swap_bytes >= 512 * MIB
    assert region_bytes(cell, 20) >= sets_of(cell, 20) * cell.dense_bytes
    assert sets_of(replace(cell, pool_bytes=7 * cell.dense_bytes), 20) == 7
    assert sets_of(replace(cell, reuse=Reuse.SAME), 20) == 1
    small = replace(cell, blocks=16, block_bytes=4096)  # as fresh as large ones
    assert (sets_of(small, 20) - 1) * small.swap_bytes >= 512 * MIB


@pytest.mark.parametrize("blocks", [1, 16, 1024, 1 << 20])
def test_tiny_blocks_are_not_laid_out_by_the_million(blocks: int) -> None:
    cell = replace(FRESH, neighbour=Neighbour.IDLE, blocks=blocks, block_bytes=1)
    assert sets_of(cell, 20) * blocks <= max(blocks, MOST_DESCRIPTORS)


def test_a_small_pool_limits_the_number_of_sets() -> None:
    dense = FRESH.dense_bytes
    assert [sets_of(replace(FRESH, pool_bytes=dense * count), 20) for count in (1, 2, 7, 50)] == [1, 2, 7, 20]


@given(small, st.integers(1, 10_000))
def test_all_sets_fit_into_the_region(cell: Cell, submissions: int) -> None:
    count = sets_of(cell, submissions)
    assert 1 <= count <= submissions
    assert count * cell.dense_bytes <= region_bytes(cell, submissions)


def test_the_region_is_the_pool_or_else_as_small_as_possible() -> None:
    assert region_bytes(replace(FRESH, pool_bytes=GIB), 20) == GIB
    assert region_bytes(HOT, 20) == HOT.dense_bytes
    assert region_bytes(FRESH, 20) == 20 * FRESH.dense_bytes


@pytest.mark.parametrize(
    ("kind", "usable_bytes", "pool_bytes"),
    [
        ("cuda", 500 * GIB, 16 * GIB),
        ("cuda", 16 * GIB, 16 * GIB),
        ("cuda", 16 * GIB - 1, 8 * GIB),
        ("cuda", 100 * MIB, 64 * MIB),
        ("cpu", 500 * GIB, 32 * MIB),
        ("cpu", 20 * MIB, 16 * MIB),
        ("cpu", 0, MIB),
    ],
)
def test_the_default_pool_is_the_largest_power_of_two_that_fits(kind: str, usable_bytes: int, pool_bytes: int) -> None:
    assert default_pool_bytes(kind, usable_bytes) == pool_bytes


def test_a_pool_that_is_too_small_is_refused() -> None:
    dense = HOT.dense_bytes
    assert misfit(HOT) is None
    assert misfit(replace(HOT, pool_bytes=dense)) is None
    assert misfit(replace(HOT, pool_bytes=4 * MIB)) == "256 blocks of 16KiB do not fit into a pool of 4MiB"


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("pool", "dense,16GiB", (0, 16 * GIB)),
        ("pool", "4KiB", (4096,)),
        ("pool", "64MiB:1GiB:x4", (64 * MIB, 256 * MIB, GIB)),
        ("reuse", "fresh,same", (Reuse.FRESH, Reuse.SAME)),
        ("pause", "0,200us,5ms,1000ms", (0, 200, 5000, 1_000_000)),
        ("pause", "200us:1ms:+200us", (200, 400, 600, 800, 1000)),
    ],
)
def test_pool_reuse_and_pause_are_parsed_by_their_grammar(name: str, text: str, values: tuple[object, ...]) -> None:
    assert AXES[name].parse(text) == values
    assert AXES[name].parse(",".join(AXES[name].write(value) for value in AXES[name].parse(text))) == values


@pytest.mark.parametrize(
    ("name", "text", "right"),
    [
        ("pool", "0", "not dense or a size from 4KiB to 16TiB"),
        ("pool", "4095", "not dense or a size from 4KiB to 16TiB"),
        ("pool", "17000GiB", "not dense or a size from 4KiB to 16TiB"),
        ("pool", "tight", "is not a size"),
        ("pool", "dense:1GiB:x2", "the ends of a range must be numbers"),
        ("reuse", "hot", "not one of fresh, same"),
        ("pause", "5", "write 0, or a number with us or ms, up to 1000ms"),
        ("pause", "1001ms", "write 0, or a number with us or ms, up to 1000ms"),
        ("pause", "1s", "write 0, or a number with us or ms, up to 1000ms"),
        ("pause", "-1ms", "write 0, or a number with us or ms, up to 1000ms"),
    ],
)
def test_an_invalid_pool_reuse_or_pause_is_refused_with_the_right_form(name: str, text: str, right: str) -> None:
    with pytest.raises(UsageError) as caught:
        AXES[name].parse(text)
    assert str(caught.value).startswith(f"axis {name}=")
    assert right in str(caught.value)


def test_the_command_always_names_pool_and_reuse_and_only_a_used_pause() -> None:
    assert "-a pool=dense -a reuse=same" in HOT.command()
    assert "pause" not in HOT.command()
    assert "-a pool=1GiB -a reuse=fresh -a pause=5ms" in replace(FRESH, pool_bytes=GIB, pause_us=5000).command()


def test_a_label_calls_the_same_dense_blocks_hot() -> None:
    assert HOT.hot
    assert "hot" in HOT.label.split()
    for other in (FRESH, replace(HOT, pool_bytes=GIB)):
        assert not other.hot
        assert "hot" not in other.label.split()
