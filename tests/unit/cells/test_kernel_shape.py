"""Kernel shapes: their texts, what no kernel can be, and which one a swap gets."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.backends.sm import shape_for
from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.cells.kernel_shape import KernelShape
from kvbench.errors import UsageError

shapes = st.one_of(
    st.builds(
        KernelShape,
        st.sampled_from(["lanes", "words"]),
        st.integers(1, 32),
        st.integers(1, 32),
        st.sampled_from([128, 1024, 65_536]),
    ),
    st.builds(
        KernelShape, st.just("bulk"), st.integers(1, 8), st.integers(3, 8), st.sampled_from([128, 656, 1024, 2048])
    ),
)


@given(shapes)
def test_a_shape_is_read_back_as_written(shape: KernelShape) -> None:
    assert KernelShape.parse(str(shape)) == shape


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("bulk", "is not a kernel"),
        ("ring-8x6x4KiB", "is not a kernel"),
        ("bulk-8x6", "is not a kernel"),
        ("bulk-0x6x4KiB", "0 warps is not from 1 to 32"),
        ("lanes-33x6x4KiB", "33 warps is not from 1 to 32"),
        ("bulk-8x2x4KiB", "depth 2 is not from 3 to 32"),
        ("lanes-8x0x4KiB", "depth 0 is not from 1 to 32"),
        ("lanes-8x8x100", "not a multiple of 16 from 128B to 64KiB"),
        ("lanes-8x8x128KiB", "not a multiple of 16 from 128B to 64KiB"),
        ("bulk-32x6x4KiB", "of shared memory, more than"),
    ],
)
def test_an_impossible_kernel_shape_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        KernelShape.parse(text)


def test_the_kernel_axis_accepts_a_shape_or_the_rule() -> None:
    texts = {"backend": "sm", "direction": "h2d", "blocks": "4", "block_size": "4KiB"}
    values = Cell.from_strings(texts | {"stream_state": "idle", "pattern": "shuffled"})
    assert values.kernel == "rule"
    assert "kernel" not in values.as_strings()
    shaped = Cell.from_strings(values.as_strings() | {"kernel": "bulk-8x6x4096"})
    assert shaped.kernel == "bulk-8x6x4KiB"
    assert "kernel=bulk-8x6x4KiB" in shaped.label
    with pytest.raises(UsageError, match=r"axis kernel=bulk-8x6: .* or rule$"):
        Cell.from_strings(values.as_strings() | {"kernel": "bulk-8x6"})


def asked(kernel: str = "rule", direction: Direction = Direction.H2D, pool_bytes: int = 0, blocks: int = 1024) -> Cell:
    return Cell("sm", direction, blocks, 4096, kernel=kernel, pool_bytes=pool_bytes)


@pytest.mark.parametrize("compute", [80, 90, 120])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("largest_bytes", [16, 4096, 16384])
def test_words_copy_few_small_blocks(largest_bytes: int, direction: Direction, compute: int) -> None:
    few = asked(direction=direction, pool_bytes=16 << 30, blocks=256)
    assert shape_for(few, largest_bytes, 16, compute).method == "words"
    assert shape_for(few, largest_bytes, 8, compute).method == "lanes"
    assert shape_for(few, 2 * largest_bytes + (1 << 20), 16, compute).method != "words"
    assert shape_for(replace(few, blocks=257), largest_bytes, 16, compute).method != "words"


@pytest.mark.parametrize("largest_bytes", [1, 656, 1024, 1025, 2048, 4096, 1 << 20])
@pytest.mark.parametrize("odd_bits", [1, 2, 4, 8])
def test_lanes_copy_blocks_that_bulk_copies_cannot(largest_bytes: int, odd_bits: int) -> None:
    assert shape_for(asked(), largest_bytes, 4096 | odd_bits, 90).method == "lanes"
    assert shape_for(asked(), largest_bytes, 4096, 80).method == "lanes"
    assert shape_for(asked(), largest_bytes, 4096, 90).method == "bulk"


@given(st.integers(1, 1 << 22))
def test_larger_blocks_never_get_smaller_pieces(largest_bytes: int) -> None:
    small, large = (shape_for(asked(), size, 16, 90) for size in (largest_bytes, 2 * largest_bytes))
    assert small.piece_bytes <= large.piece_bytes


def test_a_requested_kernel_is_used_or_refused() -> None:
    assert shape_for(asked("lanes-4x4x1KiB"), 4096, 16, 90) == KernelShape("lanes", 4, 4, 1024)
    for bits, compute in ((8, 90), (16, 80)):
        with pytest.raises(
            UsageError, match=r"^axis kernel=bulk-8x6x4KiB: bulk copies need sm_90 or newer and multiples of 16"
        ):
            shape_for(asked("bulk-8x6x4KiB"), 4096, bits, compute)
    with pytest.raises(UsageError, match=r"^axis kernel=words-8x4x4KiB: words need multiples of 16 bytes$"):
        shape_for(asked("words-8x4x4KiB"), 4096, 8, 90)


@pytest.mark.parametrize("largest_bytes", [576, 1024, 4096, 16384])
def test_lanes_copy_scattered_blocks_from_the_gpu(largest_bytes: int) -> None:
    """Bulk stores have fewer misses of the address translation in flight; loads and dense blocks have none to spare."""
    scattered = 16 << 30
    assert shape_for(asked(direction=Direction.D2H, pool_bytes=scattered), largest_bytes, 16, 90).method == "lanes"
    assert shape_for(asked(direction=Direction.D2H), largest_bytes, 16, 90).method == "bulk"
    assert shape_for(asked(pool_bytes=scattered), largest_bytes, 16, 90).method == "bulk"


# What a block of threads may have: on sm_90 and sm_100, sm_80, sm_86 and sm_89 and sm_120.
@pytest.mark.parametrize("shared_kib", [227, 163, 99])
@pytest.mark.parametrize("largest_bytes", [512, 1024, 2048, 4096, 1 << 20])
def test_the_rule_s_kernel_fits_the_device(shared_kib: int, largest_bytes: int) -> None:
    shape = shape_for(asked(), largest_bytes, 16, 120, shared_kib * 1024)
    assert shape.method == "bulk"
    assert shape.shared_bytes <= shared_kib * 1024
    whole = shape_for(asked(), largest_bytes, 16, 120)
    assert (shape.depth, shape.piece_bytes) == (whole.depth, whole.piece_bytes)


def test_lanes_copy_if_not_even_one_bulk_warp_fits() -> None:
    assert shape_for(asked(), 4096, 16, 120, 1024).method == "lanes"
